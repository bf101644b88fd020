"""Log reader: the last lines read from the end, then new lines across rotation, restarts and replacements."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from l2rtui.backends.local.supervision.log_file import (
    MARK,
    NEWER,
    STAMP_LENGTH,
    log_path,
    parse_stamp,
    rotated_path,
    serials,
)
from l2rtui.domain.log import LogLine, LogQuery, visible_state

_BLOCK = 65_536
_MIN_PAUSE_SECONDS = 0.125
_MAX_PAUSE_SECONDS = 1.0
"""Pause between two polls of a log: doubled after a poll without new lines, halved after one with new lines.

Polls are at whole multiples of the pause. So all followers of a process wake together and their lines are drawn
together: a screen that follows a run of many pods costs little more than one that follows a single pod.
"""
_CHECK_SECONDS = 1.0
"""Interval of the check whether the pod has ended, which scans the state folder."""
_YOUNG_NANOSECONDS = 2_000_000_000
"""Age below which a folder's modification time is not conclusive: coarser than any file system's clock (FAT: 2
s).
"""
_YIELD_LINES = 500
"""Number of lines after which other tasks of the event loop get a turn."""


async def read_logs(folder: Path, pod: str, query: LogQuery, is_over: Callable[[], bool]) -> AsyncIterator[LogLine]:
    """Yield lines of all pods of one name, whose logs are in a folder.

    Without ``follow`` only the lines that exist now are read, so it ends even if a pod writes faster than it reads.

    Args:
        is_over: Returns True if nothing more will be written. Only called without new lines; lines that were
            written before it returned are still yielded.
    """
    # The backlog leaves the cursor exactly after its last line, so that no line in between is lost or repeated.
    cursor = _Cursor(folder)
    is_live = query.follow and not query.previous
    try:
        seen_rest = b""
        """Unfinished line that was shown; the next text is a newer state of it."""
        if not is_live:
            cursor.stop_at_present()
        async for line in _parsed(_backlog(folder, query, cursor), pod, query.since):
            yield line
        is_last_poll, checked_at, pause = False, 0.0, _MIN_PAUSE_SECONDS
        if query.seam and is_live:
            yield LogLine(time.time(), pod, "", is_seam=True)
        while is_live:
            is_quiet = True
            async for line in _parsed(cursor.advance(), pod, query.since):
                is_quiet = False
                yield _newer(line, seen_rest)
                seen_rest = b""
            for state in _open_states(cursor, seen_rest, pod, query.since):
                yield state
                seen_rest = cursor.rest
            if is_last_poll:
                break
            # A busy log is read often and an idle one rarely: hundreds of followers share one core.
            pause = min(2 * pause, _MAX_PAUSE_SECONDS) if is_quiet else max(pause / 2, _MIN_PAUSE_SECONDS)
            if is_quiet:
                clock = asyncio.get_running_loop().time
                await asyncio.sleep(pause - clock() % pause)
                checked_at, is_last_poll = _checked(clock(), checked_at, is_over)
        # The unfinished last line, which will never be completed.
        if cursor.rest != seen_rest and (last := _parse(cursor.rest, pod, query.since)):
            yield _newer(last, seen_rest)
    finally:
        cursor.close()


def _checked(now: float, checked_at: float, is_over: Callable[[], bool]) -> tuple[float, bool]:
    """Return the time of the last check whether the pod is over, and its result; False before the next check is
    due.
    """
    return (now, is_over()) if now >= checked_at + _CHECK_SECONDS else (checked_at, False)


def _open_states(cursor: _Cursor, seen_rest: bytes, pod: str, since: float | None) -> Iterator[LogLine]:
    """Yield the newest state of an idle progress bar in an unfinished line, unless it was already yielded."""
    if b"\r" in cursor.rest and cursor.rest != seen_rest:
        state = _parse(cursor.rest, pod, since)
        if state is not None and state.text.strip():
            yield _newer(state, seen_rest)


def _newer(line: LogLine, seen_rest: bytes) -> LogLine:
    """Mark a line as a newer state of the text shown before."""
    return replace(line, replaces=True) if seen_rest else line


class _Cursor:
    """A position in the logs of a pod: an open file, and the unfinished line at its end.

    The file stays open, so it can be read to its end after a rotation, and no other file gets its inode.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._serial = -1
        self._file: BinaryIO | None = None
        self._is_final = False
        self._sizes: dict[int, int] | None = None
        """Bytes to be read from each file, by inode, and from no other; None for no limit."""
        self._folder_mtime = 0
        self.rest = b""

    def enter(self, serial: int, file: BinaryIO, rest: bytes = b"") -> None:
        """Continue in this file, from its current offset."""
        self.close()
        self._serial, self._file, self.rest = serial, file, rest
        self._folder_mtime = 0  # an unchanged folder may have files after this one

    def stay(self) -> None:
        """Stay in the current file: ``advance`` yields nothing."""
        self._is_final = True

    def stop_at_present(self) -> None:
        """Read no further than the current ends of the files, whatever is written meanwhile."""
        paths = (path for serial in serials(self._folder) for path in _parts(self._folder, serial))
        stats = (stat for path in paths if (stat := _stat(path)) is not None)
        self._sizes = {stat.st_ino: stat.st_size for stat in stats}

    @property
    def has_file(self) -> bool:
        """True once it has entered a file."""
        return self._file is not None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def advance(self) -> Iterator[bytes]:
        """Yield complete new lines in order; an unfinished one stays in ``rest`` until it is completed."""
        while not self._is_final:
            yield from self._to_end()
            if self._is_same_folder():
                return
            following = self._next_file()
            if following is None:
                return
            # The file is complete by now: its writer opened the next file after its last byte.
            yield from self._to_end()
            if self.rest:
                yield self.rest
            self.enter(*following)

    def _to_end(self) -> Iterator[bytes]:
        while self._file is not None and (block := self._file.read(self._room(self._file))):
            *lines, self.rest = (self.rest + block).split(b"\n")
            yield from lines

    def _room(self, file: BinaryIO) -> int:
        """Return the number of bytes to read next."""
        if self._sizes is None:
            return _BLOCK
        return min(_BLOCK, self._sizes.get(os.fstat(file.fileno()).st_ino, 0) - file.tell())

    def _is_same_folder(self) -> bool:
        """Return True if no file was created or renamed since the last poll; costs one stat instead of several.

        A change within one tick of the file system's clock is not visible, so a young folder is always listed.
        """
        try:
            changed = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return self._file is not None
        is_same = changed == self._folder_mtime and self._file is not None
        self._folder_mtime = changed if time.time_ns() - changed > _YOUNG_NANOSECONDS else 0
        return is_same

    def _next_file(self) -> tuple[int, BinaryIO] | None:
        """Open the file after this one: the next part of this process's log, or the next process's first part."""
        while True:
            candidates = self._later()
            if not candidates:
                return None
            serial, path, inode = candidates[0]
            file = _open(path)
            if file is not None:
                if os.fstat(file.fileno()).st_ino == inode and self._later() == candidates:
                    return serial, file
                file.close()  # rotated in between: list again

    def _later(self) -> list[tuple[int, Path, int]]:
        """Return number, path and inode of every file after this one, in order."""
        numbers = sorted({self._serial, *serials(self._folder)})
        files = [
            (serial, path, stat.st_ino)
            for serial in numbers
            if serial >= self._serial
            for path in _parts(self._folder, serial)
            if (stat := _stat(path)) is not None and (self._sizes is None or stat.st_ino in self._sizes)
        ]
        if self._file is None:
            return files
        own_inode = os.fstat(self._file.fileno()).st_ino
        # Not in the list: it was rotated twice while we read, so every listed file is later.
        position = next((number for number, (_, _, inode) in enumerate(files) if inode == own_inode), -1)
        return files[position + 1 :]


def _backlog(folder: Path, query: LogQuery, cursor: _Cursor) -> Iterator[bytes]:
    """Yield the existing lines; leaves the cursor after them."""
    numbers = serials(folder)
    if query.previous:
        # The previous process; empty if there was only one.
        numbers = numbers[-2:-1]
        cursor.stay()
    elif query.tail is None and query.since is None:
        yield from cursor.advance()
        return
    backlog: deque[bytes] = deque()
    for serial in reversed(numbers):
        for path in reversed(_parts(folder, serial)):
            if not _collect(path, serial, query, cursor, backlog):
                yield from backlog
                return
    yield from backlog


def _collect(path: Path, serial: int, query: LogQuery, cursor: _Cursor, backlog: deque[bytes]) -> bool:
    """Put the lines of a file before the backlog; return False if the query needs no earlier ones."""
    file = _open(path)
    if file is None:
        return True
    end = file.seek(0, os.SEEK_END)
    lines = _backwards(file, end)
    unfinished = next(lines)  # the part after the last line feed: empty, or a line that is being written
    # Read from the end backwards, so that a tail of a large log reads only its last blocks.
    is_newest = not (cursor.has_file or query.previous)
    goes_on, is_older = True, False
    for line in lines if is_newest or not unfinished else chain((unfinished,), lines):
        if is_older:  # earlier states of a progress bar are not lines
            is_older = line[STAMP_LENGTH : STAMP_LENGTH + 1] == NEWER
            continue
        is_older = line[STAMP_LENGTH : STAMP_LENGTH + 1] == NEWER
        stamp = parse_stamp(line[:STAMP_LENGTH])
        is_old = query.since is not None and stamp is not None and stamp <= query.since
        if is_old or (query.tail is not None and len(backlog) >= query.tail):
            goes_on = False
            break
        backlog.appendleft(line)
    if is_newest:
        file.seek(end)
        cursor.enter(serial, file, unfinished)
    else:
        file.close()
    return goes_on


def _backwards(file: BinaryIO, position: int) -> Iterator[bytes]:
    """Yield lines before a position, last first, block by block; the first is the part after the last line feed."""
    rest = b""
    while position:
        size = min(_BLOCK, position)
        position -= size
        file.seek(position)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        yield from reversed(lines)
    yield rest


async def _parsed(lines: Iterator[bytes], pod: str, since: float | None) -> AsyncIterator[LogLine]:
    """Yield the parsed lines; for a progress bar only its newest state."""
    newest: LogLine | None = None
    for number, line in enumerate(lines):
        if number % _YIELD_LINES == _YIELD_LINES - 1:
            await asyncio.sleep(0)
        if parsed := _parse(line, pod, since):
            if newest is not None:
                if not parsed.replaces:
                    yield newest
                elif not newest.replaces:  # the previous line is not from the same bar
                    parsed = replace(parsed, replaces=False)
            newest = parsed
    if newest is not None:
        yield newest


def _parse(line: bytes, pod: str, since: float | None) -> LogLine | None:
    """Parse a line of a log file; None for a line that is too old or has another format."""
    stamp = parse_stamp(line[:STAMP_LENGTH])
    if stamp is None or (since is not None and stamp <= since):
        return None
    kind, text = line[STAMP_LENGTH : STAMP_LENGTH + 1], line[STAMP_LENGTH + 1 :]
    state = visible_state(text.decode("utf-8", "replace"))
    return LogLine(stamp, pod, state, is_mark=kind == MARK, replaces=kind == NEWER)


def _parts(folder: Path, serial: int) -> tuple[Path, Path]:
    """Return the files of one process's log, in the order in which they were written."""
    path = log_path(folder, serial)
    return rotated_path(path), path


def _open(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None
