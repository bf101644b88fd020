"""Text of the grid's lines: slots, loads and rates at the positions of a shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from l2rtui.domain.ledger import Slot, SlotState
from l2rtui.domain.node import Gpu, GpuUse, Node, SlotId
from l2rtui.domain.quantity import counted
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView
from l2rtui.domain.status import Level
from l2rtui.ui.text import Line, Span, TextStyle, fit, load_bar, load_style, percent
from l2rtui.ui.widgets.grid.figures import NO_FIGURES, UNKNOWN, GridFigures, RunFigure, gauge, rate_of
from l2rtui.ui.widgets.grid.legend import (
    FOREIGN,
    GLYPHS_OF_STATES,
    IDLE,
    MANY,
    MISMATCH,
    OWN_RESERVATION,
    WORDS_OF_STATES,
    Letters,
    legend_of,
    letters_of,
)
from l2rtui.ui.widgets.grid.shape import (
    CELL_WIDTH,
    HEAD,
    MARGIN,
    NO_SHAPE,
    TILE_GAP,
    NodeLine,
    OverviewLine,
    Part,
    Shape,
    SlotCell,
    TileHead,
    TileLine,
    TileRow,
    ZoomLevel,
    best_shape,
    gaps_before,
    shape_of,
)

LABELS: Final = {TileRow.SLOTS: "", TileRow.BUSY: "busy", TileRow.MEMORY: "mem", TileRow.RATE: "steps/s"}
_HEADERS: Final = {
    ZoomLevel.CLUSTER: "each GPU: who holds most of it",
    ZoomLevel.GPU: "each GPU: its slots, how busy, memory, steps/s of its workers",
}


@dataclass(frozen=True)
class SlotGrid:
    """Grid of one snapshot. Lines are rendered on request: most of a large cluster is not visible.

    Attributes:
        ghosts: Spans instead of some slots: staged replicas, a range.
        width: Columns of its lines.
    """

    shape: Shape = NO_SHAPE
    snapshot: ClusterSnapshot = EMPTY_SNAPSHOT
    letters: Letters = field(default_factory=dict)
    ghosts: Mapping[SlotId, Span] = field(default_factory=dict)
    figures: GridFigures = NO_FIGURES
    width: int = 0

    @property
    def slots(self) -> Mapping[SlotId, SlotCell]:
        """Position of each slot."""
        return self.shape.slots

    @property
    def height(self) -> int:
        """Number of lines, without header and legend."""
        return len(self.shape.rows)

    @cached_property
    def legend(self) -> Line:
        """Meaning of the letters and glyphs, with counts."""
        return legend_of(self.snapshot, self.letters, self.width, len(self.figures.idle))

    @cached_property
    def header(self) -> Line:
        """Header line: names of the columns, and the age of the data if they are old."""
        shape = self.shape
        text = _HEADERS.get(shape.level, "")
        if shape.level is ZoomLevel.CLUSTER:
            text += ", and how busy it is" if self._is_measured else ", and how much of it is held"
        elif shape.level is ZoomLevel.NODE:
            # Two bars are narrower than their names, which then go on above the devices.
            head = f"  {'cpu':>4} {'mem':>4}   " if shape.head == HEAD else " cpu and mem, then "
            slots = "each GPU: number, how busy, slots" if self._is_measured else "slots"
            text = f"{'node':<{shape.name_width}}{head}{slots}"
        style = TextStyle.HEADING if shape.level is ZoomLevel.NODE else TextStyle.DIM
        if not self.figures.age:
            return (Span(text, style),)
        return Span(f"▲ of {self.figures.age} ago  ", TextStyle.WARN), Span(text, style)

    @cached_property
    def _is_measured(self) -> bool:
        return any(node.gpu_use for node in self.snapshot.nodes.values())

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines."""
        return tuple(self.line(y) for y in range(self.height))

    def is_band(self, y: int) -> bool:
        """True for a line that begins a node among tiles; it is drawn as a filled band."""
        row = self.shape.rows[y]
        return isinstance(row, TileHead) or (
            self.shape.level is ZoomLevel.GPU
            and isinstance(row, NodeLine)
            and bool(row.name_width)
            and row.is_first
        )

    def line(self, y: int) -> Line:
        """One line."""
        row = self.shape.rows[y]
        if isinstance(row, NodeLine):
            return self._node_line(row)
        if isinstance(row, TileLine):
            return self._tile_line(row)
        if isinstance(row, TileHead):
            return self._tile_head(self.snapshot.nodes[row.node])
        return self._overview_line(row)

    def _note(self, node: Node) -> str:
        """Age of the data of a node whose context is silent, or the reason why it takes no pods; or empty."""
        old = self.figures.silent.get(node.context, "") if node.context else ""
        return f"▲ old {old}" if old else _note(node)

    # --- a line a node -----------------------------------------------------------------------------------------
    def _node_line(self, row: NodeLine) -> Line:
        node = self.snapshot.nodes[row.node]
        name = fit(sanitize(node.name), row.name_width)
        spans = (
            list(_head(node, name, row.head, self._note(node)))
            if row.is_first
            else [Span(" " * (row.name_width + row.head))]
        )
        for part in row.parts:
            spans.extend(self._load(node, part.gpu, part.label))
            spans.extend(self._slots(node, part))
            spans.append(Span(" " * row.gap))
        return tuple(spans)

    def _slots(self, node: Node, part: Part) -> list[Span]:
        spans: list[Span] = []
        for index in range(part.first, part.last):
            blanks = gaps_before(index, part.first) + (part.pitch - 1 if index > part.first else 0)
            if blanks:
                spans.append(Span(" " * blanks))
            spans.append(self._cell(SlotId(node.name, part.gpu.index, index)))
        if part.pitch > 1:
            spans.append(Span(" " * (part.pitch - 1)))
        return spans

    def _cell(self, slot_id: SlotId) -> Span:
        if ghost := self.ghosts.get(slot_id):
            return ghost
        slot = self.snapshot.ledger.slots[slot_id]
        if slot.state is SlotState.FREE and slot.reservation is not None:
            return OWN_RESERVATION
        if slot.state is not SlotState.BUSY:
            return GLYPHS_OF_STATES[slot.state]
        if slot.is_mismatched:
            return MISMATCH
        letter, style = self.letters.get(slot.run, (FOREIGN, TextStyle.DIM))
        pod = self.snapshot.pods.get(slot.pod_uid)
        # MANY has no lower case.
        return Span(letter.lower() if pod is not None and is_waiting(pod) and letter != MANY else letter, style)

    def _load(self, node: Node, gpu: Gpu, label: str) -> Line:
        """Label of a device; if its load is known, it replaces the space after the label."""
        if not label.strip() or not label.endswith(" ") or gpu.is_cpu:
            return (Span(label, TextStyle.DIM),)
        load = self._load_glyph(node, gpu, Span(" ", TextStyle.DIM))
        return Span(label[:-1], TextStyle.DIM), load

    def _load_glyph(self, node: Node, gpu: Gpu, unknown: Span) -> Span:
        use = node.use(gpu.index)
        if use is None or use.percent is None:
            return unknown
        if (node.name, gpu.index) in self.figures.idle:
            return Span(IDLE, TextStyle.WARN)
        return Span(load_bar(use.percent), self._of_now(load_style(use.percent)))

    def _of_now(self, style: TextStyle) -> TextStyle:
        """Return a style, or the style of old data while the backend does not answer."""
        return TextStyle.DIM if self.figures.age else style

    # --- a tile a GPU ------------------------------------------------------------------------------------------
    def _tile_head(self, node: Node) -> Line:
        reason = self._note(node)
        name = Span(sanitize(node.name), TextStyle.STRONG if not reason else TextStyle.DIM)
        slots = [slot for gpu in node.devices for slot in self.snapshot.ledger.of_gpu(node.name, gpu.index)]
        free = sum(slot.state is SlotState.FREE for slot in slots)
        shares = ((label, percent(*pair)) for label, pair in _loads(node))
        facts = "".join(f"   {label} {share}" for label, share in shares if share != "-")
        models = {gpu.model for gpu in node.gpus if gpu.model}
        model = f"   {sanitize(next(iter(models)))}" if len(models) == 1 else ""
        note = Span(f"   {reason}", TextStyle.WARN) if reason else Span(f"   {counted(free, 'slot')} free")
        part = self.snapshot.ledger.nodes.get(node.name)
        facts = f"   {sanitize(part.unseen)}{facts}" if part is not None and part.unseen else facts
        rest = f"{facts}{model}"
        room = self.width - len(name.text) - len(note.text)
        return name, note, Span(rest if len(rest) <= room else facts if len(facts) <= room else "", TextStyle.DIM)

    def _tile_line(self, row: TileLine) -> Line:
        node, width = self.snapshot.nodes[row.node], self.shape.tile
        spans = [Span(f"{LABELS[row.row]:<{MARGIN}}", TextStyle.HEADING)]
        for part in row.parts:
            slots = self.snapshot.ledger.of_gpu(node.name, part.gpu.index)
            if row.row is TileRow.SLOTS:
                cells = self._slots(node, part)
                used = len(part.label) + sum(len(span.text) for span in cells)
                spans += [Span(part.label, TextStyle.DIM), *cells, Span(" " * (width - used))]
            elif row.row is TileRow.RATE:
                spans += self._rate(slots, width, (node.name, part.gpu.index))
            else:
                spans += self._gauge(node, part.gpu, row.row)
            spans.append(Span(" " * TILE_GAP))
        return tuple(spans)

    def _owner(self, slots: Sequence[Slot]) -> TextStyle:
        """Hue of the run that holds the largest part of a GPU."""
        return self._holder(slots).style if any(slot.pod_uid for slot in slots) else TextStyle.DIM

    def _holder(self, slots: Sequence[Slot]) -> Span:
        """Letter of the run that holds the largest part of a GPU."""
        holders = Counter(slot.run for slot in slots if slot.pod_uid)
        return self._letter(max(holders, key=lambda run: holders[run]))

    def _letter(self, run: str) -> Span:
        return Span(*self.letters.get(run, (FOREIGN, TextStyle.DIM)))

    def _gauge(self, node: Node, gpu: Gpu, row: TileRow) -> Line:
        width, use = self.shape.tile, node.use(gpu.index)
        idle = self.figures.idle.get((node.name, gpu.index))
        if row is TileRow.BUSY and idle:
            forms = (f"{IDLE} idle {idle}", f"idle {idle}", f"idle{idle}", f"{IDLE}{idle}")
            text = next((form for form in forms if len(form) <= width), IDLE)
            return (Span(f"{text:>{width}}", TextStyle.WARN),)
        share = _share(row, gpu, use)
        return gauge(share, width, self._of_now(load_style(100 * (share or 0.0))))

    def _rate(self, slots: Sequence[Slot], width: int, device: tuple[str, int]) -> Line:
        runs = list(dict.fromkeys(slot.run for slot in slots if slot.pod_uid))
        if not runs:
            words = {slot.state for slot in slots}
            word = WORDS_OF_STATES[words.pop()] if len(words) == 1 else ""
            return (Span(fit(word, width, right=True), TextStyle.FAINT),)
        figures = [self.figures.runs.get(run, RunFigure()) for run in runs]
        return rate_of(figures, width, device, self.figures.rates.get(device))

    # --- a cell a device ---------------------------------------------------------------------------------------
    def _overview_line(self, row: OverviewLine) -> Line:
        spans: list[Span] = []
        width = self.shape.name_width
        for name, is_first, gpus in row.nodes:
            node = self.snapshot.nodes[name]
            text = fit(sanitize(name), width) if is_first else " " * width
            mark, style = ("▲", TextStyle.WARN) if self._note(node) and is_first else (" ", TextStyle.PLAIN)
            spans.append(Span(f"{text}{mark}", style))
            for gpu in gpus:
                spans.extend(self._device(node, gpu))
            spans.append(Span(" " * (CELL_WIDTH * (self.shape.tile - len(gpus)) + self.shape.gap)))
        return tuple(spans)

    def _device(self, node: Node, gpu: Gpu) -> Line:
        """Two columns for a device: the letter of its main holder, or its worst state; then its load."""
        slots = self.snapshot.ledger.of_gpu(node.name, gpu.index)
        states = {slot.state for slot in slots}
        is_held = any(slot.pod_uid for slot in slots)
        ghost = next((self.ghosts[slot.id] for slot in slots if slot.id in self.ghosts), None)
        style = self._owner(slots)
        if ghost is not None or not slots:
            first = ghost or Span(" ")
        elif SlotState.FAILED in states:
            first = GLYPHS_OF_STATES[SlotState.FAILED]
        elif any(slot.is_mismatched for slot in slots):
            first = MISMATCH
        elif is_held:
            first = self._holder(slots)
        else:
            first = GLYPHS_OF_STATES[next(state for state in GLYPHS_OF_STATES if state in states)]
        if self._is_measured:
            return first, self._load_glyph(node, gpu, UNKNOWN if not gpu.is_cpu else Span(" "))
        used = sum(slot.pod_uid != "" for slot in slots)
        return first, Span(load_bar(100 * used / len(slots)) if used else " ", style)


EMPTY_GRID: Final = SlotGrid()


def is_waiting(pod: PodView) -> bool:
    """True for a pod that has its slot but does not run yet: its letter is in lower case."""
    return pod.status.level is Level.WAIT


def lay_out(
    snapshot: ClusterSnapshot,
    width: int,
    ghosts: Mapping[SlotId, Span] | None = None,
    only: Collection[str] | None = None,
    before: SlotGrid = EMPTY_GRID,
    *,
    level: ZoomLevel | None = ZoomLevel.NODE,
    room: int = 0,
    is_exact: bool = False,
    figures: GridFigures = NO_FIGURES,
) -> SlotGrid:
    """Lay out the grid for a terminal of this many columns.

    Args:
        only: Names of the nodes to show; None shows all.
        before: Earlier grid of the same width, level and room; its shape is reused while the devices are the same.
        level: None chooses the most detailed level that shows all nodes in ``room`` lines; with ``is_exact``
            only levels with a cell for each slot.
    """
    nodes = [node for name, node in snapshot.nodes.items() if only is None or name in only]
    old = before.snapshot.nodes
    # Load and state of a node do not move slots; only its devices do.
    folded = _folded(snapshot, nodes) if level is None and len(nodes) <= room else frozenset()
    is_same = (
        (folded == before.shape.folded or level is not None)
        and len(before.shape.nodes) == len(nodes)
        and all(
            name == node.name and (earlier := old.get(name)) is not None and earlier.devices == node.devices
            for name, node in zip(before.shape.nodes, nodes, strict=True)
        )
    )
    if is_same and nodes:
        shape = before.shape
    else:
        shape = (
            shape_of(nodes, width, level)
            if level is not None
            else best_shape(nodes, width, room, is_exact=is_exact, folded=folded)
        )
    return SlotGrid(shape, snapshot, letters_of(snapshot.runs.values()), ghosts or {}, figures, width)


def _folded(snapshot: ClusterSnapshot, nodes: Sequence[Node]) -> frozenset[str]:
    """Return the nodes that run nothing, or take no pods and hold no run; none if no other node is left."""
    is_ours: dict[str, bool] = {}
    for slot in snapshot.ledger.slots.values():
        if slot.pod_uid:
            is_ours[slot.id.node] = is_ours.get(slot.id.node, False) or slot.run in snapshot.runs
    folded = {node.name for node in nodes if node.name not in is_ours or (_note(node) and not is_ours[node.name])}
    return frozenset(folded) if len(folded) < len(nodes) else frozenset()


def _share(row: TileRow, gpu: Gpu, use: GpuUse | None) -> float | None:
    """Share of a GPU's time or memory in use; None if unknown."""
    if use is None:
        return None
    if row is TileRow.BUSY:
        return None if use.percent is None else use.percent / 100
    total = use.memory_bytes or gpu.memory_bytes
    return None if use.memory_used_bytes is None or not total else use.memory_used_bytes / total


def _head(node: Node, name: str, width: int, note: str) -> Line:
    """Name, then load or a note instead of it; exactly ``width`` columns more than the name."""
    if width < HEAD:
        if note:
            return Span(name, TextStyle.DIM), Span(" ▲  ", TextStyle.WARN)
        pairs = (pair for _, pair in _loads(node))
        bars = "".join(load_bar(100 * used / total) if used is not None and total else " " for used, total in pairs)
        return Span(name), Span(f" {bars} ", TextStyle.DIM)
    if note:
        return (Span(f"{name}  ", TextStyle.DIM), Span(f"{note:<12}", TextStyle.WARN))
    cpu, memory = (percent(*pair) for _, pair in _loads(node))
    return (Span(f"{name}  "), Span(f"{cpu:>4} {memory:>4}   ", TextStyle.DIM))


def _loads(node: Node) -> tuple[tuple[str, tuple[float | None, float]], ...]:
    """Use and size of a node's CPU and memory."""
    return ("cpu", (node.cpu_used, node.cpu_cores)), ("mem", (node.memory_used_bytes, float(node.memory_bytes)))


def _note(node: Node) -> str:
    """Reason why a node takes no pods, in at most eleven columns; empty if it takes pods."""
    if not node.ready:
        return "▲ not ready"
    if not node.is_schedulable:
        return "▲ cordoned"
    return "" if node.devices else "no device"
