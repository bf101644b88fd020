"""Actions that open an overview: experiments, owners, past runs; choosing a row opens its objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from l2rtui.domain.experiments.summary import SeedResult, seed_result
from l2rtui.domain.owners.idle_gpus import DeviceKey, IdleTime
from l2rtui.domain.runstatus import NO_REPORTS, learning_state
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.ui.home.filter_actions import FilterActions
from l2rtui.ui.home.home_view import HomeView
from l2rtui.ui.home.selection import Pane
from l2rtui.ui.text import NOTHING

if TYPE_CHECKING:
    from l2rtui.ui.overviews.overview import Opening


class OverviewActions:
    """Actions that open experiments, owners and the history."""

    def __init__(self, view: HomeView, filters: FilterActions) -> None:
        self._view = view
        self._filters = filters

    def action_experiments(self, text: str = "") -> None:
        """Open the experiments, optionally filtered; the chosen one opens into its runs or its charts."""
        from l2rtui.ui.overviews.experiments import ExperimentsScreen

        def chosen(opening: Opening | None) -> None:
            if opening is not None:
                self._open_runs("experiment", replace(opening, key=opening.key.partition(" ")[0]))

        self._view.screen.app.push_screen(ExperimentsScreen(self._view.ctx, self._results, text), chosen)

    def action_owners(self, text: str = "") -> None:
        """Open the owners, optionally filtered; the chosen one opens into the pods."""
        from l2rtui.ui.overviews.owners import OwnersScreen

        def chosen(opening: Opening | None) -> None:
            if opening is not None:
                owner = opening.key.partition("/")[0]
                self._filters.action_view(Pane.PODS, f"owner={owner or NOTHING}")

        self._view.screen.app.push_screen(OwnersScreen(self._view.ctx, self._look, text), chosen)

    def action_past_runs(self, text: str = "") -> None:
        """Open the history, optionally filtered."""
        from l2rtui.ui.overviews.history import HistoryScreen

        self._view.screen.app.push_screen(HistoryScreen(self._view.ctx, text))

    def _look(self) -> tuple[ClusterSnapshot, Mapping[DeviceKey, IdleTime]]:
        """Return the newest snapshot, and the idle time of its GPUs."""
        now = self._view.ctx.clock()
        return self._view.snapshot, self._view.content.slot_figures.idle.long_idle(now, 0.0)

    def _results(self) -> Sequence[SeedResult]:
        """Return the results of all runs, from the records that their learners have streamed."""
        content, snapshot = self._view.content, self._view.snapshot
        states = content.learning
        return [
            seed_result(
                run,
                # For runs that are not listed ("mine"), only the pods are known.
                states.get(uid) or learning_state(run, content.pods_of(run.name), NO_REPORTS, run.created),
                content.metrics.get(uid),
            )
            for uid, run in snapshot.runs.items()
        ]

    def _open_runs(self, column: str, opening: Opening) -> None:
        """List the runs of a row, or show their curves as the mean over their seeds."""
        panes = self._view.panes
        self._filters.action_view(Pane.RUNS, f"{column}={opening.key}")
        if opening.is_charts:
            panes.runs.clear_marks()  # the charts of marked runs would take precedence over those of the row
            first = next(iter(panes.runs.model.displayed), None)
            if first is not None:
                panes.runs.move_to(first)
            panes.charts.is_grouped = True
            self._view.navigation.action_pane(Pane.CHARTS)
