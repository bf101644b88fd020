"""Log files and the journal of events of a run: their format, and their writers.

A line of a log is ``2026-11-20T12:00:00.123456Z text``. With ``!`` instead of the space, the backend wrote it, not
the process. With ``+`` it is a newer state of the previous line: a progress bar, which never ends its line, gets
one per second. Output is written as soon as it is read, even an unfinished line: the next supervisor continues in
the middle of the line.

Output leaves its pipe in one system call, splice(2), for a file beside the log. That file also has the size of the
log before the copy. A supervisor that is killed anywhere in between neither loses nor repeats a byte: its
successor cuts the log to that size and copies again.

The journal has one line of JSON for each event; any process may read it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from datetime import datetime
from pathlib import Path

import msgspec

from l2rtui.backends.local.state_files import write_all
from runtime.base import bounded_json

STAMP_LENGTH = 27
TEXT, MARK, NEWER = b" ", b"!", b"+"
_STATE_SECONDS = 1.0
"""Time for which the states of a progress bar share a line; followers see the newest state at this interval."""
MAX_LINE = 16 * 1024
"""Bytes after which a line is split, as container runtimes do (the CRI log format of containerd and CRI-O)."""
_BEFORE_COPY = struct.Struct("<QQ")
"""Start of the file of output that is being copied: inode and size of the log before."""
_TAIL_BYTES = 16_384
"""Bytes at the end of a log in which the last words of a process are searched."""
KEPT_PROCESSES = 5
"""Number of processes of a pod whose logs are kept, including the current one."""


def stamp(seconds: float) -> bytes:
    """Format a time as RFC 3339 in UTC with microseconds, 27 bytes."""
    integral = int(seconds)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(integral))
    return f"{text}.{int((seconds - integral) * 1e6):06d}Z".encode()


def parse_stamp(text: bytes) -> float | None:
    """Return seconds since the epoch; None if the text is not a timestamp."""
    try:
        return datetime.fromisoformat(text.decode("ascii")).timestamp() if len(text) == STAMP_LENGTH else None
    except ValueError:
        return None


def serials(folder: Path) -> list[int]:
    """Return the numbers of the processes whose logs are stored, oldest first."""
    try:
        names = os.listdir(folder)  # noqa: PTH208  (only names are needed)
    except OSError:
        return []
    return sorted({int(name.partition(".")[0]) for name in names if name.partition(".")[0].isdigit()})


def log_path(folder: Path, serial: int) -> Path:
    """Return the log of the process with this number."""
    return folder / f"{serial}.log"


def rotated_path(path: Path) -> Path:
    """Return the path of the earlier, rotated part of a log."""
    return path.with_name(f"{path.name}.1")


def taken_path(path: Path) -> Path:
    """Return the path of output that has left its pipe on the way into a log."""
    return path.with_suffix(".taken")


def final_lines(path: Path) -> list[str]:
    """Return the last lines of a process in its log; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).splitlines()
    except OSError:
        return []
    written = [line for line in lines if line[STAMP_LENGTH : STAMP_LENGTH + 1] in (TEXT, NEWER)]
    return [line[STAMP_LENGTH + 1 :].decode(errors="replace") for line in written]


class LogWriter:
    """Appends the output of one process; a later supervisor that opens the file continues at its end.

    Args:
        max_bytes: Size beyond which a file is rotated at the end of a line; one rotated part is kept.
    """

    def __init__(self, folder: Path, serial: int, max_bytes: int) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = log_path(folder, serial)
        self._max_bytes = max_bytes
        self._open()
        self._column = 0 if self._is_at_line_start() else 1
        self._begun = 0.0
        """Time at which the current line began."""
        self._has_return = False
        """The last byte was a carriage return, which together with the next byte may be a Windows line end."""
        self._taken_path = taken_path(self._path)
        self._taken: int | None = None
        self._finish_copy()
        # A pod that fails in a loop must not fill the disk.
        for old in serials(folder):
            if old <= serial - KEPT_PROCESSES:
                log = log_path(folder, old)
                for path in (log, rotated_path(log), taken_path(log)):
                    path.unlink(missing_ok=True)

    def copy(self, pipe: int, count: int) -> int:
        """Move output of a pipe into the log; return its number of bytes, 0 at the end of output.

        Raises:
            BlockingIOError: The pipe is empty.
            OSError: The disk is full, or the folder was removed; the output is lost.
        """
        if hasattr(os, "splice"):
            try:
                size = self._take(pipe, count)
            except BlockingIOError:
                raise
            except OSError:  # a full disk, or a file system that cannot: then a plain read
                pass
            else:
                self._write_taken(size)
                return size
        chunk = os.read(pipe, count)
        self.write(chunk)
        return len(chunk)

    def write(self, chunk: bytes) -> None:
        """Append output.

        Raises:
            OSError: The disk is full, or the folder was removed; the chunk is lost.
        """
        # One timestamp for the chunk: its lines were read together, and formatting a time costs more than a line.
        at = time.time()
        now = stamp(at)
        out = bytearray()
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._add(out, line, now, at)
            if not self._column:
                out += now + TEXT
            out += b"\n"
            self._column, self._has_return = 0, False
        if rest:
            self._add(out, rest, now, at)
        self._append(out)

    def mark(self, text: str) -> None:
        """Append a line of the backend; dropped on a full disk."""
        start = b"\n" if self._column else b""
        self._column, self._has_return = 0, False
        with contextlib.suppress(OSError):
            self._append(start + stamp(time.time()) + MARK + text.encode() + b"\n")

    def close(self) -> None:
        """End the last line and close the file."""
        with contextlib.suppress(OSError):  # a full disk: the end of the process is more important now
            if self._column:
                self._append(b"\n")
        os.close(self._file)
        if self._taken is not None:
            os.close(self._taken)
            self._taken_path.unlink(missing_ok=True)

    def _take(self, pipe: int, count: int) -> int:
        if self._taken is None:
            self._taken = os.open(self._taken_path, os.O_RDWR | os.O_CREAT, 0o600)
        log = os.fstat(self._file)
        os.pwrite(self._taken, _BEFORE_COPY.pack(log.st_ino, log.st_size), 0)
        return os.splice(pipe, self._taken, count, offset_dst=_BEFORE_COPY.size)

    def _write_taken(self, count: int) -> None:
        if self._taken is None:
            return
        try:
            self.write(os.pread(self._taken, count, _BEFORE_COPY.size))
        finally:
            os.ftruncate(self._taken, _BEFORE_COPY.size)

    def _finish_copy(self) -> None:
        """Finish a copy that a killed supervisor began."""
        with contextlib.suppress(OSError):  # there is none; or a full disk
            self._taken = os.open(self._taken_path, os.O_RDWR)
            count = os.fstat(self._taken).st_size - _BEFORE_COPY.size
            if count > 0:
                self._return_to(*_BEFORE_COPY.unpack(os.pread(self._taken, _BEFORE_COPY.size, 0)))
                self._write_taken(count)

    def _return_to(self, inode: int, size: int) -> None:
        """Cut the log to what it was before an unfinished copy, which may have rotated it."""
        rotated = rotated_path(self._path)
        if os.fstat(self._file).st_ino != inode and rotated.exists() and rotated.stat().st_ino == inode:
            os.close(self._file)
            rotated.replace(self._path)
            self._open()
        if os.fstat(self._file).st_ino == inode:
            os.ftruncate(self._file, size)
            self._size = size
            self._column = 0 if self._is_at_line_start() else 1

    def _add(self, out: bytearray, text: bytes, now: bytes, at: float) -> None:
        """Append a part of a line; for a progress bar only the last of several states."""
        body = text.rstrip(b"\r")
        *older, state = body.split(b"\r")
        kind = TEXT
        if body and (older or self._has_return):
            # Half a line is reserved for the rest of a state, which may arrive later: no state is cut in the
            # middle.
            is_full = self._column + len(state) >= MAX_LINE // 2
            if self._column and (is_full or at - self._begun >= _STATE_SECONDS):
                out += b"\n"
                self._column, kind = 0, NEWER
                self._append(out)  # the only place at which a progress bar's file can be rotated
                out.clear()
            if not (self._column and self._has_return):
                state = b"\r" + state
        self._write(out, state + text[len(body) :], now + kind, at)
        self._has_return = len(text) > len(body)

    def _write(self, out: bytearray, text: bytes, start: bytes, at: float) -> None:
        while text:
            if self._column == MAX_LINE:
                out += b"\n"
                self._column = 0
            if not self._column:
                out += start
                self._begun = at
            piece, text = text[: MAX_LINE - self._column], text[MAX_LINE - self._column :]
            out += piece
            self._column += len(piece)

    def _append(self, data: bytes | bytearray) -> None:
        write_all(self._file, data)
        self._size += len(data)
        if self._size > self._max_bytes and not self._column:
            # Readers keep the old file open by inode and read it to its end; see ``logs``.
            old = self._file
            self._path.replace(rotated_path(self._path))
            self._open()  # if this fails we continue in the old file
            os.close(old)

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._size = os.fstat(self._file).st_size

    def _is_at_line_start(self) -> bool:
        return self._size == 0 or os.pread(self._file, 1, self._size - 1) == b"\n"


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
