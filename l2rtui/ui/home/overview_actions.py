"""Actions that open an overview: experiments, sweeps, owners, past runs; choosing a row opens its objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from l2rtui.domain.experiments import seed_result
from l2rtui.domain.runstatus import NO_REPORTS, learning_state
from l2rtui.ui.home.filter_actions import FilterActions
from l2rtui.ui.home.home_view import HomeView
from l2rtui.ui.home.selection import Pane
from l2rtui.ui.text import NOTHING

if TYPE_CHECKING:
    from l2rtui.ui.overviews.overview import Look, Opening, Overview


class OverviewActions:
    """Actions that open experiments, sweeps, owners and the history."""

    def __init__(self, view: HomeView, filters: FilterActions) -> None:
        self._view = view
        self._filters = filters

    def action_experiments(self, text: str = "") -> None:
        """Open the experiments, optionally filtered; the chosen one opens into its runs, trials or charts."""
        from l2rtui.ui.overviews.experiments import ExperimentsScreen

        def chosen(opening: Opening | None) -> None:
            if opening is not None:
                experiment = opening.key.partition(" ")[0]
                self._open_runs(f"experiment={experiment}", is_charts=opening.is_charts)

        self._push(ExperimentsScreen(self._view.ctx, self._look, self.action_sweep, text), chosen)

    def action_sweep(self, experiment: str = "") -> None:
        """Open the trials of a sweep: by default of the selected run; the chosen one opens into its runs."""
        from l2rtui.ui.overviews.experiments import SweepScreen

        # The command without a name is typed while a run of the sweep is selected.
        run = self._view.selected_run
        experiment = experiment or (run.experiment if run is not None else "")
        if not experiment:
            self._view.say("Select a run of a sweep, or name the sweep: `:sweep NAME`.")
            return

        def chosen(opening: Opening | None) -> None:
            if opening is not None:
                names = self._view.snapshot.runs.values()
                trial = next((run for run in names if run.experiment == experiment and run.trial), None)
                if trial is None:
                    self._view.say(f"No run of {experiment} is here any more. H shows past runs.")
                else:
                    self._open_runs(f"experiment={experiment} trial={opening.key}", is_charts=opening.is_charts)

        self._push(SweepScreen(self._view.ctx, self._look, experiment), chosen)

    def action_owners(self, text: str = "") -> None:
        """Open the owners, optionally filtered; the chosen one opens into the pods."""
        from l2rtui.ui.overviews.owners import OwnersScreen

        def chosen(opening: Opening | None) -> None:
            if opening is not None:
                owner = opening.key.partition("/")[0]
                self._filters.action_view(Pane.PODS, f"owner={owner or NOTHING}")

        self._push(OwnersScreen(self._view.ctx, self._look, text), chosen)

    def action_past_runs(self, text: str = "") -> None:
        """Open the history, optionally filtered."""
        from l2rtui.ui.overviews.history import HistoryScreen

        self._push(HistoryScreen(self._view.ctx, self._look, text), lambda _: None)

    def _push(self, screen: Overview, chosen: Callable[[Opening | None], None]) -> None:
        self._view.screen.app.push_screen(screen, chosen)

    def _look(self) -> Look:
        """Return the newest data; the results are from the records that learners have streamed."""
        from l2rtui.ui.overviews.overview import Look

        content, snapshot = self._view.content, self._view.snapshot
        states = content.learning
        results = [
            seed_result(
                run,
                # For runs that are not listed ("mine"), only the pods are known.
                states.get(uid) or learning_state(run, content.pods_of(run.name), NO_REPORTS, run.created),
                content.metrics.get(uid),
            )
            for uid, run in snapshot.runs.items()
        ]
        idle = content.slot_figures.idle.long_idle(self._view.ctx.clock(), 0.0)
        return Look(snapshot, results, content.metrics, idle)

    def _open_runs(self, text: str, *, is_charts: bool) -> None:
        """List the runs of a row, or show their curves as the mean over their seeds."""
        panes = self._view.panes
        self._filters.action_view(Pane.RUNS, text)
        if is_charts:
            panes.runs.clear_marks()  # the charts of marked runs would take precedence over those of the row
            first = next(iter(panes.runs.model.displayed), None)
            if first is not None:
                panes.runs.move_to(first)
            panes.charts.is_grouped = True
            self._view.navigation.action_pane(Pane.CHARTS)
