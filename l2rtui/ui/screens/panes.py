"""The home screen without its keys: how values reach its panes, and what the panes are headed with.

The view holds the newest snapshot and hands each widget its part of it; widgets draw what differs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from operator import is_
from typing import Final

from textual import events
from textual.content import Content
from textual.reactive import reactive
from textual.timer import Timer
from textual.widget import Widget

from l2rtui.config import user_name
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView, RunView
from l2rtui.services.metrics import RunMetrics
from l2rtui.services.podnews import PodNews
from l2rtui.ui.digest import Digest
from l2rtui.ui.feeds import Subject
from l2rtui.ui.health import Health
from l2rtui.ui.keys import Place
from l2rtui.ui.link import Link
from l2rtui.ui.podfeed import PodFeed
from l2rtui.ui.screens.arrangement import LISTS, LOWER, Arrangement
from l2rtui.ui.screens.selection import Pane
from l2rtui.ui.text import Line
from l2rtui.ui.theme import plain
from l2rtui.ui.widgets.charts import Curve
from l2rtui.ui.widgets.key_bar import Choice
from l2rtui.ui.widgets.log_pane import LogPane
from l2rtui.ui.widgets.node_table import node_row
from l2rtui.ui.widgets.paint import Painted, is_plain
from l2rtui.ui.widgets.pod_table import columns_for as columns_for_pods
from l2rtui.ui.widgets.pod_table import pod_row, told_of
from l2rtui.ui.widgets.run_table import RunRows, at_of, columns_for, in_order, sets_of
from l2rtui.ui.widgets.virtual_table import VirtualTable

AGE_SECONDS: Final = 10.0
PAINT_SECONDS: Final = 0.1
"""For the first paint of the slots; a screen that stands above this one may keep it from coming."""
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


class ClusterView(Arrangement):
    """The panes with what is in them."""

    snapshot: reactive[ClusterSnapshot] = reactive(EMPTY_SNAPSHOT, repaint=False)
    health: reactive[Health] = reactive(Health, repaint=False)
    metrics: reactive[Mapping[str, RunMetrics]] = reactive(dict, repaint=False)

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.digest = Digest(user_name())
        self.has_all_pods = False
        self.is_mine_only = False
        self.settling: Timer | None = None
        self.records: dict[str, PodNews] = {}
        self._pod_feed = PodFeed(link, self._take_records)
        self._rows = ""
        self._run_rows = RunRows()
        self._runs_of: tuple[tuple[RunView, ...], bool] = (), False
        self._runs_shown: tuple[list[RunView], tuple[str, ...]] = [], ()
        self._shown_titles: dict[Widget, Content] = {}

    def on_mount(self) -> None:
        """Be in shape for the first frame, and set the clock of the ages going."""
        self.set_interval(AGE_SECONDS, self.draw_ages)
        self.app.theme_changed_signal.subscribe(self, lambda _: self._draw_all())

    async def on_resize(self, event: events.Resize) -> None:
        """Choose the arrangement that fits."""
        await asyncio.sleep(0)  # keys come between the paint that a new screen begins with and the next one
        self.fit_to(event.size)
        self.show()

    def _draw_all(self) -> None:
        """Other colours, perhaps other glyphs: everything is drawn anew."""
        for widget in self.query(Painted):
            widget.refresh()
        self.show_titles()

    # --- values in ---------------------------------------------------------------------------------------------
    async def prepare(self, snapshot: ClusterSnapshot) -> None:
        """Work out beside the event loop, where keys go on, what the first look at a large cluster costs."""
        digest = Digest(user_name())

        def work() -> None:
            digest.take(snapshot)
            _ = snapshot.ledger  # it is kept there
            self.slots.lay_out_ahead(snapshot)
            self._run_rows.make_ahead(snapshot.runs.values(), digest.pods_of)

        await asyncio.to_thread(work)
        self.digest = digest
        self.slots.snapshot = snapshot
        self._fit_rows()
        painted = asyncio.Event()  # the slots in one paint, the lists in the next: keys come between the two
        self.call_after_refresh(painted.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAINT_SECONDS):
                await painted.wait()

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
        self.runs.take(items, lambda source: self._run_rows.row(*source[:3], sets, source[3]))

    def _shown_runs(self) -> tuple[list[RunView], tuple[str, ...]]:
        """Runs in order and the names of their sets; worked out anew where a run is another."""
        there = self.snapshot.runs.values()
        known, is_mine_only = self._runs_of
        if is_mine_only != self.is_mine_only or len(known) != len(there) or not all(map(is_, known, there)):
            me = user_name()
            runs = in_order(run for run in there if not self.is_mine_only or run.owner == me)
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
