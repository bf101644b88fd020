"""Model of a table: rows as values, sorted and filtered. Pure, no widget.

Separate from the widget so that sorting and filtering 100,000 rows can be tested and timed without a screen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import is_
from typing import Any, Final, TypeVar

from msgspec import Struct

from l2rtui.domain.quantity import age
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.selection.filter_language import Test, compile_filter, misread_columns
from l2rtui.tables.column import Column, T, TableColumn, View
from l2rtui.ui.text import NOTHING, Line, Span, TextStyle, decimal, style_of_level

SLACK: Final = 3
"""Characters by which a column may stay wider than its widest cell; a past error does not leave a permanent gap."""
_LEAST_CUT: Final = 8
S = TypeVar("S")


class Row(Struct, frozen=True):
    """Row of a table.

    Attributes:
        key: Unique and stable: the uid of the displayed object.
        cells: One span for each column, sanitised.
        sort: One comparable value for each column; all rows hold the same types in the same place.
        is_fault: The faults filter (key `!`) shows it.
        hidden: Texts of the columns that only filters see.
    """

    key: str
    cells: tuple[Span, ...]
    sort: tuple[Any, ...]
    is_fault: bool = False
    hidden: tuple[str, ...] = ()


def make_row(key: str, *cells: tuple[Span, Any], is_fault: bool = False, hidden: tuple[str, ...] = ()) -> Row:
    """Make a row from pairs of a cell and its sort value."""
    spans, sort = zip(*cells, strict=True)
    return Row(key, spans, sort, is_fault, hidden)


def columns_of(view: View[Any]) -> tuple[TableColumn, ...]:
    """Return the columns of a view that the app shows."""
    return tuple(column.app for column in view.columns if column.app is not None)


def row_of(view: View[T], key: str, item: T, *, is_fault: bool = False, **cells: tuple[Span, Any]) -> Row:
    """Make the row of an object.

    Args:
        cells: Cells that the caller has made, with their sort values, by the keys of their columns.
    """
    columns = ((column, column.app) for column in view.columns if column.app is not None)
    pairs = [cells.get(app.key) or _cell_of(column, app, item) for column, app in columns]
    return make_row(key, *pairs, is_fault=is_fault)


def _cell_of(column: Column[T], app: TableColumn, item: T) -> tuple[Span, Any]:
    """Return the cell of an object and its sort value; an unknown number is dim and sorts below all others."""
    value: Any = column.of(item)
    sort = value if app.sort is None else app.sort(item)
    if value is None:
        return Span(NOTHING, TextStyle.DIM), float("-inf") if sort is None else sort
    write: Callable[[Any], str] = app.text or (decimal if isinstance(value, float) else str)
    level = None if column.level is None else column.level(item)
    style = TextStyle(app.style) if level is None else style_of_level(level)
    return Span(sanitize(write(value)) or NOTHING, TextStyle.DIM if app.is_count and not value else style), sort


class RowModel:
    """All rows, and the sorted, filtered part of them that a table displays.

    Attributes:
        rows: Every row by key.
        displayed: Keys of the displayed rows, in order.
        muted: Keys of columns that are not shown, although filters and sorting know them: they tell no rows apart.
            The column of the sort order is shown, and columns with cells are while the cursor is on one.
        pinned: Row below the header that neither sorting nor filters move; None without one.
        widths: Characters of the widest cell in each column, or up to ``SLACK`` more, so that numbers of varying
            length do not make the columns jump.
    """

    def __init__(
        self, columns: Sequence[TableColumn], clock: Callable[[], float] = time.time, hidden: Sequence[str] = ()
    ) -> None:
        self.columns = tuple(columns)
        self._hidden = tuple(hidden)
        self.clock = clock
        self.rows: dict[str, Row] = {}
        self.displayed: list[str] = []
        self.pinned: Row | None = None
        self.muted: frozenset[str] = frozenset()
        self.widths = [_least(column) for column in columns]
        self.sort_column: int | None = None
        self.is_descending = False
        self.faults_only = False
        self.filter_text = ""
        self._test: Test | None = None
        self._sources: dict[str, object] = {}
        self._positions: dict[str, int] | None = None

    def update(self, changed: Iterable[Row], removed: Iterable[str] = ()) -> tuple[bool, list[str]]:
        """Apply changes of single rows.

        Returns:
            Whether the displayed rows or their order have changed; otherwise the keys of rows with only new cells.
        """
        touched: list[str] = []
        narrower: list[Row] = []
        gone = [row for key in removed if (row := self.rows.pop(key, None)) is not None]
        is_reordered = bool(gone)
        for row in changed:
            old = self.rows.get(row.key)
            if old == row:
                continue
            self.rows[row.key] = row
            self._grow(row)
            if old is not None and self._is_narrower(old, row):
                narrower.append(old)
            # A new sort value, or a row that no longer passes the filter, moves other rows; new cells do not.
            if (
                old is None
                or self._rank(old) != self._rank(row)
                or self._is_displayed(old) != self._is_displayed(row)
            ):
                is_reordered = True
            elif old.cells != row.cells and self._is_displayed(row):
                touched.append(row.key)
        self._shrink(gone, 0)
        self._shrink(narrower, SLACK)
        if is_reordered:
            self.arrange()
        return is_reordered, touched

    def replace(self, rows: Iterable[Row]) -> tuple[bool, list[str]]:
        """Replace all rows; returns the same as update()."""
        new = {row.key: row for row in rows}
        gone = [key for key in self.rows if key not in new]
        is_reordered, touched = self.update(new.values(), gone)
        if list(self.rows) != list(new):
            # The caller's order applies without a sort column, and among rows that are equal in that column.
            self.rows = {key: self.rows[key] for key in new}
            self.arrange()
            is_reordered = True
        return is_reordered, touched

    def set_sources(self, items: Iterable[tuple[str, S]], make: Callable[[S], Row]) -> tuple[bool, list[str]]:
        """Like replace(), with a source for each row: only rows whose source is another object are made again."""
        old, new, rows = self._sources, {}, []
        for key, source in items:
            new[key] = source
            row = self.rows.get(key)
            # Making a row costs far more than comparing identities, and most sources are the same objects as
            # before.
            rows.append(row if row is not None and _is_same(old.get(key), source) else make(source))
        self._sources = dict(new)
        return self.replace(rows)

    def set_columns(self, columns: Sequence[TableColumn]) -> bool:
        """Set the columns. True if they differ; then all rows are dropped and must be given again."""
        if tuple(columns) == self.columns:
            return False
        sorted_by = None if self.sort_column is None else self.columns[self.sort_column].key
        self.columns = tuple(columns)
        # The removed rows may have been the widest: widths are computed again from the new rows.
        self.widths = [_least(column) for column in columns]
        keys = [column.key for column in columns]
        self.sort_column = keys.index(sorted_by) if sorted_by in keys else None
        self._test = compile_filter(self.filter_text, self.filter_columns)
        self.rows, self.displayed, self._positions, self._sources = {}, [], None, {}
        self.pinned = None
        return True

    def text(self, row: Row, number: int) -> str:
        """Return the current text of a cell; numbers beyond the columns are the hidden texts."""
        if number >= len(self.columns):
            return row.hidden[number - len(self.columns)]
        if not self.columns[number].is_age:
            return row.cells[number].text
        return age(self.clock() + row.sort[number]) if row.sort[number] else NOTHING

    def described(self, row: Row) -> list[Line]:
        """Return a line for each non-empty cell of a row, with the title of its column."""
        width = max(len(column.title) for column in self.columns) + 2
        return [
            (Span(f"   {column.title:<{width}}", TextStyle.DIM), Span(text, row.cells[number].style))
            for number, column in enumerate(self.columns)
            if (text := self.text(row, number)) not in ("", NOTHING)
        ]

    def set_filter(self, *, text: str | None = None, faults_only: bool | None = None) -> None:
        """Change the filter."""
        if text is not None:
            self.filter_text = text
            self._test = compile_filter(text, self.filter_columns)
        if faults_only is not None:
            self.faults_only = faults_only
        self.arrange()

    def sort_by(self, column: int | None, *, descending: bool = False) -> None:
        """Sort by a column, or with None in the order of insertion."""
        self.sort_column, self.is_descending = column, descending
        self.arrange()

    @property
    def filter_columns(self) -> list[str]:
        """Names of the columns for filters: the columns of the table, then the hidden ones."""
        return [*(column.key for column in self.columns), *self._hidden]

    @property
    def misread(self) -> str:
        """Sentence about a column in the filter that the table lacks; empty if there is none."""
        return misread_columns(self.filter_text, self.filter_columns)

    def arrange(self) -> None:
        """Filter and sort all rows."""
        keys = [row.key for row in self.rows.values() if self._is_displayed(row)]
        column = self.sort_column
        if column is not None:
            keys.sort(key=lambda key: self.rows[key].sort[column], reverse=self.is_descending)
        elif self.is_descending:
            keys.reverse()
        self.displayed, self._positions = keys, None

    def position(self, key: str) -> int | None:
        """Return the index of a row among the displayed ones; None if it is hidden."""
        # Built on first use: most arrangements of a large table never ask for a position.
        if self._positions is None:
            self._positions = {row_key: number for number, row_key in enumerate(self.displayed)}
        return self._positions.get(key)

    def visible_columns(self, width: int, gap: int, must: str | None = None) -> Iterator[tuple[int, int]]:
        """Yield columns that fit, as (number, characters).

        The highest ranks are left out first, then column 0 is cut, then the last column of text.

        Of the columns with cells for the cursor the rightmost are left out first, or the leftmost once that would
        be ``must``.
        """
        # A cut number reads as another number: a column of numbers is as wide as its widest.
        widest = self.widths
        if self.pinned is not None:
            cells = zip(widest, self.pinned.cells, strict=True)
            widest = [max(width, len(cell.text)) for width, cell in cells]
        widths = {
            number: widest[number] if column.right else min(widest[number], column.most)
            for number, column in enumerate(self.columns)
            if column.key not in self.muted or number == self.sort_column or (must and column.is_cell)
        }
        for number in sorted(widths, key=lambda number: (-self.columns[number].rank, -number)):
            if sum(widths.values()) + gap * (len(widths) - 1) <= width or not self.columns[number].rank:
                break
            del widths[number]
        keys = {self.columns[number].key for number in widths}
        widths = {number: width for number, width in widths.items() if self.columns[number].needs in ("", *keys)}
        sets = [number for number in widths if self.columns[number].is_cell]
        while len(sets) > 1 and sum(widths.values()) + gap * (len(widths) - 1) > width:
            del widths[sets.pop(0 if self.columns[sets[-1]].key == must else -1)]
        # Nothing more can be left out: the first column, which names the row, is cut down to eight characters, then
        # the last one that holds text. The edge of the table would cut without a sign.
        last = next((number for number in reversed(widths) if not self.columns[number].right), 0)
        for number in (0, last):
            over = sum(widths.values()) + gap * (len(widths) - 1) - width
            if over > 0 and number in widths:
                widths[number] = max(min(_LEAST_CUT, widths[number]), widths[number] - over)
        yield from widths.items()

    def _rank(self, row: Row) -> Any:
        return None if self.sort_column is None else row.sort[self.sort_column]

    def _is_displayed(self, row: Row) -> bool:
        # The faults filter: the *_row() function of each table decides what counts as a fault.
        if self.faults_only and not row.is_fault:
            return False
        if self._test is None:
            return True
        # Words match the displayed text, not the values behind it: users filter for the text they see.
        everything = " ".join(cell.text for cell in row.cells).casefold()
        return self._test(lambda number: self.text(row, number).casefold(), everything)

    def _grow(self, row: Row) -> None:
        for number, cell in enumerate(row.cells):
            self.widths[number] = max(self.widths[number], len(cell.text))

    def _is_narrower(self, old: Row, row: Row) -> bool:
        """True if a cell that may have determined its column's width has become much shorter."""
        cells = zip(old.cells, row.cells, self.widths, strict=True)
        return any(len(now.text) < width - SLACK <= len(before.text) for before, now, width in cells)

    def _shrink(self, gone: Sequence[Row], slack: int) -> None:
        """Shrink the columns whose widest cell was removed, unless another is nearly as wide."""
        for number, column in enumerate(self.columns) if gone else ():
            width = self.widths[number]
            if all(len(row.cells[number].text) < width - SLACK for row in gone):
                continue
            # Usually another row is as wide and is found early: names of pods have one length.
            if not any(len(row.cells[number].text) >= width - slack for row in self.rows.values()):
                widest = max((len(row.cells[number].text) for row in self.rows.values()), default=0)
                self.widths[number] = max(_least(column), widest)


def _least(column: TableColumn) -> int:
    return max(len(column.title), column.most if column.is_age else 0)


def _is_same(old: object, new: object) -> bool:
    """True for the same object, or for tuples of the same objects."""
    if old is new:
        return True
    if not isinstance(old, tuple) or not isinstance(new, tuple) or len(old) != len(new):
        return False
    return all(map(is_, old, new)) or all(
        before is after or (isinstance(before, tuple) and _is_same(before, after))
        for before, after in zip(old, new, strict=True)
    )
