"""Experiments: one row each, over its seeds; opens into its runs, its trials, or its charts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from l2rtui.domain.experiments.summary import ExperimentSummary, summarize
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.overviews.overview import (
    TREND,
    Look,
    Opening,
    Overview,
    count_cell,
    number_cell,
    return_cell,
    trend_cell,
)
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import Span, TextStyle
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
    TREND,
    TableColumn("low", "95% low", most=9, right=True, rank=2, needs="high"),
    TableColumn("high", "95% high", most=9, right=True, rank=2),
    TableColumn("best", "best seed", most=9, right=True, rank=3),
    TableColumn("worst", "worst seed", most=10, right=True, rank=3),
)


class ExperimentsScreen(Overview):
    """All experiments.

    Args:
        look: Returns the newest data of the app.
        to_trials: Opens the trials of the sweep with this name.
    """

    KEY_CONTEXT = KeyContext.EXPERIMENT
    BINDINGS = bindings(KEY_CONTEXT)
    ROW_ACTIONS = frozenset(("charts",))
    ROW_HINTS = ("enter runs or trials", "space mark", ". , sort")
    _subject = "the experiments"

    def __init__(
        self,
        ctx: AppContext,
        look: Callable[[], Look],
        to_trials: Callable[[str], None],
        filter_text: str = "",
    ) -> None:
        super().__init__("Experiments", ctx, COLUMNS, filter_text)
        self._look = look
        self._to_trials = to_trials
        self._summaries: dict[str, ExperimentSummary] = {}
        self._charts.is_grouped = True

    async def _load(self) -> None:
        look = self._look()
        # In a thread: the intervals of a hundred experiments take a tenth of a second.
        summaries = await asyncio.to_thread(summarize, look.results)
        self._summaries = {summary.title: summary for summary in summaries}
        rows = [
            experiment_row(
                summary,
                [look.metrics[run.uid].returns for run in _runs(look.snapshot, summary) if run.uid in look.metrics],
            )
            for summary in summaries
        ]
        if self.is_open:
            self._show_rows(rows, empty="No runs. L on the home screen launches one.")

    @property
    def _snapshot(self) -> ClusterSnapshot:
        return self._look().snapshot

    def _runs_of(self, keys: set[str]) -> list[RunView]:
        own = [self._summaries[key] for key in self._summaries if key in keys]
        return [run for summary in own for run in _runs(self._snapshot, summary)]

    def _open_row(self, key: str) -> None:
        # The runs of a sweep differ in their values, which only the list of trials shows.
        if any(run.trial is not None for run in self._runs_of({key})):
            self._to_trials(self._experiment)
        else:
            super()._open_row(key)

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


def _runs(snapshot: ClusterSnapshot, summary: ExperimentSummary) -> list[RunView]:
    key = summary.experiment, summary.place, summary.spec_id
    return [run for run in snapshot.runs.values() if (run.experiment, run.place, run.spec_id) == key]


def experiment_row(summary: ExperimentSummary, curves: Iterable[Sequence[float]] = ()) -> Row:
    """Make the row of an experiment; ``curves`` are the newest returns of its runs."""
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
        return_cell(summary.mean_return, TextStyle.STRONG),
        trend_cell(curves, summary.mean_return),
        return_cell(summary.low),
        return_cell(summary.high),
        number_cell(best, str(best)),
        number_cell(worst, str(worst)),
        is_fault=summary.is_fault,
    )
