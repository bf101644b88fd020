"""Buffers of a log pane: the newest lines, the filter, and the position of each line when wrapped.

Lines are stored raw and sanitised on first access: of ten thousand a second almost none is ever displayed. Only
sanitised entries leave the ring.

Pure, no widget. Rows are counted from the first line ever received, so dropping the oldest lines moves no other;
finding the line at a row is a bisection.
"""

from __future__ import annotations

import json
import math
import re
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate, compress, islice
from operator import not_
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len, chop_cells
from rich.style import Style
from rich.text import Text

from l2rtui.domain.log import LogLine
from l2rtui.domain.sanitize import MAX_LINE, sanitize
from l2rtui.errors import UsageError
from l2rtui.ui.pattern_limit import MATCH_SECONDS, within
from l2rtui.ui.text import count
from l2rtui.ui.widgets.record_table import RecordTable
from runtime.base import bounded_json

KEPT_LINES: Final = 50_000
KEPT_CHARACTERS: Final = 32 * 2**20
"""Number of characters above which the oldest lines are dropped: fifty thousand of the longest lines would take 800
MB. Those of a line that is not ASCII count four times, as Python may store four bytes for each.
"""
MOST_COLOURS: Final = 64
"""Maximum number of colour changes in one line; the rest of the line has no colours."""


class JsonMode(StrEnum):
    """Form in which lines that are JSON objects are displayed, in the order of its key.

    ``table``: metric records as rows below headings, other objects as ``name=value``. ``raw``: as written.
    ``pretty``: on several lines.
    """

    TABLE = "table"
    RAW = "raw"
    PRETTY = "pretty"


class LogEntry(Struct, frozen=True):
    """One line, sanitised and ready to be drawn.

    Attributes:
        is_mark: Written by the backend: a restart.
        is_record: A JSON object in another form than it was written. is_row: a row of the table.
        columns: Terminal columns of the text.
        colours: ANSI colours of the line, as (first character, end, style).
    """

    time: float
    pod: str
    text: str
    columns: int
    is_mark: bool = False
    is_record: bool = False
    is_row: bool = False
    colours: tuple[tuple[int, int, Style], ...] = ()


_LINES_PER_LOOK: Final = 32
"""Lines that are read between two looks at the clock."""
_GONE: Final = LogEntry(0.0, "", "", 0)
_LEADING: Final = re.compile(r"\A(?:\.\*\??(?![?+*{]))+")

BufferedLine = LogLine | LogEntry
"""A raw line until it first becomes visible, then its sanitised entry."""


def bounded(lines: Iterable[BufferedLine]) -> list[BufferedLine]:
    """Return the lines; too long ones become entries, so that their cut end does not stay in memory."""
    return [line if len(line.text) <= MAX_LINE else entry_of(line) for line in lines]


def _size(line: BufferedLine) -> int:
    """Return how many of the kept characters a line counts for."""
    return len(line.text) if line.text.isascii() else 4 * len(line.text)


def newest_states(lines: Iterable[BufferedLine]) -> list[BufferedLine]:
    """Return the lines; of several states of one line, as in a progress bar, only the last."""
    states: list[BufferedLine] = []
    for line in lines:
        if isinstance(line, LogLine) and is_newer_state(line, writer_of(states[-1]) if states else None):
            older = states.pop()
            line = replace(line, replaces=isinstance(older, LogLine) and older.replaces)  # noqa: PLW2901
        states.append(line)
    return states


def is_newer_state(line: BufferedLine, writer: tuple[str, str] | None) -> bool:
    """Return True if a line replaces the previous one, which this container has written."""
    return isinstance(line, LogLine) and line.replaces and writer_of(line) == writer


def writer_of(line: BufferedLine) -> tuple[str, str]:
    """Return pod and container of a line."""
    return (line.pod, line.container if isinstance(line, LogLine) else "")


def entry_of(line: BufferedLine) -> LogEntry:
    """Sanitise a line and extract its colours."""
    if isinstance(line, LogEntry):
        return line
    text = line.text
    colours: tuple[tuple[int, int, Style], ...] = ()
    if "\x1b" in text or "\x9b" in text:
        text, colours = _coloured(sanitize(text, keep_sgr=True))
    else:
        text = sanitize(text)
    columns = len(text) if text.isascii() else cell_len(text)
    return LogEntry(line.time, name_of(line.pod), text, columns, line.is_mark, colours=colours)


@lru_cache(maxsize=64)
def chopped(text: str, width: int) -> tuple[str, ...]:
    """Return the rows of a wrapped line. Cached: each drawn row needs all of them, and a long line takes
    milliseconds.
    """
    return tuple(chop_cells(text, width))


@lru_cache(maxsize=4096)
def name_of(pod: str) -> str:
    """Return the sanitised name of a pod."""
    return sanitize(pod)


def _coloured(text: str) -> tuple[str, tuple[tuple[int, int, Style], ...]]:
    """Split a text with SGR sequences, and no others, into plain text and colours."""
    if "\x1b" not in text:
        return text, ()
    decoded = Text.from_ansi(text, no_wrap=True)
    spans = ((span.start, span.end, span.style) for span in decoded.spans[:MOST_COLOURS])
    return decoded.plain, tuple(
        (start, end, _readable(style)) for start, end, style in spans if isinstance(style, Style)
    )


def _readable(style: Style) -> Style:
    """Return the style without attributes that can hide text: concealment, backgrounds, near-black, near-white."""
    colour = style.color
    if colour is not None:
        red, green, blue = colour.get_truecolor()
        # Relative luminance (Rec. 709 weights). The background may be dark or light; it is not known here.
        if not 0.15 < (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255 < 0.85:
            colour = None
    return Style(color=colour, bold=style.bold, italic=style.italic, underline=style.underline)


class LogFilter:
    """Filter of a log pane: the displayed lines, and the form of JSON lines.

    Args:
        include, exclude: Regular expressions, searched in the text ignoring case; empty for no pattern.

    Raises:
        re.error: a pattern is not a regular expression.
    """

    def __init__(self, include: str = "", exclude: str = "", json_as: JsonMode = JsonMode.TABLE) -> None:
        self.include = include
        self.exclude = exclude
        self.json_as = json_as
        self._include = _compiled(include)
        self._exclude = _compiled(exclude)

    @property
    def has_patterns(self) -> bool:
        """True if some lines may be hidden."""
        return self._include is not None or self._exclude is not None

    def passing(self, entries: Sequence[LogEntry], seconds: float = MATCH_SECONDS) -> list[bool]:
        """Return for each line whether it is displayed; marks always are.

        Raises:
            UsageError: the patterns take longer than that on these lines.
        """
        try:
            return within(seconds, lambda: [*map(self._passes, entries)])
        except TimeoutError:
            patterns = " or ".join(repr(sanitize(text)) for text in (self.include, self.exclude) if text)
            hint = "Write it with fewer repeats: a+ instead of (a+)+, loss instead of .*loss.*"
            raise UsageError(f"The pattern {patterns} takes too long on the lines of this log.", hint) from None

    def _passes(self, entry: LogEntry) -> bool:
        if entry.is_mark:
            return True
        if self._include is not None and not self._include.search(entry.text):
            return False
        return self._exclude is None or not self._exclude.search(entry.text)

    def apply(self, lines: Iterable[BufferedLine], table: RecordTable | None = None) -> Iterator[BufferedLine]:
        """Yield lines for a ring; a line displayed as one entry stays raw and is decoded when visible."""
        for line in lines:
            if isinstance(line, LogEntry) or self.json_as is JsonMode.PRETTY:
                yield from present(entry_of(line), self.json_as, table)
            else:
                yield line


def _compiled(pattern: str) -> re.Pattern[str] | None:
    """Compile a pattern that is searched for ignoring case; None for an empty one."""
    if not pattern:
        return None
    re.compile(pattern, re.IGNORECASE)  # checked as typed: a following operator may repeat the `.*`
    # A search for `.*loss` finds the same lines as `loss`, but runs to the end of the line from each position.
    return re.compile(_LEADING.sub("", pattern), re.IGNORECASE)


def present(entry: LogEntry, json_as: JsonMode, table: RecordTable | None = None) -> tuple[LogEntry, ...]:
    """Return the entries that display a line: one, or several if a JSON object is pretty-printed.

    Args:
        table: Columns of metric records; None shows these like other objects, as needed for wrapping.
    """
    # Only objects: a line that is a JSON number or string is most readable unchanged.
    if json_as is JsonMode.RAW or not entry.text.startswith("{") or entry.is_mark:
        return (entry,)
    try:
        record = bounded_json.loads(entry.text)
    except ValueError:
        return (entry,)
    if json_as is JsonMode.TABLE:
        if table and isinstance(record.get("l2r"), str):
            text = table.row(record)
            columns = len(text) if text.isascii() else cell_len(text)
            return (LogEntry(entry.time, entry.pod, text, columns, is_row=True),)
        return (_with(entry, _compact(record)),)
    pretty = json.dumps(record, indent=2, ensure_ascii=False).splitlines()
    return tuple(_with(entry, sanitize(text)) for text in pretty)


def _with(entry: LogEntry, text: str) -> LogEntry:
    columns = len(text) if text.isascii() else cell_len(text)
    return LogEntry(entry.time, entry.pod, text, columns, is_record=True)


def _compact(record: dict[str, Any]) -> str:
    """Format a record as ``learner env_steps=7,610 updates=87``."""
    parts = [str(record.pop("l2r"))] if "l2r" in record else []
    parts += [f"{name}={_value(value)}" for name, value in record.items() if name != "time" and value is not None]
    return sanitize(" ".join(parts))


def _value(value: object) -> str:
    match value:
        case bool() | str():
            return str(value)
        case int():
            return count(value) if abs(value) < 1e15 else f"{value:g}"
        case float():
            return f"{value:.4g}"
        case list():
            return "/".join(_value(item) for item in value)
        case _:
            return json.dumps(value, separators=(",", ":"))


@dataclass(slots=True)
class _Narrowing:
    """Another filter on its way over the stored lines.

    Attributes:
        lines: The stored lines at the beginning, and those that came since.
        entries, hides: The lines that were looked at, and whether the patterns hide them.
        gone: Number of the oldest lines that the store has dropped since.
        used_seconds: CPU time of the patterns.
    """

    log_filter: LogFilter
    lines: list[BufferedLine]
    entries: list[LogEntry] = field(default_factory=list)
    hides: list[bool] = field(default_factory=list)
    gone: int = 0
    used_seconds: float = 0.0

    def drop_newest(self) -> None:
        self.lines.pop()
        del self.entries[len(self.lines) :], self.hides[len(self.lines) :]


class LogStore:
    """Newest lines of a log, limited in lines and characters, and the number of lines that the patterns hide.

    If there are patterns, lines are sanitised here, once.
    """

    def __init__(self, capacity: int = KEPT_LINES, most_characters: int = KEPT_CHARACTERS) -> None:
        self._capacity = capacity
        self._most_characters = most_characters
        self._filter = LogFilter()
        self.clear()

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[BufferedLine]:
        return iter(self._lines)

    @property
    def hidden(self) -> int:
        """Number of lines that the patterns hide."""
        # Counted as they arrive: checking fifty thousand again, ten times a second, leaves no time for keys.
        return sum(self._hides)

    def clear(self) -> None:
        """Drop all lines."""
        self._lines: deque[BufferedLine] = deque()
        self._hides: deque[bool] = deque()
        self._characters = 0
        self._writer: tuple[str, str] | None = None
        """Pod and container of the newest line."""
        self._narrowing: _Narrowing | None = None

    def newest_states(self, lines: Iterable[BufferedLine], ring: LogRing) -> list[BufferedLine]:
        """Return lines without older states of a bar; if the newest stored line is one, drop it here and from the
        ring.
        """
        states = newest_states(lines)
        if states and is_newer_state(states[0], self._writer) and self.drop_newest():
            ring.drop_newest()
        return states

    def extend(self, lines: Sequence[BufferedLine]) -> tuple[Sequence[BufferedLine], Sequence[BufferedLine]]:
        """Append lines; return them as stored, and the displayed ones.

        Raises:
            UsageError: the patterns take too long; nothing was appended.
        """
        displayed = lines
        if self._filter.has_patterns:
            lines = entries = [*map(entry_of, lines)]
            passing = self._filter.passing(entries)
            self._hides.extend(map(not_, passing))
            displayed = [*compress(entries, passing)]
        if lines:
            self._writer = writer_of(lines[-1])
        self._lines.extend(lines)
        if self._narrowing is not None:
            self._narrowing.lines.extend(lines)
        self._characters += sum(map(_size, lines))
        while len(self._lines) > self._capacity or self._characters > self._most_characters:
            self._characters -= _size(self._lines.popleft())
            if self._hides:
                self._hides.popleft()
            if self._narrowing is not None:
                self._narrowing.gone += 1
        return lines, displayed

    def drop_newest(self) -> bool:
        """Drop the newest line after a newer state of it has arrived; return True if it was displayed."""
        if not self._lines:
            return False
        self._characters -= _size(self._lines.pop())
        if self._narrowing is not None:
            self._narrowing.drop_newest()
        return not (self._hides and self._hides.pop())

    def displayed(self) -> Sequence[BufferedLine]:
        """Return the lines that the patterns do not hide."""
        return [*compress(self._lines, map(not_, self._hides))] if self._hides else [*self._lines]

    def narrow(self, log_filter: LogFilter, seconds: float = math.inf) -> bool:
        """Apply the patterns of another filter to the stored lines, for at most so many seconds.

        Returns:
            True if the filter applies from now on; False if lines are left. The next call goes on with them, and
            the old filter applies until then.

        Raises:
            UsageError: the patterns take too long; the old filter stays.
        """
        deadline = time.monotonic() + seconds
        work = self._narrowing
        if work is None or work.log_filter is not log_filter:
            work = self._narrowing = _Narrowing(log_filter, [*self._lines])
        while log_filter.has_patterns and (start := len(work.entries)) < len(work.lines):
            entries = [*map(entry_of, work.lines[start : start + _LINES_PER_LOOK])]
            began = time.thread_time()
            try:
                passing = log_filter.passing(entries, MATCH_SECONDS - work.used_seconds)
            except UsageError:
                self._narrowing = None
                raise
            work.used_seconds += time.thread_time() - began
            work.entries += entries
            work.hides += map(not_, passing)
            if len(work.entries) < len(work.lines) and time.monotonic() > deadline:
                return False
        lines: Sequence[BufferedLine] = work.entries if log_filter.has_patterns else work.lines
        self._lines, self._hides = deque(lines[work.gone :]), deque(work.hides[work.gone :])
        self._characters = sum(map(_size, self._lines))
        self._filter, self._narrowing = log_filter, None
        return True


def _height(entry: LogEntry, width: int) -> int:
    """Return the rows that a line takes, wrapped at a width."""
    if width <= 0:
        return 1
    if entry.columns == len(entry.text):
        return max(1, -(-entry.columns // width))
    return max(1, len(chopped(entry.text, width)))


class LogRing:
    """Newest lines of a log.

    Attributes:
        json_as, table: Form of JSON lines when they are decoded, and the columns of metric records; changed only
            while the ring is empty.
        dropped: Number of lines that were dropped because the ring was full.
        width: Columns at which lines wrap; 0 without wrapping.
    """

    def __init__(self, capacity: int = KEPT_LINES, most_characters: int = KEPT_CHARACTERS) -> None:
        self._capacity = capacity
        self._most_characters = most_characters
        self._characters: int = 0
        self.json_as = JsonMode.TABLE
        self.table: RecordTable | None = None
        self.clear()

    def __len__(self) -> int:
        return len(self._entries) - self._head

    def __iter__(self) -> Iterator[LogEntry]:
        for number in range(len(self)):
            yield self[number]

    def __getitem__(self, number: int) -> LogEntry:
        """Return a line; 0 is the oldest."""
        return self._entry(self._head + number)

    def as_text(self) -> list[str]:
        """Return the lines as text, each with its time and pod."""
        stamp = "%Y-%m-%dT%H:%M:%SZ"
        return [f"{time.strftime(stamp, time.gmtime(entry.time))} {entry.pod} {entry.text}" for entry in self]

    @property
    def rows(self) -> int:
        """Number of screen lines that all lines take."""
        return self._ends[-1] - self._base if len(self) else 0

    def extend(self, lines: Iterable[BufferedLine]) -> int:
        """Append lines, each displayed as one entry.

        Returns:
            Number of screen lines that were dropped at the top to make room.
        """
        first = len(self._entries)
        self._entries += lines
        self._measure(first)
        sizes = map(_size, islice(self._entries, first, None))
        self._sums += islice(accumulate(sizes, initial=self._characters), 1, None)
        self._characters = self._sums[-1] if self._sums else self._characters
        return self._drop(self._excess())

    def drop_newest(self) -> None:
        """Drop the newest line, after a newer state of it has arrived."""
        if len(self):
            self._characters -= _size(self._entries.pop())
            del self._ends[-1], self._sums[-1]
            del self._next_ends[len(self._entries) - self._next_start :]

    def _excess(self) -> int:
        """Return the number of lines to drop, so that the others are within both limits."""
        lines = max(0, len(self) - self._capacity)
        gone = self._characters - self._most_characters
        return max(lines, bisect_left(self._sums, gone, lo=self._head) + 1 - self._head) if gone > 0 else lines

    def _measure(self, first: int) -> None:
        """Compute the end rows of the entries from index ``first`` on."""
        end = self._ends[-1] if self._ends else self._base
        if self.width <= 0:
            self._ends += range(end + 1, end + 1 + len(self._entries) - first)
            return
        for index in range(first, len(self._entries)):
            end += _height(self._entry(index), self.width)
            self._ends.append(end)

    def _entry(self, index: int) -> LogEntry:
        line = self._entries[index]
        if isinstance(line, LogEntry):
            return line
        # Decoded in place on first access; a raw line is displayed as one entry, so the first is the only one.
        entry = self._entries[index] = present(entry_of(line), self.json_as, self.table)[0]
        return entry

    def clear(self) -> None:
        """Drop all lines, and turn off wrapping."""
        self.dropped = 0
        self.width = 0
        # _ends[i] is the row after line i, and _sums[i] the number of raw characters, both counted from the first
        # line ever received; _head is the oldest line's index, _base the row at which it starts.
        self._entries: list[BufferedLine] = []
        self._ends: list[int] = []
        self._sums: list[int] = []
        self._characters = 0
        self._head = 0
        self._base = 0
        self._forget_next(0)

    def _forget_next(self, width: int) -> None:
        """Begin to measure the lines from the oldest one for another width."""
        self._next_width, self._next_start = width, self._head
        self._next_ends: list[int] = []

    def wrap(self, width: int, seconds: float = math.inf) -> bool:
        """Wrap lines at this many columns, or not at all at 0, after measuring them for at most so many seconds.

        Returns:
            False if lines are left to measure. The next call goes on with them, and the old width applies until
            then.
        """
        if width == self.width:
            return True
        deadline = time.monotonic() + seconds
        if width != self._next_width:
            self._forget_next(width)
        ends = self._next_ends
        if not width:
            ends += range(len(ends) + 1, len(self._entries) - self._next_start + 1)
        end = ends[-1] if ends else 0
        for index in range(self._next_start + len(ends), len(self._entries)):
            end += _height(self._entry(index), width)
            ends.append(end)
            if not len(ends) % _LINES_PER_LOOK and time.monotonic() > deadline:
                return False
        self._entries, self._sums = self._entries[self._next_start :], self._sums[self._next_start :]
        self._ends, self._head, self.width = ends, self._head - self._next_start, width
        self._base = ends[self._head - 1] if self._head else 0
        self._forget_next(width)
        return True

    def first_since(self, moment: float) -> int:
        """Return the number of the first line that was written at a time or later, without decoding any; 0 if none
        was.
        """
        numbers = enumerate(islice(self._entries, self._head, None))
        return next((number for number, line in numbers if line.time >= moment), 0)

    def at(self, row: int) -> tuple[int, int] | None:
        """Find the line at a screen row, counted from the oldest: (number of the line, part of it); None beyond."""
        if not 0 <= row < self.rows:
            return None
        target = self._base + row
        index = bisect_right(self._ends, target, lo=self._head)
        start = self._ends[index - 1] if index > self._head else self._base
        return index - self._head, target - start

    def row_of(self, number: int) -> int:
        """Return the first screen row of a line."""
        index = self._head + number
        return (self._ends[index - 1] if index > self._head else self._base) - self._base

    def _drop(self, lines: int) -> int:
        if not lines:
            return 0
        self.dropped += lines
        before = self._base
        self._entries[self._head : self._head + lines] = [_GONE] * lines  # do not keep their text until the cut
        self._head += lines
        self._base = self._ends[self._head - 1]
        if self._head > self._capacity:
            # The lists are cut once per full turn of the ring, so that dropping a line is O(1) amortised.
            del self._entries[: self._head]
            del self._ends[: self._head]
            del self._sums[: self._head]
            self._head = 0
            self._forget_next(self._next_width)
        return self._base - before
