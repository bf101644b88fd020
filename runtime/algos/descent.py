"""The parameter server's half of distributed update: gradients in, weights out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from runtime.algos.actor import ActorShape
from runtime.algos.configs import ImpalaConfig, SGDConfig
from runtime.algos.impala import Impala
from runtime.algos.method import Method
from runtime.algos.networks import Adam, Network, shortened


@dataclass(frozen=True, slots=True)
class DescentStats:
    """Of one update; 0-d tensors."""

    gradient_norm: Tensor

    def floats(self) -> dict[str, float]:
        """By name, as numbers."""
        return {"gradient_norm": float(self.gradient_norm)}


class Momentum:
    """Gradient descent with a heavy ball (Polyak 1964) on one flat tensor."""

    def __init__(self, flat: Tensor, lr: float, momentum: float) -> None:
        self._flat = flat
        self._momentum = momentum
        self.lr = lr
        self.mean = torch.zeros_like(flat)

    def step(self, gradient: Tensor) -> None:
        """Move the parameters against ``gradient`` (size,)."""
        self.mean.mul_(self._momentum).add_(gradient)
        self._flat.add_(self.mean, alpha=-self.lr)

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        return {"mean": self.mean}


class Descent(Method):
    """Weights that gradients from elsewhere move."""

    def __init__(
        self, shape: ActorShape, weights: Tensor, optimiser: Adam | Momentum, max_grad_norm: float
    ) -> None:
        """``weights`` (shape.size,) are what ``optimiser`` moves."""
        super().__init__(shape)
        self._weights = weights
        self._optimiser = optimiser
        self._most = max_grad_norm

    def update(self, gradient: Tensor) -> DescentStats:
        """One step against ``gradient`` (shape.size,)."""
        norm = gradient.norm()
        self._optimiser.step(shortened(gradient, self._most))
        self.updates += 1
        return DescentStats(norm)

    def policy_weights(self) -> Tensor:
        """Return all weights."""
        return self._weights

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that an update changes."""
        return {"weights": self._weights, **{f"weights.{k}": v for k, v in self._optimiser.tensors().items()}}

    def generators(self) -> dict[str, torch.Generator]:
        """Nothing is drawn."""
        return {}


def descent_on_examples(shape: ActorShape, config: SGDConfig, seed: int, device: str) -> Descent:
    """Make the parameter server for gradients of a cross entropy."""
    network = Network(shape, torch.Generator().manual_seed(seed), device)
    weights = network.arena.flat.detach()
    return Descent(shape, weights, Momentum(weights, config.lr, config.momentum), config.max_grad_norm)


def descent_of_impala(shape: ActorShape, config: ImpalaConfig, seed: int, device: str) -> Descent:
    """Make the parameter server for gradients of IMPALA's losses."""
    weights = Impala(replace(shape, others=0), config, seed, device).arena()
    return Descent(shape, weights, Adam(weights, config.lr), config.max_grad_norm)
