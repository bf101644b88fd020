"""Layout of the slot grid: the position of each slot, and the text of its cell. Pure.

A node takes one line, or several when its devices do not fit beside each other or a device has many slots: nothing
is ever cut off at the right. The CPU beside GPUs has lines of its own, as narrow as they can be. The cursor moves
over the cells of this layout, and so does placement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Final

from l2rtui.domain.ledger import SlotState
from l2rtui.domain.node import CPU, Gpu, Node, SlotId
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot
from l2rtui.domain.status import Level
from l2rtui.ui.text import HUES, Line, Span, TextStyle, fit, load_bar, percent, plural, shorten, width_of

LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWYZ"
"""One letter a run, in the order of launch; ``x`` is left out, as it marks pods that l2rtui did not launch."""
FOREIGN: Final = "x"
MANY: Final = "#"
"""Letter of all runs after the twenty-fifth; the details of the slot under the cursor name the run."""
GROUP: Final = 8
"""Slots between two small gaps on a device with many."""
_STATES: Final = {
    SlotState.FREE: (Span("·", TextStyle.DIM), "free"),
    SlotState.FAILED: (Span("!", TextStyle.BAD), "failing"),
    SlotState.UNKNOWN: (Span("?", TextStyle.WARN), "unknown"),
    SlotState.OFF: (Span("─", TextStyle.DIM), "off"),
}
"""Cell of a slot without a running pod, and its word in the legend, in the order of the legend."""
_GAP = 2
_HEAD: Final = 14
"""Columns between the name of a node and its first device: load, or the reason why it takes no pods."""


@dataclass(frozen=True, slots=True)
class SlotCell:
    """Position of one slot in the grid: line and column."""

    x: int
    y: int


Part = tuple[Gpu, str, int, int]
"""A piece of a device that stands on one line: device, label, first slot, last slot."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Positions of all nodes, devices and slots; constant while nodes and width are.

    Attributes:
        rows: For each line its node, whether it is the node's first, and the pieces of devices on it.
        pitch: Columns from slot to slot, 1 or 2.
        slots: Position of each slot, by line and then by column. by_line: the slots of each line that has any.
    """

    name_width: int
    pitch: int
    rows: tuple[tuple[str, bool, tuple[Part, ...]], ...]
    slots: Mapping[SlotId, SlotCell]
    by_line: Mapping[int, tuple[SlotId, ...]]


NO_SHAPE: Final = Shape(4, 2, (), {}, {})


@dataclass(frozen=True)
class Grid:
    """Grid of one snapshot. Lines are rendered on request: most of a large cluster is out of sight.

    Attributes:
        ghosts: Spans in place of some slots: staged replicas, a range.
        legend: Meaning of the letters and glyphs, with counts.
    """

    shape: Shape = NO_SHAPE
    snapshot: ClusterSnapshot = EMPTY_SNAPSHOT
    letters: Mapping[str, tuple[str, TextStyle]] = field(default_factory=dict)
    ghosts: Mapping[SlotId, Span] = field(default_factory=dict)
    legend: Line = ()

    @property
    def slots(self) -> Mapping[SlotId, SlotCell]:
        """Position of each slot."""
        return self.shape.slots

    @property
    def height(self) -> int:
        """Number of lines, without header and legend."""
        return len(self.shape.rows)

    @property
    def header(self) -> Line:
        """Header line."""
        columns = f"{'node':<{self.shape.name_width}}  {'cpu':>4} {'mem':>4}  slots"
        is_measured = any(node.gpu_use for node in self.snapshot.nodes.values())
        busy = ", after its number how busy each GPU is" if is_measured else ""
        return (Span(columns + busy, TextStyle.DIM),)

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
        for gpu, label, first, last in parts:
            gap = " " * (_pitch(gpu, self.shape.pitch) - 1)
            spans.extend(_load(node, gpu, label))
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
            return _STATES[slot.state][0]
        letter, style = self.letters.get(slot.run, (FOREIGN, TextStyle.DIM))
        pod = self.snapshot.pods.get(slot.pod_uid)
        # Lower case: the pod has its slot but does not run yet. MANY has no lower case.
        is_waiting = pod is not None and pod.status.level is Level.WAIT
        return Span(letter.lower() if is_waiting and letter != MANY else letter, style)

    def neighbour(self, slot: SlotId, right: int, down: int) -> SlotId:
        """Return the next slot to the side, or the nearest on the line above or below; the same slot at an edge."""
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
        return min(by_line[lines[number]], key=lambda candidate: (abs(self.slots[candidate].x - here.x), candidate))


EMPTY_GRID: Final = Grid()


def letters_of(snapshot: ClusterSnapshot) -> dict[str, tuple[str, TextStyle]]:
    """Return letter and hue of each run by its name; oldest first, so that a new run changes no other letter."""
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
        before: Earlier grid of the same width; its shape is reused while nodes and devices are the same.
    """
    nodes = [node for name, node in snapshot.nodes.items() if only is None or name in only]
    letters = letters_of(snapshot)
    old = [name for name, is_first, _ in before.shape.rows if is_first]
    # Load and state of a node do not move anything; only its devices do.
    is_same = len(old) == len(nodes) and all(
        name == node.name
        and (earlier := before.snapshot.nodes.get(name)) is not None
        and earlier.devices == node.devices
        for name, node in zip(old, nodes, strict=True)
    )
    shape = before.shape if is_same and nodes else _shape(nodes, width)
    return Grid(shape, snapshot, letters, ghosts or {}, _legend(snapshot, letters, width))


def _shape(nodes: Sequence[Node], width: int) -> Shape:
    """Compute the positions. Two columns a slot where every node then fits on one line, else one."""
    name_width = min(max([4, *(len(sanitize(node.name)) for node in nodes)]), 20)
    left = name_width + _HEAD
    room = max(12, width - left)
    is_roomy = all(sum(_need(node, gpu, gpu.slots, 2) for gpu in node.gpus) <= room for node in nodes)
    pitch = 2 if is_roomy else 1
    cells: dict[SlotId, SlotCell] = {}
    rows: list[tuple[str, bool, tuple[Part, ...]]] = []
    by_line: dict[int, list[SlotId]] = {}
    for node in nodes:
        for number, row in enumerate(list(_device_rows(node, room, pitch)) or [[]]):
            y, x = len(rows), left
            rows.append((node.name, number == 0, tuple(row)))
            for gpu, label, first, last in row:
                x += len(label)
                for index in range(first, last):
                    # Must count columns exactly as Grid.line() writes them, or the cursor stands beside its slot.
                    x += 1 if index > first and (index - first) % GROUP == 0 else 0
                    slot = SlotId(node.name, gpu.index, index)
                    cells[slot] = SlotCell(x, y)
                    by_line.setdefault(y, []).append(slot)
                    x += _pitch(gpu, pitch)
                x += _GAP
    return Shape(name_width, pitch, tuple(rows), cells, {y: tuple(slots) for y, slots in by_line.items()})


def _head(node: Node, name: str) -> Line:
    """Name, then load or the reason why it takes no pods; exactly ``width + _HEAD`` columns."""
    if note := _note(node):
        return (Span(f"{name}  ", TextStyle.DIM), Span(f"{note:<12}", TextStyle.WARN))
    cpu = percent(node.cpu_used, node.cpu_cores)
    memory = percent(node.memory_used_bytes, node.memory_bytes)
    return (Span(f"{name}  "), Span(f"{cpu:>4} {memory:>4}   ", TextStyle.DIM))


def _note(node: Node) -> str:
    """Reason why a node takes no pods, in at most eleven columns; empty when it does."""
    if not node.ready:
        return "▲ not ready"
    if not node.is_schedulable:
        return "▲ cordoned"
    return "" if node.devices else "no device"


def _device_rows(node: Node, width: int, pitch: int) -> Iterable[list[Part]]:
    """Parts of devices that stand on one line each, as (device, label, first slot, last slot)."""
    row: list[Part] = []
    used = 0
    for gpu in node.devices:
        label = _label(node, gpu)
        if gpu.index == CPU and row:
            yield row
            row, used = [], 0
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
    """Split a device with many slots into parts of whole groups that fit a width."""
    # A group of eight takes nine columns with its gap. Whole groups keep the gaps of all lines above each other.
    most = max(GROUP, (width + 1) // (GROUP + 1) * GROUP)
    for first in range(0, slots, most):
        yield first, min(slots, first + most)


def _label(node: Node, gpu: Gpu) -> str:
    return "cpu " if gpu.is_cpu else f"{gpu.index} " if len(node.gpus) <= 10 else f"{gpu.index:<3}"


def _load(node: Node, gpu: Gpu, label: str) -> Line:
    """Label of a device, with its load in the place of the blank behind it, where the load is known."""
    use = node.use(gpu.index)
    if use is None or use.percent is None or not label.strip() or not label.endswith(" "):
        return (Span(label, TextStyle.DIM),)
    return Span(label[:-1], TextStyle.DIM), Span(load_bar(use.percent))


def _pitch(gpu: Gpu, pitch: int) -> int:
    """Columns from slot to slot of a device, where those of GPUs are ``pitch`` apart."""
    return 1 if gpu.index == CPU else pitch


def _need(node: Node, gpu: Gpu, slots: int, pitch: int) -> int:
    """Number of columns that some slots of a device take, with its label and the gap after it."""
    return len(_label(node, gpu)) + slots * _pitch(gpu, pitch) + (slots - 1) // GROUP + _GAP


def _legend(snapshot: ClusterSnapshot, letters: Mapping[str, tuple[str, TextStyle]], width: int) -> Line:
    """Runs first, then other pods, then the states that occur; free always.

    Where the line is too narrow, runs are left out and counted: a number that is cut would read as a smaller one.
    """
    busy: dict[str, int] = {}
    states = dict.fromkeys(_STATES, 0)
    free = failed = cpu_free = 0
    # Plain counters in one pass: this runs on every change of the cluster.
    for slot in snapshot.ledger.slots.values():
        state = slot.state
        if state is SlotState.FREE:
            free += 1
            cpu_free += slot.id.gpu == CPU
        elif state is SlotState.BUSY or state is SlotState.FAILED:
            failed += state is SlotState.FAILED
            busy[slot.run] = busy.get(slot.run, 0) + 1
        else:
            states[state] += 1
    states[SlotState.FREE], states[SlotState.FAILED] = free, failed
    entries: list[Line] = []
    if others := sum(slots for name, slots in busy.items() if name not in letters):
        entries.append((Span(FOREIGN, TextStyle.DIM), Span(f" others {others}   ", TextStyle.DIM)))
    for state, (cell, word) in _STATES.items():
        if states[state] or state is SlotState.FREE:
            # A GPU is sought more often than a core: its free slots are not hidden in a sum.
            count = f"{free - cpu_free} + {cpu_free} cpu" if state is SlotState.FREE and cpu_free else states[state]
            entries.append((cell, Span(f" {word} {count}   ", TextStyle.DIM)))
    while len(entries) > 1 and sum(map(width_of, entries)) + len("+99 runs   ") > width:
        entries.pop(0 if entries[0][0].text == FOREIGN else -1)
    last = tuple(chain.from_iterable(entries))
    named = [name for name in letters if name in busy]
    runs = [
        (Span(letter, style), Span(f" {shorten(sanitize(name), 20)} {busy[name]}   ", TextStyle.DIM))
        for name, (letter, style) in list(letters.items())[: len(LETTERS)]
        if name in busy
    ]
    return (*_fitting(runs, len(named), width - width_of(last)), *last)


def _fitting(entries: Sequence[Line], total: int, width: int) -> Line:
    """Join the first entries that fit, and count those of all that do not, or that have no entry."""
    ends = [0, *accumulate(map(width_of, entries))]
    if len(entries) == total and ends[-1] <= width:
        return tuple(chain.from_iterable(entries))
    room = width - len(f"+{total} runs   ")
    number = sum(end <= room for end in ends[1:])
    return (*chain.from_iterable(entries[:number]), Span(f"+{plural(total - number, 'run')}   ", TextStyle.DIM))
