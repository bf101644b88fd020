"""Parts shared by PPO and IMPALA: policy and value network, their optimisers, values and sums over a rollout."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from runtime.base.methods import ImpalaConfig, PPOConfig
from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.algorithm import Algorithm, HasKernels, optimiser_tensors
from runtime.rl.algos.networks import (
    REWARD_BOUND,
    Network,
    Policy,
    RunningMoments,
    SharedValue,
    joint_gradient,
    value_network,
)
from runtime.rl.algos.optimisers import Adam, clip_grad_norm
from runtime.rl.buffers.ring_index import TRUNCATED
from runtime.rl.buffers.rollout_buffer import RolloutBatch
from runtime.rl.device.accelerator import DTYPES


class ActorCritic(Algorithm):
    """Policy and value network, each with its own Adam; without shared weights unless ``shared_layers`` is set."""

    config: PPOConfig | ImpalaConfig

    def __init__(
        self,
        shape: ActorShape,
        config: PPOConfig | ImpalaConfig,
        seed: int,
        device: str,
        precision: str,
        capture: bool | None,
    ) -> None:
        super().__init__(shape, capture)
        self.config = config
        self._moments = RunningMoments(shape.obs_space.vector, device) if shape.is_normalised else None
        """Moments of the observation vector."""
        self.return_moments = RunningMoments(1, device) if config.normalise_returns else None
        """Moments of the discounted returns of the environment copies so far."""
        initial, dtype = torch.Generator().manual_seed(seed), DTYPES[precision]
        self.policy, self.value = self._networks(shape, initial, device, dtype)
        self._optimisers = {
            name: Adam(network.arena.flat, config.lr, eps=config.adam_eps)
            for name, network in (("policy", self.policy), ("value", self.value))
        }

    def _networks(
        self, shape: ActorShape, generator: torch.Generator, device: str, dtype: torch.dtype
    ) -> tuple[Policy, Network]:
        policy = Policy(shape, generator, device, dtype)
        if self.config.shared_layers:
            return policy, SharedValue(policy, generator, device)
        # By default two networks: the losses then need no common scale (Andrychowicz et al. 2021).
        return policy, value_network(shape, generator, device, dtype)

    def _evaluate(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log probability and entropy of ``action`` (B, act_dim), and values, each (B,)."""
        if isinstance(self.value, SharedValue):
            hidden = self.policy.hidden(obs)
            return *self.policy.judge(self.policy.last(hidden), action), self.value.last(hidden).squeeze(1)
        return *self.policy.evaluate(obs, action), self.value(obs).squeeze(1)

    def _gradient(self, objective: Tensor, value_loss: Tensor) -> Tensor:
        """Return (policy size + value size,) gradient of the value's loss minus the objective."""
        arenas = self.policy.arena, self.value.arena
        if self.config.shared_layers:
            return joint_gradient(value_loss - objective, arenas)
        return torch.cat([arenas[0].gradient(-objective), arenas[1].gradient(value_loss)])

    def _descend(self, gradient: Tensor, *, jointly: bool | None = None) -> None:
        """Step both networks against a gradient from `_gradient`, clipped together or each by its own norm."""
        size, bound = self.policy.arena.flat.numel(), self.config.max_grad_norm
        if self.config.joint_clipping if jointly is None else jointly:
            gradient = clip_grad_norm(gradient, bound)
            parts = (gradient[:size], gradient[size:])
        else:
            parts = (clip_grad_norm(gradient[:size], bound), clip_grad_norm(gradient[size:], bound))
        for optimiser, part in zip(self._optimisers.values(), parts, strict=True):
            optimiser.step(part)

    def _refresh(self) -> None:
        """Round the weights of both networks to the precision of their products."""
        self.policy.arena.refresh()
        self.value.arena.refresh()

    def normalised_reward(self, batch: RolloutBatch) -> Tensor:
        """Return (T, N) rewards divided by the standard deviation of the returns, which includes this batch."""
        if self.return_moments is None:
            return batch.reward
        assert batch.discounted is not None  # noqa: S101  (the layout of such a run has the column)
        (discounted,) = without_padding(batch.absent, batch.discounted.flatten())
        self.return_moments.update(discounted.unsqueeze(1), self.mean, self.ranks)
        # Not shifted: subtracting a mean would change which policy is best, since episodes differ in length.
        return (batch.reward * self.return_moments.scale).clamp_(-REWARD_BOUND, REWARD_BOUND)

    def _count_observations(self, batch: RolloutBatch) -> None:
        """Merge a batch's observations into the moments.

        After the update, not before: this batch was collected with the moments that came with its policy, and its
        probability ratios only begin at 1 if they are evaluated with the same moments.
        """
        if self._moments is not None:
            (obs,) = without_padding(batch.absent, batch.obs.flatten(0, 1))
            self._moments.count(self.shape, obs, (self.policy, self.value), self.mean, self.ranks)

    def networks(self) -> Sequence[HasKernels]:
        """Return policy and value; with memory the value reads the memory and has no encoder."""
        return [network for network in (self.policy, self.value) if network.kernels]

    def policy_weights(self) -> Tensor:
        """Return the policy's parameters."""
        return self.policy.arena.flat

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that an update changes."""
        networks = {"policy": self.policy.arena.flat, "value": self.value.arena.flat}
        running = {"obs_moments": self._moments, "return_moments": self.return_moments}
        moments = {name: part.state for name, part in running.items() if part is not None}
        return {**networks, **moments, **optimiser_tensors(self._optimisers)}


def without_padding(absent: Tensor | None, *columns: Tensor) -> tuple[Tensor, ...]:
    """Replace the ``absent`` rows (of B elements) of columns (B, …) by other rows; None if no row is absent."""
    if absent is None:
        return columns
    rows = present_rows(absent)
    return tuple(column[rows] for column in columns)


def present_rows(absent: Tensor) -> Tensor:
    """Return (B,) row indices, in which each ``absent`` row (of B elements) is replaced by another, evenly spread.

    The number of rows does not change, so that minibatches, graphs, and devices that share a batch have equal
    sizes; present rows occur equally often. Does not wait for the device.
    """
    is_absent = absent.flatten()
    order, count = (~is_absent).cumsum(0), len(is_absent)
    # The n-th absent row gets the (n P / A)-th of P present ones; the order counts from 1.
    rank = (is_absent.cumsum(0) - 1) * order[-1] // is_absent.sum().clamp(min=1)
    other = torch.searchsorted(order, rank + 1).clamp(max=count - 1)
    return torch.where(is_absent, other, torch.arange(count, device=absent.device))


@torch.no_grad()
def following_values(
    value: Network, values: Tensor, next_obs: Tensor, ended: Tensor, *, is_captured: bool = False
) -> Tensor:
    """Return (T, N) values from which returns bootstrap, also at a truncation: those of the next observations
    before any reset. ``values`` (T, N) are those of the rows.

    After a termination, where no value follows, the result is arbitrary. If captured, it evaluates all rows of
    ``next_obs`` (T, N, obs_dim); otherwise only the necessary ones, which waits for the device.
    """
    # Within an episode, the next observation is the next row, whose value is already computed. Only rows at a
    # truncation (the next row belongs to another episode) and the last row are evaluated again.
    following = torch.cat([values[1:], values[-1:]])
    is_computed_again = ended == TRUNCATED
    is_computed_again[-1].fill_(True)  # an assignment would first create a tensor on the host
    if is_captured:
        again = value(next_obs.flatten(0, 1)).view_as(values)
        return torch.where(is_computed_again, again, following)
    following[is_computed_again] = value(next_obs[is_computed_again]).squeeze(1)
    return following


def backward_sums(terms: Tensor, decay: Tensor) -> Tensor:
    """Return (T, N) sums x[t] = terms[t] + decay[t] * x[t + 1], computed backwards; x is 0 after the last row."""
    sums = torch.empty_like(terms)
    following = torch.zeros_like(terms[0])
    # One kernel per row: the time of a captured update depends on its number of kernels.
    for row, factor, out in zip(*(reversed(part.unbind()) for part in (terms, decay, sums)), strict=True):
        following = torch.addcmul(row, factor, following, out=out)
    return sums


def normalised(advantage: Tensor, mean: Callable[[Tensor], Tensor] | None = None, ranks: int = 1) -> Tensor:
    """Normalise advantages (B,) to mean 0 and standard deviation 1; 0 for a single row, which has no deviation.

    Args:
        mean: Averages a tensor over the ranks, each of which has B rows; None normalises those of this process.
    """
    variance, average = torch.var_mean(advantage, correction=0)
    count = len(advantage)
    if mean is not None and ranks > 1:
        # The variance over all rows is the mean of the ranks' variances plus the variance of their means.
        variance, average, square = mean(torch.stack([variance, average, average.square()]))
        variance, count = variance + (square - average.square()).clamp_(min=0.0), ranks * count
    deviation = (variance * (count / max(1, count - 1))).sqrt()
    return (advantage - average) / (deviation + 1e-8)


def clipped_objective(log_prob: Tensor, unclipped: Tensor, clipped: Tensor) -> Tensor:
    """Return a value with the gradient of mean(min(r A, clip(r) A)) for present r and A (B,).

    Schulman et al. 2017 (arXiv:1707.06347), equation (7).

    The gradient of r A with respect to the log probability is r A itself; the gradient of the clipped term is 0
    where it is the smaller one. In this form it needs 20 kernels fewer than the derivative of minimum, clamp and
    exponential.
    """
    return (log_prob * (unclipped * (unclipped <= clipped))).mean()


def with_entropy(objective: Tensor, entropy: Tensor, cost: float) -> Tensor:
    """Return the objective plus the entropy bonus; a cost of 0 needs no kernels."""
    return objective + cost * entropy if cost else objective
