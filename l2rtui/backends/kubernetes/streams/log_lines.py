"""Timestamped lines from the bytes of a log, and a cursor that recognises lines that the server repeats.

A stream may break at any byte and is reopened with ``sinceTime``, a whole second, so the server repeats lines. The
cursor recognises them by their times and by the number of lines per time, as several lines may have the same time.
Repeated lines come in the same order, so the first unknown line ends the repetition.
"""

from __future__ import annotations

import calendar
import time
from collections import Counter, deque

# Enough for the one to two seconds that the server repeats, at thousands of lines per second.
_MAX_STAMPS = 4_096
_SECOND = 1_000_000_000


class StampParser:
    """Parser of the RFC 3339 time before each line; caches the last second, as most lines share it."""

    def __init__(self) -> None:
        self._second = b""
        self._epoch = 0

    def parse(self, line: bytes) -> tuple[int, bytes] | None:
        """Return nanoseconds since the epoch and the text; None if the line does not start with a time."""
        # By hand: datetime.fromisoformat() does not support nanoseconds, and strptime() costs 10 µs a line.
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
    """Split into the digits after the decimal point and the zone."""
    if rest[:1] != b".":
        return b"", rest
    end = 1
    while rest[end : end + 1].isdigit():
        end += 1
    return rest[1:end], rest[end:]


def _offset(zone: bytes) -> int | None:
    """Return seconds east of UTC; None without a zone."""
    if zone == b"Z":
        return 0
    if len(zone) != 6 or zone[:1] not in b"+-" or not (zone[1:3] + zone[4:6]).isdigit():
        return None
    seconds = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
    return -seconds if zone[:1] == b"-" else seconds


class Cursor:
    """Position in the log of one process; lines up to ``floor`` (ns since the epoch) are never new."""

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        self._last = floor
        self._recent: deque[int] = deque()
        self._expected: Counter[int] = Counter()
        self._is_repeating = floor > 0

    @property
    def since(self) -> str:
        """Value of ``sinceTime``, a whole second as the kubelet supports no finer; empty for the whole log."""
        if not self._last:
            return ""
        # One second earlier: lines of stdout and stderr with the same time may come in either order.
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._last // _SECOND - 1))

    def reopen(self) -> None:
        """Expect repeated lines first, after the stream was reopened from ``since``."""
        self._expected = Counter(self._recent)
        self._is_repeating = True

    def is_new(self, stamp: int) -> bool:
        """Return True if the line with this time was not read before, and count it as read."""
        if self._is_repeating:
            if self._expected[stamp] > 0:
                self._expected[stamp] -= 1
                return False
            if stamp <= self.floor:
                return False
            self._is_repeating = False
        self._recent.append(stamp)
        self._last = stamp
        # A forgotten time becomes the floor: its line can no longer be recognised, so no line that old counts as
        # new.
        if len(self._recent) > _MAX_STAMPS:
            self.floor = max(self.floor, self._recent.popleft())
        return True

    def forget_before_first(self) -> None:
        """Raise the floor to the first line: earlier lines are before the requested tail."""
        if self._recent:
            self.floor = max(self.floor, self._recent[0])
