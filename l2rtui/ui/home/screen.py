"""Home screen: the panes, the objects that perform its keys, and the events that connect them.

Nothing is changed from here directly: changes go through ``dialogs.questions`` and the forms of other screens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Generic, ParamSpec, Self, overload

from textual import events, on
from textual.app import ComposeResult
from textual.reactive import reactive
from textual.screen import Screen
from textual.timer import Timer

from l2rtui.domain.metrics import RunMetrics
from l2rtui.domain.node import SlotId
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot
from l2rtui.ui.home.command_line import CommandLine
from l2rtui.ui.home.context_actions import ContextActions
from l2rtui.ui.home.home_view import HomeView
from l2rtui.ui.home.inspect_actions import InspectActions, OverviewActions
from l2rtui.ui.home.log_actions import LogActions
from l2rtui.ui.home.pod_actions import PodActions
from l2rtui.ui.home.reservation_actions import ReservationActions
from l2rtui.ui.home.run_actions import RunActions
from l2rtui.ui.home.selection import Pane
from l2rtui.ui.home.view_actions import FilterActions, ViewSharing
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.state.connection_status import ConnectionStatus
from l2rtui.ui.state.messages import LeaveRequested
from l2rtui.ui.widgets.bars import KeyBar
from l2rtui.ui.widgets.charts import ChartView
from l2rtui.ui.widgets.gpu_grid import GpuGrid
from l2rtui.ui.widgets.log_pane import LogPane, PatternsRemoved
from l2rtui.ui.widgets.run_table import RunTable
from l2rtui.ui.widgets.span_renderer import SpanWidget
from l2rtui.ui.widgets.virtual_table import VirtualTable

SETTLE_SECONDS: Final = 0.15
"""Delay before the log follows the cursor, so that scrolling through a list opens no streams."""
AGE_SECONDS: Final = 5.0
P = ParamSpec("P")


class PartAction(Generic[P]):
    """Action of the screen that one of its parts performs.

    Textual looks for the action of a key only on the screen that has the binding.
    """

    def __init__(self, method: Callable[[ClusterScreen], Callable[P, None]]) -> None:
        self._method = method

    @overload
    def __get__(self, screen: None, owner: type) -> Self: ...

    @overload
    def __get__(self, screen: ClusterScreen, owner: type) -> Callable[P, None]: ...

    def __get__(self, screen: ClusterScreen | None, owner: type) -> Self | Callable[P, None]:
        """Return the bound method of the part."""
        return self if screen is None else self._method(screen)


class ClusterScreen(Screen[None]):
    """The cluster on one screen: slots, runs, pods, logs.

    Attributes:
        snapshot, metrics, health: The newest values, which the app sets.
        view: The panes and their content.
    """

    BINDINGS = bindings(KeyContext.CLUSTER)
    AUTO_FOCUS = "#runs"

    snapshot: reactive[ClusterSnapshot] = reactive(EMPTY_SNAPSHOT, repaint=False)
    health: reactive[ConnectionStatus] = reactive(ConnectionStatus, repaint=False)
    metrics: reactive[Mapping[str, RunMetrics]] = reactive(dict, repaint=False)

    def __init__(self, ctx: AppContext) -> None:
        super().__init__(id="cluster", classes=f"on-{Pane.RUNS} low-{Pane.PODS}")
        self.ctx = ctx
        self.view = HomeView(self, ctx)
        self.panes, self.content, self.navigation = self.view.panes, self.view.content, self.view.navigation
        self.sizes = self.view.sizes
        self.filters, self.log_actions = FilterActions(self.view), LogActions(self.view)
        self.inspect_actions = InspectActions(self.view)
        self.overview_actions = OverviewActions(self.view, self.filters)
        self.context_actions = ContextActions(self.view)
        self.sharing = ViewSharing(self.view, self.filters)
        self.command_line = CommandLine(
            self.view, self.filters, self.log_actions, self.context_actions, self.inspect_actions.help_about
        )
        self.run_actions = RunActions(self.view)
        self.reservation_actions = ReservationActions(self.view)
        self.pod_actions = PodActions(self.view, self.command_line)
        self._settling: Timer | None = None
        self._was_resumed = False

    # --- life --------------------------------------------------------------------------------------------------
    def compose(self) -> ComposeResult:
        """Yield all widgets; the style sheet decides which are visible."""
        yield from self.panes.compose()
        yield self.command_line.prompt
        yield self.command_line.prompt.sign

    def on_mount(self) -> None:
        """Start the timer that redraws the ages."""
        self.set_interval(AGE_SECONDS, self.content.draw_ages)
        self.app.theme_changed_signal.subscribe(self, lambda _: self._redraw())

    def on_unmount(self) -> None:
        """Save recent changes of sizes, and close the streams."""
        self.sizes.save()
        self.content.close()

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """Skip the refresh of styles when the screen is shown for the first time: they were just computed."""
        if not self._was_resumed:
            event.refresh_styles, self._was_resumed = False, True

    def on_resize(self, event: events.Resize) -> None:
        """Choose the layout that fits."""
        if event.size == self.outer_size:  # it was just laid out for that size: Textual would do it again
            event.stop()
            event.prevent_default()
        self.panes.fit_to(event.size)
        self._show()

    def _compositor_refresh(self) -> None:
        """Paint nothing behind a dialog: Textual paints everything when it closes."""
        if self.app.screen is self:
            super()._compositor_refresh()

    def _redraw(self) -> None:
        """Redraw everything after a change of the theme, which may have other glyphs."""
        for widget in self.query(SpanWidget):
            widget.refresh()
        self.content.titles.show()

    # --- values in ---------------------------------------------------------------------------------------------
    def watch_snapshot(self, snapshot: ClusterSnapshot) -> None:
        """Show a new snapshot."""
        self.content.snapshot = snapshot
        self._show()

    def watch_metrics(self, metrics: Mapping[str, RunMetrics]) -> None:
        """Show new metrics of learners."""
        self.content.take_metrics(metrics)

    def watch_health(self, health: ConnectionStatus) -> None:
        """Show the state of the connection, and the keys, which may depend on it."""
        self.panes.status.health = health
        self.content.take_health(health)
        # "No runs" is known only once the cluster has answered.
        self.panes.runs.empty_text = RunTable.EMPTY if health.is_connected else "Nothing has been heard yet."
        self.content.titles.show_keys()

    def _show(self) -> None:
        if not self.is_mounted:  # the first Resize event comes after the mount
            return
        self.content.show()
        if self._settling is None:  # otherwise the log follows when the cursor rests
            self.content.show_log()

    # --- permission --------------------------------------------------------------------------------------------
    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002  (Textual's)
        """Disable actions that ``--readonly`` or missing permissions forbid; keys, palette, menu and clicks all ask
        here.
        """
        return None if self.ctx.forbidden(action) else True

    def on_key(self, event: events.Key) -> None:
        """Show why a disabled key does nothing."""
        key = self.ctx.keys.pressed(event.key)
        if key is not None and (reason := self.ctx.forbidden(key.action)):
            self.ctx.background.say(f"{key.face} ({key.name}) is off: {reason}.")

    @on(KeyBar.Clicked)
    async def _key_clicked(self, event: KeyBar.Clicked) -> None:
        # Keys of a pane are actions of the focused widget; a click on the bar does not move the focus.
        target = self.focused if event.key.context is not KeyContext.CLUSTER and self.focused else self
        await self.app.run_action(event.key.action.replace("%", "1"), target)

    # --- selection ---------------------------------------------------------------------------------------------
    @on(VirtualTable.CursorMoved)
    def _row_moved(self, event: VirtualTable.CursorMoved) -> None:
        if event.table is self.panes.runs:
            # Immediately, without the delay of the log: the next key may act on a pod of this run.
            self.content.show_view(self.panes.lower)
        self._selected()

    @on(GpuGrid.SlotMoved)
    def _slot_moved(self, event: GpuGrid.SlotMoved) -> None:
        if event.by_user and event.slot is not None:
            self._point_at_owner(event.slot)
        self._selected()

    def _point_at_owner(self, slot: SlotId) -> bool:
        """Put the cursors of runs and pods on the pod of a slot; return False for a slot without a pod."""
        entry = self.snapshot.ledger.slots.get(slot)
        run = self.snapshot.run_named(entry.run) if entry and entry.run else None
        if run is not None:
            self.panes.runs.move_to(run.uid)
            self.content.show_pods()  # the pods of this run, otherwise the cursor would not find the pod
        return entry is not None and self.panes.pods.move_to(entry.pod_uid)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Let the list with the focus determine the selection."""
        pane = self.panes.pane_of(event.widget)
        if pane is not None:
            self.panes.last_list = pane
            self._selected()
        self.content.titles.show()

    @property
    def is_settling(self) -> bool:
        """True until the log follows the cursor, which may be moving still."""
        return self._settling is not None

    def _selected(self) -> None:
        self.content.show_detail()
        if self._settling is not None:
            self._settling.stop()
        self._settling = self.set_timer(SETTLE_SECONDS, self._settled)

    def _settled(self) -> None:
        self._settling = None
        self.content.show_log()

    @on(VirtualTable.Rearranged)
    @on(LogPane.Changed)
    @on(ChartView.ContentChanged)
    def _rearranged(self) -> None:
        if self.panes.lower is Pane.CHARTS:
            self.content.show_charts()  # they follow the marks
        self.content.show_sum()
        self.content.titles.show()
        self.sizes.fit()

    @on(PatternsRemoved)
    def _patterns_removed(self, event: PatternsRemoved) -> None:
        self.ctx.background.say(event.sentence, is_error=True)

    @on(GpuGrid.HeightChanged)
    def _grid_height_changed(self) -> None:
        self.sizes.fit()

    @on(GpuGrid.Zoomed)
    def _zoomed(self, event: GpuGrid.Zoomed) -> None:
        self.sizes.choose_level(event.level)

    # --- the mouse on the edges of panes -----------------------------------------------------------------------
    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Start dragging an edge between two panes."""
        if self.sizes.press(event.screen_x, event.screen_y):
            self.query_one("#body").capture_mouse()  # otherwise moves over other widgets would go to those

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Move the dragged edge."""
        self.sizes.drag(event.screen_x, event.screen_y)

    def on_mouse_up(self) -> None:
        """Stop dragging the edge."""
        self.sizes.release()
        self.query_one("#body").release_mouse()

    @on(VirtualTable.Chosen)
    def _row_chosen(self, event: VirtualTable.Chosen) -> None:
        panes = self.panes
        if event.table is panes.nodes:
            panes.slots.only = None
            first = next((slot for slot in self.snapshot.ledger.slots if slot.node == event.key), None)
            if first is not None:
                panes.slots.move_to(first)
            self.navigation.action_pane(Pane.SLOTS)
        elif event.table in (panes.runs, panes.pods):
            self.navigation.action_pane(Pane.PODS if event.table is panes.runs else Pane.LOG)
        else:
            self.inspect_actions.action_detail()

    @on(RunTable.ExampleWanted)
    def _example_wanted(self) -> None:
        if reason := self.ctx.forbidden("launch"):
            self.ctx.background.say(f"Launching is off: {reason}.")
        else:
            self.run_actions.launch_example()

    @on(GpuGrid.SlotChosen)
    def _slot_chosen(self, event: GpuGrid.SlotChosen) -> None:
        if self._point_at_owner(event.slot):
            self.navigation.action_pane(Pane.PODS)
        else:
            self.ctx.background.say(f"No pod holds slot {event.slot}.")

    # --- actions of the parts ----------------------------------------------------------------------------------
    action_pane = PartAction(lambda screen: screen.navigation.action_pane)
    action_history = PartAction(lambda screen: screen.navigation.action_history)
    action_toggle_view = PartAction(lambda screen: screen.navigation.action_toggle_view)
    action_next_pane = PartAction(lambda screen: screen.navigation.action_next_pane)
    action_zoom = PartAction(lambda screen: screen.navigation.action_zoom)
    action_find = PartAction(lambda screen: screen.command_line.action_find)
    action_command_line = PartAction(lambda screen: screen.command_line.action_command_line)
    action_ask_log = PartAction(lambda screen: screen.command_line.action_ask_log)
    action_faults = PartAction(lambda screen: screen.filters.action_faults)
    action_mine = PartAction(lambda screen: screen.filters.action_mine)
    action_all_pods = PartAction(lambda screen: screen.filters.action_all_pods)
    action_view = PartAction(lambda screen: screen.filters.action_view)
    action_sort_by = PartAction(lambda screen: screen.filters.action_sort_by)
    action_filter = PartAction(lambda screen: screen.filters.action_filter)
    action_keep_filter = PartAction(lambda screen: screen.filters.action_keep_filter)
    action_forget_filter = PartAction(lambda screen: screen.filters.action_forget_filter)
    action_logs = PartAction(lambda screen: screen.log_actions.action_logs)
    action_log_of = PartAction(lambda screen: screen.log_actions.action_log_of)
    action_split = PartAction(lambda screen: screen.log_actions.action_split)
    action_close_log = PartAction(lambda screen: screen.log_actions.action_close_log)
    action_previous_log = PartAction(lambda screen: screen.log_actions.action_previous_log)
    action_log_since = PartAction(lambda screen: screen.log_actions.action_log_since)
    action_narrow_log = PartAction(lambda screen: screen.log_actions.action_narrow_log)
    action_save_log = PartAction(lambda screen: screen.log_actions.action_save_log)
    action_export = PartAction(lambda screen: screen.log_actions.action_export)
    action_launch = PartAction(lambda screen: screen.run_actions.action_launch)
    action_place = PartAction(lambda screen: screen.run_actions.action_place)
    action_kill = PartAction(lambda screen: screen.run_actions.action_kill)
    action_destroy = PartAction(lambda screen: screen.run_actions.action_destroy)
    action_relaunch = PartAction(lambda screen: screen.run_actions.action_relaunch)
    action_gone = PartAction(lambda screen: screen.run_actions.action_gone)
    action_scale = PartAction(lambda screen: screen.run_actions.action_scale)
    action_edit = PartAction(lambda screen: screen.run_actions.action_edit)
    action_cancel = PartAction(lambda screen: screen.run_actions.action_cancel)
    action_shell = PartAction(lambda screen: screen.pod_actions.action_shell)
    action_attach = PartAction(lambda screen: screen.pod_actions.action_attach)
    action_signal = PartAction(lambda screen: screen.pod_actions.action_signal)
    action_forward = PartAction(lambda screen: screen.pod_actions.action_forward)
    action_simulators = PartAction(lambda screen: screen.pod_actions.action_simulators)
    action_detail = PartAction(lambda screen: screen.inspect_actions.action_detail)
    action_spec = PartAction(lambda screen: screen.inspect_actions.action_spec)
    action_test_alerts = PartAction(lambda screen: screen.inspect_actions.action_test_alerts)
    action_forwards = PartAction(lambda screen: screen.inspect_actions.action_forwards)
    action_journal = PartAction(lambda screen: screen.inspect_actions.action_journal)
    action_since_left = PartAction(lambda screen: screen.inspect_actions.action_since_left)
    action_volumes = PartAction(lambda screen: screen.inspect_actions.action_volumes)
    action_images = PartAction(lambda screen: screen.inspect_actions.action_images)
    action_artifacts = PartAction(lambda screen: screen.inspect_actions.action_artifacts)
    action_help = PartAction(lambda screen: screen.inspect_actions.action_help)
    action_look_again = PartAction(lambda screen: screen.inspect_actions.action_look_again)
    action_theme = PartAction(lambda screen: screen.inspect_actions.action_theme)
    action_experiments = PartAction(lambda screen: screen.overview_actions.action_experiments)
    action_sweep = PartAction(lambda screen: screen.overview_actions.action_sweep)
    action_owners = PartAction(lambda screen: screen.overview_actions.action_owners)
    action_past_runs = PartAction(lambda screen: screen.overview_actions.action_past_runs)
    action_context = PartAction(lambda screen: screen.context_actions.action_context)
    action_namespaces = PartAction(lambda screen: screen.context_actions.action_namespaces)
    action_share = PartAction(lambda screen: screen.sharing.action_share)
    action_reserve = PartAction(lambda screen: screen.reservation_actions.action_reserve)
    action_unreserve = PartAction(lambda screen: screen.reservation_actions.action_unreserve)
    action_taller = PartAction(lambda screen: screen.sizes.action_taller)
    action_wider = PartAction(lambda screen: screen.sizes.action_wider)
    action_usual_sizes = PartAction(lambda screen: screen.sizes.action_usual_sizes)

    # --- actions that concern all parts ------------------------------------------------------------------------
    def action_back(self) -> None:
        """Close the prompt, a notice, the search or the zoom; else leave log or cell; else clear filters, marks."""
        panes, pane = self.panes, self.panes.focused_pane
        if self.command_line.is_open:
            self.command_line.close(keep=False)
        elif self.ctx.absence is not None and self.ctx.absence.take_away():
            pass  # only the notice is closed: filters and marks stay for the next press
        elif pane is Pane.LOG and panes.log_pane.search:
            panes.log_pane.find("")
        elif panes.zoomed is not None:
            self.navigation.zoom(None)
        elif pane is Pane.LOG:
            self.navigation.go_to(panes.last_list)
        elif pane is Pane.RUNS and panes.runs.cursor_cell:
            panes.runs.leave_cell()
        else:
            self.filters.clear()

    def action_admin(self) -> None:
        """Allow changes to other people's runs, or forbid them again; each change needs the run's name typed."""
        self.ctx.is_admin = not self.ctx.is_admin
        self.health = replace(self.health, is_admin=self.ctx.is_admin)
        allowed = "Other people's runs may be changed now: each wants its name typed." if self.ctx.is_admin else ""
        self.ctx.background.say(allowed or "Other people's runs are protected again.")

    def action_menu(self) -> None:
        """Open a list of the actions on the selection with their command lines."""
        from l2rtui.ui.dialogs.menu import MenuScreen

        def chosen(action: str | None) -> None:
            if action:  # later: the menu is still being closed, and the action may open another dialog
                self.call_later(self.app.run_action, action, self)

        self.app.push_screen(
            MenuScreen(self.ctx, self.run_actions.cli_equivalent, *self.run_actions.menu_object()), chosen
        )

    def action_copy(self) -> None:
        """Copy the command line for the selection."""
        self.ctx.background.copy(self.log_actions.cli_equivalent())

    def action_leave(self) -> None:
        """Leave the app."""
        self.app.post_message(LeaveRequested())
