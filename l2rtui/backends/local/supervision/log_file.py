"""The form of log files, and the side that writes them.

A line is ``2026-11-20T12:00:00.123456Z text``; where the space is a ``!``, the backend wrote the line and not the
process. What a process prints is on disk as soon as it is read, finished line or not: a supervisor that is killed
holds nothing back, and the next one goes on in the middle of the line.
"""

from __future__ import annotations

import contextlib
import os
import time
from datetime import datetime
from pathlib import Path

from l2rtui.backends.local.files import write_all

STAMP_LENGTH = 27
TEXT, MARK = b" ", b"!"
MAX_LINE = 16 * 1024
"""Bytes after which a line is cut in two, as container runtimes do."""
KEPT_PROCESSES = 5
"""Logs of so many processes of a pod are kept, the present one included."""


def stamp(seconds: float) -> bytes:
    """RFC 3339 in UTC with microseconds, 27 bytes."""
    whole = int(seconds)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return f"{text}.{int((seconds - whole) * 1e6):06d}Z".encode()


def parse_stamp(text: bytes) -> float | None:
    """Seconds since the epoch, or None when this is no stamp."""
    try:
        return datetime.fromisoformat(text.decode("ascii")).timestamp() if len(text) == STAMP_LENGTH else None
    except ValueError:
        return None


def serials(folder: Path) -> list[int]:
    """Numbers of the processes whose logs are kept, oldest first."""
    try:
        names = os.listdir(folder)  # noqa: PTH208  (names are all that is wanted)
    except OSError:
        return []
    return sorted({int(name.partition(".")[0]) for name in names if name.partition(".")[0].isdigit()})


def log_path(folder: Path, serial: int) -> Path:
    """The log of the process with this number."""
    return folder / f"{serial}.log"


def rotated_path(path: Path) -> Path:
    """Where the earlier part of a log is set aside."""
    return path.with_name(f"{path.name}.1")


class LogWriter:
    """Appends what one process prints; opened again by the next supervisor it goes on where the last one was.

    Args:
        max_bytes: A file that has grown beyond this is set aside at the end of a line; one is kept.
    """

    def __init__(self, folder: Path, serial: int, max_bytes: int) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = log_path(folder, serial)
        self._max_bytes = max_bytes
        self._open()
        self._column = 0 if self._is_at_line_start() else 1
        for old in serials(folder):
            if old <= serial - KEPT_PROCESSES:
                for path in (log_path(folder, old), rotated_path(log_path(folder, old))):
                    path.unlink(missing_ok=True)

    def write(self, chunk: bytes) -> None:
        """Append what was read.

        Raises:
            OSError: the disk is full, or the folder is gone; the chunk is lost.
        """
        now = stamp(time.time()) + TEXT
        out = bytearray()
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._add(out, line, now)
            if not self._column:
                out += now
            out += b"\n"
            self._column = 0
        if rest:
            self._add(out, rest, now)
        self._append(out)

    def mark(self, text: str) -> None:
        """Append a line of our own; on a full disk it is left out."""
        start = b"\n" if self._column else b""
        self._column = 0
        with contextlib.suppress(OSError):
            self._append(start + stamp(time.time()) + MARK + text.encode() + b"\n")

    def close(self) -> None:
        """End the last line and let go of the file."""
        with contextlib.suppress(OSError):  # a full disk: the process that ended is what matters now
            if self._column:
                self._append(b"\n")
        os.close(self._file)

    def _add(self, out: bytearray, text: bytes, now: bytes) -> None:
        while text:
            if self._column == MAX_LINE:
                out += b"\n"
                self._column = 0
            if not self._column:
                out += now
            piece, text = text[: MAX_LINE - self._column], text[MAX_LINE - self._column :]
            out += piece
            self._column += len(piece)

    def _append(self, data: bytes | bytearray) -> None:
        write_all(self._file, data)
        self._size += len(data)
        if self._size > self._max_bytes and not self._column:
            old = self._file
            self._path.replace(rotated_path(self._path))
            self._open()  # if this fails we go on in the old file
            os.close(old)

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._size = os.fstat(self._file).st_size

    def _is_at_line_start(self) -> bool:
        return self._size == 0 or os.pread(self._file, 1, self._size - 1) == b"\n"
