"""Experiments, and the trials of a sweep: one row each, over its seeds.

An experiment opens into its runs or trials, a trial into its runs; both open into their charts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from l2rtui.domain.experiments import ExperimentSummary, TrialResult, TrialRun, summarize, trial_results
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.tables.column import View
from l2rtui.tables.summaries import EXPERIMENTS, experiment_document, is_faulty, trial_name, trials
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.overviews.overview import Look, Opening, Overview, trend_cell
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.widgets.table_model import Row, columns_of, row_of


class SweepScreen(Overview):
    """All trials of one sweep, of ended and of existing runs.

    Args:
        look: Returns the newest data of the app.
        experiment: Name of the sweep.
    """

    KEY_CONTEXT = KeyContext.EXPERIMENT
    BINDINGS = bindings(KEY_CONTEXT)
    ROW_ACTIONS = frozenset(("charts",))
    ROW_HINTS = ("enter runs", "space mark", ". , sort")
    _subject = "the trials"

    def __init__(self, ctx: AppContext, look: Callable[[], Look], experiment: str) -> None:
        super().__init__(f"Sweep {sanitize(experiment)}", ctx, columns_of(trials(())))
        self._look = look
        self._experiment = experiment
        self._past: tuple[ClusterSnapshot, list[TrialRun]] | None = None
        self._charts.is_grouped = True

    async def _load(self) -> None:
        from l2rtui.services.sweeps import past_trial_runs

        look = self._look()
        # The history is read again only after a run has come or gone.
        if self._past is None or self._past[0].runs is not look.snapshot.runs:
            past = await asyncio.to_thread(past_trial_runs, look.snapshot, self._experiment)
            self._past = look.snapshot, past
        states = {result.run: result for result in look.results}
        runs = list(self._past[1])
        curves: dict[int, list[Sequence[float]]] = {}
        for run in self._runs_of(set()):
            result, metrics = states.get(run.name), look.metrics.get(run.uid)
            if run.trial is None or result is None:
                continue
            figures = (
                (result.latest_return, max(metrics.returns, default=None), metrics.env_steps) if metrics else ()
            )
            state = "queued" if result.is_queued else str(result.state)
            runs.append(TrialRun(run.name, run.trial, run.seed, state, *figures))
            curves.setdefault(run.trial.number, []).append(metrics.returns if metrics else ())
        results = trial_results(runs)
        if self.is_open:
            view = trials(results)
            self._table.set_columns(columns_of(view))
            rows = [trial_row(view, result, curves.get(result.trial.number, ())) for result in results]
            self._show_rows(rows, empty=f"{self._experiment} is no sweep: `sweep:` in a spec makes trials.")

    @property
    def _snapshot(self) -> ClusterSnapshot:
        return self._look().snapshot

    def _runs_of(self, keys: set[str]) -> list[RunView]:
        """Return the existing runs of trials; without keys, of all trials."""
        own = (run for run in self._snapshot.runs.values() if run.experiment == self._experiment)
        return [run for run in own if not keys or (run.trial is not None and f"t{run.trial.number}" in keys)]

    @property
    def _command_line(self) -> str:
        return self._ctx.command_line(("sweep", self._experiment))

    def action_charts(self) -> None:
        """Show the curves of the trial: the mean over its seeds, with their spread."""
        if key := self._table.cursor_key:
            self.dismiss(Opening(key, is_charts=True))


def trial_row(view: View[TrialResult], result: TrialResult, curves: Iterable[Sequence[float]]) -> Row:
    """Make the row of a trial; ``curves`` are the newest returns of its runs."""
    trend = trend_cell(curves, result.mean_return)
    return row_of(view, trial_name(result), result, is_fault=is_faulty(result), trend=trend)


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
        super().__init__("Experiments", ctx, columns_of(EXPERIMENTS), filter_text)
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
    # The JSON has no number of runs in an unknown state: its fields are stable.
    document = experiment_document(summary) | {"unknown": summary.unknown}
    trend = trend_cell(curves, summary.mean_return)
    return row_of(EXPERIMENTS, summary.title, document, is_fault=summary.is_fault, trend=trend)
