"""Place mode: the slot grid with a cursor that puts replicas on slots, and what preflight says of it, at once.

Nothing exists before the plan, which the review shows with its objects and its command line, is confirmed. Staged
replicas are values of ``ui.staging``; every step can be undone.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final

from textual import on
from textual.binding import BindingType
from textual.widgets import Input

from l2rtui.domain.ledger import SlotState
from l2rtui.domain.node import SlotId
from l2rtui.domain.placement import Policy, parse_seeds
from l2rtui.domain.workload import Role
from l2rtui.errors import L2RError
from l2rtui.services import launcher, specfile
from l2rtui.ui.keys import Place, bindings
from l2rtui.ui.screens.review import show_plan
from l2rtui.ui.screens.staged import StagedView
from l2rtui.ui.specfiles import example_specs
from l2rtui.ui.staging import Form, Stage, free_name, specs_of
from l2rtui.ui.text import plural
from l2rtui.ui.widgets.gpu_grid import GpuGrid
from l2rtui.ui.widgets.key_bar import Choice, KeyBar

CHECK_SECONDS: Final = 0.3
"""The cluster is asked about a plan after it has stood still for this long."""
DIGIT_SECONDS: Final = 1.0
MOST_REPLICAS: Final = 4096


class PlaceScreen(StagedView):
    """Answers with the names of the launched runs, or None when nothing was launched.

    Args:
        path: A spec file to begin with; empty takes the first of the examples.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.PLACE)]
    AUTO_FOCUS = "#grid"

    def on_mount(self) -> None:
        """Fill the grid, then look for spec files."""
        self._grid.border_title = " Slots "
        self._sets.border_title = " Sets "
        self._checks.border_title = " Preflight "
        self._keys.choices = tuple(Choice(key) for key in self._link.keys.of(Place.PLACE) if key.label)
        self.take_snapshot(self._snapshot)
        self._link.background.start(self._open(), group="place", what="place mode", is_exclusive=True)

    # --- the spec ----------------------------------------------------------------------------------------------
    async def _open(self) -> None:
        if not self._paths:
            self._paths = [str(path) for path, _ in await asyncio.to_thread(example_specs)]
        if self._paths:
            await self._load(self._paths[0])
        else:
            self._link.background.say("There is no spec file in manifests/. `:place FILE` names one.")
        self._show()

    async def _load(self, path: str) -> None:
        wish = await asyncio.to_thread(_read, path)
        name = free_name(wish.spec.name, self._snapshot)
        self._wish = wish
        self._form = Form(path, name if name != wish.spec.name else "")
        self._past.clear()
        self._set, self.stage = 0, Stage()
        self._restage(self._form)
        self._to_next_unseated()
        self._show()

    def _restage(self, form: Form) -> None:
        """Take another form; seats of replicas that are still wanted stay."""
        if self._wish is None:
            return
        wish = self._wish.spec
        spec = replace(wish, name=form.name, experiment=form.name) if form.name else wish
        seeds = parse_seeds(form.seeds) if form.seeds else ()
        self._form = form
        self.stage = self.stage.with_specs(specs_of(spec, form, seeds))
        self._changed()

    def _changed(self, conflicts: tuple[str, ...] = ()) -> None:
        self._conflicts, self._facts = conflicts, None
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(CHECK_SECONDS, self._ask_cluster)
        self._show()

    def _ask_cluster(self) -> None:
        """Ask what only the backend can know, once the plan stands still."""
        self._timer = None
        plan = self._plan()
        if plan is None:
            return

        async def ask() -> None:
            facts = await self._link.backend.check(plan)
            if self._facts is None and self.is_attached:
                self._facts = facts
                self._show()

        self._link.background.start(ask(), group="place", what="preflight", is_exclusive=True)

    # --- keys --------------------------------------------------------------------------------------------------
    def action_put(self) -> None:
        """Put the next replicas of the set on the cursor's slot or range; what is staged there is taken instead."""
        slots = self._pointed()
        if not slots or not self.stage.specs:
            return
        staged = self.stage.taken()
        self._remember()
        if any(slot in staged for slot in slots):
            self.stage = self.stage.take(slots)
        else:
            before = len(self.stage.seats)
            self.stage = self.stage.put(self.chosen_set, slots, self._snapshot.ledger)
            if len(self.stage.seats) == before:
                self._past.pop()
                self._link.background.say(self._why_not(slots[0]))
                return
            if not self.stage.missing(self.chosen_set):
                self._to_next_unseated()
        self._range = None
        self._changed()

    def _why_not(self, slot: SlotId) -> str:
        if not self.stage.missing(self.chosen_set):
            return f"Every replica of {self.chosen_set} has a slot. tab: next set, digits: another number."
        held = self._snapshot.ledger.slots[slot]
        if held.state is not SlotState.FREE:
            holder = f" by {held.pod}" if held.pod else ""
            return f"Slot {slot} is {held.state}{holder}."
        return f"{slot.node}/{slot.gpu} has too few free slots after {slot} for one replica of {self.chosen_set}."

    def action_fill(self, policy: str) -> None:
        """Seat everything that is left."""
        if self.stage.specs:
            self._remember()
            self.stage, conflicts = self.stage.fill(Policy(policy), self._snapshot.ledger)
            self._changed(conflicts)

    def action_digit(self, digit: int) -> None:
        """Set the number of replicas; digits in quick succession make one number."""
        now = time.monotonic()
        number = digit if now - self._typed_at > DIGIT_SECONDS else 10 * self._typed + digit
        chosen = next((one for one in self.stage.sets if one.name == self.chosen_set), None)
        if chosen is None:
            return
        if chosen.role is Role.LEARNER:
            self._link.background.say("A run has exactly one learner. tab goes to the next set.")
        elif 0 < number <= MOST_REPLICAS:
            self._typed, self._typed_at = number, now
            self._remember()
            replicas = {**self._form.replicas, self.chosen_set: number}
            self._restage(replace(self._form, replicas=MappingProxyType(replicas)))

    def action_next_set(self, by: int) -> None:
        """Go to another set."""
        if self.stage.sets:
            self._set = (self._set + by) % len(self.stage.sets)
            self._show()

    def action_range(self) -> None:
        """Begin or give up a range."""
        self._range = self._grid.cursor_slot if self._range is None else None
        self._show()

    def action_undo(self) -> None:
        """Undo the last step."""
        if not self._past:
            self._link.background.say("There is nothing to undo.")
            return
        form, self.stage = self._past.pop()
        self._restage(form)

    def action_clear(self) -> None:
        """Take everything back."""
        if self.stage.seats:
            self._remember()
            self.stage = self.stage.take(tuple(self.stage.taken()))
            self._changed()

    def action_spec(self, by: int) -> None:
        """Go to another spec file."""
        if self._form.path in self._paths and len(self._paths) > 1:
            path = self._paths[(self._paths.index(self._form.path) + by) % len(self._paths)]
            self._link.background.start(self._load(path), group="place", what=path, is_exclusive=True)
        else:
            self._link.background.say("There is no other spec file in manifests/. `:place FILE` names one.")

    def action_copy(self) -> None:
        """Copy the command line."""
        self.app.copy_to_clipboard(self.command)
        self._link.background.say("copied the command line")

    def action_help(self) -> None:
        """All keys."""
        from l2rtui.ui.screens.help import HelpScreen

        self.app.push_screen(HelpScreen(self._link.keys, self._link.forbidden))

    def action_ask(self, what: str) -> None:
        """Open the field for seeds or name."""
        if not self._field.display:
            hint = "0-11 or 1,5,7; empty: one run" if what == "seeds" else "lower-case letters, digits and '-'"
            value = self._form.seeds if what == "seeds" else self._form.name
            self._asked = what
            self._field.placeholder = f"{what}: {hint}"
            self._field.open(value)

    @on(Input.Submitted)
    def _answered(self, event: Input.Submitted) -> None:
        value, what = event.value.strip(), self._asked
        try:
            form = replace(self._form, seeds=value) if what == "seeds" else replace(self._form, name=value)
            if value and what == "seeds":
                parse_seeds(value)
        except ValueError as error:
            self._link.background.say(f"{error}.", is_error=True)
            return
        self._close_field()
        self._remember()
        self._restage(form)

    def action_leave_place(self) -> None:
        """Close the field, give up the range, or leave."""
        if self._field.display:
            self._close_field()
        elif self._range is not None:
            self.action_range()
        else:
            self.dismiss(None)

    def action_plan(self) -> None:
        """Show the plan of what is staged."""
        if self._wish is None:
            return
        if missing := self.stage.missing():
            self._link.background.say(
                f"{plural(len(missing), 'replica')} still without a slot: a packs, A spreads."
            )
            return
        self._link.background.start(self._review(), group="plan", what="the plan", is_exclusive=True)

    @on(GpuGrid.SlotChosen)
    def _entered(self, event: GpuGrid.SlotChosen) -> None:
        event.stop()
        self.action_plan()

    @on(GpuGrid.SlotMoved)
    def _moved(self, event: GpuGrid.SlotMoved) -> None:
        event.stop()
        if self._range is not None:
            self._grid.ghosts = self._ghosts()

    @on(KeyBar.Clicked)
    async def _key_clicked(self, event: KeyBar.Clicked) -> None:
        await self.app.run_action(event.key.action, self)

    async def _review(self) -> None:
        wish, stage, form = self._wish, self.stage, self._form
        if wish is None:
            return
        policy = stage.policy(self._snapshot.ledger)
        base = replace(stage.specs[0], name=form.name or wish.spec.name, seed=wish.spec.seed)
        seeds = parse_seeds(form.seeds) if form.seeds else ()
        pins = () if policy is not None else stage.pins()
        try:
            prepared = await launcher.prepare(
                self._link.backend, replace(wish, spec=base), seeds=seeds, pins=pins, policy=policy or Policy.PACK
            )
        except L2RError as error:
            self._link.background.say(str(error), is_error=True)
            return
        show_plan(self, self._link, prepared, self.command, self._reviewed)

    def _reviewed(self, launched: tuple[str, ...] | None) -> None:
        if launched:
            self.dismiss(launched)

    def _remember(self) -> None:
        self._past.append((self._form, self.stage))

    def _to_next_unseated(self) -> None:
        names = [one.name for one in self.stage.sets]
        order = names[self._set :] + names[: self._set]
        waiting = next((name for name in order if self.stage.missing(name)), None)
        if waiting is not None:
            self._set = names.index(waiting)

    def _close_field(self) -> None:
        self._field.close()
        self.set_focus(self._grid)


def _read(path: str) -> specfile.Wish:
    return specfile.load(str(Path(path).expanduser()))
