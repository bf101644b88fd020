"""Positions of all slots in the grid, at three zoom levels.

``CLUSTER`` has one cell per device and several nodes per line. ``NODE`` has one line per node, if its devices fit
side by side, with a cell per slot. ``GPU`` has a tile per GPU under a line for its node. Nothing is cut off at the
right: content that does not fit takes another line. The CPU of a GPU node has separate lines, as narrow as
possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from l2rtui.domain.node import CPU, Gpu, Node, SlotId
from l2rtui.domain.sanitize import sanitize

GROUP: Final = 8
"""Slots between two small gaps on a device with many slots."""
HEAD: Final = 14
"""Columns between the name of a node and its first device: load, or the reason why it takes no pods."""
SHORT_HEAD: Final = 4
"""The same if the devices would not fit otherwise: two bars, or a glyph."""
LONGEST_NAME: Final = 20
MARGIN: Final = 8
"""Columns before the tiles: the names of their lines."""
NARROWEST_TILE: Final = 6
WIDEST_TILE: Final = 18
TILE_GAP: Final = 2
"""Columns between two tiles: more than between a bar and its percentage, so that each figure has one owner."""
CELL_WIDTH: Final = 2
"""Columns of a device at the cluster level: its holder and its load."""
_LEAST_ROOM: Final = 12
_SPACINGS: Final = ((HEAD, 2, 2), (HEAD, 1, 2), (HEAD, 1, 1), (SHORT_HEAD, 1, 1))
"""Head, columns from slot to slot, and gap between devices of a line, from wide to narrow."""
_FOLDED: Final = (*_SPACINGS[:-1], (HEAD, 1, 1, False), _SPACINGS[-1])
"""The same of a folded node: the reason why it takes no pods goes before the numbers of its GPUs."""


class ZoomLevel(StrEnum):
    """Level of detail of the grid, from coarse to fine."""

    CLUSTER = "cluster"
    NODE = "node"
    GPU = "gpu"


class TileRow(IntEnum):
    """Lines of a tile, from top to bottom."""

    SLOTS = 0
    BUSY = 1
    MEMORY = 2
    RATE = 3


class SlotCell(NamedTuple):
    """Position of one slot in the grid: column and line."""

    x: int
    y: int


class Part(NamedTuple):
    """Part of a device on one line: its label, its first slot, the one after its last, the columns of each."""

    gpu: Gpu
    label: str
    first: int
    last: int
    pitch: int = 1


class OverviewLine(Struct, frozen=True):
    """Several nodes on one line; of a node with many devices only some."""

    nodes: tuple[tuple[str, bool, tuple[Gpu, ...]], ...]


class NodeLine(Struct, frozen=True):
    """Devices of one node side by side."""

    node: str
    is_first: bool
    parts: tuple[Part, ...]
    name_width: int = 0
    head: int = 0
    gap: int = 2


class TileHead(Struct, frozen=True):
    """The node that the tiles below belong to."""

    node: str


class TileLine(Struct, frozen=True):
    """One line of tiles side by side."""

    node: str
    row: TileRow
    parts: tuple[Part, ...]


Row = OverviewLine | NodeLine | TileHead | TileLine


class Shape(Struct, frozen=True):
    """Positions of all nodes, devices and slots; constant while nodes, width and level are.

    Attributes:
        name_width: Columns of the names of nodes. head: columns after them, before the first device.
        gap: Columns between two devices.
        tile: Columns of a tile; at the cluster level the number of devices side by side.
        folded: Nodes that were to be folded to one line at the GPU level.
        slots: Position of each slot, in the order node, device, slot.
        by_line: Slots where the cursor stops, by line; at the cluster level the first of each device.
    """

    level: ZoomLevel = ZoomLevel.NODE
    nodes: tuple[str, ...] = ()
    name_width: int = 4
    head: int = HEAD
    gap: int = 2
    tile: int = NARROWEST_TILE
    folded: frozenset[str] = frozenset()
    rows: tuple[Row, ...] = ()
    slots: Mapping[SlotId, SlotCell] = field(default_factory=dict)
    by_line: Mapping[int, tuple[SlotId, ...]] = field(default_factory=dict)

    @property
    def cell_width(self) -> int:
        """Columns that the cursor covers."""
        return CELL_WIDTH if self.level is ZoomLevel.CLUSTER else 1

    def stop(self, slot: SlotId) -> SlotId:
        """Return the slot where the cursor stops for this one."""
        return SlotId(slot.node, slot.gpu, 0) if self.level is ZoomLevel.CLUSTER else slot

    def at(self, x: int, y: int) -> SlotId | None:
        """Return the slot at a position, or the slot of the tile that covers it; None between them."""
        row = self.by_line.get(y, ())
        exact = next((slot for slot in row if 0 <= x - self.slots[slot].x < self.cell_width), None)
        if exact is not None or not 0 <= y < len(self.rows) or not isinstance(line := self.rows[y], TileLine):
            return exact
        number, beside = divmod(x - MARGIN, self.tile + TILE_GAP)
        if not 0 <= number < len(line.parts) or beside >= self.tile:
            return None
        return SlotId(line.node, line.parts[number].gpu.index, line.parts[number].first)

    def neighbour(
        self, slot: SlotId, right: int, down: int, column: int | None = None, *, skips_cpu: bool = False
    ) -> SlotId:
        """Return the next stop to the side, or the nearest on the line above or below; the same slot at an edge.

        Args:
            column: Column that steps up and down keep to, over shorter lines; None for that of the slot.
            skips_cpu: Steps up and down pass over the CPU beside GPUs, unless they begin or end there.
        """
        here, stop = self.slots[slot], self.stop(slot)
        lines = list(self.by_line)
        number = lines.index(here.y)
        if right:
            row = self.by_line[here.y]
            at = row.index(stop) + right
            if 0 <= at < len(row):
                return row[at]
            number += right
            if not 0 <= number < len(lines):
                return stop
            return self.by_line[lines[number]][0 if right > 0 else -1]
        number += down
        if skips_cpu and slot.gpu != CPU:
            beyond = range(number, len(lines) if down > 0 else -1, down)
            # At the end of the grid the CPU is all that is left.
            number = next((line for line in beyond if self.by_line[lines[line]][0].gpu != CPU), number)
        if not 0 <= number < len(lines):
            return stop
        x = here.x if column is None else column
        return min(self.by_line[lines[number]], key=lambda other: (abs(self.slots[other].x - x), other))


NO_SHAPE: Final = Shape()


def shape_of(nodes: Sequence[Node], width: int, level: ZoomLevel) -> Shape:
    """Compute the positions of all slots of these nodes for this many columns."""
    if level is ZoomLevel.CLUSTER:
        return _overview(nodes, width)
    return _tiles(nodes, width) if level is ZoomLevel.GPU else _lines(nodes, width)


def best_shape(
    nodes: Sequence[Node],
    width: int,
    room: int,
    *,
    is_exact: bool = False,
    folded: frozenset[str] = frozenset(),
) -> Shape:
    """Return the most detailed level that shows all nodes in this many lines; the node level if none does.

    Args:
        is_exact: Only levels with a cell for each slot.
        folded: Nodes that take one line at the GPU level, if their slots fit on it.
    """
    shape = _best_shape(nodes, width, room, is_exact=is_exact, folded=folded)
    return replace(shape, folded=folded)


def _best_shape(nodes: Sequence[Node], width: int, room: int, *, is_exact: bool, folded: frozenset[str]) -> Shape:
    # The comparison avoids laying out a large cluster for a level that cannot fit: tiles have four lines and a
    # head.
    if nodes and (len(nodes) - len(folded)) * (len(TileRow) + 1) + len(folded) <= room:
        tiles = _tiles(nodes, width, folded)
        if len(tiles.rows) <= room and any(isinstance(row, TileLine) for row in tiles.rows):
            return tiles
    lines = _lines(nodes, width)
    if len(lines.rows) > room and not is_exact and -(-len(nodes) // _beside(nodes, width)[2]) <= room:
        overview = _overview(nodes, width)
        if len(overview.rows) <= room:
            return overview
    return lines


def label_of(node: Node, gpu: Gpu) -> str:
    """Return the label before the slots of a device; its last column is blank if there is room."""
    return "cpu " if gpu.is_cpu else f"{gpu.index} " if len(node.gpus) <= 10 else f"{gpu.index:<3}"


def gaps_before(index: int, first: int) -> int:
    """Return the columns of the small gap before a slot of a part that starts with ``first``: 0 or 1."""
    return 1 if index > first and (index - first) % GROUP == 0 else 0


class _Builder:
    """Cells and lines while they are being laid out."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.cells: dict[SlotId, SlotCell] = {}
        self.by_line: dict[int, list[SlotId]] = {}

    def stop(self, slot: SlotId, x: int, y: int) -> None:
        """Put a slot on a cell where the cursor stops."""
        self.cells[slot] = SlotCell(x, y)
        self.by_line.setdefault(y, []).append(slot)

    def put_slots(self, node: Node, part: Part, x: int, y: int) -> int:
        """Put the slots of a part side by side; return the column after them."""
        for index in range(part.first, part.last):
            # Must count columns exactly like the text of the lines, or the cursor misses its slot.
            x += gaps_before(index, part.first)
            self.stop(SlotId(node.name, part.gpu.index, index), x, y)
            x += part.pitch
        return x

    def shape(
        self, nodes: Iterable[Node], level: ZoomLevel, *, name_width: int = 0, head: int = 0, tile: int = 0
    ) -> Shape:
        """Return the result as a value."""
        lines = {y: tuple(slots) for y, slots in self.by_line.items()}
        names = tuple(node.name for node in nodes)
        return Shape(
            level, names, name_width, head, tile=tile, rows=tuple(self.rows), slots=self.cells, by_line=lines
        )


def _name_width(nodes: Sequence[Node], most: int = LONGEST_NAME) -> int:
    return min(max([4, *(len(sanitize(node.name)) for node in nodes)]), most)


# --- a line a node ---------------------------------------------------------------------------------------------
def _lines(nodes: Sequence[Node], width: int) -> Shape:
    """Lay out one line per node: widely spaced if every node then fits on one line, otherwise as tightly as is
    readable.
    """
    # Devices that wrap anyway: a short head would save nothing.
    spacing = _spacing(nodes, width, _SPACINGS) or _Spacing(_name_width(nodes), HEAD, 1, 2)
    build = _Builder()
    for node in nodes:
        _put_node(build, node, width, spacing)
    return build.shape(nodes, ZoomLevel.NODE, name_width=spacing.name_width, head=spacing.head)


class _Spacing(NamedTuple):
    """Columns of a name and of the head after it, from slot to slot, and between two devices; labels of devices."""

    name_width: int
    head: int
    pitch: int
    gap: int
    has_labels: bool = True

    def room(self, width: int) -> int:
        """Return the columns for the devices of a line."""
        return max(_LEAST_ROOM, width - self.name_width - self.head)


def _spacing(
    nodes: Sequence[Node], width: int, spacings: Sequence[tuple[int, int, int] | tuple[int, int, int, bool]]
) -> _Spacing | None:
    """Return the widest spacing with which each of these nodes fits on one line; None if none does."""
    name_width = _name_width(nodes)
    for spacing in (_Spacing(name_width, *rest) for rest in spacings):
        needs = (sum(_need(node, gpu, gpu.slots, spacing) for gpu in node.gpus) - spacing.gap for node in nodes)
        if all(need <= spacing.room(width) for need in needs):
            return spacing
    return None


def _put_node(build: _Builder, node: Node, width: int, spacing: _Spacing) -> None:
    """Add the lines of a node: one, if its devices fit side by side."""
    name_width, head, gap = spacing.name_width, spacing.head, spacing.gap
    for number, row in enumerate(list(_device_rows(node, spacing.room(width), spacing)) or [[]]):
        y, x = len(build.rows), name_width + head
        build.rows.append(NodeLine(node.name, number == 0, tuple(row), name_width, head, gap))
        for part in row:
            x = build.put_slots(node, part, x + len(part.label), y) + gap


def _device_rows(node: Node, width: int, spacing: _Spacing) -> Iterator[list[Part]]:
    """Yield the parts of devices, one list per line."""
    row: list[Part] = []
    used = 0
    for gpu in node.devices:
        label = _label(node, gpu, spacing)
        if gpu.index == CPU and row:
            yield row
            row, used = [], 0
        for number, (first, last) in enumerate(_parts(gpu.slots, width - len(label))):
            if number:
                label = " " * len(label)
            need = _need(node, gpu, last - first, spacing)
            if row and used + need - spacing.gap > width:
                yield row
                row, used = [], 0
            row.append(Part(gpu, label, first, last, _pitch(gpu, spacing.pitch)))
            used += need
    if row:
        yield row


def _parts(slots: int, width: int) -> Iterator[tuple[int, int]]:
    """Split a device with many slots into parts of full groups that fit a width."""
    # A group of eight takes nine columns with its gap. Full groups align the gaps of all lines.
    most = max(GROUP, (width + 1) // (GROUP + 1) * GROUP)
    for first in range(0, slots, most):
        yield first, min(slots, first + most)


def _pitch(gpu: Gpu, pitch: int) -> int:
    """Return the columns from slot to slot of a device, if those of GPUs are ``pitch`` apart."""
    return 1 if gpu.index == CPU else pitch


def _label(node: Node, gpu: Gpu, spacing: _Spacing) -> str:
    return label_of(node, gpu) if spacing.has_labels or gpu.is_cpu else ""


def _need(node: Node, gpu: Gpu, slots: int, spacing: _Spacing) -> int:
    """Return the columns that some slots of a device take, including its label and the gap after it."""
    label = len(_label(node, gpu, spacing))
    return label + slots * _pitch(gpu, spacing.pitch) + (slots - 1) // GROUP + spacing.gap


# --- a tile a GPU ----------------------------------------------------------------------------------------------
def _tiles(nodes: Sequence[Node], width: int, folded: frozenset[str] = frozenset()) -> Shape:
    """Lay out tiles of equal width, as wide as fits for the largest node with its tiles side by side.

    Args:
        folded: Nodes on one line each, if their slots fit on it.
    """
    spacing = _spacing([node for node in nodes if node.name in folded], width, _FOLDED)
    cards = [(node, gpu) for node in nodes for gpu in node.gpus if not gpu.is_cpu]
    room = max(NARROWEST_TILE, width - MARGIN)
    least = max([NARROWEST_TILE, *(_slots_width(node, gpu, 1) for node, gpu in cards)])
    if least > room:  # a GPU with more slots than columns: its slots wrap as at the node level
        return _lines(nodes, width)
    most_beside = max(1, (room + TILE_GAP) // (least + TILE_GAP))
    largest = max([1, *(sum(not gpu.is_cpu for gpu in node.gpus) for node in nodes)])
    # Rows of equal length: eight GPUs, where five fit in a row, give two rows of four.
    beside = -(-largest // -(-largest // most_beside))
    tile = max(least, min(WIDEST_TILE, (room + TILE_GAP) // beside - TILE_GAP))
    pitch = 2 if all(_slots_width(node, gpu, 2) <= tile for node, gpu in cards) else 1
    build = _Builder()
    for node in nodes:
        if spacing is not None and node.name in folded:
            _put_node(build, node, width, spacing)
            continue
        build.rows.append(TileHead(node.name))
        own = [Part(gpu, label_of(node, gpu), 0, gpu.slots, pitch) for gpu in node.gpus if not gpu.is_cpu]
        for first in range(0, len(own), beside):
            parts = tuple(own[first : first + beside])
            for number, part in enumerate(parts):
                x = MARGIN + number * (tile + TILE_GAP) + len(part.label)
                build.put_slots(node, part, x, len(build.rows))
            build.rows.extend(TileLine(node.name, row, parts) for row in TileRow)
        for gpu in (gpu for gpu in node.devices if gpu.is_cpu):
            label = f"{'cpu':<{MARGIN}}"
            for start, last in _parts(gpu.slots, room):
                part = Part(gpu, label, start, last)
                build.put_slots(node, part, MARGIN, len(build.rows))
                build.rows.append(NodeLine(node.name, False, (part,)))
                label = " " * MARGIN
    return build.shape(nodes, ZoomLevel.GPU, tile=tile)


def _slots_width(node: Node, gpu: Gpu, pitch: int) -> int:
    return len(label_of(node, gpu)) + gpu.slots * pitch + (gpu.slots - 1) // GROUP


# --- a cell a device -------------------------------------------------------------------------------------------
def _beside(nodes: Sequence[Node], width: int) -> tuple[int, int, int]:
    """Return the columns of a name, the number of devices next to it, and the number of nodes side by side."""
    devices = max([1, *(len(node.devices) for node in nodes)])
    name_width = _name_width(nodes, LONGEST_NAME if width >= 2 * LONGEST_NAME else LONGEST_NAME // 2)
    fitting = max(1, (width - name_width - 1) // CELL_WIDTH)
    beside = min(devices, fitting)
    pitch = name_width + 1 + beside * CELL_WIDTH + 2
    return name_width, beside, max(1, (width + 2) // pitch) if devices <= fitting else 1


def _overview(nodes: Sequence[Node], width: int) -> Shape:
    """Lay out nodes side by side, in columns of equal width."""
    name_width, beside, columns = _beside(nodes, width)
    pitch = name_width + 1 + beside * CELL_WIDTH + 2
    build = _Builder()
    line: list[tuple[str, bool, tuple[Gpu, ...]]] = []
    for node in nodes:
        for first in range(0, max(1, len(node.devices)), beside):
            own = node.devices[first : first + beside]
            x, y = len(line) * pitch + name_width + 1, len(build.rows)
            for number, gpu in enumerate(own):
                cell = SlotCell(x + number * CELL_WIDTH, y)
                if gpu.slots:
                    build.stop(SlotId(node.name, gpu.index, 0), *cell)
                    build.cells.update(dict.fromkeys(gpu.slot_ids(), cell))
            line.append((node.name, first == 0, own))
            if len(line) == columns:
                build.rows.append(OverviewLine(tuple(line)))
                line = []
    if line:
        build.rows.append(OverviewLine(tuple(line)))
    return build.shape(nodes, ZoomLevel.CLUSTER, name_width=name_width, head=1, tile=beside)
