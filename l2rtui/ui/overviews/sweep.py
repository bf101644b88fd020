"""Trials of a sweep: their values and results over their seeds, best first; opens into the runs of a trial."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from l2rtui.domain.experiments.trial_results import TrialResult, TrialRun, trial_results
from l2rtui.domain.runstatus import Learning
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.domain.sweeps.trial import short_names, value_text
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.overviews.overview import TREND, Look, Opening, Overview, number_cell, return_cell, trend_cell
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import Span, TextStyle, count
from l2rtui.ui.widgets.table_model import Row, TableColumn, make_row

_BEFORE: Final = (TableColumn("trial", "trial", most=6),)
_AFTER: Final = (
    TableColumn("return", "return", most=9, right=True),
    TREND,
    TableColumn("low", "95% low", most=9, right=True, rank=2, needs="high"),
    TableColumn("high", "95% high", most=9, right=True, rank=2),
    TableColumn("best", "best", most=9, right=True, rank=3),
    TableColumn("steps", "env steps", most=14, right=True, rank=4),
    TableColumn("runs", "runs", most=40),
)
_FAULTS: Final = (Learning.STALLED, Learning.DIVERGED, Learning.FAILED, "failed", "lost")


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
        super().__init__(f"Sweep {sanitize(experiment)}", ctx, (*_BEFORE, *_AFTER))
        self._look = look
        self._experiment = experiment
        self._past: tuple[ClusterSnapshot, list[TrialRun]] | None = None
        self._charts.is_grouped = True

    async def _load(self) -> None:
        from l2rtui.services.sweeps.results import past_trial_runs

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
        paths = list(dict.fromkeys(path for result in results for path in result.trial.settings()))
        if self.is_open:
            # Under their last words, unless two of these are equal.
            names = short_names(paths)
            values = (TableColumn(f"value:{path}", sanitize(names[path]), most=16, right=True) for path in paths)
            self._table.set_columns((*_BEFORE, *values, *_AFTER))
            rows = [trial_row(result, paths, curves.get(result.trial.number, ())) for result in results]
            self._show_rows(rows, empty=f"{self._experiment} is no sweep: `sweep:` in a spec makes trials.")

    @property
    def _snapshot(self) -> ClusterSnapshot:
        return self._look().snapshot

    def _runs_of(self, keys: set[str]) -> list[RunView]:
        """Return the existing runs of trials; without keys, of all trials."""
        own = (run for run in self._snapshot.runs.values() if run.experiment == self._experiment)
        return [run for run in own if not keys or (run.trial is not None and trial_key(run.trial.number) in keys)]

    @property
    def _command_line(self) -> str:
        return self._ctx.command_line(("sweep", self._experiment))

    def action_charts(self) -> None:
        """Show the curves of the trial: the mean over its seeds, with their spread."""
        if key := self._table.cursor_key:
            self.dismiss(Opening(key, is_charts=True))


def trial_key(number: int) -> str:
    """Return the name of a trial: ``t3``."""
    return f"t{number}"


def _value_cell(value: object) -> tuple[Span, tuple[bool, float, str]]:
    # Values of one field may be of several types, which cannot be compared.
    text, number = value_text(value), float(value) if isinstance(value, int | float) else None
    return Span(sanitize(text)), (number is not None, number or 0.0, text)


def trial_row(result: TrialResult, paths: Sequence[str], curves: Iterable[Sequence[float]]) -> Row:
    """Make the row of a trial, with a cell for each swept field; ``curves`` are the newest returns of its runs."""
    settings = result.trial.settings()
    states = ", ".join(f"{number} {state}" for state, number in result.states)
    is_fault = any(state in _FAULTS for state, _ in result.states)
    return make_row(
        trial_key(result.trial.number),
        (Span(trial_key(result.trial.number), TextStyle.STRONG), result.trial.number),
        *(_value_cell(settings.get(path)) for path in paths),
        return_cell(result.mean_return, TextStyle.STRONG),
        trend_cell(curves, result.mean_return),
        return_cell(result.low),
        return_cell(result.high),
        return_cell(result.best_return),
        number_cell(result.env_steps, count(result.env_steps)),
        (Span(states, TextStyle.BAD if is_fault else TextStyle.PLAIN), states),
        is_fault=is_fault,
    )
