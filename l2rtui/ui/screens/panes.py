"""The home screen without its keys: which panes there are, how they are arranged, and how values reach them.

The view holds the newest snapshot and hands each widget its part of it; widgets draw what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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

from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot
from l2rtui.services.metrics import RunMetrics
from l2rtui.ui.feeds import LogFeed
from l2rtui.ui.keys import Place, keys_of
from l2rtui.ui.link import Link
from l2rtui.ui.screens.selection import Pane, Selection
from l2rtui.ui.text import Line, plural
from l2rtui.ui.widgets.gpu_grid import GpuGrid
from l2rtui.ui.widgets.key_bar import Choice, KeyBar
from l2rtui.ui.widgets.log_pane import LogPane
from l2rtui.ui.widgets.metric_strip import MetricStrip
from l2rtui.ui.widgets.pod_table import PodTable, pod_row
from l2rtui.ui.widgets.run_table import RunTable, run_row
from l2rtui.ui.widgets.status_bar import Health, StatusBar
from l2rtui.ui.widgets.virtual_table import VirtualTable

LARGE: Final = (120, 32)
TINY: Final = (48, 10)
AGE_SECONDS: Final = 10.0
SINCE: Final = ((None, ""), (60.0, "last 1m"), (300.0, "last 5m"), (900.0, "last 15m"), (3600.0, "last 1h"))
_NAMES: Final = {Pane.SLOTS: "1 Slots", Pane.RUNS: "2 Runs", Pane.PODS: "3 Pods", Pane.LOG: "4 Log"}
LISTS: Final = (Pane.SLOTS, Pane.RUNS, Pane.PODS)


class ClusterView(Screen[None]):
    """Status, panes, keys; and a sentence for terminals that hold none of them."""

    AUTO_FOCUS = "#runs"

    snapshot: reactive[ClusterSnapshot] = reactive(EMPTY_SNAPSHOT, repaint=False)
    health: reactive[Health] = reactive(Health, repaint=False)
    metrics: reactive[Mapping[str, RunMetrics]] = reactive(dict, repaint=False)

    def __init__(self, link: Link) -> None:
        super().__init__(id="cluster")
        self.link = link
        self.last_list = Pane.RUNS
        self.has_all_pods = False
        self.zoomed: Pane | None = None
        self.status, self.key_bar = StatusBar(), KeyBar()
        self.slots, self.runs = GpuGrid(id=Pane.SLOTS), RunTable(id=Pane.RUNS)
        self.pods, self.log_pane = PodTable(id=Pane.PODS), LogPane(id=Pane.LOG)
        self.detail = MetricStrip(id="detail")
        self.log_feed = LogFeed(link, self.log_pane)
        self.is_previous_log = False
        self.since = 0
        self.settling: Timer | None = None
        self._rows = ""
        self._shown_titles: dict[Pane, Content] = {}

    def compose(self) -> ComposeResult:
        """Everything; the style sheet decides what of it is seen."""
        yield self.status
        with Container(id="body"):
            yield self.slots
            yield self.detail
            yield self.runs
            yield self.pods
            yield self.log_pane
        yield Static(id="small", markup=False)
        yield self.key_bar

    def on_mount(self) -> None:
        """Be in shape for the first frame, and set the clock of the ages going."""
        self.add_class("on-runs")
        self._arrange(self.app.size)
        self.set_interval(AGE_SECONDS, self.show)

    def on_resize(self, event: events.Resize) -> None:
        """Choose the arrangement that fits."""
        self._arrange(event.size)
        self.show()

    def _arrange(self, size: Size) -> None:
        width, height = size
        self.set_class(width < TINY[0] or height < TINY[1], "tiny")
        self.set_class(width >= LARGE[0] and height >= LARGE[1], "large")
        self.query_one("#small", Static).update(
            f"This terminal is {width}x{height}; the app needs {TINY[0]}x{TINY[1]}. q leaves."
        )

    # --- panes -------------------------------------------------------------------------------------------------
    def pane(self, pane: Pane) -> Widget:
        """The widget of a pane."""
        return {Pane.SLOTS: self.slots, Pane.RUNS: self.runs, Pane.PODS: self.pods, Pane.LOG: self.log_pane}[pane]

    @property
    def focused_pane(self) -> Pane | None:
        """The pane with the focus; None while the filter or nothing has it."""
        return next((pane for pane in Pane if self.focused is self.pane(pane)), None)

    @property
    def selection(self) -> Selection:
        """Where the cursors stand at this moment.

        Asked of the panes and not remembered from their messages: of two keys in quick succession the second must
        act on where the first has put the cursor.
        """
        focused = self.focused_pane
        pane = focused if focused in LISTS else self.last_list
        return Selection(pane, self.runs.cursor_key, self.pods.cursor_key, self.slots.cursor_slot)

    def go_to(self, pane: Pane) -> None:
        """Show a pane, if it is hidden, and give it the focus."""
        if pane in LISTS:
            self.last_list = pane
        for one in LISTS:
            if pane is not Pane.LOG:
                self.set_class(one is pane, f"on-{one}")
        if self.zoomed is not None:
            self.zoom(pane)
        self.set_focus(self.pane(pane))

    def zoom(self, pane: Pane | None) -> None:
        """Give the whole screen to a pane, or with None to all of them again."""
        self.zoomed = pane
        self.set_class(pane is not None, "zoomed")
        for one in Pane:
            self.set_class(one is pane, f"zoom-{one}")
        self.show_titles()

    # --- values in ---------------------------------------------------------------------------------------------
    def watch_snapshot(self) -> None:
        """Hand the parts out."""
        self.show()

    def watch_metrics(self) -> None:
        """Show the learners' numbers."""
        self.show_runs()
        self.show_detail()

    def watch_health(self, health: Health) -> None:
        """Show whether what is seen is true."""
        self.status.health = health
        self.show_keys()

    def show(self) -> None:
        """Bring every pane up to date; what looks the same is not drawn again."""
        self.status.snapshot = self.snapshot
        self.slots.snapshot = self.snapshot
        self._fit_rows()
        self.show_runs()
        self.show_pods()
        self.show_detail()
        self.show_titles()
        if self.settling is None:
            self.show_log()

    def show_runs(self) -> None:
        """Rows of all runs, oldest first, as the letters of the slots go."""
        now = self.link.clock()
        ordered = sorted(self.snapshot.runs.values(), key=lambda run: (run.created, run.name))
        self.runs.set_rows(
            run_row(run, self.snapshot.pods_of(run.name), self.metrics.get(run.uid), now) for run in ordered
        )

    def show_pods(self) -> None:
        """Rows of the pods of the selected run, or of all pods."""
        now = self.link.clock()
        run = self.snapshot.runs.get(self.runs.cursor_key or "")
        if run is not None and not self.has_all_pods:
            pods = self.snapshot.pods_of(run.name)
        else:
            pods = tuple(sorted(self.snapshot.pods.values(), key=lambda pod: (pod.run, pod.set_name, pod.index)))
        self.pods.set_rows(pod_row(pod, now) for pod in pods)

    def show_detail(self) -> None:
        """Lines about the selection."""
        self.detail.lines = self.about()

    def about(self) -> tuple[Line, ...]:
        """What is known of the selection."""
        run = self.selection.run(self.snapshot)
        metrics = self.metrics.get(run.uid) if run else None
        return self.selection.about(self.snapshot, metrics, self.link.clock(), max(20, self.detail.size.width))

    def show_log(self) -> None:
        """The log of the selection; pods that came since are added to it."""
        subject = self.selection.subject(self.snapshot, self.pods.marked)
        if not subject.pods:
            return  # a free slot, or a run without pods, has no log: the one that was shown stays
        if subject.key != self.log_feed.subject.key:
            self.is_previous_log = False
        since, _ = SINCE[self.since]
        self.log_feed.show(replace(subject, is_previous=self.is_previous_log, since_seconds=since))
        self.show_titles()

    # --- titles and keys ---------------------------------------------------------------------------------------
    def show_titles(self) -> None:
        """Name, target and modes of each pane; set only where it differs, since setting it repaints the pane."""
        for pane in Pane:
            title = self._title(pane)
            if self._shown_titles.get(pane) != title:
                self._shown_titles[pane] = title
                self.pane(pane).border_title = title
        self.show_keys()

    def _title(self, pane: Pane) -> Content:
        if pane is Pane.LOG or self.has_class("large") or self.zoomed is not None:
            names = [_NAMES[pane]]
        else:
            names = [_NAMES[one] if one is not pane else _NAMES[one].upper() for one in LISTS]
        if pane in (Pane.RUNS, Pane.PODS):
            shown = len(self.runs.model.shown if pane is Pane.RUNS else self.pods.model.shown)
            names = [f"{name} ({shown})" if name.casefold() == _NAMES[pane].casefold() else name for name in names]
        facts = [fact for fact in (self._log_facts() if pane is Pane.LOG else self._list_facts(pane)) if fact]
        return Content(" " + "   ".join([*names, " · ".join(facts)]).rstrip() + " ")

    def _list_facts(self, pane: Pane) -> list[str]:
        if pane is Pane.SLOTS:
            return []
        table = self.runs if pane is Pane.RUNS else self.pods
        model = table.model
        hidden = len(model.rows) - len(model.shown)
        run = self.snapshot.runs.get(self.runs.cursor_key or "")
        of = "" if pane is Pane.RUNS else "all" if self.has_all_pods or run is None else sanitize(run.name)
        return [
            of,
            f"{hidden} hidden" if hidden else "",
            "faults only" if model.faults_only else "",
            f"/{sanitize(model.filter_text)}" if model.filter_text else "",
            f"{len(table.marked)} marked" if table.marked else "",
        ]

    def _log_facts(self) -> list[str]:
        pane, subject = self.log_pane, self.log_feed.subject
        if not subject.key:
            return []
        _, since = SINCE[self.since]
        return [
            sanitize(subject.title),
            plural(len(subject.pods), "pod") if subject.is_merged else "",
            "process before"
            if subject.is_previous
            else "following"
            if pane.is_following
            else "▲ stopped, f follows",
            "wrapped" if pane.is_wrapping else "",
            since,
            f"/{sanitize(pane.search)}, {plural(pane.hits, 'line')}" if pane.search else "",
            f"{pane.ring.dropped:,} oldest dropped" if pane.ring.dropped else "",
        ]

    def show_keys(self) -> None:
        """The keys of the focused pane and of the screen."""
        focused = self.focused
        place = (
            Place.LOG if focused is self.log_pane else Place.TABLE if isinstance(focused, VirtualTable) else None
        )
        own = keys_of(place) if place else ()
        keys = [*own, *keys_of(Place.CLUSTER)] if place is Place.LOG else [*keys_of(Place.CLUSTER), *own]
        self.key_bar.choices = tuple(
            Choice(key, not (key.changes and self.link.settings.readonly)) for key in keys if key.label
        )

    def _fit_rows(self) -> None:
        """Give the slots the lines that they need, at most two fifths of the screen."""
        height = max(10, min(self.slots.natural_height + 1, self.size.height * 2 // 5))
        rows = f"{height} 2fr 3fr 4fr"
        if rows != self._rows:
            self._rows = rows
            self.query_one("#body").styles.grid_rows = rows
