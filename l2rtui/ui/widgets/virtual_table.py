"""Table over Textual's line API: keyed rows, cursor, marks, sort, filter; fast at 100,000 rows.

Textual's DataTable repaints its whole visible part for one changed cell. Here a changed row repaints only its line,
if that is visible, and hidden rows cost nothing. The cursor is bound to a key, not an index, so that a refresh
never moves it to another row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from l2rtui.tables.column import TableColumn
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.text import NOTHING, Line, Span, TextStyle, broken, fit
from l2rtui.ui.theme import colour
from l2rtui.ui.widgets.span_renderer import SpanWidget
from l2rtui.ui.widgets.table_model import Row, RowModel

S = TypeVar("S")
_GAP = 2
_MARGIN = 2
"""Columns before the first cell: the mark, and a space."""


class VirtualTable(SpanWidget, ScrollView, can_focus=True):
    """Rows under a header; only visible lines that have changed are redrawn.

    Attributes:
        cursor_key: Key of the row under the cursor, which ``move_to`` sets.
        empty_text: Text shown if there are no rows.
        scope: Sentence about the subset of rows shown, and the key to the others; empty for all.
    """

    DEFAULT_CSS = """
    VirtualTable { overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }
    """
    BINDINGS = bindings(KeyContext.TABLE)
    COLUMNS: ClassVar[Sequence[TableColumn]] = ()
    HIDDEN: ClassVar[Sequence[str]] = ()
    """Default columns of a table."""
    EMPTY: ClassVar[str] = "Nothing here."
    """Default text of a table without rows."""
    WAY_BACK: ClassVar[str] = "esc shows all."
    """What to do if the filter hides every row."""
    SAME: ClassVar[Sequence[str]] = ()
    """Keys of columns that are left out while they say the same in every row."""

    empty_text: reactive[str] = reactive("")

    @dataclass
    class CursorMoved(Message):
        """The cursor has moved to another row; None if there are no rows. ``by_user``: by a key or a click."""

        table: VirtualTable
        key: str | None
        by_user: bool

    @dataclass
    class Chosen(Message):
        """Enter was pressed on a row, or it was double-clicked."""

        table: VirtualTable
        key: str

    @dataclass
    class Rearranged(Message):
        """Filter, sort, marks or the number of rows have changed: titles that count them are out of date."""

        table: VirtualTable

    def __init__(
        self,
        columns: Sequence[TableColumn] | None = None,
        *,
        empty: str = "",
        clock: Callable[[], float] = time.time,
        id: str | None = None,  # noqa: A002  (Textual's name)
    ) -> None:
        super().__init__(id=id)
        self.model = RowModel(self.COLUMNS if columns is None else columns, clock, self.HIDDEN)
        self.marked: set[str] = set()
        self.empty_text = empty or self.EMPTY
        self.cursor_key: str | None = None
        self._cursor_line = 0
        self._cell: str | None = None
        self.scope = ""
        self._are_rows_due = False
        self._drawn_widths = list(self.model.widths)
        # Last drawn ages, by row: a tick of the clock redraws only lines whose text differs.
        self._ages: dict[str, str] = {}

    # --- interface of the owner ------------------------------------------------------------------------------
    @property
    def cursor_cell(self) -> str | None:
        """Key of the column whose cell the cursor is on; None while it is on the whole row."""
        is_there = any(column.key == self._cell for column in self.model.columns)
        return self._cell if is_there else None

    def set_sources(self, items: Iterable[tuple[str, S]], make: Callable[[S], Row]) -> None:
        """Replace all rows, making only those whose source is a new object."""
        self._apply(*self.model.set_sources(items, make))

    def set_columns(self, columns: Sequence[TableColumn]) -> None:
        """Set the columns; the rows must be given again if they differ."""
        if self.model.set_columns(columns):
            self._are_rows_due = True
            self.refresh()

    def fold(self) -> None:
        """Leave out the columns that tell no two rows apart; filters and sorting still know them."""
        rows = list(self.model.rows.values())
        muted = frozenset(
            column.key
            for number, column in enumerate(self.model.columns)
            if self.is_column_empty(number, column, rows)
        )
        if muted != self.model.muted:
            self.model.muted = muted
            self.refresh()

    def is_column_empty(self, number: int, column: TableColumn, rows: Sequence[Row]) -> bool:
        """True for a column that may be left out and says the same in every row, or nothing in the only row."""
        if column.key not in self.SAME:
            return False
        texts = {row.cells[number].text for row in rows}
        return len(texts) < 2 and (len(rows) != 1 or not texts.isdisjoint(("", "0", NOTHING)))

    def pin(self, row: Row | None) -> None:
        """Show a fixed row below the header, such as a sum; None removes it."""
        if row == self.model.pinned:
            return
        is_moved = (row is None) is not (self.model.pinned is None)
        self.model.pinned = row
        if is_moved:
            self._fit_rows()
        self.refresh()

    def draw_ages(self) -> None:
        """Redraw the visible rows whose age text has changed."""
        number = next((number for number, column in enumerate(self.model.columns) if column.is_age), None)
        if number is None:
            return
        for key, drawn in tuple(self._ages.items()):
            row, line = self.model.rows.get(key), self.model.position(key)
            if row is None or line is None:
                del self._ages[key]
            elif self.model.text(row, number) != drawn:
                self.refresh_line(line + self._head)

    def set_rows(self, rows: Iterable[Row]) -> None:
        """Replace all rows; their order applies while no sort column is chosen."""
        self._apply(*self.model.replace(rows))

    def update_rows(self, changed: Iterable[Row], removed: Iterable[str] = ()) -> None:
        """Add, change and remove single rows."""
        self._apply(*self.model.update(changed, removed))

    def move_to(self, key: str, *, by_user: bool = False) -> bool:
        """Put the cursor on a row. False if the row is hidden or does not exist."""
        line = self.model.position(key)
        if line is None:
            return False
        self._place(line, by_user=by_user)
        return True

    def narrow(self, *, text: str | None = None, faults_only: bool | None = None) -> None:
        """Filter the rows by a text, or by faults; None keeps that filter."""
        self.model.set_filter(text=text, faults_only=faults_only)
        self._rearranged()

    def action_cell(self, by: int) -> None:
        """Move over the cells of the row; before the first one the cursor is on the whole row."""
        keys = [None, *(column.key for column in self.model.columns if column.is_cell)]
        now = keys.index(self.cursor_cell)
        self._cell = keys[max(0, min(len(keys) - 1, now + by))]
        self.refresh()
        self.post_message(self.CursorMoved(self, self.cursor_key, True))

    def leave_cell(self) -> None:
        """Put the cursor on the whole row."""
        self._cell = None
        self.refresh()
        self.post_message(self.CursorMoved(self, self.cursor_key, True))

    def action_mark_all(self) -> None:
        """Mark all displayed rows, or unmark them if all are marked."""
        displayed = set(self.model.displayed)
        self.marked = self.marked - displayed if displayed <= self.marked else self.marked | displayed
        self.refresh()
        self.post_message(self.Rearranged(self))

    def mark_only(self, keys: Iterable[str]) -> None:
        """Mark these rows and no others."""
        self.marked = set(keys)
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
        self._place(0 if side < 0 else len(self.model.displayed) - 1, by_user=True)

    def action_choose(self) -> None:
        """Post Chosen for the row under the cursor."""
        if self.cursor_key is not None:
            self.post_message(self.Chosen(self, self.cursor_key))

    def action_mark(self) -> None:
        """Toggle the mark of the row and move to the next."""
        if self.cursor_key is not None:
            self.marked.symmetric_difference_update({self.cursor_key})
            self.refresh_line(self._cursor_line + self._head)
            self.post_message(self.Rearranged(self))
            self.action_move(1)

    def sort_on(self, name: str) -> bool:
        """Sort by a column, by its key or title; with ``-`` before it descending. False for an unknown column."""
        wish = name.removeprefix("-").casefold()
        numbers = [
            number
            for number, column in enumerate(self.model.columns)
            if wish and wish in (column.key.casefold(), column.title.casefold())
        ]
        if numbers:
            self._sort(numbers[0], descending=name.startswith("-"))
        return bool(numbers)

    def action_sort(self) -> None:
        """Sort by the next column; after the last one in the order of insertion."""
        now = self.model.sort_column
        following = 0 if now is None else now + 1
        self._sort(following if following < len(self.model.columns) else None, descending=False)

    def action_turn(self) -> None:
        """Reverse the sort order."""
        self._sort(self.model.sort_column, descending=not self.model.is_descending)

    def on_click(self, event: events.Click) -> None:
        """Select the clicked row; a click on the header sorts."""
        place = event.get_content_offset(self)
        if place is None:  # the frame
            return
        if place.y == 0:
            self._sort_at(place.x)
        elif self._head <= place.y < len(self.model.displayed) + self._head - self.scroll_offset.y:
            line = place.y - self._head + self.scroll_offset.y
            self._place(line, by_user=True)
            if event.chain == 2:
                self.action_choose()

    # --- inside ---------------------------------------------------------------------------------------------
    def _sort_at(self, x: int) -> None:
        left = _MARGIN
        for number, width in self.model.visible_columns(self._row_width - _MARGIN, _GAP, self._cell):
            if left <= x < left + width + _GAP:
                self._sort(number, descending=number == self.model.sort_column and not self.model.is_descending)
                return
            left += width + _GAP

    def _sort(self, column: int | None, *, descending: bool) -> None:
        self.model.sort_by(column, descending=descending)
        self._rearranged()

    def _apply(self, is_reordered: bool, touched: Sequence[str]) -> None:
        # Rows removed with their columns are not reported if no others arrive: the cursor must leave them.
        if is_reordered or self._are_rows_due:
            self._are_rows_due = False
            # Marks of hidden rows stay: a filter narrows the view, not the selection.
            self.marked &= self.model.rows.keys()
            self._rearranged()
            return
        # A cell that widens its column moves the cells of all lines, including the header's.
        if self.model.widths != self._drawn_widths:
            self._drawn_widths = list(self.model.widths)
            self.refresh()
            return
        first, last = self.scroll_offset.y, self.scroll_offset.y + self.size.height
        for key in touched:
            line = self.model.position(key)
            if line is not None and first <= line < last:
                self.refresh_line(line + self._head)

    def _rearranged(self) -> None:
        """Keep the cursor on its key; if that was removed, on its line."""
        self._drawn_widths = list(self.model.widths)
        self._measure()
        before = self.cursor_key
        line = self.model.position(before) if before is not None else None
        self._place(self._cursor_line if line is None else line, by_user=False)
        self.refresh()
        self.post_message(self.Rearranged(self))

    def _place(self, line: int, *, by_user: bool) -> None:
        displayed = self.model.displayed
        line = max(0, min(line, len(displayed) - 1))
        key = displayed[line] if displayed else None
        old_line, old_key = self._cursor_line, self.cursor_key
        self._cursor_line, self.cursor_key = line, key
        # The header and a pinned row take lines of the widget and never scroll.
        height = self.size.height - self._head
        top = self.scroll_offset.y
        if height > 0 and not top <= line < top + height:
            # immediate and force: the virtual size was set in this same call, and Textual would clamp or delay the
            # scroll.
            self.scroll_to(y=line if line < top else line - height + 1, animate=False, immediate=True, force=True)
        if line != old_line:
            self.refresh_line(old_line + self._head)
            self.refresh_line(line + self._head)
        if key != old_key:
            self.post_message(self.CursorMoved(self, key, by_user))

    def on_resize(self) -> None:
        """Keep the cursor visible."""
        self._fit_rows()

    def _fit_rows(self) -> None:
        """Limit the scroll position to the rows, with the cursor visible."""
        self._measure()
        self._place(self._cursor_line, by_user=False)

    def _measure(self) -> None:
        height = len(self.model.displayed) + self._head
        if height != self.virtual_size.height:  # triggers a layout of the screen; the width does not scroll
            self.virtual_size = Size(self.size.width, height)

    @property
    def _head(self) -> int:
        """Lines above the rows: the header, and the pinned row."""
        return 1 if self.model.pinned is None else 2

    @property
    def _row_width(self) -> int:
        """Columns without the scroll bar, which covers the text under it."""
        return self.scrollable_content_region.width

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Move the scroll bar, too."""
        super().watch_scroll_y(old_value, new_value)
        # Textual moves only visible bars: one that appears later would be at its old position.
        self.vertical_scrollbar.position = new_value

    def on_focus(self) -> None:
        """Draw the cursor with or without focus."""
        self.refresh_line(self._cursor_line + self._head)

    on_blur = on_focus

    def render_line(self, y: int) -> Strip:
        """Render the header, a row, or an empty line."""
        width = self._row_width
        if y == 0:
            return self.strip(self._header(width), width)
        if y < self._head and self.model.pinned is not None:
            return self._row(self.model.pinned, width, is_cursor=False)
        line = y - self._head + self.scroll_offset.y
        displayed = self.model.displayed
        if line < len(displayed):
            return self._row(self.model.rows[displayed[line]], width, is_cursor=line == self._cursor_line)
        if displayed:
            return self.strip((), width)
        return self.strip((Span(" " * _MARGIN), *self.empty_line(line, width - 2 * _MARGIN)), width)

    def empty_line(self, line: int, width: int) -> Line:
        """Return a line of the text shown instead of rows."""
        why = self._no_match() if self.model.rows else self.empty_text
        return (Span(broken(why, width, line), TextStyle.DIM),)

    @property
    def is_active(self) -> bool:
        """True while keys act on the cursor, which is then drawn filled."""
        return self.has_focus

    @property
    def natural_rows(self) -> int:
        """Number of lines below the header that the rows take."""
        return len(self.model.displayed)

    def _no_match(self) -> str:
        """Return the reason why every row is hidden."""
        reason = self.model.misread or "No row matches the filter."
        return " ".join(filter(None, (reason, self.scope, self.WAY_BACK)))

    def _header(self, width: int) -> Line:
        spans = [Span(" " * _MARGIN, TextStyle.DIM)]
        for number, cells in self.model.visible_columns(width - _MARGIN, _GAP, self._cell):
            column = self.model.columns[number]
            is_sorted = number == self.model.sort_column
            mark = ("▼" if self.model.is_descending else "▲") if is_sorted else ""
            # With a title as wide as its column the mark is in the gap, so that no letter is lost.
            inside, beside = (mark, "") if len(column.title) + len(mark) <= cells else ("", mark)
            title = f"{column.title[:cells]}{inside}"
            title = title.rjust(cells) if column.right else title.ljust(cells)
            spans.append(Span(f"{title}{beside:{_GAP}}", TextStyle.STRONG if is_sorted else TextStyle.HEADING))
        return tuple(spans)

    def _row(self, row: Row, width: int, *, is_cursor: bool) -> Strip:
        point = "✓" if row.key in self.marked else "▸" if is_cursor else " "
        spans = [Span(f"{point:<{_MARGIN}}", TextStyle.ACCENT)]
        for number, cells in self.model.visible_columns(width - _MARGIN, _GAP, self._cell):
            column, style = self.model.columns[number], row.cells[number].style
            text = self.model.text(row, number)
            if column.is_age:
                self._ages[row.key] = text
            if is_cursor and column.key == self._cell:
                # The brackets are in the gaps on both sides, so that the text keeps its place and its length.
                before = spans[-1]
                spans[-1] = Span(before.text[:-1], before.style)
                spans += [Span(fit(f"[{text.strip()}]", cells + 2), TextStyle.STRONG), Span(" " * (_GAP - 1))]
            elif style in (TextStyle.FAULT, TextStyle.STAGED) and text.strip():
                # It is filled: spaces around the text would look like a separate block.
                cell = fit(text, cells, right=column.right)
                left, word, right = cell.partition(cell.strip())
                spans += [Span(left), Span(word, style), Span(f"{right}{'':{_GAP}}")]
            else:
                style = TextStyle.FAINT if text == NOTHING else style
                spans.append(Span(f"{fit(text, cells, right=column.right)}{'':{_GAP}}", style))
        if not is_cursor:
            return self.strip(spans, width)
        if not self.is_active:
            return self.strip(spans, width, colour(self.app.theme_variables, "l2r-cursor"))
        # State colours would be hard to read on it, and a glyph says the same; a fault stays a block.
        fault, other = TextStyle.SELECTED_FAULT, TextStyle.SELECTED
        spans = [Span(text, fault if style is TextStyle.FAULT else other) for text, style in spans]
        return self.strip(spans, width, colour(self.app.theme_variables, "l2r-cursor-focus"))
