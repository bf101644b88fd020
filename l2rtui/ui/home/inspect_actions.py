"""Actions that open something to read. They change no run.

`InspectActions`: descriptions, specs, volumes, images, checkpoints, help. `OverviewActions`: experiments, sweeps,
owners and past runs; choosing a row opens its objects.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from l2rtui.domain.experiments import seed_result
from l2rtui.domain.quantity import age, counted, format_bytes
from l2rtui.domain.runstatus import NO_REPORTS, learning_state
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import RunView
from l2rtui.domain.topology import topology, topology_lines
from l2rtui.ui.dialogs.questions import may_touch
from l2rtui.ui.home.home_view import HomeView
from l2rtui.ui.home.layout import SELECTING
from l2rtui.ui.home.selection import Pane
from l2rtui.ui.home.view_actions import FilterActions
from l2rtui.ui.keys.table import KeyContext
from l2rtui.ui.state.messages import RefreshRequested
from l2rtui.ui.text import NOTHING, Line, Span, TextStyle

if TYPE_CHECKING:
    from l2rtui.backends.base import Inspector
    from l2rtui.domain.node import Node
    from l2rtui.domain.snapshot import PodView
    from l2rtui.ui.overviews.overview import Look, Opening, Overview


_MOST_ENTRIES: Final = 500
_WIDE_TARGET: Final = 40
_FIELD: Final = re.compile(r"  [a-z][a-z ]{0,20}: +")
_EVENT: Final = re.compile(r"(  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC  )(\w+ +)(.*)")
_LEVELS: Final = {"Normal": TextStyle.DIM, "Warning": TextStyle.WARN}
_UNBROKEN: Final = 10_000
"""Width for sentences that the reading screen wraps itself."""


def _devices(node: Node) -> list[Line]:
    lines: list[Line] = []
    for gpu in node.gpus:
        memory = format_bytes(gpu.memory_bytes) if gpu.memory_bytes else ""
        name = sanitize(gpu.model) or ("CPU" if gpu.is_cpu else "")
        facts = "   ".join(filter(None, (gpu.label, name, memory, counted(gpu.slots, "slot"), sanitize(gpu.uuid))))
        lines.append((Span("   device    ", TextStyle.DIM), Span(facts)))
    return lines


def _described(text: str) -> Line:
    """Return a line of a description, with headings, labels and warnings apart from what they name."""
    if text and not text.startswith(" "):
        return (Span(text, TextStyle.HEADING),)
    if event := _EVENT.fullmatch(text):
        time, level, rest = event.groups()
        return Span(time, TextStyle.DIM), Span(level, _LEVELS.get(level.strip(), TextStyle.PLAIN)), Span(rest)
    label = _FIELD.match(text)
    return (Span(text[: label.end()], TextStyle.DIM), Span(text[label.end() :])) if label else (Span(text),)


class InspectActions:
    """Actions that open a screen to read, and actions of the whole app."""

    def __init__(self, view: HomeView) -> None:
        self._view = view
        self._ctx = view.ctx

    def action_detail(self) -> None:
        """Describe the selection: everything that the backend knows about it."""
        view = self._view
        target, lines = self._target()
        if not lines:
            view.say("Nothing is selected.")
            return
        inspector = self._ctx.backend_or_none.inspector if self._ctx.backend_or_none is not None else None
        if target is None or inspector is None:
            self._read("Selection", lines)
            return
        work = self._describe(target, inspector, lines)
        self._ctx.background.start(work, group="describe", what="the description", is_exclusive=True)

    def _target(self) -> tuple[PodView | RunView | Node | None, Sequence[Line]]:
        """Return the selected object and lines about it; in a list that selects no run, the row under the
        cursor.
        """
        view, panes = self._view, self._view.panes
        table = panes.table
        if table is None or panes.last_list in SELECTING:
            return view.selected_pod or view.selected_run, view.content.about(_UNBROKEN)
        row = table.model.rows.get(table.cursor_key or "")
        node = view.snapshot.nodes.get(table.cursor_key or "") if panes.last_list is Pane.NODES else None
        return node, [*(table.model.described(row) if row is not None else ()), *(_devices(node) if node else ())]

    async def _describe(
        self, target: PodView | RunView | Node, inspector: Inspector, lines: Sequence[Line]
    ) -> None:
        description = (*await inspector.describe(target), *self._topology(target))
        self._read(target.name, [*lines, (Span(""),), *(_described(sanitize(line)) for line in description)])

    def _topology(self, target: PodView | RunView | Node) -> tuple[str, ...]:
        if not isinstance(target, RunView):
            return ()
        content = self._view.content
        view = topology(content.pods_of(target.name), content.metrics.get(target.uid), self._ctx.clock())
        return topology_lines(view) if view is not None else ()

    def action_spec(self) -> None:
        """Show the spec of the run as YAML."""
        run = self._view.selected_run
        if run is None:
            self._view.say("Select a run whose spec is to be shown: 2 goes to the runs.")
            return
        what = f"the spec of {run.name}"
        self._ctx.background.start(self._show_spec(run.name), group="describe", what=what, is_exclusive=True)

    async def _show_spec(self, name: str) -> None:
        from l2rtui.ui.dialogs.edit import as_yaml

        text = await asyncio.to_thread(as_yaml, await self._ctx.backend.spec(name))
        self._read(f"{name}.yaml", [(Span(sanitize(line)),) for line in text.splitlines()])

    def action_test_alerts(self, target: str = "") -> None:
        """Let the learner of a run send a test to each target of its alerts, and show the results."""
        runs = self._view.snapshot.runs_matching(target) if target else ()
        run = runs[0] if len(runs) == 1 else self._view.selected_run
        if target and len(runs) != 1:
            self._view.say(f"{target!r} names {counted(len(runs), 'run')}: name one of them.", is_error=True)
        elif run is None:
            self._view.say("Select a run whose alerts are to be tested: 2 goes to the runs.")
        elif may_touch(self._ctx, "alerts test", [run]):
            work = self._test_alerts(run)
            self._ctx.background.start(work, group="alerts", what=f"the test of the alerts of {run.name}")

    async def _test_alerts(self, run: RunView) -> None:
        from l2rtui.services import alerts

        _, text = await alerts.from_run(self._ctx.backend, self._view.snapshot, run.name)
        self._read(f"Alerts of {run.name}", [(Span(line),) for line in text.splitlines()])

    def _read(self, title: str, lines: Sequence[Line]) -> None:
        from l2rtui.ui.dialogs.dialog import DetailScreen

        self._view.screen.app.push_screen(DetailScreen(lines, sanitize(title)))

    def action_forwards(self) -> None:
        """List the ports that are forwarded now, by this app and by commands."""
        work = self._show_forwards()
        self._ctx.background.start(work, group="describe", what="the forwarded ports", is_exclusive=True)

    def action_journal(self) -> None:
        """List the changes made from this machine, newest first."""
        work = self._show_journal()
        self._ctx.background.start(work, group="describe", what="the journal", is_exclusive=True)

    async def _show_journal(self) -> None:
        from l2rtui.services.history import journal

        # At most two files of 8 MiB: read in a thread; only the newest entries are shown.
        newest = await asyncio.to_thread(lambda: list(journal.entries())[-_MOST_ENTRIES:])
        now = self._ctx.clock()
        rows = [
            (entry["time"], *map(sanitize, (str(entry["verb"]), str(entry["target"]), journal.result_of(entry))))
            for entry in reversed(newest)
            # A line of another program, or a truncated one, is skipped.
            if isinstance(entry, dict) and {"verb", "target", "outcome"} <= entry.keys()
            if isinstance(entry.get("time"), int | float)
        ]
        # A long list of targets shifts only its own outcome.
        width = max((len(target) for _, _, target, _ in rows if len(target) <= _WIDE_TARGET), default=0)
        lines = [
            (
                Span(f" {age(now - when):>7} ago  ", TextStyle.DIM),
                Span(f"{verb:<18} {target:<{width}}  "),
                Span(outcome, TextStyle.DIM),
            )
            for when, verb, target, outcome in rows
        ]
        self._read("Journal", lines or [(Span("Nothing was changed from here yet."),)])

    def action_since_left(self) -> None:
        """List what happened to the user's runs since the app was last open on this machine."""
        work = self._show_absence()
        self._ctx.background.start(work, group="describe", what="what happened", is_exclusive=True)

    async def _show_absence(self) -> None:
        if self._ctx.absence is None:
            self._view.say("The backend is not connected yet.")
            return
        self._read(*await self._ctx.absence.lines())

    async def _show_forwards(self) -> None:
        from l2rtui.services.port_forwards import open_forwards

        forwards, now = await open_forwards(), time.time()
        lines: list[Line] = []
        for forward in forwards:
            by = "this app" if forward.pid == os.getpid() else f"process {forward.pid}"
            facts = f"   {sanitize(forward.backend)}, for {age(max(0.0, now - forward.since))}, by {by}"
            lines.append((Span(sanitize(forward.sentence)), Span(facts, TextStyle.DIM)))
        hint = "F on a pod forwards a port to it; a second time it ends that."
        empty = (Span("No port is forwarded."),)
        self._read("Forwarded ports", [*(lines or [empty]), (Span(""),), (Span(hint, TextStyle.DIM),)])

    def action_volumes(self) -> None:
        """Open the volumes and their files."""
        from l2rtui.ui.dialogs.volumes import VolumesScreen

        self._view.screen.app.push_screen(VolumesScreen(self._ctx))

    def action_images(self) -> None:
        """Open the images that were built here."""
        from l2rtui.ui.dialogs.images import ImagesScreen

        self._view.screen.app.push_screen(ImagesScreen(self._ctx))

    def action_artifacts(self, store: str = "") -> None:
        """Open the checkpoints of a store or run; without an argument, those of the selected run."""
        from l2rtui.ui.dialogs.artifacts import ArtifactsScreen

        run = self._view.selected_run
        store = store or (run.name if run is not None else "")
        self._view.screen.app.push_screen(ArtifactsScreen(self._ctx, store))

    def action_help(self) -> None:
        """Show all keys, starting at those of the focused pane."""
        contexts = {Pane.SLOTS: KeyContext.GRID, Pane.LOG: KeyContext.LOG, Pane.CHARTS: KeyContext.CHARTS}
        pane = self._view.panes.focused_pane
        self.help_about(contexts.get(pane, KeyContext.CLUSTER) if pane is not None else KeyContext.CLUSTER)

    def help_about(self, heading: str) -> None:
        """Show all keys, starting at one heading of the help screen."""
        from l2rtui.ui.dialogs.help import HelpScreen

        self._view.screen.app.push_screen(HelpScreen(self._ctx.keys, self._ctx.forbidden, heading))

    def action_look_again(self) -> None:
        """Request a new snapshot, and reload the events or leaks if they are shown."""
        self._view.content.load(self._view.panes.lower)
        self._view.screen.app.post_message(RefreshRequested())

    def action_theme(self, name: str) -> None:
        """Change the colours."""
        app = self._view.screen.app
        if name in app.available_themes:
            app.theme = name
        else:
            self._view.say(f"There is no theme {name!r}: {' '.join(sorted(app.available_themes))}")


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
