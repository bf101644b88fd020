"""Base of the overviews: a list over the whole screen that updates itself, above the curves of the row.

Filter, faults and sorting work as in all tables, and the charts as on the home screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from statistics import fmean
from typing import ClassVar, Final, NamedTuple

from msgspec import Struct
from textual import on
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input

from l2rtui.domain.experiments import SeedResult
from l2rtui.domain.metrics import RunMetrics
from l2rtui.domain.owners import DeviceKey, IdleTime
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.tables.column import TableColumn
from l2rtui.tables.summaries import TREND
from l2rtui.ui.dialogs.list_dialog import ListDialog
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.overviews.chart_content import ChartContent
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import Line, Span, TextStyle, sparkline
from l2rtui.ui.widgets.charts import ChartView
from l2rtui.ui.widgets.prompt_input import PromptInput
from l2rtui.ui.widgets.table_model import Row
from l2rtui.ui.widgets.virtual_table import VirtualTable

REFRESH_SECONDS: Final = 2.0
"""Learners write a record every two seconds; the data here change no more often."""
SETTLE_SECONDS: Final = 0.1
"""Delay before the curves follow the cursor, so that scrolling through a list reads no files."""
_QUESTION: Final = "Which rows? Words, or a column: name~racing live>0   enter keep   esc all"


class Look(NamedTuple):
    """Newest data of the app.

    Attributes:
        results: State and newest return of every run. metrics: Newest record of each learner, by uid of the run.
        idle: Idle time of GPUs.
    """

    snapshot: ClusterSnapshot
    results: Sequence[SeedResult]
    metrics: Mapping[str, RunMetrics]
    idle: Mapping[DeviceKey, IdleTime]


class Opening(Struct, frozen=True):
    """Chosen row, and True if its charts were requested instead of its runs."""

    key: str
    is_charts: bool = False


class Overview(ListDialog[Opening | None], inherit_bindings=False):
    """Rows that are computed again every two seconds; returns the row that was opened.

    Args:
        heading: Part of the title.
        filter_text: Initial filter.
    """

    BINDINGS: ClassVar = [*bindings(KeyContext.TEXT), *bindings(KeyContext.DIALOG, "dialog.copy")]
    PANELS = ()
    FRAME = "whole"
    ROW_HINTS: ClassVar[tuple[str, ...]] = ("enter runs", ". , sort")

    def __init__(
        self, heading: str, ctx: AppContext, columns: Sequence[TableColumn], filter_text: str = ""
    ) -> None:
        super().__init__("overview", ctx, columns, PromptInput("filter", placeholder="name~racing"))
        self._heading = heading
        self._first_filter = filter_text
        self._asks_filter = True
        self.add_class("empty")  # the table fills the screen until a row has curves
        self._charts = ChartView("curves")
        self._chart_content = ChartContent(self._charts, ctx, self._pods_of)
        self._settling: Timer | None = None

    def _tables(self) -> Iterable[Widget]:
        yield self._table
        self._charts.display = False
        yield self._charts

    # --- curves ------------------------------------------------------------------------------------------------
    @property
    def _snapshot(self) -> ClusterSnapshot:
        raise NotImplementedError

    def _pods_of(self, run: str) -> tuple[PodView, ...]:
        return self._snapshot.pods_of(run)

    def _runs_of(self, keys: set[str]) -> list[RunView]:
        """Return the existing runs behind rows."""
        raise NotImplementedError

    @property
    def _chosen(self) -> set[str]:
        """Keys of the rows whose curves are shown: the marked ones, or the one under the cursor."""
        cursor = self._table.cursor_key
        return set(self._table.marked) or ({cursor} if cursor is not None else set())

    @on(VirtualTable.CursorMoved)
    @on(VirtualTable.Rearranged)
    @on(ChartView.ContentChanged)
    def _curves_changed(self) -> None:
        if self._settling is not None:
            self._settling.stop()
        self._settling = self.set_timer(SETTLE_SECONDS, self._show_curves)

    def _show_curves(self) -> None:
        self._show_charts(is_shown=bool(self._chosen))
        self._chart_content.show(self._runs_of(self._chosen), None, self._snapshot, {})
        self._title_charts()

    def _show_charts(self, *, is_shown: bool) -> None:
        self._charts.display = is_shown
        self.set_class(not is_shown, "empty")

    def _title_charts(self) -> None:
        names = ", ".join(sanitize(group.name) for group in self._charts.groups)
        self._charts.border_title = " · ".join(filter(None, ("curves", names, *self._charts.facts)))

    def on_unmount(self) -> None:
        """Cancel the pending drawing."""
        self._chart_content.close()

    # --- rows --------------------------------------------------------------------------------------------------
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

    def _show_rows(self, rows: Sequence[Row], *, empty: str) -> None:
        super()._show_rows(rows, empty=empty)
        self._show_curves()

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


def trend_cell(curves: Iterable[Sequence[float]], sort_value: float | None) -> tuple[Span, float]:
    """Return the mean of curves as a sparkline, aligned at their newest points; it sorts by another value."""
    points = zip_longest(*(reversed(curve) for curve in curves))
    means = [fmean(value for value in values if value is not None) for values in points]
    order = float("-inf") if sort_value is None else sort_value
    return Span(sparkline(means[::-1], TREND.most), TextStyle.ACCENT), order
