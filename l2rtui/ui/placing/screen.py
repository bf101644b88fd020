"""Place mode: the slot grid with a cursor that puts replicas on slots, and continuous preflight of the draft.

Nothing is created before the plan is confirmed in the review, which shows its objects and its command line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace
from textual import events, on
from textual.app import ComposeResult
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Input

from l2rtui.config import user_name
from l2rtui.domain.ledger import SlotState
from l2rtui.domain.node import SlotId
from l2rtui.domain.placement import PlacementPolicy, parse_seeds
from l2rtui.domain.preflight import Finding
from l2rtui.domain.quantity import counted
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.errors import L2RError
from l2rtui.services import launcher
from l2rtui.services.spec.spec_file import LaunchRequest
from l2rtui.ui.dialogs.dialog import SettledScreen
from l2rtui.ui.dialogs.review import show_plan
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.placing.draft_view import DraftView, RangeUnit
from l2rtui.ui.placing.editor import MAX_REPLICAS, PlacementEditor
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.state.placement_draft import (
    LaunchOptions,
    PlacementDraft,
    configured,
    loss_of,
    pin_text,
    replicas_as_settings,
)
from l2rtui.ui.state.spec_files import example_specs, load_spec
from l2rtui.ui.widgets.bars import Choice, KeyBar
from l2rtui.ui.widgets.gpu_grid import GpuGrid
from l2rtui.ui.widgets.grid.figures import NO_FIGURES, GridFigures

WIDE: Final = 110
FRAME: Final = 2
CHECK_SECONDS: Final = 0.3
"""Pause after the last change of a draft before the cluster checks it."""
DIGIT_SECONDS: Final = 1.0


class PlaceScreen(SettledScreen, Screen[tuple[str, ...] | None]):
    """Screen of place mode; its result is the names of the launched runs, or None.

    Args:
        options: What was typed before; without a path it starts with the first example.
        figures: Loads and rates shown with the slots.
        to_form: Opens the launch form with the options; None if the form is below this screen.
    """

    BINDINGS = bindings(KeyContext.PLACEMENT)
    AUTO_FOCUS = "#grid"

    def __init__(
        self,
        ctx: AppContext,
        snapshot: ClusterSnapshot,
        options: LaunchOptions | None = None,
        figures: Callable[[], GridFigures] = lambda: NO_FIGURES,
        to_form: Callable[[LaunchOptions], None] | None = None,
    ) -> None:
        super().__init__(classes="place")
        self._figures = figures
        self._ctx = ctx
        self._snapshot = snapshot
        self._first = options or LaunchOptions("")
        self._to_form = to_form
        self._paths: list[str] = [self._first.path] if self._first.path else []
        self.view = DraftView(ctx.command_line)
        self.editor = PlacementEditor()
        self._typed, self._typed_at = 0, 0.0
        self._was_moved = False
        self._prompt_field = ""
        self.facts: tuple[Finding, ...] | None = ()  # None until the backend has answered
        self._timer: Timer | None = None

    @property
    def draft(self) -> PlacementDraft:
        """Staged replicas."""
        return self.editor.draft

    def compose(self) -> ComposeResult:
        """Yield the widgets of the view."""
        yield from self.view.widgets()

    def on_mount(self) -> None:
        """Fill the grid, then look for spec files."""
        keys = self._ctx.keys.of(KeyContext.PLACEMENT)
        self.view.keys.choices = tuple(Choice(key) for key in keys if key.label)
        self.take_snapshot(self._snapshot)
        self._ctx.background.start(self._open(), group="place", what="place mode", is_exclusive=True)
        self.call_after_refresh(self.settle)

    def on_resize(self, event: events.Resize) -> None:
        """Show sets and findings side by side if they fit."""
        self.set_class(event.size.width >= WIDE, "wide")
        # The grid can compute its height only after it has its new width.
        self.call_after_refresh(self.take_snapshot, self._snapshot)

    def take_snapshot(self, snapshot: ClusterSnapshot) -> None:
        """Show a new snapshot; replicas whose slots another user has taken are no longer staged."""
        self._snapshot = snapshot
        before = self.editor.draft
        self.editor.draft = before.still_free(snapshot.ledger)
        lost = [seat for pod, seat in before.seats.items() if pod not in self.editor.draft.seats]
        if sentence := loss_of(lost, snapshot.ledger, user_name()):
            self._ctx.background.say(sentence)
        grid = self.view.grid
        grid.fit_to_room(self.size.height * 3 // 5 - FRAME)
        grid.figures, grid.snapshot = self._figures(), snapshot
        self._fit_grid()
        self._start_at_free_slot()
        self._show()

    def _start_at_free_slot(self) -> None:
        """Put the cursor on the first slot that the current set can take, unless the user has moved it."""
        ledger, name = self._snapshot.ledger, self.editor.current_set
        if not self._was_moved:
            closed = self.draft.closed_nodes(name, ledger)
            slots = (ledger.slots[slot] for slot in self.view.grid.slots if slot.node not in closed)
            if (free := next((slot for slot in slots if slot.state is SlotState.FREE), None)) is not None:
                self.view.grid.move_to(free.id)

    def _fit_grid(self) -> None:
        grid = self.view.grid
        grid.styles.height = max(6, min(grid.natural_height + FRAME, self.size.height * 3 // 5))

    @on(GpuGrid.Zoomed)
    def _zoomed(self) -> None:
        self._fit_grid()

    def _show(self) -> None:
        if self.is_open:
            self.view.show(self.editor, self._snapshot, self.facts)

    # --- the spec ----------------------------------------------------------------------------------------------
    async def _open(self) -> None:
        if not self._paths:
            self._paths = [path for path, _ in await asyncio.to_thread(example_specs)]
        if self._paths:
            await self._load(replace(self._first, path=self._paths[0]))
        else:
            self._ctx.background.say("There is no spec file in manifests/. `:place FILE` names one.")
        self._show()

    async def _load(self, options: LaunchOptions) -> None:
        request = await asyncio.to_thread(load_spec, options.path, self._ctx.settings, "", options.changes)
        self.editor.load(options.path, request, self._snapshot, options)
        self._start_at_free_slot()
        self._changed()

    def _changed(self) -> None:
        """Show the draft, and check it again after a pause without changes."""
        self.facts = None
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(CHECK_SECONDS, self._start_check)
        self._show()

    def _start_check(self) -> None:
        self._timer = None
        snapshot, request = self._snapshot, self.editor.request
        plan = self.editor.plan(snapshot)
        if plan is None or request is None:
            return

        async def check() -> None:
            facts = (*request.notes, *await launcher.checks_of(self._ctx.backend, plan, snapshot))
            if self.facts is None and self.is_open:  # otherwise the screen was left while the cluster answered
                self.facts = facts
                self._show()

        # Exclusive: the check of an older draft is cancelled, so that its findings cannot arrive last.
        self._ctx.background.start(check(), group="place", what="preflight", is_exclusive=True)

    # --- keys --------------------------------------------------------------------------------------------------
    def action_put(self) -> None:
        """Put the next replicas of the set on the cursor's slot or range; a replica staged there is removed
        instead.

        A replica that is being moved is put down.
        """
        if self.view.moving is not None:
            self.action_move()
            return
        slots = self.view.pointed()
        if not slots or not self.draft.specs:
            return
        if reason := self.editor.put(slots, self._snapshot.ledger):
            self._ctx.background.say(reason)
            return
        self._end_range()
        self._changed()

    def action_fill(self, policy: str) -> None:
        """Place all remaining replicas."""
        if self.draft.specs:
            self.editor.fill(PlacementPolicy(policy), self._snapshot.ledger, self._snapshot.nodes.values())
            self._changed()

    def action_digit(self, digit: int) -> None:
        """Set the number of replicas; digits typed quickly form one number."""
        now = time.monotonic()
        number = digit if now - self._typed_at > DIGIT_SECONDS else 10 * self._typed + digit
        if self.editor.is_learner_current:
            self._ctx.background.say("learner.nodes in the spec is its number of pods. tab goes to the next set.")
        elif self.draft.sets and 0 < number <= MAX_REPLICAS:
            self._typed, self._typed_at = number, now
            self.editor.set_replicas(number)
            self._changed()

    def action_next_set(self, by: int) -> None:
        """Go to another set."""
        self.editor.next_set(by)
        self._show()

    def action_range(self) -> None:
        """Start or cancel a range."""
        view = self.view
        if view.range_start is None:
            view.range_start = view.grid.cursor_slot
        else:
            self._end_range()
        self._show()

    def action_range_gpus(self) -> None:
        """Let the range consist of whole GPUs, then of whole nodes; start one at the cursor."""
        view = self.view
        view.unit = RangeUnit.NODE if view.unit is RangeUnit.GPU else RangeUnit.GPU
        if view.range_start is None:
            view.range_start = view.grid.cursor_slot
        self._show()

    def _end_range(self) -> None:
        self.view.range_start, self.view.unit = None, RangeUnit.SLOT

    def action_move(self) -> None:
        """Let the replica under the cursor follow it; pressed again, put it down at the cursor."""
        view, cursor = self.view, self.view.grid.cursor_slot
        if view.moving is not None and cursor is not None:
            self._put_down(cursor)
        elif cursor in self.draft.taken():
            self._end_range()
            view.moving = cursor
            self._show()
        else:
            self._ctx.background.say("Nothing is staged under the cursor: space puts a replica there.")

    def _put_down(self, slot: SlotId) -> None:
        """Put the replica that is being moved on a slot; if it is refused there, it stays at its old slot."""
        origin, self.view.moving = self.view.moving, None
        if origin is None:
            return
        before = self.draft
        if reason := self.editor.move(origin, slot, self._snapshot.ledger):
            self._ctx.background.say(reason)
        if self.draft != before:
            self._changed()
        else:  # refused, or only a click: no new check is needed
            self._show()

    def action_undo(self) -> None:
        """Undo the last step of the draft."""
        if self.editor.undo():
            self._changed()
        else:
            self._ctx.background.say("There is nothing to undo.")

    def action_clear(self) -> None:
        """Remove all replicas from the slots."""
        if self.draft.seats:
            self.editor.clear()
            self._changed()

    def action_spec(self, by: int) -> None:
        """Go to another spec file."""
        current = self.editor.options.path
        if current in self._paths and len(self._paths) > 1:
            path = self._paths[(self._paths.index(current) + by) % len(self._paths)]
            self._ctx.background.start(self._load(LaunchOptions(path)), group="place", what=path, is_exclusive=True)
        else:
            self._ctx.background.say("There is no other spec file in manifests/. `:place FILE` names one.")

    def action_form(self) -> None:
        """Go to the launch form with everything that was chosen here."""
        self.dismiss(None)
        if self._to_form is not None:
            self._to_form(self.options)

    @property
    def options(self) -> LaunchOptions:
        """Return the options for the launch form, with the slots once every replica has one."""
        editor, ledger = self.editor, self._snapshot.ledger
        if not editor.draft.seats or editor.draft.missing():
            return self._with_replicas(editor.options)
        policy, pins = editor.choice(ledger)
        return self._with_replicas(replace(editor.options, policy=str(policy or ""), on=pin_text(pins)))

    def _with_replicas(self, options: LaunchOptions) -> LaunchOptions:
        """Write the numbers of replicas as settings: the form has no other place for them."""
        request = self.editor.request
        replicas = replicas_as_settings(options, request.spec) if request is not None else ()
        return replace(options, changes=(*options.changes, *replicas), replicas={})

    def action_copy(self) -> None:
        """Copy the command line."""
        self.app.copy_to_clipboard(self._ctx.command_line(self.editor.command(self._snapshot.ledger)))
        self._ctx.background.say("copied the command line")

    def action_help(self) -> None:
        """Show all keys."""
        from l2rtui.ui.dialogs.help import HelpScreen

        self.app.push_screen(HelpScreen(self._ctx.keys, self._ctx.forbidden, KeyContext.PLACEMENT))

    def action_ask(self, field: str) -> None:
        """Ask for ``seeds`` or ``name``."""
        prompt, options = self.view.prompt, self.editor.options
        if not prompt.display:
            hint = "0-11 or 1,5,7; empty: one run" if field == "seeds" else "lower-case letters, digits and '-'"
            self._prompt_field = field
            self.view.question = f"{field.capitalize()}: {hint}   enter keep   esc back"
            prompt.open(options.seeds if field == "seeds" else options.name)
            self._show()

    @on(Input.Submitted)
    def _answered(self, event: Input.Submitted) -> None:
        value, options = event.value.strip(), self.editor.options
        if self._prompt_field == "seeds":
            try:
                parse_seeds(value) if value else ()
            except ValueError as error:
                self._ctx.background.say(f"{error}.", is_error=True)
                return
            options = replace(options, seeds=value)
        else:
            options = replace(options, name=value)
        self._close_prompt()
        self.editor.change_options(options)
        self._changed()

    def _close_prompt(self) -> None:
        self.view.question = ""
        self.view.prompt.close()
        self.set_focus(self.view.grid)

    def action_leave_place(self) -> None:
        """Close the prompt, cancel the move or the range, or leave."""
        if self.view.prompt.display:
            self._close_prompt()
            self._show()
        elif self.view.moving is not None:
            self.view.moving = None
            self._show()
        elif self.view.range_start is not None:
            self.action_range()
        else:
            self.dismiss(None)

    def action_plan(self) -> None:
        """Show the plan of the staged replicas."""
        if self.editor.request is None:
            return
        if missing := self.draft.missing():
            keys = "a packs, A spreads, f and B go by free memory and load"
            sentence = f"{counted(len(missing), 'replica')} still without a slot: {keys}."
            self._ctx.background.say(sentence)
            return
        work = self._review(self.editor.request)
        self._ctx.background.start(work, group="plan", what="the plan", is_exclusive=True)

    async def _review(self, request: LaunchRequest) -> None:
        options = self.editor.options
        policy, pins = self.editor.choice(self._snapshot.ledger)
        try:
            checked = await launcher.prepare(
                self._ctx.backend,
                configured(request, options),
                seeds=parse_seeds(options.seeds) if options.seeds else (),
                pins=pins,
                policy=policy or PlacementPolicy.PACK,
                wave=int(options.wave or 0),
            )
        except L2RError as error:
            self._ctx.background.say(str(error), is_error=True)
            return
        command = self._ctx.command_line(self.editor.command(self._snapshot.ledger))
        show_plan(self, self._ctx, checked, command)

    # --- events ------------------------------------------------------------------------------------------------
    @on(GpuGrid.SlotChosen)
    def _slot_chosen(self, event: GpuGrid.SlotChosen) -> None:
        event.stop()
        if self.view.moving is not None:
            self.action_move()
        else:
            self.action_plan()

    @on(GpuGrid.SlotMoved)
    def _slot_moved(self, event: GpuGrid.SlotMoved) -> None:
        event.stop()
        self._was_moved |= event.by_user
        if self.view.range_start is not None or self.view.moving is not None:
            self.view.show_ghosts(self.editor, self._snapshot.ledger)

    @on(GpuGrid.SlotGrabbed)
    def _slot_grabbed(self, event: GpuGrid.SlotGrabbed) -> None:
        event.stop()
        if event.slot in self.draft.taken():  # and not in a range
            self.view.moving = event.slot
            self._show()

    @on(GpuGrid.SlotReleased)
    def _slot_released(self, event: GpuGrid.SlotReleased) -> None:
        event.stop()
        if event.slot is not None:
            self._put_down(event.slot)
        elif self.view.moving is not None:  # dropped outside the slots
            self.action_leave_place()

    @on(KeyBar.Clicked)
    async def _key_clicked(self, event: KeyBar.Clicked) -> None:
        await self.app.run_action(event.key.action, self)
