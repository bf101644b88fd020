"""Search in a log: its matches, the current one, and the horizontal shift that makes it visible. Pure.

A row of records also matches by the names of its columns: a search for ``return`` shows the column of that name.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from l2rtui.ui.widgets.log_ring import LogEntry, LogRing

_LINES_PER_LOOK: Final = 32
"""Lines that are counted between two looks at the clock."""
_CONTEXT_SHARE: Final = 4
"""Divisor of the view's width that gives the text shown before a match that was not visible."""


class Match(NamedTuple):
    """Characters of a line that match."""

    start: int
    end: int


class MatchCounts:
    """Number of matches before each line that was counted.

    Attributes:
        base: Number of the oldest counted line. Lines have numbers that stay when older ones are dropped.
        sums: ``sums[i]`` is the number of matches in the lines before ``base + i``.
        heading: Names of the columns, in which rows of records match too.
    """

    def __init__(self, base: int = 0, heading: str = "") -> None:
        self.base = base
        self.sums = [0]
        self.heading = heading

    @property
    def end(self) -> int:
        """Number of the first line that was not counted."""
        return self.base + len(self.sums) - 1

    def has_none(self, number: int) -> bool:
        """Return True for a line that was counted and has no match."""
        at = number - self.base
        return self.base <= number < self.end and self.sums[at] == self.sums[at + 1]

    def next_line(self, start: int, by: int, oldest: int) -> int | None:
        """Return the number of the next line with a match after a line, or before it with -1, round the ends."""
        first, at = oldest - self.base, start - self.base
        least, most = self.sums[first], self.sums[-1]
        if most == least:
            return None
        if by > 0:
            passed = self.sums[at + 1] if self.sums[at + 1] < most else least
            return self.base + bisect_right(self.sums, passed, first) - 1
        passed = self.sums[at] if self.sums[at] > least else most
        return self.base + bisect_left(self.sums, passed, first) - 1


class LogSearch:
    """Searched text, ignoring case, and the current match.

    The first access to a line of JSON decodes it, so counting the matches of fifty thousand lines takes a second on
    a busy machine. ``count`` therefore stops at a deadline and goes on with the next call.

    Args:
        before: Search before this one. If this text continues its text, lines without a match there have none here.

    Attributes:
        text: Empty for no search.
        line: Number of the line of the current match in the ring; None before the first.
        match: The current match in that line.
    """

    def __init__(self, text: str = "", before: LogSearch | None = None) -> None:
        self.text = text.casefold()
        self.line: int | None = None
        self.match = Match(0, 0)
        self.counts = MatchCounts()
        is_longer = before is not None and before.text != "" and self.text.startswith(before.text)
        self._earlier = before.counts if before is not None and is_longer else None

    def forget(self) -> None:
        """Drop the current match and all counts: there are other lines now."""
        self.line = self._earlier = None
        self.counts = MatchCounts()

    def drop(self, lines: int) -> None:
        """Keep the current match while the oldest lines are dropped."""
        if self.line is not None:
            self.line = max(0, self.line - lines)

    def matches(self, entry: LogEntry, heading: str) -> list[Match]:
        """Return the matches of a line, leftmost first."""
        matches = _all(self.text, entry.text)
        if entry.is_row:
            matches += _all(self.text.replace("_", " "), heading)
        return sorted(matches)

    def step(self, ring: LogRing, heading: str, by: int) -> bool:
        """Move to the next match, or with -1 to the previous one, wrapping around the ends; False without any."""
        total = len(ring)
        if not self.text or not total:
            return False
        if self.line is not None and self.line < total:
            beside = [match for match in self.matches(ring[self.line], heading) if _is_ahead(match, self.match, by)]
            if beside:
                self.match = beside[0] if by > 0 else beside[-1]
                return True
        self.count(ring, heading)
        # A new search begins at the newest line and goes back: what happened last matters most.
        start = self.line if self.line is not None and self.line < total else (total if by < 0 else -1)
        number = self.counts.next_line(ring.dropped + start, by, ring.dropped)
        if number is None:
            return False
        self.line = number - ring.dropped
        matches = self.matches(ring[self.line], heading)
        self.match = matches[0] if by > 0 else matches[-1]
        return True

    def position(self, ring: LogRing, heading: str) -> tuple[int, int]:
        """Return the number of the current match, from 1, and of all matches; 0 without a match."""
        if not self.text:
            return 0, 0
        self.count(ring, heading)
        sums, first, current = self.counts.sums, ring.dropped - self.counts.base, 0
        if self.line is not None and self.line < len(ring):
            matches = self.matches(ring[self.line], heading)
            earlier = sums[first + self.line] - sums[first]
            current = earlier + matches.index(self.match) + 1 if self.match in matches else 0
        return current, sums[-1] - sums[first]

    def count(self, ring: LogRing, heading: str, seconds: float = math.inf) -> bool:
        """Count the matches of lines that were not counted yet; False if some are left after so many seconds."""
        deadline = time.monotonic() + seconds
        counts, oldest = self.counts, ring.dropped
        if heading != counts.heading or not counts.base <= oldest <= counts.end:
            counts = self.counts = MatchCounts(oldest, heading)
        earlier = self._earlier if self._earlier is not None and self._earlier.heading == heading else None
        in_heading = heading.casefold().count(self.text.replace("_", " "))
        sums = counts.sums
        for number in range(counts.end, oldest + len(ring)):
            matches = 0
            if earlier is None or not earlier.has_none(number):
                entry = ring[number - oldest]
                matches = entry.text.casefold().count(self.text) + in_heading * entry.is_row
            sums.append(sums[-1] + matches)
            if not number % _LINES_PER_LOOK and time.monotonic() > deadline:
                return False
        gone = oldest - counts.base
        if gone > len(ring):  # cut seldom, so that a line that is dropped costs nothing
            del sums[:gone]
            counts.base = oldest
        return True


def pan_to(match: Match, pan: int, room: int, column_ends: Sequence[int] = ()) -> int:
    """Return the columns by which a line is shifted left so that a match is visible.

    Args:
        pan: Current shift; it is kept if the match is already visible.
        room: Columns of the view; a sign may take one at either edge.
        column_ends: Cut positions of a row of a table; empty for other lines.
    """
    end = next((end for end in column_ends if end >= match.end), match.end)
    for candidate in (pan, 0):
        if (match.start > candidate or not candidate) and end - candidate < room:
            return candidate
    start = max(0, match.start - room // _CONTEXT_SHARE)
    # Between two columns: a row that starts inside a column blanks the rest of that column.
    return max((end for end in column_ends if end <= start), default=0 if column_ends else start)


def _all(text: str, line: str) -> list[Match]:
    folded, matches = line.casefold(), []
    at = folded.find(text)
    while at >= 0:
        matches.append(Match(at, at + len(text)))
        at = folded.find(text, at + len(text))
    return matches


def _is_ahead(match: Match, current: Match, by: int) -> bool:
    return match > current if by > 0 else match < current
