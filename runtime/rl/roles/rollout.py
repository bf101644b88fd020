"""One worker's collection: step the copies of an environment, gather what happens into arenas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.arenas import Arenas
from runtime.envs.base import EpisodeSummary, VectorEnv
from runtime.framing import Arena
from runtime.layout import Layout, is_finite
from runtime.messages import Trajectory
from runtime.process import NotFiniteError

Act = Callable[[NDArray[Any]], tuple[NDArray[Any], NDArray[np.float32] | None]]
"""Observations (B, width) → actions (B, size), and the log probability (B,) of each if the method asks for it."""


@dataclass(frozen=True, slots=True)
class Collected:
    """A full segment, ready to be sent; nobody writes its arena any more."""

    segment: Trajectory
    memory: Arena

    @property
    def arena(self) -> memoryview:
        """Its bytes."""
        return self.memory.view


class Rollout:
    """Collects segments of `steps` steps of every copy; `step` returns one when it is full.

    With `n_step` above 1 the rewards of as many steps are summed, discounted by `gamma`, before a segment is sent:
    here the steps that follow each other are at hand, and the work is shared by all workers (Horgan et al. 2018).
    `step` raises NotFiniteError if the environment gave numbers that nothing can be learned from.
    """

    def __init__(
        self, env: VectorEnv, layout: Layout, steps: int, seed: int, *, n_step: int = 1, gamma: float = 1.0
    ) -> None:
        self._env = env
        self._layout = layout
        self._count = steps * env.num_envs
        self._n_step = n_step
        self._gamma = gamma
        self._obs = env.reset(seed)
        self._ended = np.zeros(self._count, dtype=np.uint8)
        """1 for terminated, 2 for truncated."""
        self._arenas = Arenas(self._count * layout.item_bytes)
        self._begin()

    def _begin(self) -> None:
        """Take a fresh arena: the last one may still be on its way to the learner."""
        self._arena = self._arenas.take()
        columns = self._layout.columns(self._arena.view, self._count)
        self._columns = dict(zip(self._layout.names, columns, strict=True))
        self._at = 0
        self._versions: tuple[int, int] | None = None
        self._episodes: list[EpisodeSummary] = []

    @property
    def obs(self) -> NDArray[Any]:
        """(B, width) what the next step acts on."""
        return self._obs

    def step(self, act: Act, policy_version: int) -> Collected | None:
        """Take one step of every copy with `act`, the policy of `policy_version`."""
        env, first, columns = self._env, self._at, self._columns
        last = first + env.num_envs
        action, log_prob = act(self._obs)
        result = env.step(action)
        if result.is_lost:
            self._obs = result.obs
            self._episodes.extend(result.episodes)
            before = self._ended[max(0, first - env.num_envs) : first]
            before[before == 0] = 2  # nothing follows on what was before: it is cut there
            return None
        columns["obs"][first:last] = self._obs
        columns["action"][first:last] = action
        columns["reward"][first:last] = result.reward
        columns["next_obs"][first:last] = result.final_obs
        if log_prob is not None:
            columns["log_prob"][first:last] = log_prob
        self._ended[first:last] = result.terminated
        self._ended[first:last] += 2 * result.truncated.view(np.uint8)
        self._obs = result.obs
        if result.episodes:
            self._episodes.extend(result.episodes)
        low, high = self._versions or (policy_version, policy_version)
        self._versions = min(low, policy_version), max(high, policy_version)
        self._at = last
        return self._finish() if last == self._count else None

    def _finish(self) -> Collected:
        columns = self._columns
        if not is_finite(tuple(columns.values())):
            raise NotFiniteError(
                "the environment gave observations or rewards that are not finite; they are not used"
            )
        if "ended" in columns:
            columns["ended"][:] = self._ended
        if "terminated" in columns:
            columns["terminated"][:] = self._ended == 1
        if "steps" in columns:
            self._look_ahead()
        low, high = self._versions or (0, 0)
        segment = Trajectory(
            transitions=self._count,
            policy_version_min=low,
            policy_version_max=high,
            episodes=len(self._episodes),
            return_sum=float(sum(each.return_ for each in self._episodes)),
            progress_sum=float(sum(each.progress_metres for each in self._episodes)),
        )
        finished = Collected(segment, self._arena)
        self._begin()
        return finished

    def _look_ahead(self) -> None:
        """Sum rewards over up to `n_step` steps of the same episode; at a segment's end over those there are."""
        columns, copies = self._columns, self._env.num_envs
        gain, ended = columns["reward"].copy(), self._ended
        reach = np.arange(self._count)  # the row whose next_obs is looked at
        columns["steps"][:] = 1
        runs_on = ended == 0
        for ahead in range(1, self._n_step):
            shift = ahead * copies
            rows = np.flatnonzero(runs_on[: max(0, self._count - shift)])
            columns["reward"][rows] += self._gamma**ahead * gain[rows + shift]
            columns["steps"][rows] += 1
            reach[rows] = rows + shift
            runs_on[rows] = ended[rows + shift] == 0
        columns["next_obs"][:] = columns["next_obs"][reach]
        columns["terminated"][:] = ended[reach] == 1
