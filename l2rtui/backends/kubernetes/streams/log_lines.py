"""From the bytes of a log to whole lines with their times, and the memory of what has been given already.

A stream is cut at any byte and opened again "since" a whole second, so the server repeats lines. The cursor tells
which of those were given: by their times and how many lines carry each, since times alone may be equal. What is
repeated is a stretch of the same sequence, so the first line that is not known ends the repetition.
"""

from __future__ import annotations

import calendar
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Final

MAX_LINE_BYTES: Final = 16_384
"""Longest text of a line; the rest is cut, and how much it was is said."""
_STAMP_BYTES = 40
_KEPT_STAMPS = 4_096
_SECOND = 1_000_000_000


class LineSplitter:
    """Cuts a stream of bytes into lines; never holds more than one line of the longest length."""

    def __init__(self, limit: int = MAX_LINE_BYTES + _STAMP_BYTES) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._cut = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Whole lines, without their line feeds; what follows the last one is kept."""
        first, *others = chunk.split(b"\n")
        self._keep(first)
        for part in others:
            yield self._take()
            self._keep(part)

    def flush(self) -> bytes:
        """The line that no line feed has ended; empty when there is none."""
        return self._take()

    def _keep(self, part: bytes) -> None:
        room = self._limit - len(self._rest)
        self._rest += part[:room]
        self._cut += max(0, len(part) - room)

    def _take(self) -> bytes:
        line = bytes(self._rest) + (f" [{self._cut} more bytes]".encode() if self._cut else b"")
        self._rest.clear()
        self._cut = 0
        return line


class StampParser:
    """Reads the RFC 3339 time before each line; remembers the last second, as most lines share it."""

    def __init__(self) -> None:
        self._second = b""
        self._epoch = 0

    def parse(self, line: bytes) -> tuple[int, bytes] | None:
        """Nanoseconds since the epoch and the text; None where the line does not begin with a time."""
        stamp, _, text = line.partition(b" ")
        second, rest = stamp[:19], stamp[19:]
        if len(second) < 19 or second[10:11] != b"T":
            return None
        if second != self._second:
            try:
                moment = time.strptime(second.decode("ascii"), "%Y-%m-%dT%H:%M:%S")
            except ValueError:
                return None
            self._second, self._epoch = second, calendar.timegm(moment)
        digits, zone = _fraction(rest)
        offset = _offset(zone)
        if offset is None:
            return None
        return (self._epoch - offset) * _SECOND + int(digits.ljust(9, b"0")[:9] or b"0"), text


def _fraction(rest: bytes) -> tuple[bytes, bytes]:
    """Digits after the point, and the zone."""
    if rest[:1] != b".":
        return b"", rest
    end = 1
    while rest[end : end + 1].isdigit():
        end += 1
    return rest[1:end], rest[end:]


def _offset(zone: bytes) -> int | None:
    """Seconds east of UTC; None for no zone."""
    if zone == b"Z":
        return 0
    if len(zone) != 6 or zone[:1] not in b"+-" or not (zone[1:3] + zone[4:6]).isdigit():
        return None
    seconds = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
    return -seconds if zone[:1] == b"-" else seconds


class Cursor:
    """How far the log of one process was given.

    Args:
        floor: Nanoseconds since the epoch; no line up to and including this is ever given.
    """

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        self._last = floor
        self._given: deque[int] = deque()
        self._expected: Counter[int] = Counter()
        self._is_repeating = floor > 0

    @property
    def since(self) -> str:
        """Time from which the server is to repeat, a whole second as it knows no finer; empty for all."""
        if not self._last:
            return ""
        # One second more: what stdout and stderr wrote in one moment may stand in either order.
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._last // _SECOND - 1))

    def reopen(self) -> None:
        """The stream was opened again from ``since``: what comes first was given already."""
        self._expected = Counter(self._given)
        self._is_repeating = True

    def is_new(self, stamp: int) -> bool:
        """Whether the line with this time is to be given; it then counts as given."""
        if self._is_repeating:
            if self._expected[stamp] > 0:
                self._expected[stamp] -= 1
                return False
            if stamp <= self.floor:
                return False
            self._is_repeating = False
        self._given.append(stamp)
        self._last = stamp
        if len(self._given) > _KEPT_STAMPS:
            self.floor = max(self.floor, self._given.popleft())
        return True

    def forget_before_first(self) -> None:
        """Whatever is not later than the first line that came belongs to the part that nobody asked for."""
        if self._given:
            self.floor = max(self.floor, self._given[0])
