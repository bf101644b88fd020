"""Parts shared by methods with a replay: their updates, value targets, losses and errors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from runtime.rl.algos.algorithm import Algorithm, Stats
from runtime.rl.algos.optimisers import Adam, anneal
from runtime.rl.buffers.replay import Batch

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

    @property
    def anneals(self) -> bool:
        """True if step sizes decrease with the number of updates, so that the host is needed before each."""
        return self.config.anneal_updates is not None

    def begin_updates(self) -> None:
        """Do the host part before updates that are launched together: lower the step sizes."""
        anneal(self._optimisers.values(), self.updates, self.config.anneal_updates)

    @abstractmethod
    def learn_function(self, updates: int) -> LearnFunction:
        """Return the device part of the update after ``updates`` earlier ones, to be captured with others.

        Updates that do the same return the same function.
        """

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
