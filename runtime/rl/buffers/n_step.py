"""Sums of rewards over several steps, in tensors on a device; workers do the same in NumPy (``rollout``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def sum_over_steps(columns: Mapping[str, Tensor], n_step: int, gamma: float) -> None:
    """Sum rewards over up to ``n_step`` steps of the same episode, in place; fewer at the end of a rollout.

    ``columns`` are (T, N, …); ``ended`` is 0 if the episode continues. ``steps`` becomes the number of summed
    rewards: with it the replay finds the last of them and the observation after it.
    """
    reward, steps, ended = columns["reward"], columns["steps"], columns["ended"]
    single, length = reward.clone(), len(reward)
    steps.fill_(1)
    goes_on = ended == 0
    for ahead in range(1, min(n_step, length)):
        # Row t looks `ahead` steps further; the last rows of a rollout have fewer steps to look at.
        takes = goes_on[:-ahead].clone()
        reward[:-ahead] += gamma**ahead * single[ahead:] * takes
        steps[:-ahead] += takes
        goes_on[:-ahead] = takes & (ended[ahead:] == 0)
        goes_on[-ahead:].fill_(False)  # an assignment would make a tensor of the value on the host first
