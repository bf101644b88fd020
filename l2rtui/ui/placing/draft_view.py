"""View of a placement draft: staged replicas on the grid and by set, preflight findings, the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Final

from textual.containers import Container
from textual.widget import Widget

from l2rtui.domain.ledger import Ledger, SlotState
from l2rtui.domain.node import SlotId
from l2rtui.domain.preflight import Finding, preflight
from l2rtui.domain.quantity import counted
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.services.terminal import Words
from l2rtui.ui.dialogs.review import folded_findings
from l2rtui.ui.placing.editor import PlacementEditor
from l2rtui.ui.text import Line, Span, TextStyle, shorten, width_of
from l2rtui.ui.widgets.bars import KeyBar
from l2rtui.ui.widgets.gpu_grid import GpuGrid
from l2rtui.ui.widgets.metric_strip import MetricStrip
from l2rtui.ui.widgets.prompt_input import PromptInput

_RANKS: Final = "abcdefghijklmnopqrstuvwxyz"
"""Glyphs of seeds with more than one digit, in order."""
_MANY: Final = "+"
"""Glyph of a staged replica of all further seeds, or sets."""


class RangeUnit(Enum):
    """Unit of a range: a slot, a GPU, or a node."""

    SLOT = "slot"
    GPU = "gpu"
    NODE = "node"

    def of(self, slot: SlotId) -> object:
        """Return the unit of a slot."""
        return slot.node if self is RangeUnit.NODE else (slot.node, slot.gpu)


class DraftView:
    """Widgets of place mode.

    Args:
        line_of: Writes the line of a command.

    Attributes:
        question: Text above the prompt instead of the command line; empty while the prompt is closed.
        range_start: First slot of a range whose other end is the cursor; None without a range.
        unit: What a range is made of.
        moving: Slot of the staged replica that follows the cursor; None if no replica does.
    """

    def __init__(self, line_of: Callable[[Words], str]) -> None:
        self._line_of = line_of
        self.head, self.grid = MetricStrip(id="head"), GpuGrid(is_exact=True, id="grid")
        self.sets, self.checks = MetricStrip(id="sets"), MetricStrip(id="checks")
        self.command, self.keys = MetricStrip(id="same"), KeyBar()
        self.prompt = PromptInput("field")
        self.question = ""
        self.range_start: SlotId | None = None
        self.unit = RangeUnit.SLOT
        self.moving: SlotId | None = None
        self.grid.border_title = " Slots "
        self.sets.border_title = " Sets "
        self.checks.border_title = " Preflight "

    def widgets(self) -> Iterator[Widget]:
        """Yield the widgets from top to bottom."""
        yield self.head
        yield self.grid
        yield Container(self.sets, self.checks, id="columns")
        yield self.command
        yield self.prompt
        yield self.keys

    def pointed(self) -> tuple[SlotId, ...]:
        """Return the slots under the cursor: one, or a range."""
        cursor, start = self.grid.cursor_slot, self.range_start
        if cursor is None or start is None:
            return () if cursor is None else (cursor,)
        slots = self.grid.between(start, cursor)
        if self.unit is RangeUnit.SLOT:
            return slots
        # The ends belong to the range as a whole, like the lines of a selection by lines in an editor.
        units = {self.unit.of(slot) for slot in slots}
        return tuple(slot for slot in self.grid.slots if self.unit.of(slot) in units)

    def show(self, editor: PlacementEditor, snapshot: ClusterSnapshot, facts: tuple[Finding, ...] | None) -> None:
        """Update all widgets; ``facts`` are the findings of the backend, None until it answers."""
        num_missing = len(editor.draft.missing())
        if self.moving not in editor.draft.taken():  # undone, or another user took the slot
            self.moving = None
        self.show_ghosts(editor, snapshot.ledger)
        self.sets.lines = (*_seed_lines(editor, self.sets.size.width), *_set_lines(editor))
        self.checks.lines = tuple(_check_lines(editor, snapshot, facts, num_missing))
        command = sanitize(self._line_of(editor.command(snapshot.ledger)))
        same = (Span(" same as  ", TextStyle.DIM), Span(command))
        self.command.lines = ((Span(f" {self.question}"),) if self.question else same,)

    def show_ghosts(self, editor: PlacementEditor, ledger: Ledger) -> None:
        """Show the range, the staged replicas and the replica being moved, on the grid and above it."""
        glyphs = _glyphs(editor)
        ghosts: dict[SlotId, Span] = {}
        if self.range_start is not None:
            closed = editor.draft.closed_nodes(editor.current_set, ledger)
            slots = (ledger.slots[slot] for slot in self.pointed() if slot.node not in closed)
            ghosts = {slot.id: Span("░", TextStyle.ACCENT) for slot in slots if slot.state is SlotState.FREE}
        for slot, seat in editor.draft.taken().items():
            ghosts[slot] = Span(glyphs[seat.run, seat.set_name], TextStyle.STAGED)
        moving, target = self.moving, self.grid.cursor_slot
        if moving is None or target is None:
            self.head.lines = (_head_line(editor, ledger, len(editor.draft.missing())),)
        else:
            self.head.lines = (_move_line(editor, moving, target, ledger),)
            _move_ghost(editor, moving, target, ledger, ghosts)
        self.grid.ghosts = ghosts


def _head_line(editor: PlacementEditor, ledger: Ledger, num_missing: int) -> Line:
    draft, options = editor.draft, editor.options
    if editor.request is None:
        return (Span(" PLACE ", TextStyle.STRONG), Span(" reading the spec files", TextStyle.DIM))
    facts = (
        # Numbers first: if the line is too narrow, names are cut, not numbers.
        ("staged", f"{len(draft.seats)}/{len(draft.seats) + num_missing}"),
        ("free after", f"{ledger.count(SlotState.FREE) - len(draft.taken())}"),
        ("seeds", options.seeds or "one"),
        ("name", options.name or editor.request.spec.name),
        ("spec", Path(options.path).name),
    )
    spans = [Span(" PLACE ", TextStyle.STRONG)]
    for label, value in facts:
        spans += [Span(f"  {label} ", TextStyle.DIM), Span(sanitize(value), TextStyle.ACCENT)]
    return tuple(spans)


def _move_line(editor: PlacementEditor, origin: SlotId, target: SlotId, ledger: Ledger) -> Line:
    seat, reason = editor.draft.taken()[origin], editor.refusal(origin, target, ledger)
    end = (
        Span(f"  {sanitize(reason)}", TextStyle.BAD)
        if reason
        else Span("  release or space puts it", TextStyle.DIM)
    )
    way = f"  {sanitize(seat.pod)}  {seat.slots[0]} → {target}"
    return (Span(" MOVE ", TextStyle.STRONG), Span(way, TextStyle.ACCENT), end)


def _move_ghost(
    editor: PlacementEditor, origin: SlotId, target: SlotId, ledger: Ledger, ghosts: dict[SlotId, Span]
) -> None:
    """Draw the replica at its target, and its current slots as left; if a slot refuses it, as a fault."""
    before = editor.draft.taken()[origin]
    after = editor.draft.move(origin, target, ledger)
    if after is None:
        ghosts[target] = Span("✖", TextStyle.BAD)
        return
    glyph = ghosts[origin]
    ghosts.update(dict.fromkeys(before.slots, Span("░", TextStyle.ACCENT)))
    ghosts.update(dict.fromkeys(after.seats[before.pod].slots, glyph))


def _set_lines(editor: PlacementEditor) -> Iterator[Line]:
    draft, current, glyphs = editor.draft, editor.current_set, _glyphs(editor)
    has_glyphs = len(draft.specs) == 1  # with several runs the glyph is the seed's
    for spec in draft.sets:
        total = spec.replicas * len(draft.specs)
        staged = total - len(draft.missing(spec.name)) if spec.slots else total
        size = f"{spec.replicas} x {counted(spec.slots, 'slot')}" if spec.slots else "no slot"
        is_current = spec.name == current
        yield (
            Span(" ▸ " if is_current else "   ", TextStyle.ACCENT),
            *((Span(glyphs[draft.specs[0].name, spec.name], TextStyle.STAGED), Span(" ")) if has_glyphs else ()),
            Span(f"{sanitize(spec.name):<14} ", TextStyle.STRONG if is_current else TextStyle.PLAIN),
            Span(f"{staged:>4}/{total:<4} ", TextStyle.OK if staged == total else TextStyle.WARN),
            Span(size, TextStyle.DIM),
        )


def _check_lines(
    editor: PlacementEditor, snapshot: ClusterSnapshot, facts: tuple[Finding, ...] | None, num_missing: int
) -> Iterator[Line]:
    plan = editor.plan(snapshot)
    if plan is None:
        return
    for conflict in editor.conflicts:
        yield (Span(" ✖ ", TextStyle.BAD), Span(sanitize(shorten(conflict, 200)), TextStyle.BAD))
    if num_missing:
        yield (Span(" ◌ ", TextStyle.WAIT), Span(f"{counted(num_missing, 'replica')} still without a slot"))
    if facts is None:
        yield (Span(" ◌ ", TextStyle.WAIT), Span("asking the cluster", TextStyle.DIM))
    for line in folded_findings(preflight(plan, snapshot, facts or ())):
        yield (Span(" "), *line)


def _glyphs(editor: PlacementEditor) -> dict[tuple[str, str], str]:
    """Return the glyph of a staged replica by run and set: the seed, or the number of the set of a single run.

    They are reversed on the grid, unlike anything else on free slots, so a GPU index cannot be mistaken for one.
    """
    draft = editor.draft
    if len(draft.specs) == 1:
        sets = enumerate(draft.sets, start=1)
        return {(draft.specs[0].name, spec.name): str(number) if number < 10 else _MANY for number, spec in sets}
    large = sorted(run.seed for run in draft.specs if run.seed >= 10)
    ranks = dict(zip(large, _RANKS, strict=False))  # the remaining ones share a glyph
    return {
        (run.name, spec.name): str(run.seed) if run.seed < 10 else ranks.get(run.seed, _MANY)
        for run in draft.specs
        for spec in run.sets
    }


def _seed_lines(editor: PlacementEditor, width: int) -> Iterator[Line]:
    """Yield the glyphs of seeds that have more than one digit, as many per line as fit."""
    by_set, runs = _glyphs(editor), editor.draft.specs
    if len(runs) < 2:
        return
    glyphs = {run.seed: by_set[run.name, run.sets[0].name] for run in runs if run.sets and run.seed >= 10}
    line = [Span("   ")]
    for seed, glyph in sorted(glyphs.items()):
        entry = [Span(glyph, TextStyle.STAGED), Span(f" seed {seed}  ", TextStyle.DIM)]
        if width_of([*line, *entry]) > max(20, width) and len(line) > 1:
            yield tuple(line)
            line = [Span("   ")]
        line += entry
    if len(line) > 1:
        yield tuple(line)
