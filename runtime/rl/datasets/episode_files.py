"""Files of recorded episodes: HDF5 with one group per episode, in Minari's format (minari.farama.org, `episode_0`
...).

A group contains `observations` (T + 1; the last one follows the last action), and `actions`, `rewards`,
`terminations` and `truncations` (T). With images, `observations` is a group of `vector` and `image_0` ... A file is
written under a temporary name and renamed, so a visible file is complete. Until then its episodes are in a journal
of the same name (`runtime.rl.datasets.journal`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import SetupError
from runtime.base.installation import install_hint
from runtime.rl.spaces import ActionSpace, ObsSpace

SUFFIX: Final = ".hdf5"


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode, or its recorded part."""

    obs: NDArray[Any]
    """(T + 1, width) observations; the last is the one before any reset."""
    action: NDArray[Any]
    """(T, size) actions of the policy: numbers in [-1, 1], or choices."""
    reward: NDArray[np.float32]
    """(T,)"""
    terminated: bool
    """True if the episode terminated; otherwise it was truncated after its last step."""

    def __len__(self) -> int:
        return len(self.reward)

    def check(self, facts: DatasetFacts, where: str) -> None:
        """Raise ValueError with a sentence that starts with `where` if the arrays do not fit the dataset."""
        space, action_space, count = facts.obs, facts.action, len(self)
        if (
            not count
            or self.obs.shape != (count + 1, space.width)
            or self.action.shape != (count, action_space.size)
        ):
            raise ValueError(f"{where} has arrays that do not fit each other")
        if action_space.choices and not ((self.action >= 0) & (self.action < np.array(action_space.choices))).all():
            raise ValueError(f"{where} has a choice that its environment does not")
        if not all(np.isfinite(part).all() for part in (self.reward, self.action, space.split(self.obs)[0])):
            raise ValueError(f"{where} has numbers that are not finite")


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """Facts in each file, which a learner compares with its environment."""

    environment: str
    obs: ObsSpace
    action: ActionSpace


def require_h5py() -> Any:
    """Return the module h5py. Raises SetupError if it is not installed."""
    try:
        import h5py
    except ImportError as error:
        raise SetupError(f"recorded experience needs h5py. {install_hint('datasets')}") from error
    return h5py


def write_episodes(path: Path, facts: DatasetFacts, episodes: Sequence[Episode]) -> None:
    """Write a file of episodes, completely or not at all."""
    h5py, beside = require_h5py(), path.with_suffix(".part")
    with h5py.File(beside, "w") as file:
        file.attrs["environment"] = facts.environment
        file.attrs["vector"] = facts.obs.vector
        file.attrs["images"] = np.array(facts.obs.images, dtype=np.int64).reshape(-1, 3)
        file.attrs["action_size"] = facts.action.size
        file.attrs["choices"] = np.array(facts.action.choices, dtype=np.int64)
        file.attrs["total_episodes"] = len(episodes)
        file.attrs["total_steps"] = sum(map(len, episodes))
        for number, episode in enumerate(episodes):
            _write(file.create_group(f"episode_{number}"), facts, episode, number)
    beside.replace(path)


def _write(group: Any, facts: DatasetFacts, episode: Episode, number: int) -> None:
    count, last = len(episode), np.zeros(len(episode), dtype=np.bool_)
    group.attrs["id"], group.attrs["total_steps"] = number, count
    vector, images = facts.obs.split(episode.obs)
    if images:
        parts = group.create_group("observations")
        parts["vector"] = vector
        for index, image in enumerate(images):
            parts.create_dataset(f"image_{index}", data=image, compression="lzf")
    else:
        group["observations"] = vector
    # A single choice is a number and not a row with one number, as in Gymnasium's Discrete.
    is_discrete = len(facts.action.choices) == 1
    group["actions"] = episode.action[:, 0].astype(np.int64) if is_discrete else episode.action
    group["rewards"] = episode.reward
    last[-1] = True
    group["terminations"], group["truncations"] = last & episode.terminated, last & (not episode.terminated)


class EpisodeFile:
    """A file of episodes, open for reading. Raises ValueError with a sentence for another kind of file."""

    def __init__(self, path: Path) -> None:
        h5py = require_h5py()
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise ValueError(f"{path} is not a complete HDF5 file: {error}") from error
        try:
            attrs = self._file.attrs
            images = tuple((int(h), int(w), int(c)) for h, w, c in attrs["images"])
            choices = tuple(map(int, attrs["choices"]))
            action = ActionSpace(int(attrs["action_size"]), choices)
            self.facts = DatasetFacts(str(attrs["environment"]), ObsSpace(int(attrs["vector"]), images), action)
            self.episodes, self.steps = int(attrs["total_episodes"]), int(attrs["total_steps"])
        except (KeyError, TypeError, ValueError) as error:
            self._file.close()
            raise ValueError(f"{path} was not recorded by l2r-runtime: {error}") from error

    def read(self) -> Iterator[Episode]:
        """Yield the episodes, one in memory at a time. Raises ValueError if an episode's arrays do not fit each
        other.
        """
        for number in range(self.episodes):
            try:
                yield self._episode(self._file[f"episode_{number}"])
            except (KeyError, OSError, TypeError) as error:
                raise ValueError(f"{self._file.filename}: episode {number} cannot be read: {error}") from error

    def _episode(self, group: Any) -> Episode:
        space, action_space, parts = self.facts.obs, self.facts.action, group["observations"]
        if space.images:
            images = [parts[f"image_{index}"][()] for index in range(len(space.images))]
            obs = space.pack(parts["vector"][()].astype(np.float32), images)
        else:
            obs = parts[()].astype(np.float32)
        reward = group["rewards"][()].astype(np.float32)
        action = group["actions"][()].astype(action_space.dtype).reshape(len(reward), -1)
        episode = Episode(obs, action, reward, bool(group["terminations"][-1:].any()))
        episode.check(self.facts, f"{self._file.filename}: {group.name}")
        return episode

    def close(self) -> None:
        """Close the file."""
        self._file.close()
