"""Content of the panes: snapshots, metrics and pod records in; rows, lines, titles and log streams out.

The newest snapshot is kept here and each widget gets its part of it; widgets redraw only what differs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from functools import partial
from operator import is_
from types import MappingProxyType
from typing import Final

from textual.content import Content
from textual.widget import Widget

from l2rtui.config import user_name
from l2rtui.domain.metrics import PodMetrics, RunMetrics
from l2rtui.domain.quantity import counted
from l2rtui.domain.runstatus import LATE_WORKER_SECONDS, LearningState
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView, RunView
from l2rtui.ui.home.layout import LISTS, LOWER, PaneLayout
from l2rtui.ui.home.log_stream import LogSelection
from l2rtui.ui.home.selection import Pane
from l2rtui.ui.home.slot_figures import SlotFigures
from l2rtui.ui.keys.table import Key, KeyContext, in_bar
from l2rtui.ui.overviews.chart_content import ChartContent
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.state.connection_status import ConnectionStatus
from l2rtui.ui.state.learning_states import NOT_READ, WORKER_INTERVAL_SECONDS, LearningStates, RecordAges
from l2rtui.ui.state.messages import LearningChanged
from l2rtui.ui.state.record_streams import WatchedPods
from l2rtui.ui.state.snapshot_index import SnapshotIndex
from l2rtui.ui.text import Line, shorten
from l2rtui.ui.theme import plain
from l2rtui.ui.widgets.bars import Choice
from l2rtui.ui.widgets.charts import ChartView
from l2rtui.ui.widgets.cluster_tables import ContextColumn, NodeTable, event_row, leak_row, node_row
from l2rtui.ui.widgets.gpu_grid import GpuGrid
from l2rtui.ui.widgets.grid.legend import Letters, letters_of
from l2rtui.ui.widgets.log_pane import LogPane
from l2rtui.ui.widgets.pod_table import columns_for as columns_for_pods
from l2rtui.ui.widgets.pod_table import pod_row, record_fields, total_shares
from l2rtui.ui.widgets.run_table import RunRows, activity_of, columns_for, in_order, sets_of, sum_of_listed
from l2rtui.ui.widgets.span_renderer import is_plain
from l2rtui.ui.widgets.virtual_table import VirtualTable

PAINT_SECONDS: Final = 0.1
"""Longest wait for the first paint of the slots: a screen below a dialog is not painted at all."""
MANY_PODS: Final = 500
"""Number of pods from which the first snapshot is shown in two steps."""
_CORNERS: Final = 6
"""Columns of a border that its title cannot use: corners, and two at each side."""
_TITLES = ("1 Slots", "2 Runs", "3 Pods", "4 Nodes", "5 Log", "6 Events", "7 Leaks", "8 Charts")
_NAMES: Final = dict(zip(Pane, _TITLES, strict=True))


class PaneContent:
    """Values that the panes show.

    Attributes:
        snapshot, metrics: The newest; metrics by uid of the run.
        records: Newest record of each pod of the selected run, by uid of the pod.
        has_all_pods: The pods of all runs are listed, not only those of the selected run.
        is_mine_only: Only the user's own runs and pods are listed.
        slot_figures: Figures beside the slots, and the GPUs that are idle.
        ages: Ages of the newest records.
        learning_states: States of learning, and what was read for them.
        watched_pods: Pods whose logs are read for the states.
    """

    def __init__(self, panes: PaneLayout, ctx: AppContext) -> None:
        self._panes = panes
        self._ctx = ctx
        self.snapshot = EMPTY_SNAPSHOT
        self.metrics: Mapping[str, RunMetrics] = {}
        self.records: dict[str, PodMetrics] = {}
        self.has_all_pods = False
        self.is_mine_only = False
        self.titles = PaneTitles(panes, self, ctx)
        self._index = SnapshotIndex(user_name())
        self.ages = RecordAges()
        self.learning_states = LearningStates(self.ages)
        self.watched_pods = WatchedPods(ctx, self.take_records)
        self._contexts = ContextColumn()
        self._run_rows = RunRows()
        self.slot_figures = SlotFigures(panes.slots)
        self._curves = ChartContent(panes.charts, ctx, self.pods_of)
        self._awaited: tuple[Sequence[str], str | None] | None = None
        """Runs to select, and the row of the cursor until then."""
        self._listed_from: tuple[tuple[RunView, ...], bool] = (), False
        self._listed_runs: tuple[list[RunView], tuple[str, ...], Letters] = [], (), {}

    # --- values in ---------------------------------------------------------------------------------------------
    async def prepare(self, snapshot: ClusterSnapshot) -> None:
        """Index the first snapshot of a large cluster in a thread, so that keys are still handled."""
        index = SnapshotIndex(user_name())

        def work() -> None:
            index.update(snapshot)
            _ = snapshot.ledger  # a cached property: computed here, not on the event loop
            self._panes.slots.lay_out_ahead(snapshot)
            now = self._ctx.clock()
            learning_of = partial(self.learning_states.of, metrics=None, records=MappingProxyType({}), now=now)
            self._run_rows.make_ahead(snapshot.runs.values(), index.pods_of, learning_of)

        await asyncio.to_thread(work)
        self._index = index
        self._panes.slots.snapshot = snapshot
        self._panes.fit()
        if len(snapshot.pods) < MANY_PODS:
            return
        # The slots in one paint, the lists in the next: keys are handled between the two.
        painted = asyncio.Event()
        self._panes.screen.call_after_refresh(painted.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAINT_SECONDS):
                await painted.wait()

    def take_metrics(self, metrics: Mapping[str, RunMetrics]) -> None:
        """Show the metrics of all learners."""
        self.metrics = metrics
        self.ages.take(metrics, self._ctx.clock())
        self.show_runs()
        self.show_detail()
        if self._panes.lower is Pane.CHARTS:
            self.show_charts()

    def take_records(self, records: Mapping[str, PodMetrics]) -> None:
        """Show new records of pods; drop records of deleted pods."""
        pods = self.snapshot.pods
        self.records = {**{uid: record for uid, record in self.records.items() if uid in pods}, **records}
        self.ages.keep({*self.records, *self.metrics})
        self.ages.take(records, self._ctx.clock())
        self.learning_states.looked = self.watched_pods.looked
        self.learning_states.expire()
        if self._panes.lower is Pane.PODS:
            self.show_pods()
        self.show_runs()  # "at" and "learning" are made from the records of their pods
        self.show_detail()

    def show(self) -> None:
        """Update every visible pane, except the log."""
        self._show_contexts()
        self._index.update(self.snapshot)
        self._panes.status.pod_counts = self._index.pod_counts
        self._panes.status.snapshot = self.snapshot
        self._panes.slots.snapshot = self.snapshot
        self.show_runs()
        self._select_awaited()
        self.show_view(self._panes.lower)
        self._panes.fit()
        self.show_detail()
        self.titles.show()

    def select_when_seen(self, runs: Sequence[str]) -> None:
        """Put the cursor on the first of these runs and mark them, if they are several, once a snapshot has them.

        Nothing happens if the cursor is moved before.
        """
        self._awaited = runs, self._panes.runs.cursor_key
        self._select_awaited()

    def _select_awaited(self) -> None:
        if self._awaited is None:
            return
        (names, cursor), table = self._awaited, self._panes.runs
        if table.cursor_key != cursor:
            self._awaited = None
            return
        runs = [run.uid for name in names if (run := self.snapshot.run_named(name)) is not None]
        if len(runs) == len(names) and table.move_to(runs[0]):
            self._awaited = None
            if len(runs) > 1:
                table.mark_only(runs)

    def _show_contexts(self) -> None:
        """Read the state of each context if several are shown: their rows show their age."""
        self._contexts.update(self.snapshot.contexts, self._ctx.clock())
        self.learning_states.take_contexts(self.snapshot.contexts)

    def show_view(self, pane: Pane) -> None:
        """Update one of the views that share a position; hidden views are not updated."""
        if pane is Pane.PODS:
            self.show_pods()
        elif pane is Pane.NODES:
            self.show_nodes()
        elif pane is Pane.CHARTS:
            self.show_charts()

    def draw_ages(self) -> None:
        """Redraw the ages, which change without new data."""
        self._show_contexts()
        for table in (self._panes.runs, self._panes.pods, self._panes.nodes, self._panes.kube_events):
            table.draw_ages()
        self._watch_pods()
        self.learning_states.looked = self.watched_pods.looked
        self.learning_states.expire()
        self.show_runs()  # a learner that hangs sends nothing: only the clock says that its numbers are old
        self.show_view(self._panes.lower)
        self.show_detail()
        self._panes.fit()  # panes that have needed fewer lines for a while

    def take_health(self, health: ConnectionStatus) -> None:
        """Show the state of the connection in that of the runs: without one nobody knows whether they learn."""
        is_other = bool(health.outage) is not bool(self.learning_states.health.outage)
        self.learning_states.health = health
        if is_other:
            self.learning_states.expire()
            self.show_runs()
            self.show_detail()

    def close(self) -> None:
        """Close the streams of records: their timers must not report to panes that no longer exist."""
        self.watched_pods.close()
        self._curves.close()

    # --- panes -------------------------------------------------------------------------------------------------
    def show_runs(self) -> None:
        """Show a row for each run, oldest first like the letters of the slots, then by seed."""
        runs, sets, letters = self._runs_and_sets()
        pods_of, records = self._index.pods_of, self.records
        at = {run.uid: activity_of(pods_of(run.name), records) for run in runs} if self._has_steps else {}
        has_at = any(at.values())
        old, now = self._old(), self._ctx.clock()
        self.learning_states.keep(self.snapshot.runs)
        learning_of, before = self.learning_states.of, self.learning_states.states
        items = (
            (
                run.uid,
                (
                    run,
                    pods_of(run.name),
                    self.metrics.get(run.uid),
                    at[run.uid] if has_at else None,
                    old.get(run.uid, ""),
                    learning_of(run, pods_of(run.name), self.metrics.get(run.uid), records, now),
                    letters[run.name],
                ),
            )
            for run in runs
        )
        # The source tuples are compared with the last ones, so a row is made only if a part differs.
        self._contexts.show(
            self._panes.runs,
            columns_for(sets, has_at=has_at),
            items,
            lambda source: self._run_rows.row(source[0], source[1], source[2], sets, *source[3:]),
        )
        self._panes.runs.fold()
        learning = self.learning_states
        self.slot_figures.show(
            self.snapshot, self.metrics, records, old, learning.faults(), learning.health, pods_of, now
        )
        self.show_sum()
        self._panes.status.stalled = sum(state.has_stopped for state in learning.states.values())
        if self.learning_states.states != before:
            self._panes.screen.app.post_message(LearningChanged(self.learning_states.states))

    def show_sum(self) -> None:
        """Show a total above the listed runs, if a filter has left the seeds of one experiment."""
        runs, row = self._panes.runs, None
        if runs.model.filter_text:
            row = sum_of_listed(runs.model, self.snapshot.runs, self.pods_of, self.metrics, self.learning)
        runs.pin(row)

    def _old(self) -> dict[str, str]:
        """Return the ages of records that say nothing of the present, by uid of their run or pod.

        Only the pods of the selected run are read: of other pods an old record does not mean that they are silent.
        """
        now, looked = self._ctx.clock(), self.watched_pods.looked
        intervals = {uid: metrics.interval_seconds for uid, metrics in self.metrics.items()}
        intervals |= dict.fromkeys(self.records, WORKER_INTERVAL_SECONDS)
        ages = {uid: self.ages.age_if_old(uid, now, interval) for uid, interval in intervals.items()}
        is_read = self.metrics.keys() | looked
        return {uid: text if uid in is_read else NOT_READ for uid, text in ages.items() if text}

    def _runs_and_sets(self) -> tuple[list[RunView], tuple[str, ...], Letters]:
        """Return runs in order, names of their sets, and letters of all; sorted only after some run has changed."""
        runs = self.snapshot.runs.values()
        listed, is_mine_only = self._listed_from
        # Runs are immutable, so identity is enough; an unchanged run keeps its object between snapshots.
        if is_mine_only != self.is_mine_only or len(listed) != len(runs) or not all(map(is_, listed, runs)):
            me = user_name()
            ordered = in_order(run for run in runs if not self.is_mine_only or run.owner == me)
            self._listed_from = tuple(runs), self.is_mine_only
            self._listed_runs = ordered, sets_of(ordered), letters_of(runs)
        return self._listed_runs

    def show_pods(self) -> None:
        """Show a row for each pod of the selected run, or of all pods."""
        run = self.snapshot.runs.get(self._panes.runs.cursor_key or "")
        pods = self._index.pods if run is None or self.has_all_pods else self._index.pods_of(run.name)
        if self.is_mine_only:
            pods = tuple(filter(self._index.is_mine, pods))
        records = self.records
        fields = record_fields(records[pod.uid] for pod in pods if pod.uid in records) if records else frozenset()
        mismatches = self.snapshot.ledger.mismatches
        if any(pod.uid in mismatches for pod in pods):
            fields |= {"mismatch"}
        if shares := total_shares(self.snapshot, pods):
            fields |= {"share"}
        columns = columns_for_pods(fields, is_all=self.has_all_pods)
        is_part = run is not None and not self.has_all_pods and len(self.snapshot.runs) > 1
        more = f"A looks at those of all {len(self.snapshot.runs)} runs."
        self._panes.pods.scope = f"These are the pods of {sanitize(run.name)}; {more}" if is_part and run else ""
        old = self._old() if records else {}
        items = (
            (
                pod.uid,
                (pod, records.get(pod.uid), old.get(pod.uid, ""), mismatches.get(pod.uid, ()), shares.get(pod.uid)),
            )
            for pod in pods
        )
        self._contexts.show(
            self._panes.pods, columns, items, lambda source: pod_row(source[0], source[1], fields, *source[2:])
        )
        self._panes.pods.fold()

    def show_nodes(self) -> None:
        """Show a row for each node with its slots."""
        snapshot, ledger = self.snapshot, self.snapshot.ledger
        items = (
            (
                node.name,
                (
                    node,
                    [slot for gpu in node.devices for slot in ledger.of_gpu(node.name, gpu.index)],
                    snapshot.num_pods_on(node),
                    ledger.nodes[node.name].unseen,
                ),
            )
            for node in snapshot.nodes.values()
        )
        self._contexts.show(self._panes.nodes, NodeTable.COLUMNS, items, lambda source: node_row(*source))
        self._panes.nodes.fold()

    def show_charts(self) -> None:
        """Show curves of the marked runs, or of the selected one; grouped, the seeds of its experiment."""
        marked = [run for uid, run in self.snapshot.runs.items() if uid in self._panes.runs.marked]
        selected = self._panes.selection.run(self.snapshot)
        self._curves.show(marked, selected, self.snapshot, self._old())

    def show_detail(self) -> None:
        """Show the lines about the selection."""
        self._panes.detail.lines = self.about()

    def about(self, width: int | None = None) -> tuple[Line, ...]:
        """Return lines about the selection for a width; None for the width of the pane."""
        selection = self._panes.selection
        run = selection.run(self.snapshot)
        metrics = self.metrics.get(run.uid) if run else None
        width = width or max(20, self._panes.detail.size.width)
        now = self._ctx.clock()
        learning = self.learning_states.states.get(run.uid) if run else None
        return selection.about(
            self.snapshot,
            metrics,
            now,
            width,
            self.records,
            pods_of=self.pods_of,
            old=self._old(),
            learning=learning,
            is_single=self._panes.detail.size.height == 1,
        )

    @property
    def learning(self) -> Mapping[str, LearningState]:
        """State of the learning of each run that is listed, by uid."""
        return self.learning_states.states

    # --- lists that are loaded when they are opened, since nothing watches them --------------------------------
    def load(self, pane: Pane) -> None:
        """Load the leaks or the events, where the pane shows them."""
        background = self._ctx.background
        if pane is Pane.LEAKS:
            background.start(self._load_leaks(), group="leaks", what="the leaks", is_exclusive=True)
        elif pane is Pane.EVENTS:
            background.start(self._load_events(), group="events", what="the events", is_exclusive=True)

    async def _load_leaks(self) -> None:
        table = self._panes.leaks
        table.empty_text = "Looking."
        report = await self._ctx.backend.leaks()
        unseen = f" {report.not_seen} are not among them: you may not list them." if report.not_seen else ""
        table.empty_text = f"No leaks. Checked {time.strftime('%H:%M:%S')}.{unseen}"
        table.set_rows([leak_row(leak) for leak in report.leaks])
        self.titles.show()

    async def _load_events(self) -> None:
        table, backend = self._panes.kube_events, self._ctx.backend
        if backend.inspector is None:
            table.empty_text = f"The {backend.name} backend has no events; restarts are marked in the log."
            return
        events = await backend.inspector.events()
        table.empty_text = "No events."
        table.set_rows([event_row(event) for event in reversed(events)])
        self.titles.show()

    # --- pods and logs -----------------------------------------------------------------------------------------
    def pods_of(self, run: str, set_name: str = "") -> tuple[PodView, ...]:
        """Return the pods of a run or of one of its sets, from the index where it is up to date."""
        if not self._index.is_of(self.snapshot):
            return self.snapshot.pods_of(run, set_name)
        pods = self._index.pods_of(run)
        return tuple(pod for pod in pods if pod.set_name == set_name) if set_name else pods

    def log_selection(self) -> LogSelection:
        """Return the pods whose log the marks and cursors select."""
        panes = self._panes
        return panes.selection.log(self.snapshot, panes.pods.marked, panes.runs.marked, pods_of=self.pods_of)

    def show_log(self) -> None:
        """Show the log of the selection; new pods are added to it, and to the logs in the other panes."""
        logs = self._panes.logs
        logs.follow(self.log_selection())
        self.watched_pods.follow_selected(self._selected_pods, self._late())
        for log in logs.controllers[1:]:
            # A log of fixed pods has no current pods: it must not become empty.
            if pods := self._current_pods(log.selection.key):
                log.add_pods(pods)
        self.titles.show()

    @property
    def _selected_pods(self) -> Sequence[PodView]:
        run = self._panes.selection.run(self.snapshot)
        return self._index.pods_of(run.name) if run is not None else ()

    def _watch_pods(self) -> None:
        """Follow the pods of the selected run, and of runs whose learners wait for data; many pods take turns."""
        late, selected = self._late(), self._panes.selection.run(self.snapshot)
        self.watched_pods.follow_selected(self._selected_pods, late)
        waiting = (
            run
            for uid, run in self.snapshot.runs.items()
            if run is not selected and uid in self.metrics and self.metrics[uid].progress.waits_since
        )
        self.watched_pods.follow_waiting([pod for run in waiting for pod in self._index.pods_of(run.name)], late)

    def _late(self) -> set[str]:
        """Return the uids of pods whose newest record is older than a worker's interval."""
        now = self._ctx.clock()
        return {uid for uid in self.records if self.ages.seconds(uid, now) > LATE_WORKER_SECONDS}

    def _current_pods(self, key: str) -> tuple[PodView, ...]:
        """Return the current pods of the run in a log's key; empty for a log of fixed pods."""
        kind, _, rest = key.partition(" ")
        uid, _, set_name = rest.partition("/")
        run = self.snapshot.runs.get(uid) if kind == "run" else None
        return self.pods_of(run.name, set_name) if run is not None else ()

    @property
    def _has_steps(self) -> bool:
        """True if some pod reports its step, or its rank in a group."""
        return any(record.step or record.rank is not None for record in self.records.values())


class PaneTitles:
    """Names, targets and modes in the borders of the panes, and the keys at the bottom."""

    def __init__(self, panes: PaneLayout, content: PaneContent, ctx: AppContext) -> None:
        self._panes = panes
        self._content = content
        self._ctx = ctx
        self._shown: dict[Widget, Content] = {}

    def show(self) -> None:
        """Update titles and keys."""
        for pane in LISTS:
            self._set_title(self._panes.widget(pane), self._title(pane, self._list_facts(pane)))
        first, *others = self._panes.logs.controllers
        shared = first.facts()
        self._set_title(first.pane, _join([_NAMES[Pane.LOG]], shared))
        for log in others:
            # Only what differs from the first pane; if nothing differs, "stays" remains.
            title, *facts = log.facts() or [""]
            self._set_title(
                log.pane, _join(["│"], [title, "pinned", *(fact for fact in facts if fact not in shared)])
            )
        self.show_keys()

    def _set_title(self, widget: Widget, title: Content) -> None:
        if is_plain(self._panes.screen.app):
            # Textual would cut it with a character that is not ASCII.
            title = Content(plain(shorten(title.plain, widget.outer_size.width - 6 or len(title.plain))))
        if self._shown.get(widget) != title:  # assigning a title repaints the pane even if it is the same
            self._shown[widget] = title
            widget.border_title = title

    def _title(self, pane: Pane, facts: list[str]) -> Content:
        is_large = self._panes.screen.has_class("large")
        # Before the name, not after it: there a number reads as the key of another pane.
        table = self._panes.widget(pane)
        count = f" ({len(table.model.displayed)})" if isinstance(table, VirtualTable) else ""
        if self._panes.zoomed is not None or (is_large and pane not in LOWER):
            return _join([f"{_NAMES[pane]}{count}"], facts)
        # Views that share a position name each other, so that the user need not know their number keys.
        neighbours = LOWER if is_large else LISTS
        names = [f"{_NAMES[other].upper()}{count}" if other is pane else _NAMES[other] for other in neighbours]
        # Filters and hidden rows matter more than names: of the other views only the number keys stay.
        short = [name if name.isupper() else name[0] for name in names]
        titles = (_join(names, facts), _join(names, facts, gap=2), _join(short, facts, gap=2))
        room = self._panes.screen.size.width - _CORNERS
        return next((title for title in titles if len(title.plain) <= room), titles[-1])

    def _list_facts(self, pane: Pane) -> list[str]:
        content, table = self._content, self._panes.widget(pane)
        if isinstance(table, ChartView):
            return table.facts
        if not isinstance(table, VirtualTable):
            only = self._panes.slots.only if pane is Pane.SLOTS else None
            if only is None:
                return []
            misread = self._panes.nodes.model.misread
            counts = f"{len(only)} of {counted(len(content.snapshot.nodes), 'node')}"
            return [counts, f"▲ {sanitize(misread)}" if misread else ""]
        model = table.model
        num_hidden = len(model.rows) - len(model.displayed)
        run = content.snapshot.runs.get(self._panes.runs.cursor_key or "")
        owner = "all" if content.has_all_pods or run is None else sanitize(run.name)
        return [
            owner if pane is Pane.PODS else "",
            "mine" if content.is_mine_only and pane in (Pane.RUNS, Pane.PODS) else "",
            f"{num_hidden} hidden" if num_hidden else "",
            "faults only" if model.faults_only else "",
            f"/{sanitize(model.filter_text)}" if model.filter_text else "",
            f"▲ {sanitize(model.misread)}" if model.misread else "",
            f"{len(table.marked)} marked" if table.marked else "",
        ]

    def show_keys(self) -> None:
        """Show the keys of the focused pane and of the screen."""
        focused = self._panes.screen.focused
        # The key that leads to the focused pane would do nothing.
        here = (
            "log.show" if isinstance(focused, LogPane) else "pane.charts" if isinstance(focused, ChartView) else ""
        )
        keys: Sequence[Key] = in_bar(key for key in self._ctx.keys.of(KeyContext.CLUSTER) if key.id != here)
        if isinstance(focused, LogPane):
            keys = (*self._ctx.keys.of(KeyContext.LOG), *keys)
        elif isinstance(focused, ChartView):
            keys = (*self._ctx.keys.of(KeyContext.CHARTS), *keys)
        elif isinstance(focused, VirtualTable):
            keys = (*keys, *self._ctx.keys.of(KeyContext.TABLE))
        elif isinstance(focused, GpuGrid):
            keys = (*self._ctx.keys.of(KeyContext.GRID), *keys)
        forbidden = self._ctx.forbidden
        self._panes.key_bar.choices = tuple(Choice(key, forbidden(key.action)) for key in keys if key.label)


def _join(names: list[str], facts: list[str], gap: int = 3) -> Content:
    """Join names and facts to a title; ``gap`` is the number of blanks between two names."""
    return Content(
        " " + "   ".join([(" " * gap).join(names), " · ".join(fact for fact in facts if fact)]).rstrip() + " "
    )
