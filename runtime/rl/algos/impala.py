"""IMPALA: an actor-critic that corrects for the age of its data with V-trace; with a clip it is APPO.

Espeholt et al., *IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures* (2018,
arXiv:1802.01561), section 4; the clipped form after Petrenko et al. 2020 (arXiv:2006.11751).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import mse_loss

from runtime.base.methods import ImpalaConfig
from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.actor_critic import (
    ActorCritic,
    backward_sums,
    clipped_objective,
    following_values,
    normalised,
    with_entropy,
    without_padding,
)
from runtime.rl.algos.algorithm import Algorithm, Stats
from runtime.rl.algos.optimisers import Adam, anneal, clip_grad_norm
from runtime.rl.buffers.ring_index import GOES_ON
from runtime.rl.buffers.rollout_buffer import RolloutBatch
from runtime.rl.device.captured import is_captured


@dataclass(frozen=True, slots=True)
class ImpalaStats(Stats):
    """Statistics of the last gradient step of an update; 0-d tensors."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    """In nats."""
    mean_ratio: Tensor
    """Mean importance ratio of the current to the acting policy; far from 1 the data is old."""


class Impala(ActorCritic):
    """IMPALA, or APPO if ``clip`` is set: rollouts in, weights out."""

    config: ImpalaConfig

    def __init__(
        self,
        shape: ActorShape,
        config: ImpalaConfig,
        seed: int,
        device: str = "cpu",
        *,
        precision: str = "float32",
        capture: bool | None = None,
    ) -> None:
        super().__init__(shape, config, seed, device, precision, capture)
        self._step = self.captured(self._learn)

    def update(self, batch: RolloutBatch) -> ImpalaStats:
        """Do one gradient step on a batch, or ``epochs`` of them."""
        anneal(self._optimisers.values(), self.updates, self.config.anneal_updates)
        reward = self.normalised_reward(batch)
        experience = (batch.obs, batch.action, batch.log_prob, reward, batch.next_obs, batch.ended)
        # No returns so far: the rewards are already scaled by them.
        columns = (*experience, batch.state, None, batch.absent)
        steps = [self._step(*columns) for _ in range(self.config.epochs)]
        self._count_observations(batch)
        self.updates += 1
        return ImpalaStats.of(steps[-1])

    def _learn(self, *columns: Any) -> Tensor:
        """Do one gradient step on the columns of a `RolloutBatch`; return the statistics as a vector."""
        gradient, stats = self.gradient(RolloutBatch(*columns), is_captured=is_captured(self.capture, *columns))
        self._descend(self.mean(gradient))
        return stats

    def arena(self) -> Tensor:
        """Copy all parameters: the policy's, then the value's."""
        return torch.cat([self.policy.arena.flat, self.value.arena.flat])

    def load_arena(self, weights: NDArray[np.float32]) -> None:
        """Load weights that ``arena`` returned."""
        size = self.policy.arena.flat.numel()
        self.policy.arena.flat.copy_(torch.from_numpy(weights[:size]))
        self.value.arena.flat.copy_(torch.from_numpy(weights[size:]))

    def gradient(self, batch: RolloutBatch, *, is_captured: bool = False) -> tuple[Tensor, Tensor]:
        """Return the gradient of the losses (size of the policy + size of the value,), and the statistics."""
        config = self.config
        obs, action, log_prob_old = (column.flatten(0, 1) for column in (batch.obs, batch.action, batch.log_prob))
        self._refresh()

        # Evaluated once: the targets are computed from the same numbers as the loss.
        log_prob, entropy, value = self._evaluate(obs, action)
        values = value.detach().view_as(batch.reward)
        next_value = following_values(self.value, values, batch.next_obs, batch.ended, is_captured=is_captured)
        ratio = (log_prob.detach() - log_prob_old).exp()
        reward, ratios = config.reward_scale * batch.reward, ratio.view_as(batch.reward)
        bounds = {"gamma": config.gamma, "rho_bar": config.rho_bar, "c_bar": config.c_bar}
        vs, advantage = v_trace(reward, values, next_value, batch.ended, ratios, **bounds)
        vs, advantage = vs.flatten(), advantage.flatten()
        log_prob, entropy, ratio, advantage, value, vs = without_padding(
            batch.absent, log_prob, entropy, ratio, advantage, value, vs
        )
        mean_entropy = entropy.mean()
        objective, policy_loss = self._policy_objective(log_prob, ratio, advantage)
        square = mse_loss(value, vs)

        objective = with_entropy(objective, mean_entropy, config.entropy_cost)
        gradient = self._gradient(objective, 0.5 * config.value_cost * square)
        stats = (policy_loss, 0.5 * square.detach(), mean_entropy, ratio.mean())
        return gradient, torch.stack([part.detach() for part in stats])

    def _policy_objective(self, log_prob: Tensor, ratio: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
        """Return the policy's objective, whose gradient is ascended, and the reported loss."""
        rho_bar, clip = self.config.rho_bar, self.config.clip
        if clip is None:
            objective = (log_prob * advantage).mean()
            return objective, -objective.detach()
        # `v_trace` has already weighted the advantage by min(rho_bar, ratio). The clipped objective multiplies by
        # the ratio itself, so that weight is divided out; 1e-6 keeps an impossible action finite.
        advantage = normalised(advantage / ratio.clamp(1e-6, rho_bar), self.mean, self.ranks)
        unclipped, clipped = ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage
        return clipped_objective(log_prob, unclipped, clipped), -torch.minimum(unclipped, clipped).mean()


def v_trace(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    ended: Tensor,
    ratio: Tensor,
    *,
    gamma: float,
    rho_bar: float,
    c_bar: float,
) -> tuple[Tensor, Tensor]:
    """Return (T, N) value targets, equation (1), and advantages of the policy, section 4.2.

    All are (T, N). ``next_value`` is the value of the next observation before any reset; ``ended`` is 0 within an
    episode, 1 at a termination, 2 at a truncation. Both cut the trace: the next row belongs to another episode.
    """
    # Two thresholds: rho_bar determines the fixed point, c_bar the speed of convergence (section 4.1).
    rho, c = ratio.clamp(max=rho_bar), ratio.clamp(max=c_bar)
    discount = gamma * (ended != 1)
    runs_on = (ended == GOES_ON).to(reward.dtype)
    delta = rho * (reward + discount * next_value - value)
    # Equation 1 in its recursive form: vs - V(x_s) of each row, and of the next row within an episode.
    excess = backward_sums(delta, discount * c * runs_on)
    carried = torch.zeros_like(excess)
    torch.mul(runs_on[:-1], excess[1:], out=carried[:-1])
    return value + excess, rho * (reward + discount * (next_value + carried) - value)


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
