"""Proximal policy optimisation with a clipped objective.

Schulman et al., *Proximal Policy Optimization Algorithms* (2017, arXiv:1707.06347), with the advantage of Schulman
et al. 2016 (arXiv:1506.02438) and three of the details that Huang et al. 2022 list (*The 37 Implementation Details
of PPO*): advantages normalised in each minibatch, orthogonal initial weights, gradients clipped by norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from runtime.base.methods import PPOConfig
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
from runtime.rl.algos.algorithm import Stats
from runtime.rl.algos.optimisers import anneal
from runtime.rl.buffers.ring_index import GOES_ON
from runtime.rl.buffers.rollout_buffer import RolloutBatch
from runtime.rl.device.captured import CapturedByShape, copy_columns, is_captured, shapes_of, static_copy

MOST_ROWS_EVALUATED_TWICE: Final = 2**17
"""Largest batch whose values are computed inside a captured graph, which cannot skip rows."""


@dataclass(frozen=True, slots=True)
class PPOStats(Stats):
    """Means over the gradient steps of one update; 0-d tensors."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    """Nats."""
    kl: Tensor
    """Estimated Kullback-Leibler divergence of the acting policy from the current one, nats."""
    clipped: Tensor
    """Share of the actions with a probability ratio outside 1 ± ``clip``."""


class PPO(ActorCritic):
    """Proximal policy optimisation: takes rollouts and returns weights."""

    config: PPOConfig

    def __init__(
        self,
        shape: ActorShape,
        config: PPOConfig,
        seed: int,
        device: str = "cpu",
        *,
        precision: str = "float32",
        capture: bool | None = None,
    ) -> None:
        super().__init__(shape, config, seed, device, precision, capture)
        # On a GPU the order is drawn there: each epoch would wait for a permutation from the host.
        self._shuffle = torch.Generator(device if device.startswith("cuda") else "cpu").manual_seed(seed + 1)
        self._captured_targets = self.captured(partial(self._targets, is_captured=True))
        self._steps = MinibatchSteps(self._step, self.captured, capture=capture)

    def update(self, batch: RolloutBatch) -> PPOStats:
        """Train on a batch in ``epochs`` passes over shuffled minibatches."""
        config = self.config
        anneal(self._optimisers.values(), self.updates, config.anneal_updates)
        columns, size = self.minibatch_columns(batch)
        run_epoch, count, device = self._steps.of(columns, size), len(columns[0]), batch.obs.device

        epochs: list[Tensor] = []
        for _ in range(config.epochs):
            order = torch.randperm(count, generator=self._shuffle, device=self._shuffle.device)
            epochs.append(run_epoch(order.to(device)))
            # The mean over this epoch only, as in CleanRL (which uses the last minibatch only): a mean that
            # includes earlier epochs would stop late. The mean over all devices decides, so that all replicas stop
            # after the same epoch.
            if config.target_kl is not None and self.mean(epochs[-1][3]) > config.target_kl:
                break
        self._count_observations(batch)
        self.updates += 1
        return PPOStats.of(torch.stack(epochs).mean(dim=0))

    def minibatch_columns(self, batch: RolloutBatch) -> tuple[tuple[Tensor, ...], int]:
        """Return the columns from whose rows minibatches are drawn, as ``_step`` takes them, and the number of
        rows.
        """
        advantage, target = self._targets_of(batch)
        obs, action, log_prob = (column.flatten(0, 1) for column in (batch.obs, batch.action, batch.log_prob))
        columns = without_padding(batch.absent, obs, action, log_prob, advantage, target)
        return columns, self.config.minibatch_size

    def _targets_of(self, batch: RolloutBatch) -> tuple[Tensor, Tensor]:
        """Return advantages and value targets, each (T N,)."""
        columns = (batch.obs, batch.next_obs, self.normalised_reward(batch), batch.ended)
        # A second pass of all rows through the network is not worth it for a large batch: waiting for the device
        # once is cheaper.
        is_large = batch.reward.numel() > MOST_ROWS_EVALUATED_TWICE
        targets = self._targets if is_large or not is_captured(self.capture, *columns) else self._captured_targets
        advantage, target = targets(*columns)
        return advantage, target

    @torch.no_grad()
    def _targets(
        self, obs: Tensor, next_obs: Tensor, reward: Tensor, ended: Tensor, *, is_captured: bool = False
    ) -> tuple[Tensor, Tensor]:
        self._refresh()
        value = self.value(obs.flatten(0, 1)).view_as(reward)
        next_value = following_values(self.value, value, next_obs, ended, is_captured=is_captured)
        rates = self.config.gamma, self.config.gae_lambda
        advantage = generalised_advantage(reward, value, next_value, ended, *rates)
        return advantage.flatten(), (advantage + value).flatten()

    def _step(self, *columns: Tensor) -> Tensor:
        """Take one gradient step for policy and value on a minibatch; return the statistics."""
        config, (obs, action, log_prob_old, advantage, target) = self.config, columns
        self._refresh()
        # Normalised per minibatch and not per batch, as in OpenAI baselines.
        raw_advantage, advantage = advantage, normalised(advantage, self.mean, self.ranks)
        log_prob, entropy, value = self._evaluate(obs, action)
        objective, stats = self._objective(log_prob, entropy, log_prob_old, advantage)
        square = value_error(value, target - raw_advantage, target, config.value_clip)

        self._descend(self.mean(self._gradient(objective, 0.5 * config.value_cost * square)))
        policy_loss, mean_entropy, kl, share = stats
        return torch.stack([policy_loss, 0.5 * square.detach(), mean_entropy, kl, share])

    def _objective(
        self, log_prob: Tensor, entropy: Tensor, log_prob_old: Tensor, advantage: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the objective that the policy maximises, and loss, entropy, divergence and clipped share.

        All arguments are (B,).
        """
        config, mean_entropy = self.config, entropy.mean()
        with torch.no_grad():
            log_ratio = log_prob - log_prob_old
            ratio = log_ratio.exp()
            bounded = ratio.clamp(1 - config.clip, 1 + config.clip)
            unclipped, clipped = ratio * advantage, bounded * advantage
            policy_loss, kl, share = clipped_stats(log_ratio, ratio, bounded, unclipped, clipped)
        objective = with_entropy(clipped_objective(log_prob, unclipped, clipped), mean_entropy, config.entropy_cost)
        return objective, (policy_loss, mean_entropy.detach(), kl, share)

    def generators(self) -> dict[str, torch.Generator]:
        """Return the generator of the minibatches."""
        return {"shuffle_generator": self._shuffle}


def value_error(value: Tensor, value_old: Tensor, target: Tensor, clip: float | None) -> Tensor:
    """Return the mean squared error of values (B,), or with ``clip`` the clipped error of OpenAI baselines.

    mean max((V - R)^2, (V_old + clamp(V - V_old, -clip, clip) - R)^2): Huang et al. 2022, detail 9.
    """
    if clip is None:
        return mse_loss(value, target)
    bounded = value_old + (value - value_old).clamp(-clip, clip)
    return torch.maximum((value - target).square(), (bounded - target).square()).mean()


def clipped_stats(
    log_ratio: Tensor, ratio: Tensor, bounded: Tensor, unclipped: Tensor, clipped: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of the clipped objective, the divergence, and the share of clipped ratios."""
    policy_loss = -torch.minimum(unclipped, clipped).mean()
    # The estimator "k3", which has low variance and is never negative (Schulman 2020, Approximating KL Divergence).
    kl = (ratio - 1 - log_ratio).mean()
    return policy_loss, kl, (bounded != ratio).float().mean()


def generalised_advantage(
    reward: Tensor, value: Tensor, next_value: Tensor, ended: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """(T, N) advantages, Schulman et al. 2016, equation (16).

    ``ended`` is 0 within an episode, 1 at a termination (no value follows) and 2 at a truncation (``next_value``
    follows). The sum stops at both.
    """
    delta = reward + gamma * next_value * (ended != 1) - value
    # The accumulated advantage belongs to the next row; after either kind of end that row is another episode.
    carry = gamma * gae_lambda * (ended == GOES_ON)
    return backward_sums(delta, carry)


Step = Callable[..., Tensor]
"""Gradient step on columns of B rows each; returns its statistics, a vector."""
Pass = Callable[[Tensor], Tensor]
"""Gradient steps on all minibatches of a batch, given shuffled row indices (B,); returns mean statistics."""

MINIBATCHES_PER_GRAPH: Final = 32
"""Gradient steps per CUDA graph: PPO needs about 90 kernels per step, so more would only take memory."""


class MinibatchSteps:
    """Gradient steps on rows of a batch.

    If captured, the batch is copied once into static buffers; a graph gathers the rows of its minibatches from
    them, so that a pass over a batch is one launch and a small copy of row indices.
    """

    def __init__(
        self, step: Step, captured: Callable[[Pass], CapturedByShape], *, capture: bool | None = None
    ) -> None:
        """``captured`` makes graphs of a function, like `Algorithm.captured`."""
        self._step = step
        self._captured = captured
        self._capture = capture
        self._buffers: dict[tuple[Any, ...], list[Tensor]] = {}
        self._graphs: dict[tuple[Any, ...], CapturedByShape] = {}

    def of(self, columns: Sequence[Tensor], size: int) -> Pass:
        """Return a pass over ``columns`` in minibatches of about ``size`` rows; only the newest may be called."""
        if not is_captured(self._capture, *columns):
            return lambda order: self._mean(columns, split_rows(order, size))
        key = shapes_of(columns)
        if key not in self._buffers:
            self._buffers[key] = [static_copy(column) for column in columns]
        buffers = self._buffers[key]
        copy_columns(zip(buffers, columns, strict=True))
        return lambda order: self._launch(key, buffers, order, size)

    def _launch(self, key: tuple[Any, ...], buffers: list[Tensor], order: Tensor, size: int) -> Tensor:
        parts = split_rows(order, size)
        total: Tensor | None = None
        first = 0
        for start in range(0, len(parts), MINIBATCHES_PER_GRAPH):
            count = len(parts[start : start + MINIBATCHES_PER_GRAPH])
            rows = sum(map(len, parts[start : start + count]))
            if (key, count) not in self._graphs:
                self._graphs[key, count] = self._captured(self._group(buffers, count))
            sums: Tensor = self._graphs[key, count](order[first : first + rows])
            total = sums.clone() if total is None else total + sums  # the next launch overwrites them
            first += rows
        assert total is not None  # noqa: S101  (a batch has a row)
        return total / len(parts)

    def _group(self, buffers: list[Tensor], count: int) -> Pass:
        """Return the function of consecutive minibatches; equally sized ones are cut like in `split_rows`."""
        return lambda rows: self._sum(buffers, torch.tensor_split(rows, count))

    def _mean(self, columns: Sequence[Tensor], minibatches: Sequence[Tensor]) -> Tensor:
        return self._sum(columns, minibatches) / len(minibatches)

    def _sum(self, columns: Sequence[Tensor], minibatches: Sequence[Tensor]) -> Tensor:
        first, *others = minibatches
        sums = self._step(*(column[first] for column in columns))
        for rows in others:
            sums = sums + self._step(*(column[rows] for column in columns))
        return sums


def split_rows(order: Tensor, size: int) -> tuple[Tensor, ...]:
    """Split ``order`` (B,) into minibatches of about ``size`` rows, whose sizes differ by at most one.

    If ``size`` divides B, all have that size. A remainder is spread over them: a smaller last minibatch would have
    the same weight, and a single row has no deviation to normalise its advantage by.
    """
    return torch.tensor_split(order, max(1, min(round(len(order) / size), len(order) // 2)))
