"""Rows of a table as values, and which of them are shown in which order. Pure, no widget.

Kept apart from the widget so that sorting and filtering 100,000 rows can be tested and timed without a screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from l2rtui.ui.text import Span


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        key: Stable name. title: as the header shows it.
        most: Widest that it grows to; its content is cut there.
        right: Numbers stand on the right.
        rank: When the table is narrow, columns of the highest rank go first; 0 never goes.
    """

    key: str
    title: str
    most: int = 30
    right: bool = False
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        key: Unique and stable: the uid of what it shows.
        cells: One span for each column, sanitised.
        sort: One comparable value for each column; all rows hold the same types in the same place.
        is_fault: People should look at it.
    """

    key: str
    cells: tuple[Span, ...]
    sort: tuple[Any, ...]
    is_fault: bool = False


def matcher(text: str) -> Callable[[Row], bool]:
    """Make a test from the words of a filter.

    All words must appear somewhere in the row, whatever their case; a word after ``!`` must not.
    """
    words = text.casefold().split()
    wanted = [word for word in words if not word.startswith("!")]
    unwanted = [word[1:] for word in words if word.startswith("!") and len(word) > 1]

    def matches(row: Row) -> bool:
        content = " ".join(cell.text for cell in row.cells).casefold()
        return all(word in content for word in wanted) and not any(word in content for word in unwanted)

    return matches


class RowModel:
    """All rows, and the sorted, filtered part of them that a table shows.

    Attributes:
        rows: Every row by key.
        shown: Keys of the shown rows, in order.
        widths: Characters of the widest cell seen in each column; grows and never shrinks, so columns stay put.
    """

    _ANY: Final = staticmethod(lambda _row: True)

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        self.rows: dict[str, Row] = {}
        self.shown: list[str] = []
        self.widths = [len(column.title) for column in columns]
        self.sort_column: int | None = None
        self.is_descending = False
        self.faults_only = False
        self.filter_text = ""
        self._matches: Callable[[Row], bool] = self._ANY
        self._positions: dict[str, int] | None = None

    def update(self, changed: Iterable[Row], removed: Iterable[str] = ()) -> tuple[bool, list[str]]:
        """Take in changes.

        Returns:
            Whether the order of the shown rows is another now, and the keys whose cells alone differ.
        """
        is_reordered, touched = False, []
        for key in removed:
            if self.rows.pop(key, None) is not None:
                is_reordered = True
        for row in changed:
            old = self.rows.get(row.key)
            if old == row:
                continue
            self.rows[row.key] = row
            self._grow(row)
            if old is None or self._rank(old) != self._rank(row) or self._shows(old) != self._shows(row):
                is_reordered = True
            elif old.cells != row.cells and self._shows(row):
                touched.append(row.key)
        if is_reordered:
            self.arrange()
        return is_reordered, touched

    def replace(self, rows: Iterable[Row]) -> tuple[bool, list[str]]:
        """Make these all the rows; returns as update() does."""
        new = {row.key: row for row in rows}
        gone = [key for key in self.rows if key not in new]
        is_reordered, touched = self.update(new.values(), gone)
        if self.sort_column is None and list(self.rows) != list(new):
            # Without a sort column the caller's order counts, also for rows that were there before.
            self.rows = {key: self.rows[key] for key in new}
            self.arrange()
            is_reordered = True
        return is_reordered, touched

    def select(self, *, text: str | None = None, faults_only: bool | None = None) -> None:
        """Filter anew."""
        if text is not None:
            self.filter_text = text
            self._matches = matcher(text) if text.strip() else self._ANY
        if faults_only is not None:
            self.faults_only = faults_only
        self.arrange()

    def sort_by(self, column: int | None, *, descending: bool = False) -> None:
        """Sort by a column, or with None in the order in which rows came."""
        self.sort_column, self.is_descending = column, descending
        self.arrange()

    def arrange(self) -> None:
        """Filter and sort all rows."""
        keys = [row.key for row in self.rows.values() if self._shows(row)]
        column = self.sort_column
        if column is not None:
            keys.sort(key=lambda key: self.rows[key].sort[column], reverse=self.is_descending)
        elif self.is_descending:
            keys.reverse()
        self.shown, self._positions = keys, None

    def position(self, key: str) -> int | None:
        """Where a row stands among those shown, from 0; None when it is not shown."""
        if self._positions is None:
            self._positions = {shown: number for number, shown in enumerate(self.shown)}
        return self._positions.get(key)

    def visible_columns(self, width: int, gap: int) -> Iterator[tuple[int, int]]:
        """Columns that fit, as (number, characters). The highest ranks are left out first; the first takes cuts."""
        widths = {number: min(self.widths[number], column.most) for number, column in enumerate(self.columns)}
        for number in sorted(widths, key=lambda number: (-self.columns[number].rank, -number)):
            if sum(widths.values()) + gap * (len(widths) - 1) <= width or not self.columns[number].rank:
                break
            del widths[number]
        over = sum(widths.values()) + gap * (len(widths) - 1) - width
        if over > 0 and 0 in widths:
            widths[0] = max(8, widths[0] - over)
        yield from widths.items()

    def _rank(self, row: Row) -> Any:
        return None if self.sort_column is None else row.sort[self.sort_column]

    def _shows(self, row: Row) -> bool:
        return (row.is_fault or not self.faults_only) and self._matches(row)

    def _grow(self, row: Row) -> None:
        for number, cell in enumerate(row.cells):
            self.widths[number] = max(self.widths[number], len(cell.text))
