"""What place mode shows: what is staged, on the grid and by set, what preflight says, and its command line."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from textual import events
from textual.app import ComposeResult
from textual.containers import Container
from textual.screen import Screen
from textual.timer import Timer

from l2rtui.config import user_name
from l2rtui.domain.ledger import SlotState
from l2rtui.domain.node import SlotId
from l2rtui.domain.plan import LaunchPlan, plan_launch
from l2rtui.domain.preflight import Finding, preflight
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.services import specfile
from l2rtui.ui.link import Link
from l2rtui.ui.screens.review import finding_line
from l2rtui.ui.staging import Form, Stage, command
from l2rtui.ui.text import Line, Span, Tone, plural, shorten
from l2rtui.ui.widgets.field import Field
from l2rtui.ui.widgets.gpu_grid import GpuGrid
from l2rtui.ui.widgets.key_bar import KeyBar
from l2rtui.ui.widgets.metric_strip import MetricStrip

WIDE: Final = 110
_NUMBERS: Final = "123456789"
"""What staged replicas show, by the number of their set."""


class StagedView(Screen[tuple[str, ...] | None]):
    """The panes of place mode with what is in them.

    Attributes:
        stage: What is staged.
    """

    def __init__(self, link: Link, snapshot: ClusterSnapshot, path: str = "") -> None:
        super().__init__(classes="place")
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
        self._field = Field("field")

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

    def _plan(self) -> LaunchPlan | None:
        specs = self.stage.specs
        if not specs:
            return None
        placement = self.stage.placement()
        uids = [str(number) for number in range(len(specs))]  # of a plan that is only looked at
        return plan_launch(specs, placement, self._snapshot.nodes, owner=user_name(), uids=uids)

    def _pointed(self) -> tuple[SlotId, ...]:
        here = self._grid.cursor_slot
        if here is None:
            return ()
        return (here,) if self._range is None else self._grid.between(self._range, here)

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
