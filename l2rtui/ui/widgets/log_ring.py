"""The lines that a log pane keeps: a ring with room for a fixed number, and where each line stands when wrapped.

Pure, no widget. Rows are counted from the first line that was ever taken, so dropping the oldest lines moves no
other; finding the line at a row is a bisection.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, chop_cells

from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.text import count
from l2rtui.ui.values import LogText
from runtime.contract import METRIC_PREFIX

KEPT_LINES: Final = 50_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One line, sanitised and ready to be shown.

    Attributes:
        is_mark: The backend wrote it: a restart. is_metric: a metric record, written out compactly.
        columns: Terminal columns of the text.
    """

    time: float
    pod: str
    text: str
    columns: int
    is_mark: bool = False
    is_metric: bool = False


def entry_of(line: LogText) -> Entry:
    """Make a line fit to be shown: harmless, and short if it is a metric record."""
    text, is_metric = line.text, False
    if text.startswith(METRIC_PREFIX):
        compact = _compact(text)
        text, is_metric = compact or text, bool(compact)
    text = sanitize(text)
    columns = len(text) if text.isascii() else cell_len(text)
    return Entry(line.time, sanitize(line.pod), text, columns, line.is_mark, is_metric)


def _compact(text: str) -> str:
    """Write a metric record as ``learner env_steps=7,610 updates=87``; empty when it is none after all."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(record, dict):
        return ""
    words = [str(record.pop("l2r", ""))]
    for name, value in record.items():
        if name != "time" and value is not None:
            words.append(f"{name}={_value(value)}")
    return " ".join(words)


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
        dropped: How many lines had to go because the ring was full.
        width: Columns at which lines break; 0 while they do not.
    """

    def __init__(self, most: int = KEPT_LINES) -> None:
        self._most = most
        self.clear()

    def __len__(self) -> int:
        return len(self._entries) - self._head

    def __iter__(self) -> Iterator[Entry]:
        for number in range(self._head, len(self._entries)):
            yield self._entries[number]

    def __getitem__(self, number: int) -> Entry:
        """A kept line, from 0, the oldest."""
        return self._entries[self._head + number]

    @property
    def rows(self) -> int:
        """Screen lines that the kept lines take."""
        return self._ends[-1] - self._base if len(self) else 0

    def extend(self, entries: Iterable[Entry]) -> int:
        """Append lines.

        Returns:
            How many screen lines went at the top to make room.
        """
        end = self._ends[-1] if self._ends else self._base
        for entry in entries:
            end += self._height(entry)
            self._entries.append(entry)
            self._ends.append(end)
        return self._drop(max(0, len(self) - self._most))

    def clear(self) -> None:
        """Forget everything."""
        self.dropped = 0
        self.width = 0
        self._entries: list[Entry] = []
        self._ends: list[int] = []
        self._head = 0
        self._base = 0

    def wrap(self, width: int) -> None:
        """Break lines at this many columns from now on; 0 turns that off."""
        if width == self.width:
            return
        self.width = width
        self._entries = self._entries[self._head :]
        self._ends, self._head, self._base, end = [], 0, 0, 0
        for entry in self._entries:
            end += self._height(entry)
            self._ends.append(end)

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
