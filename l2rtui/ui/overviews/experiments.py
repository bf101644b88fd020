"""Experiments: one row each, over its seeds; opens into its runs or its charts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from l2rtui.domain.experiments.summary import ExperimentSummary, SeedResult, summarize
from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.overviews.overview import Opening, Overview, count_cell, number_cell
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import Span, TextStyle, decimal
from l2rtui.ui.widgets.table_model import Row, TableColumn, make_row

COLUMNS: Final = (
    TableColumn("name", "experiment", most=40),
    TableColumn("runs", "runs", most=6, right=True),
    TableColumn("queued", "queued", most=6, right=True, rank=4),
    TableColumn("live", "live", most=6, right=True),
    TableColumn("stalled", "stalled", most=7, right=True),
    TableColumn("done", "done", most=6, right=True),
    TableColumn("failed", "failed", most=6, right=True),
    TableColumn("unknown", "unknown", most=7, right=True, rank=5),
    TableColumn("return", "return", most=9, right=True),
    TableColumn("low", "95% low", most=9, right=True, rank=2, needs="high"),
    TableColumn("high", "95% high", most=9, right=True, rank=2),
    TableColumn("best", "best seed", most=9, right=True, rank=3),
    TableColumn("worst", "worst seed", most=10, right=True, rank=3),
)


class ExperimentsScreen(Overview):
    """All experiments.

    Args:
        results: Returns the current state and the newest return of every run.
    """

    KEY_CONTEXT = KeyContext.EXPERIMENT
    BINDINGS = bindings(KEY_CONTEXT)
    ROW_ACTIONS = frozenset(("charts",))
    _subject = "the experiments"

    def __init__(
        self,
        ctx: AppContext,
        results: Callable[[], Sequence[SeedResult]],
        filter_text: str = "",
    ) -> None:
        super().__init__("Experiments", ctx, COLUMNS, filter_text)
        self._results = results

    async def _load(self) -> None:
        # In a thread: the intervals of a hundred experiments take a tenth of a second.
        summaries = await asyncio.to_thread(summarize, self._results())
        if self.is_attached:
            self._show_rows([experiment_row(summary) for summary in summaries], empty="No run is there.")

    @property
    def _command_line(self) -> str:
        return self._ctx.command_line(("experiments", *filter(None, [self._experiment])))

    def action_charts(self) -> None:
        """Show the curves of the experiment: the mean over its seeds, with their spread."""
        if self._experiment:
            self.dismiss(Opening(self._experiment, is_charts=True))

    @property
    def _experiment(self) -> str:
        """Name of the row's experiment; its title may also name the spec."""
        return (self._table.cursor_key or "").partition(" ")[0]


def experiment_row(summary: ExperimentSummary) -> Row:
    """Make the row of an experiment."""
    best, worst = (summary.best_seed, summary.worst_seed) if summary.runs > 1 else (None, None)
    return make_row(
        summary.title,
        (Span(sanitize(summary.title), TextStyle.STRONG), summary.title),
        count_cell(summary.runs),
        count_cell(summary.queued, TextStyle.WAIT),
        count_cell(summary.live, TextStyle.OK),
        count_cell(summary.stalled, TextStyle.BAD),
        count_cell(summary.done),
        count_cell(summary.failed, TextStyle.BAD),
        count_cell(summary.unknown, TextStyle.WARN),
        number_cell(summary.mean_return, decimal(summary.mean_return), TextStyle.STRONG),
        number_cell(summary.low, decimal(summary.low)),
        number_cell(summary.high, decimal(summary.high)),
        number_cell(best, str(best)),
        number_cell(worst, str(worst)),
        is_fault=summary.is_fault,
    )
