"""Journal of finished episodes that are not in a file yet; it survives a killed process.

One line of JSON with the facts; then for each episode its length and a msgpack of its arrays. An append costs a
fraction of an HDF5 group, and the kernel keeps what a killed process has written. The journal is removed once the
HDF5 file of the same name exists; if both exist, the process was killed in between, and the file is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec
import numpy as np

from runtime.base import bounded_json
from runtime.base.errors import SetupError
from runtime.rl.datasets.episode_files import SUFFIX, DatasetFacts, Episode, EpisodeFile

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
