"""Sums of rewards over several steps, in tensors on a device; workers do the same in NumPy (``rollout``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def sum_over_steps(columns: Mapping[str, Tensor], ended: Tensor, n_step: int, gamma: float) -> None:
    """Sum rewards over up to ``n_step`` steps of the same episode, in place; fewer at the end of a rollout.

    ``columns`` are (T, N, …) and ``ended`` (T, N) is 0 where the episode goes on. ``steps`` becomes the number of
    summed rewards, and ``next_obs`` and ``terminated`` are those of the last of them.
    """
    reward, steps = columns["reward"], columns["steps"]
    length = len(reward)
    single, next_obs, ends = reward.clone(), columns["next_obs"].clone(), ended.clone()
    steps.fill_(1)
    goes_on = ended == 0
    for ahead in range(1, min(n_step, length)):
        # Row t looks `ahead` steps further; the last rows of a rollout have fewer to look at.
        takes = goes_on[:-ahead].clone()
        reward[:-ahead] += gamma**ahead * single[ahead:] * takes
        steps[:-ahead] += takes
        shape = takes.shape + (1,) * (next_obs.dim() - 2)
        columns["next_obs"][:-ahead] = next_obs[ahead:].where(takes.view(shape), columns["next_obs"][:-ahead])
        ends[:-ahead] = ended[ahead:].where(takes, ends[:-ahead])
        goes_on[:-ahead] = takes & (ended[ahead:] == 0)
        goes_on[-ahead:] = False
    columns["terminated"].copy_(ends == 1)
