"""Learner of runs whose workers compute gradients: gradients in, weights out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from runtime.base.methods import ImpalaConfig
from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.algorithm import Algorithm, Stats
from runtime.rl.algos.impala import Impala
from runtime.rl.algos.optimisers import Adam, anneal, clip_grad_norm


@dataclass(frozen=True, slots=True)
class GradientServerStats(Stats):
    """Of one update; 0-d tensors."""

    gradient_norm: Tensor


class GradientServer(Algorithm):
    """Weights that are moved by gradients which workers computed."""

    def __init__(
        self,
        shape: ActorShape,
        weights: Tensor,
        optimiser: Adam,
        max_grad_norm: float,
        anneal_updates: int | None = None,
    ) -> None:
        """``weights`` (shape.size,) are what ``optimiser`` moves, by steps that get smaller if asked."""
        super().__init__(shape)
        self._weights = weights
        self._optimiser = optimiser
        self._max_grad_norm = max_grad_norm
        self._anneal_updates = anneal_updates

    def update(self, gradient: Tensor) -> GradientServerStats:
        """One step against ``gradient`` (shape.size,)."""
        anneal([self._optimiser], self.updates, self._anneal_updates)
        norm = gradient.norm()
        self._optimiser.step(clip_grad_norm(gradient, self._max_grad_norm))
        self.updates += 1
        return GradientServerStats(norm)

    def policy_weights(self) -> Tensor:
        """Return all weights."""
        return self._weights

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that an update changes."""
        return {"weights": self._weights, **{f"weights.{k}": v for k, v in self._optimiser.tensors().items()}}


def gradient_server_for_impala(shape: ActorShape, config: ImpalaConfig, seed: int, device: str) -> GradientServer:
    """Return the learner for gradients of IMPALA's losses, policy and value in one array."""
    weights = Impala(replace(shape, others=0), config, seed, device).arena()
    adam = Adam(weights, config.lr, eps=config.adam_eps)
    return GradientServer(shape, weights, adam, config.max_grad_norm, config.anneal_updates)
