"""Journal of a run: one line of JSON for each event, appended by its supervisor and read by any process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from l2rtui.backends.local.state_files import write_all
from runtime.base import bounded_json

MAX_BYTES = 128 * 1024
"""Size beyond which the journal is rotated; one earlier part is kept. A crash loop must not fill the disk."""
_ROTATED = ".1"


class EventRecord(msgspec.Struct, frozen=True):
    """Event of a run, or of its pod of this name.

    Attributes:
        time: Seconds since the epoch.
        pod: Name; empty for the run itself.
        reason: One word in the past tense. message: A sentence without its subject, or empty.
    """

    time: float
    pod: str
    reason: str
    message: str = ""
    is_warning: bool = False


class EventLog:
    """Writer of a journal; only the supervisor of the run writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Opened once: if the folder is replaced by another run's, nothing is written into that run's journal.
        self._file: int | None = None
        self._size = 0

    def add(self, event: EventRecord) -> None:
        """Append an event; dropped on a full disk, like marks in logs."""
        with contextlib.suppress(OSError):
            if self._file is None:
                self._open()
            if self._file is not None:
                data = msgspec.json.encode(event) + b"\n"
                write_all(self._file, data)
                self._size += len(data)
                if self._size > MAX_BYTES:
                    self._path.replace(_rotated(self._path))
                    os.close(self._file)
                    self._file = None

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size
        # A line that was truncated by a full disk or a power failure must not swallow the next one.
        if self._size and os.pread(self._file, 1, self._size - 1) != b"\n":
            write_all(self._file, b"\n")


def read_events(path: Path) -> list[EventRecord]:
    """Return the events of a journal, oldest first; unreadable lines are skipped."""
    events: list[EventRecord] = []
    decode = bounded_json.decoder(EventRecord)
    for part in (_rotated(path), path):
        try:
            lines = part.read_bytes().splitlines()
        except OSError:  # no event yet, or the run was removed meanwhile
            continue
        for line in lines:
            with contextlib.suppress(ValueError):
                events.append(decode(line))
    return events


def _rotated(path: Path) -> Path:
    return path.with_name(path.name + _ROTATED)
