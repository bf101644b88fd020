"""Twin Q functions, and the parts of methods with a replay: value targets, losses and errors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.algorithm import Algorithm, Stats, optimiser_tensors
from runtime.rl.algos.networks import Arena, Network, Normalised, RunningMoments, encode, fill_kernels, fill_uniform
from runtime.rl.algos.optimisers import Adam, anneal
from runtime.rl.buffers.replay import Batch
from runtime.rl.device.captured import CapturedByShape


class TwinNetwork:
    """Two networks of equal shape after one encoder, evaluated together by batched products.

    The encoder's kernels are at the front of the arena, as in an actor's, so that one copy shares them. With a
    memory both networks read its output, and one trunk of hidden layers and cell comes before it.
    """

    def __init__(
        self,
        shape: ActorShape,
        inputs: int,
        outputs: int,
        generator: torch.Generator,
        device: str,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """``inputs`` is the number of inputs besides the features, ``outputs`` the number of outputs of each
        network.
        """
        self.shape = shape
        reads = shape.features if shape.memory is None else shape.memory.size
        widths = (reads + inputs, *shape.hidden, outputs)
        parts = [part for i, o in pairwise(widths) for part in ((2, i, o), (2, 1, o))]
        front, moments = [*shape.convolution_parts, *shape.trunk_parts], shape.moment_parts
        self.arena = Arena([*front, *parts, *moments], device, dtype, exact=len(moments))
        self.moments = self.arena.begin_moments(shape)
        kernels, count, end = len(shape.convolution_parts), len(front), len(front) + len(parts)
        self.kernels, dense = self.arena.parameters[:kernels], self.arena.parameters[count:end]
        self.layers = list(zip(dense[::2], dense[1::2], strict=True))
        """Weight and bias of each dense layer, of both networks."""
        fill_kernels(shape, self.arena.weights[:kernels], generator)
        for weight in self.arena.weights[count:end:2]:
            fill_uniform(weight, weight.shape[1], generator)

    def features(self, rows: Tensor) -> Tensor:
        """Return (B, features) of observations (B, obs_dim)."""
        return encode(self.shape, self.kernels, rows, self.moments)

    def values(self, rows: Tensor) -> Tensor:
        """Return (2, B, outputs) of both networks for rows (B, features + inputs)."""
        # One batched product for both: half the kernel launches of two networks.
        weight, bias = self.layers[-1]
        hidden = rows.to(weight.dtype).expand(2, -1, -1)
        for inner, offset in self.layers[:-1]:
            hidden = torch.baddbmm(offset, hidden, inner).relu_()
        return torch.baddbmm(bias, hidden, weight).float()


class TwinCritic(TwinNetwork):
    """Q functions of a state and an action."""

    def __init__(
        self, shape: ActorShape, generator: torch.Generator, device: str, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(shape, shape.act_dim, 1, generator, device, dtype)

    def __call__(self, features: Tensor, action: Tensor) -> Tensor:
        """Return (2, B) values of ``action`` (B, act_dim) given ``features`` (B, features), or a memory's
        output.
        """
        dtype = self.arena.parameters[0].dtype
        return self.values(torch.cat([features.to(dtype), action.to(dtype)], dim=1)).squeeze(2)


def share_kernels(critic: TwinNetwork, actor: Network) -> None:
    """Copy the critics' convolutions to the actor: only the critics' loss trains them (Kostrikov et al. 2020)."""
    size = sum(kernel.numel() for kernel in critic.kernels)
    if size:
        actor.arena.flat[:size].copy_(critic.arena.flat[:size])


class ChoiceCritic(TwinNetwork):
    """Q functions of a state that return the value of every choice."""

    def __init__(
        self, shape: ActorShape, generator: torch.Generator, device: str, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(shape, 0, sum(shape.choices), generator, device, dtype)

    def __call__(self, features: Tensor) -> Tensor:
        """Return (2, B, choices) values of all choices given ``features`` (B, features)."""
        return self.values(features)


LearnFunction = Callable[..., tuple[Tensor, Tensor]]
"""Columns of a batch → statistics of the update as a vector, and TD errors."""


class HasSchedule(Protocol):
    """Settings with a schedule of step sizes."""

    @property
    def anneal_updates(self) -> int | None:
        """Updates over which step sizes decrease; None for constant ones."""


class ReplayMethod(Algorithm):
    """Method whose update has a device part, which graphs may repeat, between two host parts."""

    config: HasSchedule
    _optimisers: Mapping[str, Adam]
    _step: CapturedByShape
    """Captured `_learn`."""

    def __init__(self, shape: ActorShape, config: HasSchedule, device: str, capture: bool | None) -> None:
        super().__init__(shape, capture)
        self.config = config
        self._moments = RunningMoments(shape.obs_space.vector, device) if shape.is_normalised else None
        """Moments of the observation vector, over the drawn batches."""

    def update(self, batch: Batch) -> Stats:
        """Do one gradient step of each network, and what is due after it."""
        self.begin_updates()
        return self.end_updates(1, *self._step(*batch.parts))

    @property
    def anneals(self) -> bool:
        """True if step sizes decrease with the number of updates, so that the host is needed before each."""
        return self.config.anneal_updates is not None

    def begin_updates(self) -> None:
        """Do the host part before updates that are launched together: lower the step sizes."""
        anneal(self._optimisers.values(), self.updates, self.config.anneal_updates)

    def learn_function(self, updates: int) -> LearnFunction:  # noqa: ARG002  (for those whose updates differ)
        """Return the device part of the update after ``updates`` earlier ones, to be captured with others.

        Updates that do the same return the same function.
        """
        return self._learn

    @abstractmethod
    def _learn(self, *columns: Tensor) -> tuple[Tensor, Tensor]:
        """Update on the columns of a `Batch`; return the statistics as a vector, and TD errors."""

    def _count_moments(self, obs: Tensor, *networks: Normalised) -> None:
        """Merge observations (B, obs_dim) into the moments by which the networks normalise, if they do."""
        if self._moments is not None:
            self._moments.count(self.shape, obs, networks, self.mean, self.ranks)

    def _shared_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of moments and optimisers, by their names in a checkpoint."""
        moments = {"obs_moments": self._moments.state} if self._moments is not None else {}
        return moments | optimiser_tensors(self._optimisers)

    def ends_launch(self, updates: int) -> bool:  # noqa: ARG002  (for those whose host acts in some)
        """Return true if the host has something to do after the update that follows ``updates`` earlier ones."""
        return False

    @abstractmethod
    def end_updates(self, count: int, stats: Tensor, td_error: Tensor) -> Stats:
        """Do the host part after ``count`` updates, the last of which returned ``stats`` and ``td_error``."""


@torch.no_grad()
def bellman_target(batch: Batch, next_value: Tensor, gamma: float) -> Tensor:
    """Return (B,) r + gamma^n (1 - terminated) V(s') for values V (B,) of the batch's next observations.

    s' is the observation n steps later and r the sum of the n discounted rewards; n is 1 if the batch has no
    ``steps``.
    """
    goes_on = 1.0 - batch.terminated
    if batch.steps is None:
        return torch.addcmul(batch.reward, goes_on, next_value, value=gamma)
    return torch.addcmul(batch.reward, goes_on * gamma**batch.steps, next_value)


def weighted_mean(losses: Tensor, weight: Tensor | None) -> Tensor:
    """Return the mean of losses (..., B), each multiplied by its row's importance weight if the batch has
    weights.
    """
    return losses.mean() if weight is None else (losses * weight).mean()


def errors_of(q: Tensor, y: Tensor, batch: Batch) -> Tensor:
    """Return the (B,) errors of values (..., B) for priorities; (0,) for a batch that was drawn uniformly.

    With several critics the largest error counts.
    """
    if batch.weight is None:
        return y.new_empty(0)
    return (q.detach() - y).abs().view(-1, len(y)).amax(dim=0)
