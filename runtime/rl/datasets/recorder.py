"""Recorder of episodes during driving: in memory until an episode ends, then in a journal, then in a file."""

from __future__ import annotations

import time
import uuid
from collections import deque
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from runtime.rl.datasets.episode_files import (
    SUFFIX,
    DatasetFacts,
    Episode,
    JournalWriter,
    require_h5py,
    write_episodes,
)
from runtime.rl.envs.base import StepResult, VectorEnv

WRITE_SECONDS: Final = 5.0
"""Longest time that finished episodes wait to share a file; until then they are in a journal."""
FILE_BYTES: Final = 32 * 1024 * 1024
"""Size of episodes from which a file is written immediately."""
MEMORY_BYTES: Final = 256 * 1024 * 1024
"""Size of the steps in memory; longer episodes are split into parts that are truncated."""
_Step = tuple[NDArray[Any], NDArray[Any], NDArray[np.float32], NDArray[Any]]
"""Observations, actions, rewards and final observations of all copies."""


class EpisodeRecorder:
    """Writes the episodes of an environment's copies to files in a folder.

    As a context manager it writes the finished episodes however the block ends.
    """

    def __init__(self, folder: str, env: VectorEnv, environment: str, *, memory_bytes: int = MEMORY_BYTES) -> None:
        """Raises SetupError without h5py, and OSError if the folder is not writable."""
        require_h5py()
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._name = uuid.uuid4().hex[:12]  # workers on several nodes may share the folder
        self._facts = DatasetFacts(environment, env.obs_space, env.action_space)
        self._memory_bytes = memory_bytes
        self._steps: deque[_Step] = deque()
        self._first = 0
        """Number of the oldest step in memory."""
        self._begins = np.zeros(env.num_envs, dtype=np.int64)
        """Number of the first step of each copy's current episode."""
        self._finished: list[Episode] = []
        self._bytes = 0
        self._files = 0
        self._journal: JournalWriter | None = None
        self._written = time.monotonic()
        self.episodes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def add(self, obs: NDArray[Any], action: NDArray[Any], result: StepResult) -> None:
        """Add one step of all copies: observations, actions and results."""
        if result.is_lost:  # a lost simulator's steps are not experience, and earlier ones have no end
            self.reset()
            return
        self._steps.append((obs, action, result.reward, result.final_obs))
        number = self._first + len(self._steps)
        ended = result.terminated | result.truncated
        if result.absent is not None:  # padding is not part of an episode
            self._begins[result.absent] = number
            ended &= ~result.absent
        for copy in np.flatnonzero(ended):
            self._finish(int(copy), number, is_terminated=bool(result.terminated[copy]))
        if len(self._steps) * (obs.nbytes + action.nbytes) > self._memory_bytes:
            for copy in np.flatnonzero(self._begins < number):
                self._finish(int(copy), number, is_terminated=False)
        self._forget()
        is_due = time.monotonic() - self._written >= WRITE_SECONDS or self._bytes >= FILE_BYTES
        if self._finished and is_due:
            self.flush()

    def reset(self) -> None:
        """Drop unfinished episodes."""
        self._first += len(self._steps)
        self._steps.clear()
        self._begins[:] = self._first

    def flush(self) -> None:
        """Write the file of the finished episodes."""
        if self._journal is not None:
            write_episodes(self._path, self._facts, self._finished)
            self._journal.remove()
            self._journal = None
            self._files += 1
            self._finished, self._bytes = [], 0
        self._written = time.monotonic()

    def _finish(self, copy: int, number: int, *, is_terminated: bool) -> None:
        """Keep a copy's episode, which ended before step ``number``."""
        steps = [self._steps[at - self._first] for at in range(int(self._begins[copy]), number)]
        obs = np.stack([step[0][copy] for step in steps] + [steps[-1][3][copy]])
        action = np.stack([step[1][copy] for step in steps])
        reward = np.array([step[2][copy] for step in steps], dtype=np.float32)
        episode = Episode(obs, action, reward, is_terminated)
        if self._journal is None:
            self._journal = JournalWriter(self._path, self._facts)
        self._journal.append(episode)
        self._finished.append(episode)
        self._begins[copy] = number
        self._bytes += obs.nbytes
        self.episodes += 1

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._name}-{self._files + 1:06}{SUFFIX}"

    def _forget(self) -> None:
        """Drop steps that are not part of a current episode."""
        oldest = int(self._begins.min())
        while self._first < oldest:
            self._steps.popleft()
            self._first += 1
