"""Where each slot of each node stands in the slot grid, and what its cell shows. Pure.

A node takes one line, or several when its devices do not fit beside each other or a device has many slots: nothing
is ever cut off at the right. The cursor moves over the cells of this layout, and so does placement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from l2rtui.domain.ledger import SlotState
from l2rtui.domain.node import Gpu, Node, SlotId
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot
from l2rtui.domain.status import Level
from l2rtui.ui.text import HUES, Line, Span, Tone, fit, percent, shorten

LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWYZ"
"""One for each run, by the order in which runs were launched; ``x`` stands for what is not ours."""
STRANGER: Final = "x"
MANY: Final = "#"
"""Runs after the twenty-fifth share this one; the cursor tells them apart."""
GROUP: Final = 8
"""Slots between two small gaps on a device with many."""
_STATES: Final = {
    SlotState.FREE: ("·", Tone.DIM),
    SlotState.UNKNOWN: ("?", Tone.WARN),
    SlotState.OFF: ("─", Tone.DIM),
    SlotState.FAILED: ("!", Tone.BAD),
}
_GAP = 2
_HEAD: Final = 14
"""Columns between the name of a node and its first device: load, or why it takes nothing."""


@dataclass(frozen=True, slots=True)
class Place:
    """The cell of one slot: its line, and its column in the terminal."""

    x: int
    y: int


Part = tuple[Gpu, str, int, int]
"""A piece of a device that stands on one line: device, label, first slot, last slot."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Where everything stands; the same for as long as nodes and width are.

    Attributes:
        rows: For each line its node, whether it is the node's first, and the pieces of devices on it.
        slots: The cell of each slot, by line and then by column. by_line: the slots of each line that has any.
    """

    name_width: int
    pitch: int
    rows: tuple[tuple[str, bool, tuple[Part, ...]], ...]
    slots: Mapping[SlotId, Place]
    by_line: Mapping[int, tuple[SlotId, ...]]


NO_SHAPE: Final = Shape(4, 2, (), {}, {})


@dataclass(frozen=True)
class Grid:
    """The whole grid. Lines are written when somebody looks at them: most of a large cluster is out of sight.

    Attributes:
        ghosts: What is shown in place of some slots: staged replicas, a range.
        legend: What the letters and glyphs mean, with counts.
    """

    shape: Shape = NO_SHAPE
    snapshot: ClusterSnapshot = EMPTY_SNAPSHOT
    letters: Mapping[str, tuple[str, Tone]] = field(default_factory=dict)
    ghosts: Mapping[SlotId, Span] = field(default_factory=dict)
    legend: Line = ()

    @property
    def slots(self) -> Mapping[SlotId, Place]:
        """The cell of each slot."""
        return self.shape.slots

    @property
    def height(self) -> int:
        """Lines of slots."""
        return len(self.shape.rows)

    @property
    def header(self) -> Line:
        """What stands over the lines."""
        return (Span(f"{'node':<{self.shape.name_width}}  {'cpu':>4} {'mem':>4}  slots", Tone.DIM),)

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines."""
        return tuple(self.line(y) for y in range(self.height))

    def line(self, y: int) -> Line:
        """One line of slots."""
        name, is_first, parts = self.shape.rows[y]
        node = self.snapshot.nodes[name]
        width = self.shape.name_width
        spans = list(_head(node, fit(sanitize(name), width))) if is_first else [Span(" " * (width + _HEAD))]
        gap = " " * (self.shape.pitch - 1)
        for gpu, label, first, last in parts:
            spans.append(Span(label, Tone.DIM))
            for index in range(first, last):
                if index > first and (index - first) % GROUP == 0:
                    spans.append(Span(" "))
                spans.append(self._cell(SlotId(name, gpu.index, index)))
                if gap:
                    spans.append(Span(gap))
            spans.append(Span(" " * _GAP))
        return tuple(spans)

    def _cell(self, slot_id: SlotId) -> Span:
        if ghost := self.ghosts.get(slot_id):
            return ghost
        slot = self.snapshot.ledger.slots[slot_id]
        if slot.state is not SlotState.BUSY:
            return Span(*_STATES[slot.state])
        letter, tone = self.letters.get(slot.run, (STRANGER, Tone.DIM))
        pod = self.snapshot.pods.get(slot.pod_uid)
        is_waiting = pod is not None and pod.status.level is Level.WAIT
        return Span(letter.lower() if is_waiting and letter != MANY else letter, tone)

    def neighbour(self, slot: SlotId, right: int, down: int) -> SlotId:
        """The slot beside, or the nearest one on the line above or below; the same at an edge."""
        here, by_line = self.slots[slot], self.shape.by_line
        lines = list(by_line)
        number = lines.index(here.y)
        if right:
            row = by_line[here.y]
            at = row.index(slot) + right
            if 0 <= at < len(row):
                return row[at]
            number += right
            if not 0 <= number < len(lines):
                return slot
            return by_line[lines[number]][0 if right > 0 else -1]
        number += down
        if not 0 <= number < len(lines):
            return slot
        return min(by_line[lines[number]], key=lambda one: (abs(self.slots[one].x - here.x), one))


EMPTY_GRID: Final = Grid()


def letters_of(snapshot: ClusterSnapshot) -> dict[str, tuple[str, Tone]]:
    """Letter and hue of each run, by its name; oldest first, so that letters stay while a run lives."""
    runs = sorted(snapshot.runs.values(), key=lambda run: (run.created, run.name))
    return {
        run.name: (LETTERS[number] if number < len(LETTERS) else MANY, HUES[number % len(HUES)])
        for number, run in enumerate(runs)
    }


def lay_out(
    snapshot: ClusterSnapshot,
    width: int,
    ghosts: Mapping[SlotId, Span] | None = None,
    only: Collection[str] | None = None,
    before: Grid = EMPTY_GRID,
) -> Grid:
    """Lay the grid out for a terminal of this many columns.

    Args:
        only: Names of the nodes to show; None shows all.
        before: The grid of a moment ago, for the same width: its shape is used again while the nodes are the same.
    """
    nodes = [node for name, node in snapshot.nodes.items() if only is None or name in only]
    letters = letters_of(snapshot)
    old = [name for name, is_first, _ in before.shape.rows if is_first]
    is_same = len(old) == len(nodes) and all(
        name == node.name and (seen := before.snapshot.nodes.get(name)) is not None and seen.gpus == node.gpus
        for name, node in zip(old, nodes, strict=True)
    )
    shape = before.shape if is_same and nodes else _shape(nodes, width)
    return Grid(shape, snapshot, letters, ghosts or {}, _legend(snapshot, letters))


def _shape(nodes: Sequence[Node], width: int) -> Shape:
    """Where everything stands."""
    name_width = min(max([4, *(len(sanitize(node.name)) for node in nodes)]), 20)
    left = name_width + _HEAD
    room = max(12, width - left)
    is_roomy = all(sum(_need(node, gpu, gpu.slots, 2) for gpu in node.gpus) <= room for node in nodes)
    pitch = 2 if is_roomy else 1
    places: dict[SlotId, Place] = {}
    rows: list[tuple[str, bool, tuple[Part, ...]]] = []
    by_line: dict[int, list[SlotId]] = {}
    for node in nodes:
        for number, row in enumerate(list(_device_rows(node, room, pitch)) or [[]]):
            y, x = len(rows), left
            rows.append((node.name, number == 0, tuple(row)))
            for gpu, label, first, last in row:
                x += len(label)
                for index in range(first, last):
                    x += 1 if index > first and (index - first) % GROUP == 0 else 0
                    slot = SlotId(node.name, gpu.index, index)
                    places[slot] = Place(x, y)
                    by_line.setdefault(y, []).append(slot)
                    x += pitch
                x += _GAP
    return Shape(name_width, pitch, tuple(rows), places, {y: tuple(slots) for y, slots in by_line.items()})


def _head(node: Node, name: str) -> Line:
    """Name, then load or why it takes nothing; exactly ``width + _HEAD`` columns."""
    if note := _note(node):
        return (Span(f"{name}  ", Tone.DIM), Span(f"{note:<12}", Tone.WARN))
    cpu = percent(node.cpu_used, node.cpu_cores)
    memory = percent(node.memory_used_bytes, node.memory_bytes)
    return (Span(f"{name}  "), Span(f"{cpu:>4} {memory:>4}   ", Tone.DIM))


def _note(node: Node) -> str:
    """Why a node takes nothing, in at most eleven columns; empty when it does."""
    if not node.ready:
        return "▲ not ready"
    if not node.is_schedulable:
        return "▲ cordoned"
    return "" if node.gpus else "no device"


def _device_rows(node: Node, width: int, pitch: int) -> Iterable[list[Part]]:
    """Parts of devices that stand on one line each, as (device, label, first slot, last slot)."""
    row: list[Part] = []
    used = 0
    for gpu in node.gpus:
        label = _label(node, gpu)
        for part, (first, last) in enumerate(_parts(gpu.slots, width - len(label))):
            if part:
                label = " " * len(label)
            need = _need(node, gpu, last - first, pitch)
            if row and used + need > width:
                yield row
                row, used = [], 0
            row.append((gpu, label, first, last))
            used += need
    if row:
        yield row


def _parts(slots: int, width: int) -> Iterable[tuple[int, int]]:
    """Cut a device with many slots into pieces of whole groups that fit a width."""
    most = max(GROUP, (width + 1) // (GROUP + 1) * GROUP)
    for first in range(0, slots, most):
        yield first, min(slots, first + most)


def _label(node: Node, gpu: Gpu) -> str:
    return "cpu " if gpu.is_cpu else f"{gpu.index} " if len(node.gpus) <= 10 else f"{gpu.index:<3}"


def _need(node: Node, gpu: Gpu, slots: int, pitch: int) -> int:
    """Columns that some slots of a device take, with its label and the gap behind."""
    return len(_label(node, gpu)) + slots * pitch + (slots - 1) // GROUP + _GAP


def _legend(snapshot: ClusterSnapshot, letters: Mapping[str, tuple[str, Tone]]) -> Line:
    """Runs first, then what is not ours, then the states that occur; free always."""
    held: dict[str, int] = {}
    states = dict.fromkeys(_STATES, 0)
    free = failed = 0
    for slot in snapshot.ledger.slots.values():
        state = slot.state
        if state is SlotState.FREE:
            free += 1
        elif state is SlotState.BUSY or state is SlotState.FAILED:
            failed += state is SlotState.FAILED
            held[slot.run] = held.get(slot.run, 0) + 1
        else:
            states[state] += 1
    states[SlotState.FREE], states[SlotState.FAILED] = free, failed
    spans: list[Span] = []
    for name, (letter, tone) in list(letters.items())[: len(LETTERS)]:
        if name in held:
            spans += [Span(letter, tone), Span(f" {shorten(sanitize(name), 20)} {held[name]}   ", Tone.DIM)]
    if others := sum(slots for name, slots in held.items() if name not in letters):
        spans += [Span(STRANGER, Tone.DIM), Span(f" others {others}   ", Tone.DIM)]
    words: Sequence[tuple[SlotState, str]] = (
        (SlotState.FREE, "free"),
        (SlotState.FAILED, "failing"),
        (SlotState.UNKNOWN, "unknown"),
        (SlotState.OFF, "off"),
    )
    for state, word in words:
        if states[state] or state is SlotState.FREE:
            glyph, tone = _STATES[state]
            spans += [Span(glyph, tone), Span(f" {word} {states[state]}   ", Tone.DIM)]
    return tuple(spans)
