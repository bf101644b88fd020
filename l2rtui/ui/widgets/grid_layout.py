"""Where each slot of each node stands in the slot grid, and what its cell shows. Pure.

A node takes one line, or several when its devices do not fit beside each other or a device has many slots: nothing
is ever cut off at the right. The cursor moves over the cells of this layout, and so will placement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from l2rtui.domain.ledger import Slot, SlotState
from l2rtui.domain.node import Gpu, Node, SlotId
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.status import Level
from l2rtui.ui.text import HUES, NOTHING, Line, Span, Tone, fit, percent, shorten

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


@dataclass(frozen=True, slots=True)
class Place:
    """The cell of one slot: its line, and its column in the terminal."""

    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Grid:
    """The whole grid.

    Attributes:
        header: What stands over it. lines: its lines. slots: the cell of each slot, by line and then by column.
        legend: What the letters and glyphs mean, with counts.
    """

    header: Line
    lines: tuple[Line, ...]
    slots: Mapping[SlotId, Place]
    legend: Line

    def neighbour(self, slot: SlotId, right: int, down: int) -> SlotId:
        """The slot beside, or the nearest one on the line above or below; the same at an edge."""
        here = self.slots[slot]
        if right:
            order = list(self.slots)
            return order[max(0, min(len(order) - 1, order.index(slot) + right))]
        lines = sorted({place.y for place in self.slots.values()})
        number = lines.index(here.y) + down
        if not 0 <= number < len(lines):
            return slot
        there = [(abs(place.x - here.x), one) for one, place in self.slots.items() if place.y == lines[number]]
        return min(there)[1]


EMPTY_GRID: Final = Grid((), (), {}, ())


def letters_of(snapshot: ClusterSnapshot) -> dict[str, tuple[str, Tone]]:
    """Letter and hue of each run, by its name; oldest first, so that letters stay while a run lives."""
    runs = sorted(snapshot.runs.values(), key=lambda run: (run.created, run.name))
    return {
        run.name: (LETTERS[number] if number < len(LETTERS) else MANY, HUES[number % len(HUES)])
        for number, run in enumerate(runs)
    }


def lay_out(snapshot: ClusterSnapshot, width: int) -> Grid:
    """Lay the grid out for a terminal of this many columns."""
    letters = letters_of(snapshot)
    waiting = {pod.uid for pod in snapshot.pods.values() if pod.status.level is Level.WAIT}
    by_device: dict[tuple[str, int], list[Slot]] = defaultdict(list)
    for slot in snapshot.ledger.slots.values():
        by_device[slot.id.node, slot.id.gpu].append(slot)
    names = {name: sanitize(name) for name in snapshot.nodes}
    name_width = min(max([4, *map(len, names.values())]), 20)
    left = name_width + 14
    room = max(12, width - left)
    is_roomy = all(
        sum(_need(node, gpu, gpu.slots, 2) for gpu in node.gpus) <= room for node in snapshot.nodes.values()
    )
    pitch = 2 if is_roomy else 1
    places: dict[SlotId, Place] = {}
    lines: list[Line] = []
    for node in snapshot.nodes.values():
        head = _head(node, names[node.name], name_width)
        rows = list(_device_rows(node, room, pitch))
        for number, row in enumerate(rows or [[]]):
            spans = list(head) if number == 0 else [Span(" " * left)]
            x = left
            for gpu, label, first, last in row:
                spans.append(Span(label, Tone.DIM))
                x += len(label)
                for index, slot in enumerate(by_device[node.name, gpu.index][first:last]):
                    if index and index % GROUP == 0:
                        spans.append(Span(" "))
                        x += 1
                    spans += [_cell(slot, letters, waiting), Span(" " * (pitch - 1))]
                    places[slot.id] = Place(x, len(lines))
                    x += pitch
                spans.append(Span(" " * _GAP))
                x += _GAP
            lines.append(tuple(spans))
    header: Line = (Span(f"{'node':<{name_width}}  {'cpu':>4} {'mem':>4}  slots", Tone.DIM),)
    return Grid(header, tuple(lines), places, _legend(snapshot, letters))


def _head(node: Node, name: str, width: int) -> Line:
    """Name, then load or why it takes nothing; exactly ``width + 14`` columns."""
    if note := _note(node):
        return (Span(f"{fit(name, width)}  ", Tone.DIM), Span(f"{note:<12}", Tone.WARN))
    cpu = percent(node.cpu_used, node.cpu_cores)
    memory = percent(node.memory_used_bytes, node.memory_bytes)
    return (Span(f"{fit(name, width)}  "), Span(f"{cpu:>4} {memory:>4}   ", Tone.DIM))


def _note(node: Node) -> str:
    """Why a node takes nothing, in at most eleven columns; empty when it does."""
    if not node.ready:
        return "▲ not ready"
    if not node.is_schedulable:
        return "▲ cordoned"
    return "" if node.gpus else "no device"


def _device_rows(node: Node, width: int, pitch: int) -> Iterable[list[tuple[Gpu, str, int, int]]]:
    """Parts of devices that stand on one line each, as (device, label, first slot, last slot)."""
    row: list[tuple[Gpu, str, int, int]] = []
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


def _cell(slot: Slot, letters: Mapping[str, tuple[str, Tone]], waiting: set[str]) -> Span:
    if slot.state is not SlotState.BUSY:
        return Span(*_STATES[slot.state])
    letter, tone = letters.get(slot.run, (STRANGER, Tone.DIM))
    return Span(letter.lower() if slot.pod_uid in waiting and letter != MANY else letter, tone)


def _legend(snapshot: ClusterSnapshot, letters: Mapping[str, tuple[str, Tone]]) -> Line:
    """Runs first, then what is not ours, then the states that occur; free always."""
    slots = snapshot.ledger.slots.values()
    held: dict[str, int] = defaultdict(int)
    states: dict[SlotState, int] = defaultdict(int)
    for slot in slots:
        states[slot.state] += 1
        if slot.state in (SlotState.BUSY, SlotState.FAILED):
            held[slot.run if slot.run in letters else ""] += 1
    spans: list[Span] = []
    for name, (letter, tone) in letters.items():
        if held[name]:
            spans += [Span(letter, tone), Span(f" {shorten(sanitize(name), 20)} {held[name]}   ", Tone.DIM)]
    if held[""]:
        spans += [Span(STRANGER, Tone.DIM), Span(f" others {held['']}   ", Tone.DIM)]
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
    if not spans:
        spans.append(Span(NOTHING, Tone.DIM))
    return tuple(spans)
