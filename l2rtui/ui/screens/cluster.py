"""The home screen: what its keys do, and how the cursors of its panes make one selection.

It changes nothing itself: changes go through the questions of ``asks`` and the forms of other screens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from textual import events, on
from textual.binding import BindingType

from l2rtui.domain.node import SlotId
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.ui.keys import Place, bindings, changing_actions, key_of
from l2rtui.ui.messages import LeaveWanted, LookWanted
from l2rtui.ui.screens.panes import LISTS, SINCE, ClusterView
from l2rtui.ui.screens.selection import Pane
from l2rtui.ui.widgets.gpu_grid import GpuGrid
from l2rtui.ui.widgets.key_bar import KeyBar
from l2rtui.ui.widgets.log_pane import LogPane
from l2rtui.ui.widgets.virtual_table import VirtualTable

if TYPE_CHECKING:  # the first frame needs no field
    from textual.widgets import Input

SETTLE_SECONDS: Final = 0.15
"""The log follows the cursor after it has rested this long, so that running down a list opens no streams."""


class ClusterScreen(ClusterView):
    """Everything at a glance, and a key for each thing to do."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.CLUSTER)]

    # --- what may be done --------------------------------------------------------------------------------------
    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002  (Textual's)
        """Forbid whatever changes something while ``--readonly`` holds: keys, palette and clicks all ask here."""
        return None if self.link.settings.readonly and action in changing_actions() else True

    def on_key(self, event: events.Key) -> None:
        """Say why a forbidden key does nothing."""
        key = key_of(event.key)
        if key is not None and key.changes and self.link.settings.readonly:
            self.link.background.say(
                f"{key.face} ({key.label or 'scale'}) is off: the app was started with --readonly."
            )

    @on(KeyBar.Clicked)
    async def _key_clicked(self, event: KeyBar.Clicked) -> None:
        target = self.focused if event.key.place is not Place.CLUSTER and self.focused else self
        await self.app.run_action(event.key.action, target)

    # --- selection ---------------------------------------------------------------------------------------------
    @on(VirtualTable.CursorMoved)
    def _row_moved(self, event: VirtualTable.CursorMoved) -> None:
        if event.table is self.runs:
            self.show_pods()
        self._selected()

    @on(GpuGrid.SlotMoved)
    def _slot_moved(self, event: GpuGrid.SlotMoved) -> None:
        if event.by_user and event.slot is not None:
            self._point_at_holder(event.slot)
        self._selected()

    def _point_at_holder(self, slot: SlotId) -> bool:
        """Put the cursors of runs and pods on who holds a slot."""
        held = self.snapshot.ledger.slots.get(slot)
        run = self.snapshot.run_named(held.run) if held and held.run else None
        if run is not None:
            self.runs.move_to(run.uid)
            self.show_pods()
        return held is not None and self.pods.move_to(held.pod_uid)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """The list with the focus says what is selected."""
        pane = next((one for one in LISTS if event.widget is self.pane(one)), None)
        if pane is not None:
            self.last_list = pane
            self._selected()
        self.show_titles()

    def _selected(self) -> None:
        self.show_detail()
        if self.settling is not None:
            self.settling.stop()
        self.settling = self.set_timer(SETTLE_SECONDS, self._settled)

    def _settled(self) -> None:
        self.settling = None
        self.show_log()
        self.show_titles()

    @on(VirtualTable.Rearranged)
    @on(LogPane.Changed)
    def _read_differently(self) -> None:
        self.show_titles()

    @on(VirtualTable.Chosen)
    def _row_chosen(self, event: VirtualTable.Chosen) -> None:
        self.go_to(Pane.PODS if event.table is self.runs else Pane.LOG)

    @on(GpuGrid.SlotChosen)
    def _slot_chosen(self, event: GpuGrid.SlotChosen) -> None:
        if self._point_at_holder(event.slot):
            self.go_to(Pane.PODS)
        else:
            self.link.background.say(f"No pod holds slot {event.slot}.")

    # --- moving about ------------------------------------------------------------------------------------------
    def action_pane(self, pane: str) -> None:
        """Go to a pane."""
        self.go_to(Pane(pane))

    def action_next_pane(self, by: int) -> None:
        """Go to the pane after or before."""
        panes = list(Pane)
        now = self.focused_pane or self.selection.pane
        self.go_to(panes[(panes.index(now) + by) % len(panes)])

    def action_zoom(self) -> None:
        """Give the screen to the focused pane, and back."""
        self.zoom(None if self.zoomed is not None else self.focused_pane or self.selection.pane)

    def action_back(self) -> None:
        """Undo the newest of filter, zoom, marks, faults; from the log go back to the list."""
        pane = self.focused_pane
        if self.query("#find"):
            self._close_find(keep=False)
        elif pane is Pane.LOG and self.log_pane.search:
            self.log_pane.find("")
        elif self.zoomed is not None:
            self.zoom(None)
        elif pane is Pane.LOG:
            self.go_to(self.selection.pane)
        else:
            for table in (self.pods, self.runs):
                table.narrow(text="", faults_only=False)
                table.clear_marks()

    def action_find(self) -> None:
        """Open the field for the filter of a table or the search in the log."""
        from textual.widgets import Input

        if not self.query("#find"):
            is_log = self.focused_pane is Pane.LOG
            table = self._table()
            value = self.log_pane.search if is_log else table.model.filter_text
            hint = "search the log; n and N go from hit to hit" if is_log else "filter; !word leaves out"
            field = Input(value, placeholder=hint, id="find")
            self.mount(field)
            field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter or search while it is typed."""
        if self._is_log_search(event.input):
            self.log_pane.find(event.value)
        else:
            self._table().narrow(text=event.value)

    def on_input_submitted(self) -> None:
        """Keep the filter and go back to its pane."""
        self._close_find(keep=True)

    def _close_find(self, *, keep: bool) -> None:
        field = self._field()
        is_log = self._is_log_search(field)
        if not keep:
            field.value = ""
            if is_log:
                self.log_pane.find("")
            else:
                self._table().narrow(text="")
        field.remove()
        self.set_focus(self.log_pane if is_log else self._table())

    def _field(self) -> Input:
        from textual.widgets import Input

        return self.query_one("#find", Input)

    def _is_log_search(self, field: Input) -> bool:
        return field.placeholder.startswith("search")

    def _table(self) -> VirtualTable:
        return self.pods if self.selection.pane is Pane.PODS else self.runs

    def action_faults(self) -> None:
        """Show only what fails, in runs and in pods."""
        only = not self.pods.model.faults_only
        self.runs.narrow(faults_only=only)
        self.pods.narrow(faults_only=only)

    def action_all_pods(self) -> None:
        """Show the pods of all runs, or of the selected one."""
        self.has_all_pods = not self.has_all_pods
        self.show_pods()
        self.show_titles()

    # --- logs --------------------------------------------------------------------------------------------------
    def action_logs(self) -> None:
        """Go to the log, at once."""
        self.show_log()
        self.go_to(Pane.LOG)

    def action_previous_log(self) -> None:
        """The process before the present one, and back."""
        subject = self.selection.subject(self.snapshot, self.pods.marked)
        if not subject.pods:
            self.link.background.say("Nothing with a log is selected.")
            return
        self.is_previous_log = not self.is_previous_log
        self.show_log()
        self.go_to(Pane.LOG)

    @on(LogPane.SinceWanted)
    def _since_wanted(self) -> None:
        self.since = (self.since + 1) % len(SINCE)
        self.show_log()

    # --- questions and other screens ---------------------------------------------------------------------------
    def action_look_again(self) -> None:
        """Look at the cluster now."""
        self.app.post_message(LookWanted())

    def action_detail(self) -> None:
        """Everything about the selection."""
        from l2rtui.ui.screens.detail import DetailScreen

        if lines := self.about():
            self.app.push_screen(DetailScreen(lines))
        else:
            self.link.background.say("Nothing is selected.")

    def action_help(self) -> None:
        """All keys."""
        from l2rtui.ui.screens.help import HelpScreen

        self.app.push_screen(HelpScreen(is_readonly=self.link.settings.readonly))

    def action_leave(self) -> None:
        """Leave the app."""
        self.app.post_message(LeaveWanted())

    def action_launch(self) -> None:
        """The launch form."""
        from l2rtui.ui.screens.launch import LaunchScreen

        self.app.push_screen(LaunchScreen(self.link), self._launched)

    def action_place(self, path: str = "") -> None:
        """Place mode."""
        from l2rtui.ui.screens.place import PlaceScreen

        self.app.push_screen(PlaceScreen(self.link, self.snapshot, path), self._launched)

    def _launched(self, names: tuple[str, ...] | None) -> None:
        if names:
            self.link.background.say(f"launched {', '.join(names)}")

    def action_kill(self) -> None:
        """Kill the marked pods, or the selected one."""
        self.show_pods()
        marked = [pod for uid, pod in self.snapshot.pods.items() if uid in self.pods.marked]
        pod = self.selection.pod(self.snapshot)
        pods: list[PodView] = marked or ([pod] if pod else [])
        if pods:
            from l2rtui.ui.screens import asks

            asks.ask_kill(self, self.link, pods)
        else:
            self.link.background.say("Select a pod to kill: 3 goes to the pods, space marks several.")

    def action_destroy(self) -> None:
        """Destroy the marked runs, or the selected one."""
        marked = [run for uid, run in self.snapshot.runs.items() if uid in self.runs.marked]
        run = self.selection.run(self.snapshot)
        runs: list[RunView] = marked or ([run] if run else [])
        if runs:
            from l2rtui.ui.screens import asks

            asks.ask_destroy(self, self.link, runs, self.snapshot)
        else:
            self.link.background.say("Select a run to destroy: 2 goes to the runs, space marks several.")

    def action_scale(self, by: int) -> None:
        """One replica more or less in the selected set."""
        self.show_pods()
        run, set_name = self.selection.run(self.snapshot), self.selection.set_name(self.snapshot)
        if run is None or not set_name:
            self.link.background.say("Select a pod of the set to scale: 3 goes to the pods.")
        else:
            from l2rtui.ui.screens import asks

            asks.ask_scale(self, self.link, run, set_name, by)
