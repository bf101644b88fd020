"""Files of recorded episodes: HDF5 with one group per episode, in Minari's format (minari.farama.org, `episode_0`
...).

A group contains `observations` (T + 1; the last one follows the last action), and `actions`, `rewards`,
`terminations` and `truncations` (T). With images, `observations` is a group of `vector` and `image_0` ... A file is
written under a temporary name and renamed, so a visible file is complete. Until then its episodes are in a journal
of the same name, which survives a killed process.

The journal has one line of JSON with the facts; then for each episode its length and a msgpack of its arrays. An
append costs a fraction of an HDF5 group, and the kernel keeps what a killed process has written. The journal is
removed once the HDF5 file of the same name exists; if both exist, the process was killed in between, and the file
is read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from runtime.base import bounded_json, contract
from runtime.base.errors import SetupError
from runtime.base.installation import install_hint
from runtime.rl.spaces import ActionSpace, ObsSpace

if TYPE_CHECKING:
    import argparse

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


JOURNAL_SUFFIX: Final = ".journal"
_LENGTH: Final = struct.Struct("<Q")


class _Record(msgspec.Struct, array_like=True):
    """An episode, as bytes in memory order."""

    obs: bytes
    action: bytes
    reward: bytes
    terminated: bool


class JournalWriter:
    """Journal next to the HDF5 file that its episodes will be written to."""

    def __init__(self, path: Path, facts: DatasetFacts) -> None:
        self._path = path.with_suffix(JOURNAL_SUFFIX)
        self._file = self._path.open("xb")
        self._file.write(msgspec.json.encode(facts) + b"\n")

    def append(self, episode: Episode) -> None:
        """Write an episode, so that it outlives this process."""
        obs, action, reward = (array.tobytes() for array in (episode.obs, episode.action, episode.reward))
        data = msgspec.msgpack.encode(_Record(obs, action, reward, episode.terminated))
        self._file.write(_LENGTH.pack(len(data)))
        self._file.write(data)
        self._file.flush()

    def remove(self) -> None:
        """Delete the journal: its episodes are in the HDF5 file."""
        self._file.close()
        self._path.unlink(missing_ok=True)


class JournalFile:
    """A journal, read like an `EpisodeFile`. Raises ValueError with a sentence for another kind of file.

    Skips the last episode if the process was killed while writing it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            try:
                self.facts = bounded_json.decode(file.readline(1 << 16), DatasetFacts)
            except ValueError as error:
                raise ValueError(f"{path} was not recorded by l2r-runtime: {error}") from error
            self._records = list(_records(file))
        width = self.facts.action.dtype.itemsize * self.facts.action.size
        self.episodes = len(self._records)
        self.steps = sum(len(record.action) for record in self._records) // max(1, width)

    def read(self) -> Iterator[Episode]:
        """Yield the episodes. Raises ValueError if an episode's arrays do not fit each other."""
        for number, record in enumerate(self._records):
            where = f"{self._path}: episode {number}"
            try:
                episode = self._episode(record)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{where} cannot be read: {error}") from error
            episode.check(self.facts, where)
            yield episode

    def _episode(self, record: _Record) -> Episode:
        obs, action = self.facts.obs, self.facts.action
        return Episode(
            np.frombuffer(record.obs, obs.dtype).reshape(-1, obs.width),
            np.frombuffer(record.action, action.dtype).reshape(-1, action.size),
            np.frombuffer(record.reward, np.float32),
            record.terminated,
        )

    def close(self) -> None:
        """Release the episodes."""
        self._records = []


def _records(file: BinaryIO) -> Iterator[_Record]:
    """Yield the completely written records."""
    decode = msgspec.msgpack.Decoder(_Record).decode
    while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
        (length,) = _LENGTH.unpack(head)
        # Limited by the file's size: a length from outside must not control how much memory is allocated.
        data = file.read(min(length, Path(file.name).stat().st_size))
        if len(data) < length:
            return
        try:
            yield decode(data)
        except ValueError:
            return


class EpisodeReader(Protocol):
    """Reader of the episodes in one file."""

    facts: DatasetFacts
    episodes: int
    steps: int

    def read(self) -> Iterator[Episode]:
        """Yield the episodes. Raises ValueError for an unreadable episode."""

    def close(self) -> None:
        """Close the file."""


def open_episodes(path: Path) -> EpisodeReader:
    """Open a file of a dataset. Raises ValueError with a sentence if it is not one."""
    return JournalFile(path) if path.suffix == JOURNAL_SUFFIX else EpisodeFile(path)


def dataset_files(folder: str) -> Sequence[Path]:
    """Return the files of a dataset, including all subfolders. Raises SetupError if there are none."""
    paths = set(Path(folder).rglob(f"*{SUFFIX}"))
    journals = Path(folder).rglob(f"*{JOURNAL_SUFFIX}")
    paths.update(path for path in journals if path.with_suffix(SUFFIX) not in paths)
    if not paths:
        raise SetupError(f"there are no recorded episodes (*{SUFFIX}) in {folder}")
    return sorted(paths)


def print_summary(options: argparse.Namespace) -> int:
    """Print a summary of recorded episodes in a folder and return the exit code. Raises SetupError if it has
    none.
    """
    figures = summary(options.folder)
    if options.json:
        print(json.dumps(figures))
        return contract.EXIT_DONE
    for name, value in figures.items():
        text = (
            "\n".join(value) if isinstance(value, list) else f"{value:.6g}" if isinstance(value, float) else value
        )
        print(f"{name:16} {text}")
    return contract.EXIT_DONE


def summary(folder: str) -> dict[str, Any]:
    """Return figures of all files in a folder; unreadable files are listed under `damaged`."""
    returns: list[float] = []
    steps: list[int] = []
    ended, damaged = 0, []
    environments: dict[str, None] = {}
    paths = dataset_files(folder)
    for path in paths:
        try:
            file = open_episodes(path)
            environments[file.facts.environment] = None
            for episode in file.read():
                returns.append(float(episode.reward.sum()))
                steps.append(len(episode))
                ended += episode.terminated
            file.close()
        except ValueError as error:
            damaged.append(str(error))
    if not returns:
        raise SetupError(f"no episode in {folder} can be read: {damaged[0]}")
    return {
        "environment": ", ".join(environments),
        "files": len(paths),
        "bytes": sum(path.stat().st_size for path in paths),
        "episodes": len(returns),
        "transitions": sum(steps),
        "terminated": ended,
        "mean_length": float(np.mean(steps)),
        "mean_return": float(np.mean(returns)),
        "return_min": min(returns),
        "return_max": max(returns),
        **({"damaged": damaged} if damaged else {}),
    }
