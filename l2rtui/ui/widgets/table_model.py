"""Rows of a table as values, and which of them are shown in which order. Pure, no widget.

Kept apart from the widget so that sorting and filtering 100,000 rows can be tested and timed without a screen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from l2rtui.ui.filters import Test, compile_filter
from l2rtui.ui.text import NOTHING, Span, age

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        key: Stable name. title: as the header shows it.
        most: Widest that it grows to; its content is cut there.
        right: Numbers stand on the right.
        rank: When the table is narrow, columns of the highest rank go first; 0 never goes.
        is_age: The sort value is minus the moment of birth; the cell shows the age when it is drawn, so that time
            alone changes no row.
        is_cell: The cursor can stand on this column's cells; the row is then not meant as a whole.
    """

    key: str
    title: str
    most: int = 30
    right: bool = False
    rank: int = 0
    is_age: bool = False
    is_cell: bool = False


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


class RowModel:
    """All rows, and the sorted, filtered part of them that a table shows.

    Attributes:
        rows: Every row by key.
        shown: Keys of the shown rows, in order.
        widths: Characters of the widest cell seen in each column; grows and never shrinks, so columns stay put.
    """

    def __init__(self, columns: Sequence[Column], clock: Callable[[], float] = time.time) -> None:
        self.columns = tuple(columns)
        self.clock = clock
        self.rows: dict[str, Row] = {}
        self.shown: list[str] = []
        self.widths = [_least(column) for column in columns]
        self.sort_column: int | None = None
        self.is_descending = False
        self.faults_only = False
        self.filter_text = ""
        self._test: Test | None = None
        self._sources: dict[str, object] = {}
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

    def take(self, items: Iterable[tuple[str, S]], make: Callable[[S], Row]) -> tuple[bool, list[str]]:
        """As replace(), from what rows are made of: only where that is another object is a row made anew."""
        old, new, rows = self._sources, {}, []
        for key, source in items:
            new[key] = source
            row = self.rows.get(key)
            rows.append(row if row is not None and _is_same(old.get(key), source) else make(source))
        self._sources = dict(new)
        return self.replace(rows)

    def set_columns(self, columns: Sequence[Column]) -> bool:
        """Have other columns; all rows are then to be given anew. Tells whether they are others."""
        if tuple(columns) == self.columns:
            return False
        sorted_by = None if self.sort_column is None else self.columns[self.sort_column].key
        widths = {column.key: width for column, width in zip(self.columns, self.widths, strict=True)}
        self.columns = tuple(columns)
        self.widths = [max(_least(column), widths.get(column.key, 0)) for column in columns]
        keys = [column.key for column in columns]
        self.sort_column = keys.index(sorted_by) if sorted_by in keys else None
        self._test = compile_filter(self.filter_text, keys)
        self.rows, self.shown, self._positions, self._sources = {}, [], None, {}
        return True

    def text(self, row: Row, number: int) -> str:
        """What a cell shows now."""
        if not self.columns[number].is_age:
            return row.cells[number].text
        return age(self.clock() + row.sort[number]) if row.sort[number] else NOTHING

    def select(self, *, text: str | None = None, faults_only: bool | None = None) -> None:
        """Filter anew."""
        if text is not None:
            self.filter_text = text
            self._test = compile_filter(text, [column.key for column in self.columns])
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

    def visible_columns(self, width: int, gap: int, must: str | None = None) -> Iterator[tuple[int, int]]:
        """Columns that fit, as (number, characters). The highest ranks are left out first; the first takes cuts.

        Cells that the cursor can stand on go from the right, and from the left once ``must`` would go.
        """
        widths = {number: min(self.widths[number], column.most) for number, column in enumerate(self.columns)}
        for number in sorted(widths, key=lambda number: (-self.columns[number].rank, -number)):
            if sum(widths.values()) + gap * (len(widths) - 1) <= width or not self.columns[number].rank:
                break
            del widths[number]
        cells = [number for number in widths if self.columns[number].is_cell]
        while len(cells) > 1 and sum(widths.values()) + gap * (len(widths) - 1) > width:
            del widths[cells.pop(0 if self.columns[cells[-1]].key == must else -1)]
        over = sum(widths.values()) + gap * (len(widths) - 1) - width
        if over > 0 and 0 in widths:
            widths[0] = max(8, widths[0] - over)
        yield from widths.items()

    def _rank(self, row: Row) -> Any:
        return None if self.sort_column is None else row.sort[self.sort_column]

    def _shows(self, row: Row) -> bool:
        if self.faults_only and not row.is_fault:
            return False
        if self._test is None:
            return True
        everything = " ".join(cell.text for cell in row.cells).casefold()
        return self._test(lambda number: self.text(row, number).casefold(), everything)

    def _grow(self, row: Row) -> None:
        for number, cell in enumerate(row.cells):
            self.widths[number] = max(self.widths[number], len(cell.text))


def _least(column: Column) -> int:
    return max(len(column.title), column.most if column.is_age else 0)


def _is_same(old: object, new: object) -> bool:
    """Whether the same objects make the row: one object, or a tuple of the same ones."""
    if old is new:
        return True
    if not isinstance(old, tuple) or not isinstance(new, tuple) or len(old) != len(new):
        return False
    return all(
        one is other or (isinstance(one, tuple) and _is_same(one, other))
        for one, other in zip(old, new, strict=True)
    )
