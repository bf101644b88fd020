"""The runs on disk: read again only where something changed, and believed only where it holds.

Nothing here starts or stops anything. The one thing that is written is the new name of an unreadable file.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from l2rtui.backends.local import control, files, processes
from l2rtui.backends.local.capacity import node_name
from l2rtui.backends.local.layout import REMOVED, STAGED, Root, RunFolder
from l2rtui.backends.local.records import RunRecord, RunStatus

T = TypeVar("T")
CORRUPT = "Corrupt"
_CORRUPT_UID = "corrupt-"
_STARTING_SECONDS = 15.0
"""A run without a status is being started for so long; after that nobody looks after it."""


@dataclass(frozen=True, slots=True)
class RunState:
    """One run as its files and processes show it.

    Attributes:
        record: None when it cannot be read: then only the folder's name is known.
        is_supervised: A living supervisor wrote the status, or ended in order.
        is_stopping: Its destruction was asked for.
    """

    folder: RunFolder
    record: RunRecord | None
    status: RunStatus | None
    is_supervised: bool
    is_stopping: bool

    @property
    def uid(self) -> str:
        """Uid of the run, or one for a run without a readable record."""
        return self.record.uid if self.record else corrupt_uid(self.folder)


@dataclass(frozen=True, slots=True)
class Look:
    """All runs, and what could not be read."""

    runs: tuple[RunState, ...] = ()
    problems: tuple[str, ...] = ()


def corrupt_uid(folder: RunFolder) -> str:
    """Stands for the uid of a run whose record cannot be read: the folder's number is as unique while it exists."""
    try:
        return f"{_CORRUPT_UID}{folder.path.stat().st_ino}"
    except OSError:
        return f"{_CORRUPT_UID}gone"


def short_uid(uid: str) -> str:
    """Enough of a uid for people and names of folders."""
    return uid.removeprefix(_CORRUPT_UID)[:8]


class Store:
    """Reads the state folder; keeps what it has read until the file is another one."""

    def __init__(self, root: Root, boot: str) -> None:
        self._root = root
        self._boot = boot
        self._files: dict[Path, tuple[tuple[int, int, int], object]] = {}
        self._asides: dict[Path, tuple[int, tuple[str, ...]]] = {}

    def look(self) -> Look:
        """Read what has changed. Takes well under a millisecond when nothing has."""
        runs: list[RunState] = []
        problems: list[str] = []
        names = self._names(problems)
        for name in names:
            folder = self._root.run(name)
            state = self._run(folder, problems)
            if state is None:
                continue
            if state.record is not None and state.record.boot != self._boot and state.record.node != node_name():
                problems.append(f"run {name} was launched on {state.record.node}: look after it there")
                continue
            runs.append(state)
        kept = set(names)
        self._files = {path: entry for path, entry in self._files.items() if path.parent.name in kept}
        self._asides = {path: entry for path, entry in self._asides.items() if path.name in kept}
        return Look(tuple(runs), tuple(problems))

    def find(self, uid: str) -> RunState | None:
        """The run with this uid, which may be the one that stood for it while its record could not be read."""
        return next((one for one in self.look().runs if uid in (one.uid, corrupt_uid(one.folder))), None)

    def named(self, name: str) -> RunState | None:
        """The run with this name."""
        return next((state for state in self.look().runs if state.folder.name == name), None)

    def _names(self, problems: list[str]) -> list[str]:
        try:
            found = os.listdir(self._root.runs)  # noqa: PTH208  (five times a second)
        except FileNotFoundError:  # nothing was ever launched
            return []
        except OSError as error:
            problems.append(f"the state folder {self._root.runs} cannot be read: {error.strerror}")
            return []
        return sorted(name for name in found if not name.startswith((STAGED, REMOVED)))

    def _run(self, folder: RunFolder, problems: list[str]) -> RunState | None:
        record = self._read(folder.record, RunRecord, problems)
        status = self._read(folder.status, RunStatus, problems)
        if record is None and not folder.path.is_dir():  # destroyed while we looked, or no run at all
            return None
        if status is not None and not status.is_ended and not processes.is_alive(status.supervisor):
            status = self._read(folder.status, RunStatus, problems)  # it may have ended in order between the looks
        problems.extend(self._set_aside_in(folder))
        is_young = record is not None and status is None and time.time() < record.created + _STARTING_SECONDS
        if status is None:
            is_supervised = is_young or control.supervisor_of(folder) is not None
        else:
            is_supervised = status.is_ended or processes.is_alive(status.supervisor)
        is_stopping = folder.destroy_request.exists() or bool(status and status.is_destroying)
        return RunState(folder, record, status, is_supervised, is_stopping)

    def _read(self, path: Path, kind: type[T], problems: list[str]) -> T | None:
        try:
            found = path.stat()
        except OSError:
            return None
        key = (found.st_ino, found.st_mtime_ns, found.st_size)
        known = self._files.get(path)
        if known is not None and known[0] == key and isinstance(known[1], kind):
            return known[1]
        try:
            value = files.read(path, kind)
        except FileNotFoundError:
            return None
        except files.CorruptError as error:
            problems.append(f"{path} cannot be read: {error}")
            try:
                files.set_aside(path)
            except OSError:
                pass  # a folder that we may only read: it is reported each time
            return None
        self._files[path] = (key, value)
        return value

    def _set_aside_in(self, folder: RunFolder) -> tuple[str, ...]:
        """Sentences on files that were set aside; they stay until somebody has looked and removes them."""
        try:
            changed = folder.path.stat().st_mtime_ns
        except OSError:
            return ()
        known = self._asides.get(folder.path)
        if known is None or known[0] != changed:
            asides = sorted(folder.path.glob("*.corrupt-*"))
            sentences = tuple(f"run {folder.name}: a file was unreadable and is kept as {path}" for path in asides)
            known = (changed, sentences)
            self._asides[folder.path] = known
        return known[1]
