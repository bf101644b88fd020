"""Rollout of one worker: steps the copies of an environment and gathers transitions into arenas."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import NotFiniteError
from runtime.exchange.protocol.framing import SegmentArena
from runtime.exchange.protocol.messages import Trajectory
from runtime.exchange.protocol.segment_schema import Layout, is_finite
from runtime.exchange.segments import SegmentAllocator
from runtime.rl.algos.actor import CopyStates
from runtime.rl.algos.memory import spread_states
from runtime.rl.buffers.replay import STATE
from runtime.rl.buffers.ring_index import ABSENT, TRUNCATED
from runtime.rl.buffers.rollout_buffer import DISCOUNTED
from runtime.rl.datasets.recorder import EpisodeRecorder
from runtime.rl.envs.base import EpisodeSummary, StepResult, VectorEnv

Act = Callable[[NDArray[Any]], tuple[NDArray[Any], NDArray[np.float32] | None]]
"""(observations (B, width)) → actions (B, size), and the log probability (B,) of each if the method needs it."""


@dataclass(frozen=True, slots=True)
class FinishedSegment:
    """Full segment; its memory is not modified any more."""

    segment: Trajectory
    memory: SegmentArena


class Rollout:
    """Collects segments of `steps` steps of every copy; `step` returns a segment when it is full.

    With `n_step` above 1, each transition sums the rewards of that many steps, discounted by `gamma`. Workers do
    this, not the learner, because they have the successive steps and share the work (Horgan et al. 2018, Ape-X).
    `step` raises NotFiniteError if the environment returned infinite numbers or NaN.

    The arena contains each observation once (`runtime.rl.buffers.ring_index`): those that steps started with, and
    in the tail the last one of every copy and the final one of every truncated episode.

    A `recorder` gets each step unmodified; `clip_rewards`, if given, limits the absolute value of rewards.

    `states`, which `act` reads, are advanced step by step; a segment stores those at its start.
    """

    def __init__(
        self,
        env: VectorEnv,
        layout: Layout,
        steps: int,
        seed: int,
        *,
        n_step: int = 1,
        gamma: float = 1.0,
        states: CopyStates | None = None,
        recorder: EpisodeRecorder | None = None,
        clip_rewards: float | None = None,
    ) -> None:
        self._env = env
        self._layout = layout
        self._count = steps * env.num_envs
        self._n_step = n_step
        self._gamma = gamma
        self._states = states
        self._recorder = recorder
        self._clip_rewards = clip_rewards
        self.obs = env.reset(seed)
        """(B, width) observations for the next step."""
        self._last = self.obs
        """(B, width) observations after the latest step, before any reset."""
        self._discounted = np.zeros(env.num_envs, dtype=np.float32)
        """Discounted return of each copy's current episode, for methods that normalise returns."""
        self._ended = np.zeros(self._count, dtype=np.uint8)
        """For each transition 0 if the episode goes on, else TERMINATED, TRUNCATED or ABSENT."""
        # Room for a truncation at every step: unused room is cut off, and its pages are never touched.
        self._most_tail = env.num_envs + self._count
        self._env_seconds = 0.0
        self._stepping_since: float | None = None
        self._arenas = SegmentAllocator(layout.segment_bytes(self._count, self._most_tail))
        self._begin()

    def _begin(self) -> None:
        """Allocate a new arena: the last one may still be in transit to the learner."""
        self._arena = self._arenas.allocate()
        *columns, self._tail = self._layout.columns(self._arena.view, self._count, self._most_tail)
        self._columns = dict(zip(self._layout.names, columns, strict=True))
        self._truncated: list[int] = []
        """Rows of the truncated transitions, in the order of their final observations in the tail."""
        self._at = 0
        self._versions: tuple[int, int] | None = None
        self._episodes: list[EpisodeSummary] = []

    def _advance(self, action: NDArray[Any]) -> StepResult:
        """Step the environment, and record the step if there is a recorder."""
        began = self._stepping_since = time.monotonic()
        result = self._env.step(action)
        self._env_seconds, self._stepping_since = self._env_seconds + time.monotonic() - began, None
        if self._recorder is not None:
            self._recorder.add(self.obs, action, result)
        return result

    @property
    def env_seconds(self) -> float:
        """Seconds in the environment's steps so far, the current one included; any thread may read it."""
        total, since = self._env_seconds, self._stepping_since
        return total if since is None else total + time.monotonic() - since

    def _clipped(self, reward: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the rewards to learn from, clipped if configured (Mnih et al. 2015, Methods)."""
        bound = self._clip_rewards
        return reward if bound is None else reward.clip(-bound, bound)

    def step(self, act: Act, policy_version: int) -> FinishedSegment | None:
        """Take one step of every copy with `act`, the policy of `policy_version`."""
        env, first, columns = self._env, self._at, self._columns
        last = first + env.num_envs
        action, log_prob = act(self.obs)
        result = self._advance(action)
        if result.is_lost:
            self.obs = result.obs
            self._episodes.extend(result.episodes)
            self._discounted[:] = 0.0
            if self._states is not None:
                self._states.reset()
            # The simulator lost these steps. Earlier recorded steps have no successor, so they count as truncated.
            if first:
                before = first - env.num_envs
                self._truncate(before, np.flatnonzero(self._ended[before:first] == 0))
            return None
        columns["obs"][first:last] = self.obs
        columns["action"][first:last] = action
        reward = self._clipped(result.reward)
        columns["reward"][first:last] = reward
        if log_prob is not None:
            columns["log_prob"][first:last] = log_prob
        if DISCOUNTED in columns:
            self._discounted = np.float32(self._gamma) * self._discounted + reward
            columns[DISCOUNTED][first:last] = self._discounted
            self._discounted[result.terminated | result.truncated] = 0.0
        if self._states is not None:
            if first == 0 and STATE in columns:
                spread_states(self._states.state, columns[STATE])
            self._states.advance(result.terminated | result.truncated)
        # Not result.obs: after an episode's end it is already the first observation of the next episode.
        self._last = result.final_obs
        padding = result.absent
        self._ended[first:last] = (
            result.terminated if padding is None else np.where(padding, ABSENT, result.terminated)
        )
        if result.truncated.any():
            # An environment may report both: termination wins, because no reward can follow, whatever the time
            # limit.
            self._truncate(first, np.flatnonzero(result.truncated & ~result.terminated))
        self.obs = result.obs
        if result.episodes:
            self._episodes.extend(result.episodes)
        low, high = self._versions or (policy_version, policy_version)
        self._versions = min(low, policy_version), max(high, policy_version)
        self._at = last
        return self._finish() if last == self._count else None

    def _truncate(self, first: int, copies: NDArray[np.intp]) -> None:
        """Mark the step of `copies` that starts at row `first` as truncated, with `_last` as final observations."""
        start = self._env.num_envs + len(self._truncated)
        self._tail[start : start + len(copies)] = self._last[copies]
        self._truncated.extend((first + copies).tolist())
        self._ended[first + copies] = TRUNCATED

    def _finished_tail(self) -> NDArray[Any]:
        """Return the tail's rows in order: the last observation of every copy, then the final ones by row."""
        copies = self._env.num_envs
        tail = self._tail[: copies + len(self._truncated)]
        tail[:copies] = self._last
        order = np.argsort(self._truncated)
        if (np.diff(order) < 0).any():  # a simulator was lost when another episode was truncated
            tail[copies:] = tail[copies:][order]
        return tail

    def _finish(self) -> FinishedSegment:
        columns, tail = self._columns, self._finished_tail()
        # Per segment, not per step: the check is one pass over memory that is in the cache anyway.
        if not is_finite((*columns.values(), tail)):
            raise NotFiniteError(
                "the environment gave observations or rewards that are not finite as 32-bit numbers (up to "
                "3.4e38); they are not used"
            )
        columns["ended"][:] = self._ended
        if "steps" in columns:
            self._sum_n_steps()
        low, high = self._versions or (0, 0)
        segment = Trajectory(
            transitions=self._count,
            policy_version_min=low,
            policy_version_max=high,
            episodes=len(self._episodes),
            return_sum=float(sum(episode.return_ for episode in self._episodes)),
            progress_sum=float(sum(episode.progress_metres for episode in self._episodes)),
            tail=len(tail),
        )
        size = self._layout.segment_bytes(self._count, len(tail))
        finished = FinishedSegment(segment, self._arenas.cut(self._arena, size))
        self._begin()
        return finished

    def _sum_n_steps(self) -> None:
        """Sum rewards over up to `n_step` steps of the same episode, fewer at the end of a segment.

        `steps` is the number of summed rewards; the learner uses it to find the last one and the next observation.
        """
        columns, copies = self._columns, self._env.num_envs
        # Copy c at time t is in row t * copies + c, so the next step of the same copy is `copies` rows further.
        reward, ended = columns["reward"].copy(), self._ended
        columns["steps"][:] = 1
        continues = ended == 0
        for ahead in range(1, self._n_step):
            shift = ahead * copies
            rows = np.flatnonzero(continues[: max(0, self._count - shift)])
            columns["reward"][rows] += self._gamma**ahead * reward[rows + shift]
            columns["steps"][rows] += 1
            continues[rows] = ended[rows + shift] == 0
