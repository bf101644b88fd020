"""One worker's collection: step the copies of an environment, gather transitions into arenas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime.envs.base import EpisodeSummary, VectorEnv
from runtime.messages import Trajectory
from runtime.process import NotFiniteError
from runtime.segments import columns, is_finite, transition_bytes

Act = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""(B, obs_dim) → (B, act_dim)"""


@dataclass(frozen=True, slots=True)
class Collected:
    """A full segment, ready to be sent; nobody writes its arena any more."""

    segment: Trajectory
    arena: memoryview


class Rollout:
    """Collects segments of `steps` steps of every copy; `step` returns one when it is full.

    Raises NotFiniteError instead if the environment gave numbers that nothing can be learned from.
    """

    def __init__(self, env: VectorEnv, steps: int, seed: int) -> None:
        self._env = env
        self._steps = steps
        self._count = steps * env.num_envs
        self._arena_bytes = self._count * transition_bytes(env.obs_dim, env.act_dim)
        self._obs = env.reset(seed)
        self._begin()

    def _begin(self) -> None:
        """Take a fresh arena: the last one may still be on its way to the learner."""
        self._arena = np.empty(self._arena_bytes, dtype=np.uint8)
        self._columns = columns(self._arena, self._count, self._env.obs_dim, self._env.act_dim)
        self._at = 0
        self._versions: tuple[int, int] | None = None
        self._episodes: list[EpisodeSummary] = []

    def step(self, act: Act, policy_version: int) -> Collected | None:
        """Take one step of every copy with `act`, the policy of `policy_version`."""
        env, first = self._env, self._at
        last = first + env.num_envs
        action = act(self._obs)
        result = env.step(action)
        obs, actions, reward, next_obs, terminated = self._columns
        obs[first:last] = self._obs
        actions[first:last] = action
        reward[first:last] = result.reward
        next_obs[first:last] = result.final_obs
        terminated[first:last] = result.terminated
        self._obs = result.obs
        self._episodes.extend(result.episodes)
        low, high = self._versions or (policy_version, policy_version)
        self._versions = min(low, policy_version), max(high, policy_version)
        self._at = last
        return self._finish() if last == self._count else None

    def _finish(self) -> Collected:
        if not is_finite(self._columns):
            raise NotFiniteError(
                "the environment gave observations or rewards that are not finite; they are not used"
            )
        low, high = self._versions or (0, 0)
        segment = Trajectory(
            epoch=0,
            seq=0,
            transitions=self._count,
            policy_version_min=low,
            policy_version_max=high,
            episodes=len(self._episodes),
            return_sum=float(sum(each.return_ for each in self._episodes)),
            progress_sum=float(sum(each.progress_metres for each in self._episodes)),
        )
        finished = Collected(segment, self._arena.data)
        self._begin()
        return finished
