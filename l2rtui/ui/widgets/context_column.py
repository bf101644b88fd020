"""Column with the context of a row, and the age of the row while its context does not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from l2rtui.domain.quantity import age
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ContextHealth
from l2rtui.tables.column import TableColumn
from l2rtui.ui.text import Span, TextStyle
from l2rtui.ui.widgets.table_model import Row
from l2rtui.ui.widgets.virtual_table import VirtualTable

Cell = tuple[Span, str]
"""Text and sort value."""
S = TypeVar("S", bound=tuple[Any, ...])
COLUMN: Final = TableColumn("context", "context", most=24, rank=1)
NO_CELL: Final[Cell] = (Span(""), "")


def old_contexts(contexts: Sequence[ContextHealth], now: float) -> dict[str, str]:
    """Return the ages of contexts that do not answer, by name.

    Args:
        now: Seconds since the epoch.
    """
    return {own.name: age(now - own.old_since) for own in contexts if own.old_since is not None}


class ContextColumn:
    """Column of several tables; absent while a single context is shown."""

    def __init__(self) -> None:
        self._cells: dict[str, Cell] = {}

    def update(self, contexts: Sequence[ContextHealth], now: float) -> None:
        """Set the state of each context."""
        old = old_contexts(contexts, now)
        self._cells = {own.name: self._cell(own.name, old.get(own.name, "")) for own in contexts}

    def _cell(self, name: str, old: str) -> Cell:
        # The same object while its text is the same, so that no row is made again.
        text = f"{sanitize(name)} ▲ {old}" if old else sanitize(name)
        before = self._cells.get(name)
        if before is not None and before[0].text == text:
            return before
        return Span(text, TextStyle.WARN if old else TextStyle.ACCENT), name

    def show(
        self,
        table: VirtualTable,
        columns: Sequence[TableColumn],
        items: Iterable[tuple[str, S]],
        make: Callable[[S], Row],
    ) -> None:
        """Set columns and rows of a table, with this column after the one that names the row.

        Args:
            items: Key and source of each row; the first part of a source has the context.
        """
        cells = self._cells
        if not cells:
            table.set_columns(columns)
            table.set_sources(items, make)
            return
        table.set_columns((columns[0], COLUMN, *columns[1:]))
        pairs = ((key, (cells.get(source[0].context, NO_CELL), source)) for key, source in items)
        table.set_sources(pairs, lambda pair: _with_cell(make(pair[1]), pair[0]))


def _with_cell(row: Row, cell: Cell) -> Row:
    (name, *cells), (first, *values) = row.cells, row.sort
    return Row(row.key, (name, cell[0], *cells), (first, cell[1], *values), row.is_fault)
