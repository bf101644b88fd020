"""Search in a log: its matches, the current one, and the horizontal shift that makes it visible. Pure.

A row of records also matches by the names of its columns: a search for ``return`` shows the column of that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from l2rtui.ui.widgets.log_ring import LogEntry, LogRing

_CONTEXT_SHARE: Final = 4
"""Divisor of the view's width that gives the text shown before a match that was not visible."""


class Match(NamedTuple):
    """Characters of a line that match."""

    start: int
    end: int


class LogSearch:
    """Searched text, ignoring case, and the current match.

    Attributes:
        text: Empty for no search.
        line: Number of the line of the current match in the ring; None before the first.
        match: The current match in that line.
    """

    def __init__(self, text: str = "") -> None:
        self.text = text.casefold()
        self.line: int | None = None
        self.match = Match(0, 0)
        self.forget()

    def forget(self) -> None:
        """Drop the current match and all counts, after the lines were replaced."""
        self.line = None
        self._begin_count("", 0)

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
        # A new search starts at the newest line and goes back: recent lines matter most.
        start = self.line if self.line is not None else (total if by < 0 else -1)
        for number in ((start + by * step) % total for step in range(1, total + 1)):
            if matches := self.matches(ring[number], heading):
                self.line, self.match = number, matches[0] if by > 0 else matches[-1]
                return True
        return False

    def position(self, ring: LogRing, heading: str) -> tuple[int, int]:
        """Return the number of the current match, from 1, and of all matches; 0 without a match."""
        if not self.text:
            return 0, 0
        self._count(ring, heading)
        current, before = 0, self._sums[self._first]
        if self.line is not None and self.line < len(ring):
            matches = self.matches(ring[self.line], heading)
            earlier = self._sums[self._first + self.line] - before
            current = earlier + matches.index(self.match) + 1 if self.match in matches else 0
        return current, self._sums[-1] - before

    def _begin_count(self, heading: str, dropped: int) -> None:
        self._heading = heading
        self._in_heading = heading.casefold().count(self.text.replace("_", " ")) if self.text else 0
        self._dropped = dropped
        # _sums[i] is the number of matches before line i, of the counted ones; _first is the index of the oldest
        # line.
        self._sums = [0]
        self._first = 0

    def _count(self, ring: LogRing, heading: str) -> None:
        """Count the matches of new lines: all fifty thousand take 20 ms, too long for each key or repaint."""
        gone, counted = ring.dropped - self._dropped, len(self._sums) - 1 - self._first
        if heading != self._heading or not 0 <= gone <= counted:
            self._begin_count(heading, ring.dropped)
            gone = counted = 0
        self._dropped, self._first = ring.dropped, self._first + gone
        for number in range(counted - gone, len(ring)):
            entry = ring[number]
            matches = entry.text.casefold().count(self.text) + self._in_heading * entry.is_row
            self._sums.append(self._sums[-1] + matches)
        if self._first > len(ring):  # cut rarely, so that dropping a line costs nothing
            del self._sums[: self._first]
            self._first = 0


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
