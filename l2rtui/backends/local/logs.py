"""The side that reads logs: the last lines from the end, then on across rotation, restarts and replacements."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from l2rtui.backends.base import LogLine, LogQuery
from l2rtui.backends.local.logfile import MARK, STAMP_LENGTH, log_path, parse_stamp, rotated_path, serials

_BLOCK = 65_536
_FIRST_PAUSE_SECONDS = 0.125
_LAST_PAUSE_SECONDS = 1.0
"""Between two looks at a log: twice as long after one that found nothing, half after one that found lines.

The looks fall on whole multiples of the pause, so that all followers of a program wake together and what they find
is drawn at once: a screen that follows a run of many pods costs little more than one that follows a single pod.
"""
_ASK_SECONDS = 1.0
_YOUNG_NANOSECONDS = 2_000_000_000
"""Coarser than the clock of any file system in use."""
_BREATH_LINES = 500
"""After so many lines other tasks of the event loop get their turn."""


async def read_logs(folder: Path, pod: str, query: LogQuery, is_over: Callable[[], bool]) -> AsyncIterator[LogLine]:
    """Lines of the pods of one name, whose logs lie in a folder.

    Args:
        is_over: Whether nothing more will be written. Asked only while nothing new is there, and what was written
            before the answer is still given.
    """
    cursor = _Cursor(folder)
    try:
        async for found in _parsed(_backlog(folder, query, cursor), pod, query.since):
            yield found
        is_last_look, asked_at, pause = not query.follow or query.previous, 0.0, _FIRST_PAUSE_SECONDS
        if query.seam and not is_last_look:
            yield LogLine(time.time(), pod, "", is_seam=True)
        while True:
            is_quiet = True
            async for found in _parsed(cursor.advance(), pod, query.since):
                is_quiet = False
                yield found
            if is_last_look:
                break
            pause = min(2 * pause, _LAST_PAUSE_SECONDS) if is_quiet else max(pause / 2, _FIRST_PAUSE_SECONDS)
            if is_quiet:
                clock = asyncio.get_running_loop().time
                await asyncio.sleep(pause - clock() % pause)
                now = clock()
                if now >= asked_at + _ASK_SECONDS:
                    asked_at, is_last_look = now, is_over()
        if last := _parse(cursor.rest, pod, query.since):
            yield last
    finally:
        cursor.close()


class _Cursor:
    """A place in the logs of a pod: an open file, and the unfinished line at its end.

    The file is held open, so it can be read to its end after it was set aside, and no other file gets its inode.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._serial = -1
        self._file: BinaryIO | None = None
        self._is_final = False
        self._seen = 0
        self.rest = b""

    def enter(self, serial: int, file: BinaryIO, rest: bytes = b"") -> None:
        """Go on in this file, from where it stands."""
        self.close()
        self._serial, self._file, self.rest = serial, file, rest

    def stay(self) -> None:
        """Never move."""
        self._is_final = True

    @property
    def is_placed(self) -> bool:
        """Whether it stands in a file."""
        return self._file is not None

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def advance(self) -> Iterator[bytes]:
        """Whole lines that are new, in order; the rest stays until its end is written."""
        while not self._is_final:
            yield from self._to_end()
            if self._is_same_folder():
                return
            following = self._next_file()
            if following is None:
                return
            # What we leave is complete by now: its writer opened the next file after its last byte.
            yield from self._to_end()
            if self.rest:
                yield self.rest
            self.enter(*following)

    def _to_end(self) -> Iterator[bytes]:
        while self._file is not None and (block := self._file.read(_BLOCK)):
            *lines, self.rest = (self.rest + block).split(b"\n")
            yield from lines

    def _is_same_folder(self) -> bool:
        """Whether no file was made or renamed since the last look: one stat instead of a listing and several.

        A change within the same tick of the file system's clock would not show, so a young folder is looked into.
        """
        try:
            changed = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return self._file is not None
        is_same = changed == self._seen and self._file is not None
        self._seen = changed if time.time_ns() - changed > _YOUNG_NANOSECONDS else 0
        return is_same

    def _next_file(self) -> tuple[int, BinaryIO] | None:
        """The file after this one: the next part of the same process's log, or the first of the next process."""
        while True:
            candidates = self._later()
            if not candidates:
                return None
            serial, path, inode = candidates[0]
            file = _open(path)
            if file is not None:
                if os.fstat(file.fileno()).st_ino == inode and self._later() == candidates:
                    return serial, file
                file.close()  # files were renamed while we looked: look again

    def _later(self) -> list[tuple[int, Path, int]]:
        """Number, path and inode of every file after this one, in order."""
        numbers = sorted({self._serial, *serials(self._folder)})
        there = [
            (serial, path, inode)
            for serial in numbers
            if serial >= self._serial
            for path in _parts(self._folder, serial)
            if (inode := _inode(path)) is not None
        ]
        if self._file is None:
            return there
        here = os.fstat(self._file.fileno()).st_ino
        # Not found: it was set aside twice while we read, and all that is there came later.
        place = next((number for number, (_, _, inode) in enumerate(there) if inode == here), -1)
        return there[place + 1 :]


def _backlog(folder: Path, query: LogQuery, cursor: _Cursor) -> Iterator[bytes]:
    """Lines that are there now; leaves the cursor behind them."""
    known = serials(folder)
    if query.previous:
        known = known[-2:-1]
        cursor.stay()
    elif query.tail is None and query.since is None:
        yield from cursor.advance()
        return
    kept: deque[bytes] = deque()
    for serial in reversed(known):
        for path in reversed(_parts(folder, serial)):
            if not _collect(path, serial, query, cursor, kept):
                yield from kept
                return
    yield from kept


def _collect(path: Path, serial: int, query: LogQuery, cursor: _Cursor, kept: deque[bytes]) -> bool:
    """Put the lines of a file before those that were kept; False when no earlier ones are wanted."""
    file = _open(path)
    if file is None:
        return True
    end = file.seek(0, os.SEEK_END)
    lines = _backwards(file, end)
    unfinished = next(lines)  # what follows the last line feed: nothing, or a line that is being written
    is_newest = not (cursor.is_placed or query.previous)
    goes_on = True
    for line in lines if is_newest or not unfinished else chain((unfinished,), lines):
        stamp = parse_stamp(line[:STAMP_LENGTH])
        is_old = query.since is not None and stamp is not None and stamp <= query.since
        if is_old or (query.tail is not None and len(kept) >= query.tail):
            goes_on = False
            break
        kept.appendleft(line)
    if is_newest:
        file.seek(end)
        cursor.enter(serial, file, unfinished)
    else:
        file.close()
    return goes_on


def _backwards(file: BinaryIO, position: int) -> Iterator[bytes]:
    """Lines before a position, last first, read block by block; the first is what follows the last line feed."""
    rest = b""
    while position:
        size = min(_BLOCK, position)
        position -= size
        file.seek(position)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        yield from reversed(lines)
    yield rest


async def _parsed(lines: Iterator[bytes], pod: str, since: float | None) -> AsyncIterator[LogLine]:
    for number, line in enumerate(lines):
        if number % _BREATH_LINES == _BREATH_LINES - 1:
            await asyncio.sleep(0)
        if found := _parse(line, pod, since):
            yield found


def _parse(line: bytes, pod: str, since: float | None) -> LogLine | None:
    """A line of a log file; None for one that is too old or not of that form."""
    stamp = parse_stamp(line[:STAMP_LENGTH])
    if stamp is None or (since is not None and stamp <= since):
        return None
    kind, text = line[STAMP_LENGTH : STAMP_LENGTH + 1], line[STAMP_LENGTH + 1 :]
    return LogLine(stamp, pod, text.decode("utf-8", "replace"), is_mark=kind == MARK)


def _parts(folder: Path, serial: int) -> tuple[Path, Path]:
    """The files of one process's log, in the order in which they were written."""
    path = log_path(folder, serial)
    return rotated_path(path), path


def _open(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
