"""A table over Textual's line API: keyed rows, a cursor, marks, sort, filter; fast at 100,000 rows.

Textual's DataTable repaints all that is visible for one changed cell. Here a changed row repaints its own line, if
that is in sight, and rows out of sight cost nothing. The cursor stands on a key and not on a number, so a refresh
never moves it to something else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from l2rtui.ui.keys import Place, bindings
from l2rtui.ui.text import Line, Span, Tone, broken, fit
from l2rtui.ui.theme import colour
from l2rtui.ui.widgets.paint import Painted
from l2rtui.ui.widgets.rows import Column, Row, RowModel

S = TypeVar("S")
_GAP = 2
_MARGIN = 2
"""Columns before the first cell: the mark, and a space."""


class VirtualTable(Painted, ScrollView, can_focus=True):
    """Rows under a header; only lines that are visible and have changed are drawn again."""

    DEFAULT_CSS = """
    VirtualTable { overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.TABLE)]

    @dataclass
    class CursorMoved(Message):
        """The cursor stands on another row; None when there are no rows. ``by_user``: a key or a click did it."""

        table: VirtualTable
        key: str | None
        by_user: bool

    @dataclass
    class Chosen(Message):
        """Enter was pressed on a row, or it was clicked twice."""

        table: VirtualTable
        key: str

    @dataclass
    class Rearranged(Message):
        """Filter, sort, marks or the number of rows differ: titles that count them are out of date."""

        table: VirtualTable

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        empty: str = "Nothing here.",
        clock: Callable[[], float] = time.time,
        id: str | None = None,  # noqa: A002  (Textual's name)
    ) -> None:
        super().__init__(id=id)
        self.model = RowModel(columns, clock)
        self.marked: set[str] = set()
        self.empty_text = empty
        self._cursor: str | None = None
        self._cursor_line = 0
        self._cell: str | None = None
        self._ages: dict[str, str] = {}

    # --- what others may do ---------------------------------------------------------------------------------
    @property
    def cursor_key(self) -> str | None:
        """Key of the row under the cursor."""
        return self._cursor

    @property
    def cursor_cell(self) -> str | None:
        """Key of the column whose cell the cursor stands on; None while it means the whole row."""
        is_there = any(column.key == self._cell for column in self.model.columns)
        return self._cell if is_there else None

    def take(self, items: Iterable[tuple[str, S]], make: Callable[[S], Row]) -> None:
        """Make these all the rows, working out only those whose source is another object than before."""
        self._took(*self.model.take(items, make))

    def set_columns(self, columns: Sequence[Column]) -> None:
        """Have other columns; the rows must be given again."""
        if self.model.set_columns(columns):
            self.refresh()

    def draw_ages(self) -> None:
        """Draw the visible rows whose age reads otherwise now."""
        number = next((number for number, column in enumerate(self.model.columns) if column.is_age), None)
        if number is None:
            return
        for key, seen in tuple(self._ages.items()):
            row, line = self.model.rows.get(key), self.model.position(key)
            if row is None or line is None:
                del self._ages[key]
            elif self.model.text(row, number) != seen:
                self.refresh_line(line + 1)

    def set_rows(self, rows: Iterable[Row]) -> None:
        """Make these all the rows, in this order where no sort column is chosen."""
        self._took(*self.model.replace(rows))

    def update_rows(self, changed: Iterable[Row], removed: Iterable[str] = ()) -> None:
        """Add, change and remove single rows."""
        self._took(*self.model.update(changed, removed))

    def move_to(self, key: str, *, by_user: bool = False) -> bool:
        """Put the cursor on a row; tells whether it is shown."""
        line = self.model.position(key)
        if line is None:
            return False
        self._place(line, by_user=by_user)
        return True

    def narrow(self, *, text: str | None = None, faults_only: bool | None = None) -> None:
        """Show only rows with these words, or only faults."""
        self.model.select(text=text, faults_only=faults_only)
        self._rearranged()

    def action_cell(self, by: int) -> None:
        """Move over the cells that the cursor can stand on; before the first one it means the whole row."""
        keys = [None, *(column.key for column in self.model.columns if column.is_cell)]
        now = keys.index(self.cursor_cell)
        self._cell = keys[max(0, min(len(keys) - 1, now + by))]
        self.refresh()
        self.post_message(self.CursorMoved(self, self._cursor, True))

    def action_mark_all(self) -> None:
        """Mark all shown rows, or none if all are marked."""
        shown = set(self.model.shown)
        self.marked = self.marked - shown if shown <= self.marked else self.marked | shown
        self.refresh()
        self.post_message(self.Rearranged(self))

    def clear_marks(self) -> None:
        """Unmark all rows."""
        self.marked.clear()
        self.refresh()
        self.post_message(self.Rearranged(self))

    # --- keys -----------------------------------------------------------------------------------------------
    def action_move(self, by: int) -> None:
        """Move the cursor by rows."""
        self._place(self._cursor_line + by, by_user=True)

    def action_page(self, by: int) -> None:
        """Move the cursor by pages."""
        self._place(self._cursor_line + by * max(1, self.size.height - 2), by_user=True)

    def action_edge(self, side: int) -> None:
        """Move to the first or last row."""
        self._place(0 if side < 0 else len(self.model.shown) - 1, by_user=True)

    def action_choose(self) -> None:
        """Say that the row under the cursor was chosen."""
        if self._cursor is not None:
            self.post_message(self.Chosen(self, self._cursor))

    def action_mark(self) -> None:
        """Turn the mark of a row over and go on to the next."""
        if self._cursor is not None:
            self.marked.symmetric_difference_update({self._cursor})
            self.refresh_line(self._cursor_line + 1)
            self.post_message(self.Rearranged(self))
            self.action_move(1)

    def action_sort(self) -> None:
        """Sort by the next column; after the last, as the rows came."""
        now = self.model.sort_column
        following = 0 if now is None else now + 1
        self._sort(following if following < len(self.model.columns) else None, descending=False)

    def action_turn(self) -> None:
        """Sort the other way round."""
        self._sort(self.model.sort_column, descending=not self.model.is_descending)

    def on_click(self, event: events.Click) -> None:
        """Select the row that was clicked; a click on the header sorts."""
        if event.y == 0:
            self._sort_at(event.x)
        elif (line := event.y - 1 + self.scroll_offset.y) < len(self.model.shown):
            self._place(line, by_user=True)
            if event.chain == 2:
                self.action_choose()

    # --- inside ---------------------------------------------------------------------------------------------
    def _sort_at(self, x: int) -> None:
        left = _MARGIN
        for number, width in self.model.visible_columns(self.size.width - _MARGIN, _GAP, self._cell):
            if left <= x < left + width + _GAP:
                self._sort(number, descending=number == self.model.sort_column and not self.model.is_descending)
                return
            left += width + _GAP

    def _sort(self, column: int | None, *, descending: bool) -> None:
        self.model.sort_by(column, descending=descending)
        self._rearranged()

    def _took(self, is_reordered: bool, touched: Sequence[str]) -> None:
        if is_reordered:
            self.marked &= self.model.rows.keys()
            self._rearranged()
            return
        first, last = self.scroll_offset.y, self.scroll_offset.y + self.size.height
        for key in touched:
            line = self.model.position(key)
            if line is not None and first <= line < last:
                self.refresh_line(line + 1)

    def _rearranged(self) -> None:
        """Keep the cursor on its key; if that is gone, on the line where it was."""
        self.virtual_size = Size(self.size.width, len(self.model.shown) + 1)
        before = self._cursor
        line = self.model.position(before) if before is not None else None
        self._place(self._cursor_line if line is None else line, by_user=False)
        self.refresh()
        self.post_message(self.Rearranged(self))

    def _place(self, line: int, *, by_user: bool) -> None:
        shown = self.model.shown
        line = max(0, min(line, len(shown) - 1))
        key = shown[line] if shown else None
        old_line, old_key = self._cursor_line, self._cursor
        self._cursor_line, self._cursor = line, key
        height = self.size.height - 1
        top = self.scroll_offset.y
        if height > 0 and not top <= line < top + height:
            self.scroll_to(y=line if line < top else line - height + 1, animate=False, immediate=True, force=True)
        if line != old_line:
            self.refresh_line(old_line + 1)
            self.refresh_line(line + 1)
        if key != old_key:
            self.post_message(self.CursorMoved(self, key, by_user))

    def on_resize(self) -> None:
        """Keep the cursor in sight."""
        self.virtual_size = Size(self.size.width, len(self.model.shown) + 1)
        self._place(self._cursor_line, by_user=False)

    def on_focus(self) -> None:
        """Draw the cursor as that of the focused pane."""
        self.refresh_line(self._cursor_line + 1)

    def on_blur(self) -> None:
        """Draw the cursor as a place to come back to."""
        self.refresh_line(self._cursor_line + 1)

    def render_line(self, y: int) -> Strip:
        """One line of the visible part: the header, a row, or nothing."""
        width = self.size.width
        if y == 0:
            return self.strip(self._header(width), width)
        line = y - 1 + self.scroll_offset.y
        shown = self.model.shown
        if line < len(shown):
            return self._row(self.model.rows[shown[line]], width, is_cursor=line == self._cursor_line)
        if shown:
            return self.strip((), width)
        why = self.empty_text if not self.model.rows else "No row matches the filter; esc shows all."
        return self.strip((Span(f"{'':{_MARGIN}}{broken(why, width - 2 * _MARGIN, line)}", Tone.DIM),), width)

    def _header(self, width: int) -> Line:
        spans = [Span(" " * _MARGIN, Tone.DIM)]
        for number, cells in self.model.visible_columns(width - _MARGIN, _GAP, self._cell):
            column = self.model.columns[number]
            is_sorted = number == self.model.sort_column
            title = f"{column.title}{('▼' if self.model.is_descending else '▲') if is_sorted else ''}"
            title = title[-cells:].rjust(cells) if column.right else title[:cells].ljust(cells)
            spans.append(Span(f"{title}{'':{_GAP}}", Tone.STRONG if is_sorted else Tone.DIM))
        return tuple(spans)

    def _row(self, row: Row, width: int, *, is_cursor: bool) -> Strip:
        point = "✓" if row.key in self.marked else "▸" if is_cursor else " "
        spans = [Span(f"{point:<{_MARGIN}}", Tone.ACCENT)]
        for number, cells in self.model.visible_columns(width - _MARGIN, _GAP, self._cell):
            column, tone = self.model.columns[number], row.cells[number].tone
            text = self.model.text(row, number)
            if column.is_age:
                self._ages[row.key] = text
            if is_cursor and column.key == self._cell:
                spans += [Span(fit(f"[{text.strip()}]", cells + 1), Tone.STRONG), Span(" " * (_GAP - 1))]
            else:
                spans.append(Span(f"{fit(text, cells, right=column.right)}{'':{_GAP}}", tone))
        if not is_cursor:
            return self.strip(spans, width)
        name = "l2r-cursor-focus" if self.has_focus else "l2r-cursor"
        return self.strip(spans, width, colour(self.app.theme_variables, name))
