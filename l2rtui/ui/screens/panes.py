"""The home screen without its keys: which panes there are, how they are arranged, and how values reach them.

The view holds the newest snapshot and hands each widget its part of it; widgets draw what differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from operator import is_
from typing import Final

from textual import events
from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.geometry import Size
from textual.reactive import reactive
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from l2rtui.config import user_name
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView, RunView
from l2rtui.services.metrics import RunMetrics
from l2rtui.services.podnews import PodNews
from l2rtui.ui.digest import Digest
from l2rtui.ui.feeds import LogFeed, Subject
from l2rtui.ui.health import Health
from l2rtui.ui.keys import Place
from l2rtui.ui.link import Link
from l2rtui.ui.podfeed import PodFeed
from l2rtui.ui.screens.deck import Deck, Desk
from l2rtui.ui.screens.selection import Pane, Selection
from l2rtui.ui.text import Line
from l2rtui.ui.theme import plain
from l2rtui.ui.widgets.charts import ChartView, Curve
from l2rtui.ui.widgets.gpu_grid import GpuGrid
from l2rtui.ui.widgets.key_bar import Choice, KeyBar
from l2rtui.ui.widgets.log_pane import LogPane
from l2rtui.ui.widgets.metric_strip import MetricStrip
from l2rtui.ui.widgets.node_table import NodeTable, node_row
from l2rtui.ui.widgets.paint import Painted, is_plain
from l2rtui.ui.widgets.pod_table import PodTable, pod_row, told_of
from l2rtui.ui.widgets.pod_table import columns_for as columns_for_pods
from l2rtui.ui.widgets.report_tables import EventTable, LeakTable
from l2rtui.ui.widgets.run_table import RunTable, at_of, columns_for, run_row, sets_of
from l2rtui.ui.widgets.status_bar import StatusBar
from l2rtui.ui.widgets.virtual_table import VirtualTable

LARGE: Final = (120, 32)
TINY: Final = (48, 10)
AGE_SECONDS: Final = 10.0
MOST_CURVES: Final = 6
_NAMES: Final = {
    Pane.SLOTS: "1 Slots",
    Pane.RUNS: "2 Seeds",
    Pane.PODS: "3 Pods",
    Pane.NODES: "4 Nodes",
    Pane.LOG: "5 Log",
    Pane.EVENTS: "6 Events",
    Pane.LEAKS: "7 Leaks",
    Pane.CHARTS: "8 Charts",
}
LISTS: Final = tuple(pane for pane in Pane if pane is not Pane.LOG)
LOWER: Final = (Pane.PODS, Pane.NODES, Pane.EVENTS, Pane.LEAKS, Pane.CHARTS)
"""Views that share one place on a large terminal."""
SELECTING: Final = (Pane.SLOTS, Pane.RUNS, Pane.PODS)
"""Views whose cursor says what is selected."""


class ClusterView(Screen[None]):
    """Status, panes, keys; and a sentence for terminals that hold none of them."""

    AUTO_FOCUS = "#runs"

    snapshot: reactive[ClusterSnapshot] = reactive(EMPTY_SNAPSHOT, repaint=False)
    health: reactive[Health] = reactive(Health, repaint=False)
    metrics: reactive[Mapping[str, RunMetrics]] = reactive(dict, repaint=False)

    def __init__(self, link: Link) -> None:
        super().__init__(id="cluster", classes=f"on-{Pane.RUNS} low-{Pane.PODS}")
        self.link = link
        self.digest = Digest(user_name())
        self.last_list = Pane.RUNS
        self.lower = Pane.PODS
        self.has_all_pods = False
        self.is_mine_only = False
        self.zoomed: Pane | None = None
        self.status, self.key_bar = StatusBar(), KeyBar()
        self.slots, self.runs = GpuGrid(id=Pane.SLOTS), RunTable(clock=link.clock, id=Pane.RUNS)
        self.pods, self.nodes = PodTable(clock=link.clock, id=Pane.PODS), NodeTable(id=Pane.NODES)
        self.kube_events = EventTable(clock=link.clock, id=Pane.EVENTS)
        self.leaks, self.charts = LeakTable(id=Pane.LEAKS), ChartView(id=Pane.CHARTS)
        self.detail, self.deck = MetricStrip(id="detail"), Deck(link)
        self._small = Static(id="small", markup=False)
        self.settling: Timer | None = None
        self.records: dict[str, PodNews] = {}
        self._pod_feed = PodFeed(link, self._take_records)
        self._attached: Desk | None = None
        self._rows = ""
        self._runs_of: tuple[tuple[RunView, ...], bool] = (), False
        self._runs_shown: tuple[list[RunView], tuple[str, ...]] = [], ()
        self._shown_titles: dict[Widget, Content] = {}

    def compose(self) -> ComposeResult:
        """Everything; the style sheet decides what of it is seen."""
        self._arrange(self.app.size)  # before there is anything whose styles would have to be worked out twice
        yield self.status
        with Container(id="body"):
            yield self.slots
            yield self.detail
            yield self.runs
            with Container(id="lower"):
                yield self.pods
                yield self.nodes
                yield self.kube_events
                yield self.leaks
                yield self.charts
            yield self.deck
        yield self._small
        yield self.key_bar

    def on_mount(self) -> None:
        """Be in shape for the first frame, and set the clock of the ages going."""
        self.set_interval(AGE_SECONDS, self.draw_ages)
        self.app.theme_changed_signal.subscribe(self, lambda _: self._draw_all())

    def on_resize(self, event: events.Resize) -> None:
        """Choose the arrangement that fits."""
        self._arrange(event.size)
        self.show()

    def _arrange(self, size: Size) -> None:
        width, height = size
        self.set_class(width < TINY[0] or height < TINY[1], "tiny")
        self.set_class(width >= LARGE[0] and height >= LARGE[1], "large")
        self._small.update(f"This terminal is {width}x{height}; the app needs {TINY[0]}x{TINY[1]}. q leaves.")

    def _draw_all(self) -> None:
        """Other colours, perhaps other glyphs: everything is drawn anew."""
        for widget in self.query(Painted):
            widget.refresh()
        self.show_titles()

    # --- panes -------------------------------------------------------------------------------------------------
    @property
    def log_pane(self) -> LogPane:
        """The log that has the focus, or had it last."""
        return self.deck.active.pane

    @property
    def log_feed(self) -> LogFeed:
        """What fills it."""
        return self.deck.active.feed

    def pane(self, pane: Pane) -> Widget:
        """The widget of a pane."""
        widgets: dict[Pane, Widget] = {
            Pane.SLOTS: self.slots,
            Pane.RUNS: self.runs,
            Pane.PODS: self.pods,
            Pane.NODES: self.nodes,
            Pane.EVENTS: self.kube_events,
            Pane.LEAKS: self.leaks,
            Pane.CHARTS: self.charts,
        }
        return widgets.get(pane) or self.log_pane

    @property
    def focused_pane(self) -> Pane | None:
        """The pane with the focus; None while the filter or nothing has it."""
        if isinstance(self.focused, LogPane):
            return Pane.LOG
        return next((pane for pane in LISTS if self.focused is self.pane(pane)), None)

    @property
    def table(self) -> VirtualTable | None:
        """The table that has the focus, or had it last; None for the slots and the charts."""
        widget = self.pane(self.last_list)
        return widget if isinstance(widget, VirtualTable) else None

    @property
    def selection(self) -> Selection:
        """Where the cursors stand at this moment.

        Asked of the panes and not remembered from their messages: of two keys in quick succession the second must
        act on where the first has put the cursor.
        """
        focused = self.focused_pane
        pane = focused if focused in LISTS else self.last_list
        if pane not in SELECTING:
            pane = Pane.RUNS
        cell = self.runs.cursor_set
        return Selection(pane, self.runs.cursor_key, self.pods.cursor_key, self.slots.cursor_slot, cell)

    def go_to(self, pane: Pane) -> None:
        """Show a pane, if it is hidden, and give it the focus."""
        if pane in LISTS:
            self.last_list = pane
            self._switch(pane)
        if self.zoomed is not None:
            self.zoom(pane)
        self.show_view(pane)
        self.set_focus(self.pane(pane))

    def _switch(self, pane: Pane) -> None:
        if pane in LOWER:
            self.lower = pane
        for one in LISTS:
            self.set_class(one is pane, f"on-{one}")
            self.set_class(one is self.lower, f"low-{one}")

    def zoom(self, pane: Pane | None) -> None:
        """Give the whole screen to a pane, or with None to all of them again."""
        if pane is not Pane.LOG and self._attached is not None:
            attached, self._attached = self._attached, None
            self.deck.close(attached)
            self.deck.show_alone(None)
            self.set_focus(self.pane(self.last_list))
        self.zoomed = pane
        self.set_class(pane is not None, "zoomed")
        for one in Pane:
            self.set_class(one is pane, f"zoom-{one}")
        self.show_titles()

    def attach(self, desk: Desk) -> None:
        """Give the whole screen to one log until esc takes it back, and its pane with it."""
        self._attached = desk
        self.deck.show_alone(desk)
        self.zoom(Pane.LOG)

    # --- values in ---------------------------------------------------------------------------------------------
    async def prepare(self, snapshot: ClusterSnapshot) -> None:
        """Work out beside the event loop, where keys go on, what the first look at a large cluster costs."""
        digest = Digest(user_name())

        def work() -> None:
            digest.take(snapshot)
            _ = snapshot.ledger  # it is kept there

        await asyncio.to_thread(work)
        self.digest = digest
        self.slots.snapshot = snapshot
        await asyncio.sleep(0)  # the keys that came meanwhile

    def watch_snapshot(self) -> None:
        """Hand the parts out."""
        self.show()

    def watch_metrics(self) -> None:
        """Show the learners' numbers."""
        self.show_runs()
        self.show_detail()
        if self.lower is Pane.CHARTS:
            self.show_charts()

    def watch_health(self, health: Health) -> None:
        """Show whether what is seen is true."""
        self.status.health = health
        self.show_keys()

    def show(self) -> None:
        """Bring every pane up to date; what looks the same is not drawn again."""
        if not self.is_mounted:  # it will be resized then, and shown
            return
        self.digest.take(self.snapshot)
        self.status.tally = self.digest.tally
        self.status.snapshot = self.snapshot
        self.slots.snapshot = self.snapshot
        self._fit_rows()
        self.show_runs()
        self.show_view(self.lower)
        self.show_detail()
        self.show_titles()
        if self.settling is None:
            self.show_log()

    def show_view(self, pane: Pane) -> None:
        """Bring one of the views that share a place up to date; those out of sight cost nothing."""
        if pane is Pane.PODS:
            self.show_pods()
        elif pane is Pane.NODES:
            self.show_nodes()
        elif pane is Pane.CHARTS:
            self.show_charts()

    def draw_ages(self) -> None:
        """Time has passed: ages read otherwise."""
        for table in (self.runs, self.pods, self.kube_events):
            table.draw_ages()
        self.show_detail()

    def show_runs(self) -> None:
        """Rows of all runs, oldest first as the letters of the slots go, then by seed."""
        runs, sets = self._shown_runs()
        pods_of, records = self.digest.pods_of, self.records
        at = {run.uid: at_of(pods_of(run.name), records) for run in runs} if self._has_steps else {}
        has_at = any(at.values())
        self.runs.set_columns(columns_for(sets, has_at=has_at))
        items = (
            (run.uid, (run, pods_of(run.name), self.metrics.get(run.uid), at[run.uid] if has_at else None))
            for run in runs
        )
        self.runs.take(items, lambda source: run_row(*source[:3], sets, source[3]))

    def _shown_runs(self) -> tuple[list[RunView], tuple[str, ...]]:
        """Runs in order and the names of their sets; worked out anew where a run is another."""
        there = self.snapshot.runs.values()
        known, is_mine_only = self._runs_of
        if is_mine_only != self.is_mine_only or len(known) != len(there) or not all(map(is_, known, there)):
            me = user_name()
            runs = [run for run in self.snapshot.runs.values() if not self.is_mine_only or run.owner == me]
            runs.sort(key=lambda run: (run.created, run.experiment, run.seed, run.name))
            self._runs_of, self._runs_shown = (tuple(there), self.is_mine_only), (runs, sets_of(runs))
        return self._runs_shown

    def show_pods(self) -> None:
        """Rows of the pods of the selected run, or of all pods."""
        run = self.snapshot.runs.get(self.runs.cursor_key or "")
        pods = self.digest.pods if run is None or self.has_all_pods else self.digest.pods_of(run.name)
        if self.is_mine_only:
            me = user_name()
            pods = tuple(pod for pod in pods if pod.owner == me)
        records = self.records
        told = told_of(records[pod.uid] for pod in pods if pod.uid in records) if records else frozenset()
        self.pods.set_columns(columns_for_pods(told))
        items = ((pod.uid, (pod, records.get(pod.uid))) for pod in pods)
        self.pods.take(items, lambda source: pod_row(*source, told))

    def show_nodes(self) -> None:
        """Rows of all nodes with their slots."""
        ledger = self.snapshot.ledger
        self.nodes.set_rows(
            node_row(node, [slot for gpu in node.gpus for slot in ledger.of_gpu(node.name, gpu.index)])
            for node in self.snapshot.nodes.values()
        )

    def show_charts(self) -> None:
        """Curves of the marked runs, or of the selected one."""
        runs = [run for uid, run in self.snapshot.runs.items() if uid in self.runs.marked]
        chosen = self.selection.run(self.snapshot)
        if not runs and chosen is not None:
            runs = [chosen]
        curves = (Curve(run.name, self.metrics[run.uid]) for run in runs if run.uid in self.metrics)
        self.charts.curves = tuple(curves)[:MOST_CURVES]

    def show_detail(self) -> None:
        """Lines about the selection."""
        self.detail.lines = self.about()

    def about(self) -> tuple[Line, ...]:
        """What is known of the selection."""
        run = self.selection.run(self.snapshot)
        metrics = self.metrics.get(run.uid) if run else None
        width = max(20, self.detail.size.width)
        now = self.link.clock()
        return self.selection.about(self.snapshot, metrics, now, width, self.records, pods_of=self.pods_of)

    def pods_of(self, run: str, set_name: str = "") -> tuple[PodView, ...]:
        """Pods of a run or of one of its sets; without a look at all pods where they have been sorted already."""
        if not self.digest.is_of(self.snapshot):
            return self.snapshot.pods_of(run, set_name)
        pods = self.digest.pods_of(run)
        return tuple(pod for pod in pods if pod.set_name == set_name) if set_name else pods

    def subject(self) -> Subject:
        """Whose log is meant now."""
        return self.selection.subject(self.snapshot, self.pods.marked, self.runs.marked, pods_of=self.pods_of)

    def show_log(self) -> None:
        """The log of the selection; pods that came since are added to it, and to the logs that are kept."""
        self.deck.follow(self.subject())
        run = self.selection.run(self.snapshot)
        self._pod_feed.follow(self.digest.pods_of(run.name) if run is not None else ())
        for desk in self.deck.desks[1:]:
            newer = self.newer_pods(desk.feed.subject.key)
            if newer:
                desk.join(newer)
        self.show_titles()

    def _take_records(self, news: Mapping[str, PodNews]) -> None:
        """Pods have said something of themselves."""
        there = self.snapshot.pods
        self.records = {**{uid: one for uid, one in self.records.items() if uid in there}, **news}
        if self.lower is Pane.PODS:
            self.show_pods()
        if self._has_steps:
            self.show_runs()
        self.show_detail()

    @property
    def _has_steps(self) -> bool:
        """Whether some pod says what it is at, or with whom it works."""
        return any(one.step or one.rank is not None for one in self.records.values())

    def newer_pods(self, key: str) -> tuple[PodView, ...]:
        """The pods of a log that is kept, by its key, as they are now; none where it cannot be told."""
        kind, _, rest = key.partition(" ")
        if kind != "run":
            return ()
        uid, _, set_name = rest.partition("/")
        run = self.snapshot.runs.get(uid)
        return self.pods_of(run.name, set_name) if run is not None else ()

    # --- titles and keys ---------------------------------------------------------------------------------------
    def show_titles(self) -> None:
        """Name, target and modes of each pane; set only where it differs, since setting it repaints the pane."""
        for pane in LISTS:
            self._set_title(self.pane(pane), self._title(pane, self._list_facts(pane)))
        for number, desk in enumerate(self.deck.desks):
            names = [_NAMES[Pane.LOG] if number == 0 else "│"]
            self._set_title(desk.pane, _joined(names, desk.facts()))
        self.show_keys()

    def _set_title(self, widget: Widget, title: Content) -> None:
        if is_plain(self.app):
            title = Content(plain(title.plain))
        if self._shown_titles.get(widget) != title:
            self._shown_titles[widget] = title
            widget.border_title = title

    def _title(self, pane: Pane, facts: list[str]) -> Content:
        is_large = self.has_class("large")
        if self.zoomed is not None or (is_large and pane not in LOWER):
            names = [_NAMES[pane]]
        else:
            beside = LOWER if is_large else LISTS
            names = [_NAMES[one] if one is not pane else _NAMES[one].upper() for one in beside]
        return _joined(names, facts)

    def _list_facts(self, pane: Pane) -> list[str]:
        table = self.pane(pane)
        if not isinstance(table, VirtualTable):
            only = self.slots.only if pane is Pane.SLOTS else None
            return [f"{len(only)} of {len(self.snapshot.nodes)} nodes"] if only is not None else []
        model = table.model
        hidden = len(model.rows) - len(model.shown)
        run = self.snapshot.runs.get(self.runs.cursor_key or "")
        of = "all" if self.has_all_pods or run is None else sanitize(run.name)
        return [
            str(len(model.shown)),
            of if pane is Pane.PODS else "",
            "mine" if self.is_mine_only and pane in (Pane.RUNS, Pane.PODS) else "",
            f"{hidden} hidden" if hidden else "",
            "faults only" if model.faults_only else "",
            f"/{sanitize(model.filter_text)}" if model.filter_text else "",
            f"{len(table.marked)} marked" if table.marked else "",
        ]

    def post_health(self) -> None:
        """Show whether what is seen is true, and what may be done, as it is now."""
        self.health = replace(self.health, is_admin=self.link.is_admin)

    def may(self, action: str) -> str:
        """Why an action is not possible now; empty when it is."""
        return self.link.forbidden(action)

    def show_keys(self) -> None:
        """The keys of the focused pane and of the screen."""
        focused = self.focused
        place = (
            Place.LOG
            if isinstance(focused, LogPane)
            else Place.TABLE
            if isinstance(focused, VirtualTable)
            else None
        )
        own, common = self.link.keys.of(place) if place else (), self.link.keys.of(Place.CLUSTER)
        keys = [*own, *common] if place is Place.LOG else [*common, *own]
        self.key_bar.choices = tuple(Choice(key, self.may(key.action)) for key in keys if key.label)

    def _fit_rows(self) -> None:
        """Give the slots the lines that they need, at most two fifths of the screen; the seeds what they need."""
        height = max(10, min(self.slots.natural_height + 1, self.size.height * 2 // 5))
        rows = f"{height} 2fr 3fr 4fr"
        if rows != self._rows:
            self._rows = rows
            self.query_one("#body").styles.grid_rows = rows


def _joined(names: list[str], facts: list[str]) -> Content:
    told = " · ".join(fact for fact in facts if fact)
    return Content(" " + "   ".join([*names, told]).rstrip() + " ")
