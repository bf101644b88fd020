"""Panes of the home screen: their widgets, their visibility at a terminal size, and the selection.

The style sheet decides which panes are visible. This module sets the classes of the screen that its rules refer to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Final

from textual.containers import Container
from textual.geometry import Size
from textual.screen import Screen
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.widget import Widget
from textual.widgets import Static

from l2rtui.ui.home.log_panes import LogController, LogPanes
from l2rtui.ui.home.selection import Pane, Selection
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.widgets.bars import KeyBar
from l2rtui.ui.widgets.charts import ChartView
from l2rtui.ui.widgets.cluster_tables import EventTable, LeakTable, NodeTable
from l2rtui.ui.widgets.gpu_grid import GpuGrid
from l2rtui.ui.widgets.log_pane import LogPane
from l2rtui.ui.widgets.metric_strip import MetricStrip
from l2rtui.ui.widgets.pod_table import PodTable
from l2rtui.ui.widgets.run_table import RunTable
from l2rtui.ui.widgets.status_bar import StatusBar
from l2rtui.ui.widgets.virtual_table import VirtualTable

LARGE: Final = (120, 32)
TINY: Final = (48, 10)
LOW: Final = 16
"""Terminal height below which a pane has a rule above it instead of a frame, which would take half of it."""
LISTS: Final = tuple(pane for pane in Pane if pane is not Pane.LOG)
LOWER: Final = (Pane.PODS, Pane.NODES, Pane.EVENTS, Pane.LEAKS, Pane.CHARTS)
"""Views that share one position on a large terminal."""
SELECTING: Final = (Pane.SLOTS, Pane.RUNS, Pane.PODS)
"""Views whose cursor determines the selection."""


class WholeCells(ScrollBarRender):
    """Scroll bars drawn in whole cells: glyphs for parts of cells are not in ASCII, and many fonts leave gaps."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "] * 8
    HORIZONTAL_BARS: ClassVar[list[str]] = [" "] * 8


class PaneLayout:
    """Widgets of the home screen and their arrangement.

    Attributes:
        screen: The screen that the widgets are on; its classes select the rules of the style sheet.
        last_list: List that has the focus, or had it last.
        lower: The visible one of the views that share a position.
        zoomed: The pane that fills the screen; None while all are visible.
        fit: Gives every visible pane its size.
    """

    def __init__(self, screen: Screen[None], ctx: AppContext) -> None:
        self.screen = screen
        ScrollBar.renderer = WholeCells
        self.last_list = Pane.RUNS
        self.lower = Pane.PODS
        self.zoomed: Pane | None = None
        self.status, self.key_bar = StatusBar(), KeyBar()
        self.slots, self.runs = GpuGrid(id=Pane.SLOTS), RunTable(clock=ctx.clock, id=Pane.RUNS)
        self.pods, self.nodes = PodTable(clock=ctx.clock, id=Pane.PODS), NodeTable(id=Pane.NODES)
        self.kube_events = EventTable(clock=ctx.clock, id=Pane.EVENTS)
        self.leaks, self.charts = LeakTable(id=Pane.LEAKS), ChartView(id=Pane.CHARTS)
        self.detail, self.logs = MetricStrip(id="detail"), LogPanes(ctx)
        lower = Container(self.pods, self.nodes, self.kube_events, self.leaks, self.charts, id="lower")
        self.body = Container(self.slots, self.detail, self.runs, lower, self.logs, id="body")
        self._small = Static(id="small", markup=False)
        self._attached: LogController | None = None
        lists = (self.slots, self.runs, self.pods, self.nodes, self.kube_events, self.leaks, self.charts)
        self._widgets: dict[Pane, Widget] = dict(zip(LISTS, lists, strict=True))
        # Set by PaneSizes, which reads what the panes contain.
        self.fit: Callable[[], None] = lambda: None

    @property
    def room(self) -> Size:
        """Size available to the panes; before the first layout, the expected size."""
        return self.screen.size or self.screen.app.size - self.screen.styles.gutter.totals

    def compose(self) -> Iterator[Widget]:
        """Yield all widgets. Classes and sizes are set first: a later change triggers a layout of the screen."""
        self.fit_to(self.screen.app.size)
        self.fit()
        yield self.status
        yield self.body
        yield self._small
        yield self.key_bar

    def fit_to(self, size: Size) -> None:
        """Set the classes for a terminal size."""
        width, height = size
        self.screen.update_classes(
            {
                "tiny": width < TINY[0] or height < TINY[1],
                "low": height < LOW,
                "large": width >= LARGE[0] and height >= LARGE[1],
            }
        )
        sentence = f"This terminal is {width}x{height}; the app needs {TINY[0]}x{TINY[1]}. q leaves."
        if self._small.content != sentence:  # an update triggers a layout of the screen
            self._small.update(sentence)

    def widget(self, pane: Pane) -> Widget:
        """Return the widget of a pane; for the log, the one that has the focus or had it last."""
        return self._widgets.get(pane) or self.log_pane

    def pane_of(self, widget: Widget | None) -> Pane | None:
        """Return the list shown by a widget; None for other widgets."""
        return next((pane for pane, own in self._widgets.items() if own is widget), None)

    @property
    def log_pane(self) -> LogPane:
        """Log that has the focus, or had it last."""
        return self.logs.active.pane

    @property
    def focused_pane(self) -> Pane | None:
        """Pane with the focus; None if the prompt or no widget has it."""
        focused = self.screen.focused
        return Pane.LOG if isinstance(focused, LogPane) else self.pane_of(focused)

    @property
    def table(self) -> VirtualTable | None:
        """Table that has the focus, or had it last; None for the slots and the charts."""
        widget = self.widget(self.last_list)
        return widget if isinstance(widget, VirtualTable) else None

    @property
    def filtered_tables(self) -> tuple[VirtualTable, ...]:
        """The tables that the filters of the whole screen apply to."""
        return self.pods, self.runs, self.nodes, self.kube_events

    @property
    def selection(self) -> Selection:
        """Positions of the cursors at this moment.

        Read from the panes, not remembered from their messages. Of two keys in quick succession the second must act
        on the new cursor position, and the message about it may still be in a queue.
        """
        focused = self.focused_pane
        pane = focused if focused in LISTS else self.last_list
        if pane not in SELECTING:
            pane = Pane.RUNS
        cell = self.runs.cursor_set
        return Selection(pane, self.runs.cursor_key, self.pods.cursor_key, self.slots.cursor_slot, cell)

    def show_list(self, pane: Pane) -> None:
        """Make a list visible."""
        self.last_list = pane
        if pane in LOWER:
            self.lower = pane
        # Together: each change of a class of the screen applies the style sheet to all of its widgets.
        on = {f"on-{other}": other is pane for other in LISTS}
        self.screen.update_classes(on | {f"low-{other}": other is self.lower for other in LISTS})
        self.fit()

    def show_zoomed(self, pane: Pane | None) -> None:
        """Fill the screen with a pane; None shows all panes."""
        self.zoomed = pane
        zooms = {f"zoom-{other}": other is pane for other in Pane}
        self.screen.update_classes({"zoomed": pane is not None} | zooms)
        self.fit()

    def focus(self, pane: Pane) -> None:
        """Give a pane the focus."""
        self.screen.set_focus(self.widget(pane))

    def focus_log(self, log: LogController) -> None:
        """Give a log the focus as soon as it is mounted."""
        # A newly mounted pane cannot be focused before its first layout.
        self.screen.call_after_refresh(self.screen.set_focus, log.pane)

    def attach(self, log: LogController) -> None:
        """Hide the other logs until ``detach`` closes this one."""
        self._attached = log
        self.logs.show_alone(log)

    def detach(self) -> None:
        """Close an attached log and return to the list; does nothing if no log is attached."""
        if self._attached is not None:
            attached, self._attached = self._attached, None
            self.logs.close(attached)
            self.logs.show_alone(None)
            self.focus(self.last_list)
