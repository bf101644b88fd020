"""Recorder of episodes while they are driven: in memory until an episode ends, then a journal, then a file."""

from __future__ import annotations

import time
import uuid
from collections import deque
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from runtime.rl.datasets.episode_files import SUFFIX, DatasetFacts, Episode, require_h5py, write_episodes
from runtime.rl.datasets.journal import JournalWriter
from runtime.rl.envs.base import StepResult, VectorEnv

WRITE_SECONDS: Final = 5.0
"""Longest time that finished episodes wait for others to share a file; until then they stand in a journal."""
FILE_BYTES: Final = 32 * 1024 * 1024
"""Bytes of episodes after which a file is written at once."""
MEMORY_BYTES: Final = 256 * 1024 * 1024
"""Bytes of steps in memory; episodes that are longer are cut into parts, each truncated at its end."""
_Step = tuple[NDArray[Any], NDArray[Any], NDArray[np.float32], NDArray[Any]]
"""Observations, actions, rewards and final observations of all copies."""


class EpisodeRecorder:
    """Writer of what the copies of an environment do to files in a folder.

    As a context it writes the episodes that have ended however its block ends.
    """

    def __init__(self, folder: str, env: VectorEnv, environment: str, *, memory_bytes: int = MEMORY_BYTES) -> None:
        """SetupError without h5py, OSError for a folder that cannot be written."""
        require_h5py()
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._name = uuid.uuid4().hex[:12]  # workers of many nodes may share the folder
        self._facts = DatasetFacts(environment, env.obs_space, env.action_space)
        self._memory_bytes = memory_bytes
        self._steps: deque[_Step] = deque()
        self._first = 0
        """Number of the oldest step in memory."""
        self._begins = np.zeros(env.num_envs, dtype=np.int64)
        """Number of the first step of each copy's present episode."""
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
        """Take one step of all copies: what they saw, what they did, and what came of it."""
        if result.is_lost:  # no step of a lost simulator is experience, and those before have no end
            self.reset()
            return
        self._steps.append((obs, action, result.reward, result.final_obs))
        number = self._first + len(self._steps)
        ended = result.terminated | result.truncated
        if result.absent is not None:  # padding belongs to no episode
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
        """Drop the episodes that have not ended."""
        self._first += len(self._steps)
        self._steps.clear()
        self._begins[:] = self._first

    def flush(self) -> None:
        """Write the file of the episodes that have ended."""
        if self._journal is not None:
            write_episodes(self._path, self._facts, self._finished)
            self._journal.remove()
            self._journal = None
            self._files += 1
            self._finished, self._bytes = [], 0
        self._written = time.monotonic()

    def _finish(self, copy: int, number: int, *, is_terminated: bool) -> None:
        """Keep the episode of a copy that ended before step ``number``."""
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
        """Path of the next file."""
        return self._folder / f"{self._name}-{self._files + 1:06}{SUFFIX}"

    def _forget(self) -> None:
        """Let go of steps that belong to no present episode."""
        oldest = int(self._begins.min())
        while self._first < oldest:
            self._steps.popleft()
            self._first += 1
