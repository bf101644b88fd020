"""Base of the overviews: a list that updates itself, with filter, faults and sorting as in all tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from textual import on
from textual.widgets import Input

from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.dialogs.list_dialog import ListDialog
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import NOTHING, Line, Span, TextStyle
from l2rtui.ui.widgets.prompt_input import PromptInput
from l2rtui.ui.widgets.table_model import TableColumn
from l2rtui.ui.widgets.virtual_table import VirtualTable

REFRESH_SECONDS: Final = 2.0
"""Learners write a record every two seconds; the data here change no more often."""
_QUESTION: Final = "Which rows? Words, or a column: name~racing live>0   enter keep   esc all"


@dataclass(frozen=True, slots=True)
class Opening:
    """Chosen row, and True if its charts were requested instead of its runs."""

    key: str
    is_charts: bool = False


class Overview(ListDialog[Opening | None]):
    """Rows that are computed again every two seconds; returns the row that was opened.

    Args:
        heading: Part of the title.
        filter_text: Initial filter.
    """

    PANELS = ()
    ROW_HINTS: ClassVar[tuple[str, ...]] = ("enter runs", ". , sort")

    def __init__(
        self, heading: str, ctx: AppContext, columns: Sequence[TableColumn], filter_text: str = ""
    ) -> None:
        super().__init__("overview", ctx, columns, PromptInput("filter", placeholder="name~racing"))
        self._heading = heading
        self._first_filter = filter_text
        self._asks_filter = True

    def on_mount(self) -> None:
        """Apply the first filter, and update periodically."""
        self._table.narrow(text=self._first_filter)
        self.set_interval(REFRESH_SECONDS, self.action_again)

    @property
    def _title(self) -> Line:
        model = self._table.model
        hidden = len(model.rows) - len(model.displayed)
        facts = [
            str(len(model.displayed)),
            f"{hidden} hidden" if hidden else "",
            "faults only" if model.faults_only else "",
            f"/{sanitize(model.filter_text)}" if model.filter_text else "",
            f"▲ {sanitize(model.misread)}" if model.misread else "",
        ]
        text = " · ".join(fact for fact in facts if fact)
        return Span(self._heading, TextStyle.STRONG), Span(f"   {text}", TextStyle.DIM)

    def action_filter(self) -> None:
        """Type a filter."""
        self._asks_filter = True
        self._ask(_QUESTION, self._table.model.filter_text)

    def action_faults(self) -> None:
        """Show only faults, or all rows again."""
        self._table.narrow(faults_only=not self._table.model.faults_only)

    @on(Input.Changed)
    def _filter_typed(self, event: Input.Changed) -> None:
        # A field that closes is emptied, and reports that after it is hidden; the filter must then stay.
        if self._field.display and self._asks_filter:
            self._table.narrow(text=event.value)

    @on(Input.Submitted)
    def _filter_done(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        self._close_field()
        if not self._asks_filter:
            self._asks_filter = True
            self._answered(text)

    def _answered(self, text: str) -> None:
        """Take the answer to a question other than that for a filter."""

    def action_close(self) -> None:
        """Clear the filter if there is one, otherwise close the dialog."""
        if not (self._field.display or self._table.model.filter_text):
            self.dismiss(None)
            return
        if not self._asks_filter:
            self._asks_filter = True
            self._close_field()
            return
        self._table.narrow(text="")
        if self._field.display:
            self._close_field()

    @on(VirtualTable.Chosen)
    def _row_chosen(self, event: VirtualTable.Chosen) -> None:
        self._open_row(event.key)

    def _open_row(self, key: str) -> None:
        self.dismiss(Opening(key))


def number_cell(value: float | None, text: str, style: TextStyle = TextStyle.PLAIN) -> tuple[Span, float]:
    """Return a cell and its sort value; an unknown number is dim and sorts below all others."""
    if value is None:
        return Span(NOTHING, TextStyle.DIM), float("-inf")
    return Span(text, style), value


def count_cell(value: int, style: TextStyle = TextStyle.PLAIN) -> tuple[Span, float]:
    """Return the cell of a count, dim if it is zero."""
    return number_cell(value, str(value), style if value else TextStyle.DIM)
