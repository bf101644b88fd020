"""The home screen: what its keys do, and how the cursors of its panes make one selection.

It changes nothing itself: changes go through ``changes``, the questions of ``asks`` and the forms of other screens.
"""

from __future__ import annotations

from typing import ClassVar, Final

from textual import events, on
from textual.binding import BindingType

from l2rtui.domain.node import SlotId
from l2rtui.ui.keys import Place, bindings
from l2rtui.ui.messages import LeaveWanted
from l2rtui.ui.screens.arrangement import LISTS
from l2rtui.ui.screens.beside import Beside
from l2rtui.ui.screens.changes import Changes
from l2rtui.ui.screens.selection import Pane
from l2rtui.ui.widgets.gpu_grid import GpuGrid
from l2rtui.ui.widgets.key_bar import KeyBar
from l2rtui.ui.widgets.log_pane import LogPane
from l2rtui.ui.widgets.virtual_table import VirtualTable

SETTLE_SECONDS: Final = 0.15
"""The log follows the cursor after it has rested this long, so that running down a list opens no streams."""
MOST_HISTORY: Final = 50


class ClusterScreen(Beside, Changes):
    """Everything at a glance, and a key for each thing to do."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.CLUSTER)]
    _been: tuple[Pane, ...] = (Pane.RUNS,)
    _at = 0

    # --- what may be done --------------------------------------------------------------------------------------
    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002  (Textual's)
        """Forbid what ``--readonly`` or missing rights forbid: keys, palette, menu and clicks all ask here."""
        return None if self.may(action) else True

    def on_key(self, event: events.Key) -> None:
        """Say why a forbidden key does nothing."""
        key = self.link.keys.pressed(event.key)
        if key is not None and (reason := self.may(key.action)):
            self.link.background.say(f"{key.face} ({key.name}) is off: {reason}.")

    @on(KeyBar.Clicked)
    async def _key_clicked(self, event: KeyBar.Clicked) -> None:
        target = self.focused if event.key.place is not Place.CLUSTER and self.focused else self
        await self.app.run_action(event.key.action.replace("%", "1"), target)

    # --- selection ---------------------------------------------------------------------------------------------
    @on(VirtualTable.CursorMoved)
    def _row_moved(self, event: VirtualTable.CursorMoved) -> None:
        if event.table is self.runs:
            self.show_view(self.lower)
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
        if self.lower is Pane.CHARTS:
            self.show_charts()
        self.show_titles()

    @on(VirtualTable.Chosen)
    def _row_chosen(self, event: VirtualTable.Chosen) -> None:
        if event.table is self.nodes:
            self.slots.only = None
            first = next((slot for slot in self.snapshot.ledger.slots if slot.node == event.key), None)
            if first is not None:
                self.slots.move_to(first)
            self.action_pane(Pane.SLOTS)
        elif event.table in (self.runs, self.pods):
            self.action_pane(Pane.PODS if event.table is self.runs else Pane.LOG)
        else:
            self.action_detail()

    @on(GpuGrid.SlotChosen)
    def _slot_chosen(self, event: GpuGrid.SlotChosen) -> None:
        if self._point_at_holder(event.slot):
            self.action_pane(Pane.PODS)
        else:
            self.link.background.say(f"No pod holds slot {event.slot}.")

    # --- moving about ------------------------------------------------------------------------------------------
    def action_pane(self, pane: str) -> None:
        """Go to a pane, and remember the way."""
        to = Pane(pane)
        if to is not self._been[self._at]:
            self._been = (*self._been[: self._at + 1], to)[-MOST_HISTORY:]
            self._at = len(self._been) - 1
        self._enter(to)

    def _enter(self, pane: Pane) -> None:
        self.go_to(pane)
        self.entered(pane)

    def action_history(self, by: int) -> None:
        """Go to the view before or after."""
        if 0 <= self._at + by < len(self._been):
            self._at += by
            self._enter(self._been[self._at])
        else:
            self.link.background.say("There is no other view in that direction.")

    def action_toggle_view(self) -> None:
        """Go to the last view, and back."""
        if self._at:
            self.action_pane(self._been[self._at - 1])
        else:
            self.link.background.say("There is no view before this one.")

    def action_next_pane(self, by: int) -> None:
        """Go to the pane after or before, of those that are in sight."""
        panes = [Pane.SLOTS, Pane.RUNS, self.lower, Pane.LOG]
        now = self.focused_pane or self.selection.pane
        if now is Pane.LOG and not self._is_last_log(by):
            panes_of = [desk.pane for desk in self.deck.desks]
            self.set_focus(panes_of[panes_of.index(self.log_pane) + by])
            return
        at = panes.index(now) if now in panes else 1
        self.action_pane(panes[(at + by) % len(panes)])

    def _is_last_log(self, by: int) -> bool:
        return self.log_pane is self.deck.desks[-1 if by > 0 else 0].pane

    def action_zoom(self) -> None:
        """Give the screen to the focused pane, and back."""
        self.zoom(None if self.zoomed is not None else self.focused_pane or self.selection.pane)

    def action_back(self) -> None:
        """Undo the newest of filter, zoom, marks, faults; from the log go back to the list."""
        pane = self.focused_pane
        if self.is_typing:
            self.close_prompt(keep=False)
        elif pane is Pane.LOG and self.log_pane.search:
            self.log_pane.find("")
        elif self.zoomed is not None:
            self.zoom(None)
        elif pane is Pane.LOG:
            self.go_to(self.last_list)
        else:
            self.slots.only = None
            for table in (self.pods, self.runs, self.nodes, self.kube_events):
                table.narrow(text="", faults_only=False)
                table.clear_marks()

    def action_faults(self) -> None:
        """Show only what fails, in all tables."""
        only = not self.pods.model.faults_only
        for table in (self.runs, self.pods, self.nodes, self.kube_events):
            table.narrow(faults_only=only)

    def action_mine(self) -> None:
        """Show only what is mine, or everybody's."""
        self.is_mine_only = not self.is_mine_only
        self.show_runs()
        self.show_pods()
        self.show_titles()

    def action_all_pods(self) -> None:
        """Show the pods of all runs, or of the selected one."""
        self.has_all_pods = not self.has_all_pods
        self.show_pods()
        self.show_titles()

    # --- other screens -----------------------------------------------------------------------------------------
    def action_help(self) -> None:
        """All keys."""
        from l2rtui.ui.screens.help import HelpScreen

        self.app.push_screen(HelpScreen(self.link.keys, self.may))

    def action_menu(self) -> None:
        """What can be done with the selection, and the command line of each."""
        from l2rtui.ui.screens.menu import MenuScreen

        def chosen(action: str | None) -> None:
            if action:
                self.call_later(self.app.run_action, action, self)

        self.app.push_screen(MenuScreen(self.link, self.twin), chosen)

    def action_copy(self) -> None:
        """Copy the command line for the selection."""
        self.app.copy_to_clipboard(self.log_twin())
        self.link.background.say(f"copied: {self.log_twin()}")

    def action_leave(self) -> None:
        """Leave the app."""
        self.app.post_message(LeaveWanted())
