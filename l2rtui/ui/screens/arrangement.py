"""Which panes the home screen has, how they are arranged on a terminal of any size, and which of them is meant.

The style sheet decides what is seen; this says which classes the screen has.
"""

from __future__ import annotations

from typing import Final

from textual import events
from textual.app import ComposeResult
from textual.containers import Container
from textual.geometry import Size
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from l2rtui.ui.feeds import LogFeed
from l2rtui.ui.link import Link
from l2rtui.ui.screens.deck import Deck, Desk
from l2rtui.ui.screens.selection import Pane, Selection
from l2rtui.ui.widgets.charts import ChartView
from l2rtui.ui.widgets.gpu_grid import GpuGrid
from l2rtui.ui.widgets.key_bar import KeyBar
from l2rtui.ui.widgets.log_pane import LogPane
from l2rtui.ui.widgets.metric_strip import MetricStrip
from l2rtui.ui.widgets.node_table import NodeTable
from l2rtui.ui.widgets.pod_table import PodTable
from l2rtui.ui.widgets.report_tables import EventTable, LeakTable
from l2rtui.ui.widgets.run_table import RunTable
from l2rtui.ui.widgets.status_bar import StatusBar
from l2rtui.ui.widgets.virtual_table import VirtualTable

LARGE: Final = (120, 32)
TINY: Final = (48, 10)
LISTS: Final = tuple(pane for pane in Pane if pane is not Pane.LOG)
LOWER: Final = (Pane.PODS, Pane.NODES, Pane.EVENTS, Pane.LEAKS, Pane.CHARTS)
"""Views that share one place on a large terminal."""
SELECTING: Final = (Pane.SLOTS, Pane.RUNS, Pane.PODS)
"""Views whose cursor says what is selected."""


class Arrangement(Screen[None]):
    """Status, panes, keys; and a sentence for terminals that hold none of them."""

    AUTO_FOCUS = "#runs"

    def __init__(self, link: Link) -> None:
        super().__init__(id="cluster", classes=f"on-{Pane.RUNS} low-{Pane.PODS}")
        self.link = link
        self.last_list = Pane.RUNS
        self.lower = Pane.PODS
        self.zoomed: Pane | None = None
        self.status, self.key_bar = StatusBar(), KeyBar()
        self.slots, self.runs = GpuGrid(id=Pane.SLOTS), RunTable(clock=link.clock, id=Pane.RUNS)
        self.pods, self.nodes = PodTable(clock=link.clock, id=Pane.PODS), NodeTable(id=Pane.NODES)
        self.kube_events = EventTable(clock=link.clock, id=Pane.EVENTS)
        self.leaks, self.charts = LeakTable(id=Pane.LEAKS), ChartView(id=Pane.CHARTS)
        self.detail, self.deck = MetricStrip(id="detail"), Deck(link)
        self._small = Static(id="small", markup=False)
        self._attached: Desk | None = None
        self._has_come = False

    def compose(self) -> ComposeResult:
        """Half of everything; the style sheet decides what of it is seen."""
        self.fit_to(self.app.size)  # before there is anything whose styles would have to be worked out twice
        yield self.status
        with Container(id="body"):
            yield self.slots
            yield self.detail
            yield self.runs
            with Container(id="lower"):
                yield self.pods
        yield self._small
        yield self.key_bar

    async def mount_rest(self) -> None:
        """The other half. All at once is one turn of the event loop, in which it does nothing else."""
        await self.query_one("#lower").mount(self.nodes, self.kube_events, self.leaks, self.charts)
        await self.query_one("#body").mount(self.deck)

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """Work out no style twice: when the screen comes for the first time its parts have just got theirs."""
        if not self._has_come:
            event.refresh_styles, self._has_come = False, True

    def fit_to(self, size: Size) -> None:
        """Choose the arrangement that fits."""
        width, height = size
        self.set_class(width < TINY[0] or height < TINY[1], "tiny")
        self.set_class(width >= LARGE[0] and height >= LARGE[1], "large")
        self._small.update(f"This terminal is {width}x{height}; the app needs {TINY[0]}x{TINY[1]}. q leaves.")

    def show_titles(self) -> None:
        """Bring the titles of the panes up to date."""

    def show_view(self, pane: Pane) -> None:
        """Bring one of the views that share a place up to date."""

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
