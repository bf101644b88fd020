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

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Input

from l2rtui.config import user_name
from l2rtui.domain.ledger import SlotState
from l2rtui.domain.node import SlotId
from l2rtui.domain.placement import Policy, parse_seeds
from l2rtui.domain.plan import LaunchPlan, plan_launch
from l2rtui.domain.preflight import Finding, preflight
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.workload import Role
from l2rtui.errors import L2RError
from l2rtui.services import launcher, specfile
from l2rtui.ui.keys import Place, bindings
from l2rtui.ui.link import Link
from l2rtui.ui.screens.review import ReviewScreen, finding_line
from l2rtui.ui.specfiles import example_specs
from l2rtui.ui.staging import Form, Stage, command, free_name, specs_of
from l2rtui.ui.text import Line, Span, Tone, plural, shorten
from l2rtui.ui.widgets.gpu_grid import GpuGrid
from l2rtui.ui.widgets.key_bar import Choice, KeyBar
from l2rtui.ui.widgets.metric_strip import MetricStrip

CHECK_SECONDS: Final = 0.3
"""The cluster is asked about a plan after it has stood still for this long."""
WIDE: Final = 110
DIGIT_SECONDS: Final = 1.0
MOST_REPLICAS: Final = 4096
_NUMBERS: Final = "123456789"
"""What staged replicas show, by the number of their set."""


class PlaceScreen(Screen[tuple[str, ...] | None]):
    """Answers with the names of the launched runs, or None when nothing was launched.

    Args:
        path: A spec file to begin with; empty takes the first of the examples.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.PLACE)]
    AUTO_FOCUS = "#grid"

    def __init__(self, link: Link, snapshot: ClusterSnapshot, path: str = "") -> None:
        super().__init__(id="place")
        self._link = link
        self._snapshot = snapshot
        self._paths: list[str] = [path] if path else []
        self._form = Form("")
        self._wish: specfile.Wish | None = None
        self.stage = Stage()
        self._past: list[tuple[Form, Stage]] = []
        self._set = 0
        self._range: SlotId | None = None
        self._typed, self._typed_at = 0, 0.0
        self._asked = ""
        self._conflicts: tuple[str, ...] = ()
        self._facts: tuple[Finding, ...] | None = ()
        self._timer: Timer | None = None
        self._head, self._grid = MetricStrip(id="head"), GpuGrid(id="grid")
        self._sets, self._checks = MetricStrip(id="sets"), MetricStrip(id="checks")
        self._command, self._keys = MetricStrip(id="same"), KeyBar()
        self._field = Input(id="field")
        self._field.display = False

    def compose(self) -> ComposeResult:
        """What is placed, the grid, its sets beside the findings, the command line, the keys."""
        yield self._head
        yield self._grid
        with Container(id="beside"):
            yield self._sets
            yield self._checks
        yield self._command
        yield self._field
        yield self._keys

    def on_mount(self) -> None:
        """Fill the grid, then look for spec files."""
        self._grid.border_title = " Slots "
        self._sets.border_title = " Sets "
        self._checks.border_title = " Preflight "
        self._keys.choices = tuple(Choice(key) for key in self._link.keys.of(Place.PLACE) if key.label)
        self.take_snapshot(self._snapshot)
        self._link.background.start(self._open(), group="place", what="place mode", is_exclusive=True)

    def on_resize(self, event: events.Resize) -> None:
        """Sets beside the findings where there is room."""
        self.set_class(event.size.width >= WIDE, "wide")
        self.call_after_refresh(self.take_snapshot, self._snapshot)

    def take_snapshot(self, snapshot: ClusterSnapshot) -> None:
        """The cluster has changed: what somebody else has taken is no longer staged."""
        self._snapshot = snapshot
        kept = self.stage.still_free(snapshot.ledger)
        if kept is not self.stage:
            lost = plural(len(self.stage.seats) - len(kept.seats), "staged replica")
            self.stage = kept
            self._link.background.say(f"Somebody else took slots: {lost} went back.")
        self._grid.snapshot = snapshot
        self._grid.styles.height = max(6, min(self._grid.natural_height + 1, self.size.height * 3 // 5))
        self._show()

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

    def _plan(self) -> LaunchPlan | None:
        specs = self.stage.specs
        if not specs:
            return None
        placement = self.stage.placement()
        uids = [str(number) for number in range(len(specs))]  # of a plan that is only looked at
        return plan_launch(specs, placement, self._snapshot.nodes, owner=user_name(), uids=uids)

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

    def _pointed(self) -> tuple[SlotId, ...]:
        here = self._grid.cursor_slot
        if here is None:
            return ()
        return (here,) if self._range is None else self._grid.between(self._range, here)

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
            self._field.value = value
            self._field.display = True
            self.set_focus(self._field)

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
        self.app.push_screen(ReviewScreen(self._link, prepared, self.command), self._reviewed)

    def _reviewed(self, launched: tuple[str, ...] | None) -> None:
        if launched:
            self.dismiss(launched)

    # --- what is shown -----------------------------------------------------------------------------------------
    @property
    def chosen_set(self) -> str:
        """Name of the set that space puts."""
        sets = self.stage.sets
        return sets[self._set % len(sets)].name if sets else ""

    @property
    def command(self) -> str:
        """The command line that launches what is staged."""
        if self._wish is None:
            return "l2rtui launch"
        policy = self.stage.policy(self._snapshot.ledger) if self.stage.seats else None
        return command(self._form, self._wish.spec, self.stage.pins(), policy)

    def _remember(self) -> None:
        self._past.append((self._form, self.stage))

    def _to_next_unseated(self) -> None:
        names = [one.name for one in self.stage.sets]
        order = names[self._set :] + names[: self._set]
        waiting = next((name for name in order if self.stage.missing(name)), None)
        if waiting is not None:
            self._set = names.index(waiting)

    def _close_field(self) -> None:
        self._field.display = False
        self.set_focus(self._grid)

    def _show(self) -> None:
        if not self.is_attached:
            return
        missing = self.stage.missing()
        self._head.lines = (self._head_line(len(missing)),)
        self._grid.ghosts = self._ghosts()
        self._sets.lines = self._set_lines()
        self._checks.lines = self._check_lines(len(missing))
        self._command.lines = ((Span(" same as  ", Tone.DIM), Span(sanitize(self.command))),)

    def _head_line(self, missing: int) -> Line:
        if self._wish is None:
            return (Span(" PLACE ", Tone.STRONG), Span(" reading the spec files", Tone.DIM))
        total = len(self.stage.seats) + missing
        free = self._snapshot.ledger.count(SlotState.FREE)
        name = self._form.name or self._wish.spec.name
        facts = (
            ("spec", Path(self._form.path).name),
            ("name", name),
            ("staged", f"{len(self.stage.seats)}/{total}"),
            ("seeds", self._form.seeds or "one"),
            ("free after", f"{free - len(self.stage.taken())}"),
        )
        spans = [Span(" PLACE ", Tone.STRONG)]
        for label, value in facts:
            spans += [Span(f"  {label} ", Tone.DIM), Span(sanitize(value), Tone.ACCENT)]
        return tuple(spans)

    def _ghosts(self) -> dict[SlotId, Span]:
        names = [one.name for one in self.stage.sets]
        ghosts: dict[SlotId, Span] = {}
        if self._range is not None:
            free = (self._snapshot.ledger.slots[slot] for slot in self._pointed())
            ghosts = {slot.id: Span("░", Tone.ACCENT) for slot in free if slot.state is SlotState.FREE}
        for slot, seat in self.stage.taken().items():
            ghosts[slot] = Span(_number(names.index(seat.set_name)), Tone.STAGED)
        return ghosts

    def _set_lines(self) -> tuple[Line, ...]:
        lines: list[Line] = []
        for number, one in enumerate(self.stage.sets):
            total = one.replicas * len(self.stage.specs)
            is_chosen = one.name == self.chosen_set
            staged = total - len(self.stage.missing(one.name)) if one.slots else total
            each = f"{plural(one.replicas, 'replica')} of {plural(one.slots, 'slot')}" if one.slots else "no slot"
            lines.append(
                (
                    Span(" ▸ " if is_chosen else "   ", Tone.ACCENT),
                    Span(f"{_number(number)} ", Tone.STAGED),
                    Span(f"{sanitize(one.name):<14} ", Tone.STRONG if is_chosen else Tone.PLAIN),
                    Span(f"{staged:>4}/{total:<4} ", Tone.OK if staged == total else Tone.WARN),
                    Span(each, Tone.DIM),
                )
            )
        return tuple(lines)

    def _check_lines(self, missing: int) -> tuple[Line, ...]:
        plan = self._plan()
        if plan is None:
            return ()
        lines: list[Line] = [
            (Span(" ✖ ", Tone.BAD), Span(sanitize(shorten(one, 200)), Tone.BAD)) for one in self._conflicts
        ]
        if missing:
            lines.append((Span(" ◌ ", Tone.WAIT), Span(f"{plural(missing, 'replica')} still without a slot")))
        if self._facts is None:
            lines.append((Span(" ◌ ", Tone.WAIT), Span("asking the cluster", Tone.DIM)))
        found = preflight(plan, self._snapshot, self._facts or ())
        return (*lines, *((Span(" "), *finding_line(one)) for one in found))


def _number(index: int) -> str:
    return _NUMBERS[index] if index < len(_NUMBERS) else "+"


def _read(path: str) -> specfile.Wish:
    return specfile.load(str(Path(path).expanduser()))
