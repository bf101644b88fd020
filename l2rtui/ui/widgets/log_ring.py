"""The lines that a log pane keeps: a ring with room for a fixed number, and where each line stands when wrapped.

Lines come in as they were written and are made harmless, as entries, when somebody looks at them: of ten thousand a
second nearly none is ever seen. Nothing leaves the ring but entries.

Pure, no widget. Rows are counted from the first line that was ever taken, so dropping the oldest lines moves no
other; finding the line at a row is a bisection.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from rich.cells import cell_len, chop_cells
from rich.style import Style
from rich.text import Text

from l2rtui.domain.sanitize import MAX_LINE, sanitize
from l2rtui.ui.text import count
from l2rtui.ui.values import LogText

KEPT_LINES: Final = 50_000
MOST_COLOURS: Final = 64
"""Changes of colour in one line that are kept; a line with more is no text for people."""


class Json(StrEnum):
    """How lines that are JSON objects are shown."""

    COLUMNS = "columns"
    PRETTY = "pretty"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line, sanitised and ready to be shown.

    Attributes:
        is_mark: The backend wrote it: a restart. is_record: a JSON object that is shown otherwise than it is.
        columns: Terminal columns of the text.
        colours: The colours that the line itself asks for, as (first character, last, style).
    """

    time: float
    pod: str
    text: str
    columns: int
    is_mark: bool = False
    is_record: bool = False
    colours: tuple[tuple[int, int, Style], ...] = ()


def bounded(lines: Iterable[LogText]) -> list[LogText]:
    """The lines, without the rest of those that are too long to be shown: it must not be kept either."""
    return [line if len(line.text) <= MAX_LINE else entry_of(line) for line in lines]


def entry_of(line: LogText) -> Entry:
    """Make a line fit to be shown: harmless, its colours beside it."""
    if isinstance(line, Entry):
        return line
    text = line.text
    colours: tuple[tuple[int, int, Style], ...] = ()
    if "\x1b" in text or "\x9b" in text:
        text, colours = _coloured(sanitize(text, keep_sgr=True))
    else:
        text = sanitize(text)
    columns = len(text) if text.isascii() else cell_len(text)
    return Entry(line.time, name_of(line.pod), text, columns, line.is_mark, colours=colours)


@lru_cache(maxsize=4096)
def name_of(pod: str) -> str:
    """The name of a pod as it is shown."""
    return sanitize(pod)


def _coloured(text: str) -> tuple[str, tuple[tuple[int, int, Style], ...]]:
    """Take colour sequences out of a text that holds no other; each colour's place stands beside it."""
    if "\x1b" not in text:
        return text, ()
    decoded = Text.from_ansi(text, no_wrap=True)
    found = ((span.start, span.end, span.style) for span in decoded.spans[:MOST_COLOURS])
    return decoded.plain, tuple(
        (start, end, _seen(style)) for start, end, style in found if isinstance(style, Style)
    )


def _seen(style: Style) -> Style:
    """A style without what can hide text: concealment, backgrounds, and colours near to black or white."""
    colour = style.color
    if colour is not None:
        red, green, blue = colour.get_truecolor()
        if not 0.15 < (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255 < 0.85:
            colour = None
    return Style(color=colour, bold=style.bold, italic=style.italic, underline=style.underline)


def present(entry: Entry, json_as: Json) -> tuple[Entry, ...]:
    """The lines that an entry takes: one, or several where a JSON object is written out."""
    if json_as is Json.RAW or not entry.text.startswith("{") or entry.is_mark:
        return (entry,)
    try:
        record = json.loads(entry.text)
    except (ValueError, RecursionError):
        return (entry,)
    if json_as is Json.COLUMNS:
        return (_with(entry, _compact(record)),)
    pretty = json.dumps(record, indent=2, ensure_ascii=False).splitlines()
    return tuple(_with(entry, sanitize(text)) for text in pretty)


def _with(entry: Entry, text: str) -> Entry:
    columns = len(text) if text.isascii() else cell_len(text)
    return Entry(entry.time, entry.pod, text, columns, is_record=True)


def _compact(record: dict[str, Any]) -> str:
    """Write a record as ``learner env_steps=7,610 updates=87``."""
    words = [str(record.pop("l2r"))] if "l2r" in record else []
    words += [f"{name}={_value(value)}" for name, value in record.items() if name != "time" and value is not None]
    return sanitize(" ".join(words))


def _value(value: object) -> str:
    match value:
        case bool() | str():
            return str(value)
        case int():
            return count(value) if abs(value) < 1e15 else f"{value:g}"
        case float():
            return f"{value:.4g}"
        case list():
            return "/".join(_value(one) for one in value)
        case _:
            return json.dumps(value, separators=(",", ":"))


class Ring:
    """Newest lines of a log.

    Attributes:
        json_as: How lines that are JSON objects leave it; changed only while it is empty.
        dropped: How many lines had to go because the ring was full.
        width: Columns at which lines break; 0 while they do not.
    """

    def __init__(self, most: int = KEPT_LINES) -> None:
        self._most = most
        self.json_as = Json.COLUMNS
        self.clear()

    def __len__(self) -> int:
        return len(self._entries) - self._head

    def __iter__(self) -> Iterator[Entry]:
        for number in range(len(self)):
            yield self[number]

    def __getitem__(self, number: int) -> Entry:
        """A kept line, from 0, the oldest."""
        return self._entry(self._head + number)

    @property
    def rows(self) -> int:
        """Screen lines that the kept lines take."""
        return self._ends[-1] - self._base if len(self) else 0

    def extend(self, lines: Iterable[LogText]) -> int:
        """Append lines, each of them one line as it is shown.

        Returns:
            How many screen lines went at the top to make room.
        """
        first = len(self._entries)
        self._entries += lines
        self._measure(first)
        return self._drop(max(0, len(self) - self._most))

    def _measure(self, first: int) -> None:
        """Work out where the entries from this one on end; while lines do not break, each of them is one line."""
        end = self._ends[-1] if self._ends else self._base
        if self.width <= 0:
            self._ends += range(end + 1, end + 1 + len(self._entries) - first)
            return
        for index in range(first, len(self._entries)):
            end += self._height(self._entry(index))
            self._ends.append(end)

    def _entry(self, index: int) -> Entry:
        line = self._entries[index]
        if isinstance(line, Entry):
            return line
        entry = self._entries[index] = present(entry_of(line), self.json_as)[0]
        return entry

    def clear(self) -> None:
        """Forget everything."""
        self.dropped = 0
        self.width = 0
        self._entries: list[LogText] = []
        self._ends: list[int] = []
        self._head = 0
        self._base = 0

    def wrap(self, width: int) -> None:
        """Break lines at this many columns from now on; 0 turns that off."""
        if width == self.width:
            return
        self.width = width
        self._entries = self._entries[self._head :]
        self._ends, self._head, self._base = [], 0, 0
        self._measure(0)

    def at(self, row: int) -> tuple[int, int] | None:
        """The line at a screen line from the top of what is kept: (number of the line, part of it); None beyond."""
        if not 0 <= row < self.rows:
            return None
        target = self._base + row
        index = bisect_right(self._ends, target, lo=self._head)
        start = self._ends[index - 1] if index > self._head else self._base
        return index - self._head, target - start

    def row_of(self, number: int) -> int:
        """The first screen line of a kept line."""
        index = self._head + number
        return (self._ends[index - 1] if index > self._head else self._base) - self._base

    def _height(self, entry: Entry) -> int:
        if self.width <= 0:
            return 1
        if entry.columns == len(entry.text):
            return max(1, -(-entry.columns // self.width))
        return max(1, len(chop_cells(entry.text, self.width)))

    def _drop(self, lines: int) -> int:
        if not lines:
            return 0
        self.dropped += lines
        before = self._base
        self._head += lines
        self._base = self._ends[self._head - 1]
        if self._head > self._most:
            # The lists are cut rarely, so that dropping a line costs nothing on most days.
            del self._entries[: self._head]
            del self._ends[: self._head]
            self._head = 0
        return self._base - before
