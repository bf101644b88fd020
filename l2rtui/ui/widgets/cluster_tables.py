"""Tables of the cluster: nodes with their capacity, free slots and state; events; leaks; and the column of
contexts.

Events and leaks are fetched on request, without a watch; the rows are from the last fetch. The column of contexts
is absent while a single one is shown, and has the age of a row while its context does not answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from l2rtui.domain.ledger import Slot, SlotState
from l2rtui.domain.log import KubeEvent
from l2rtui.domain.node import CPU, Node
from l2rtui.domain.quantity import age, format_bytes, format_cores
from l2rtui.domain.receipt import Leak
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.selection.filter_language import GPU_COLUMNS, gpu_cells
from l2rtui.domain.snapshot import ContextHealth
from l2rtui.tables.cluster import NODES
from l2rtui.tables.column import TableColumn
from l2rtui.tables.resources import EVENTS, LEAKS, is_warning
from l2rtui.ui.text import NOTHING, Span, TextStyle, percent
from l2rtui.ui.widgets.table_model import Row, columns_of, make_row, row_of
from l2rtui.ui.widgets.virtual_table import VirtualTable


class NodeTable(VirtualTable):
    """All nodes."""

    COLUMNS = columns_of(NODES)
    HIDDEN = GPU_COLUMNS
    SAME = ("failing", "unknown", "taints", "note")
    EMPTY = "No nodes can be seen."


def _sum(gpu_slots: int, cpu_slots: int, beside: Counter[SlotState]) -> str:
    """Write a number of GPU slots, plus the CPU slots if the node has both: ``4+16``."""
    return f"{gpu_slots}+{cpu_slots}" if beside else str(gpu_slots)


def _share(uses: Iterable[tuple[float | None, float]]) -> tuple[Span, float]:
    """Cell for all GPUs together: the part of the total in use; unknown unless every GPU's use is known."""
    pairs = list(uses)
    used = [used for used, total in pairs if used is not None and total]
    if not pairs or len(used) < len(pairs):
        return Span(NOTHING), 0.0
    return Span(percent(sum(used), sum(total for _, total in pairs))), sum(used)


def node_row(node: Node, slots: Sequence[Slot], num_pods: int | None = None, unseen: str = "") -> Row:
    """One node with its slots; on a GPU node, CPU slots are written after a plus sign.

    Args:
        num_pods: Pods on it; None if unknown.
        unseen: Clause about its pods whose GPU is unknown.
    """
    beside = Counter(slot.state for slot in slots if slot.id.gpu == CPU)
    states = Counter(slot.state for slot in slots if slot.id.gpu != CPU)
    free = states[SlotState.FREE]
    unknown, failing = (states[state] + beside[state] for state in (SlotState.UNKNOWN, SlotState.FAILED))
    # A failing pod keeps its slot: the slot also counts as busy, so that the columns add up.
    busy = states[SlotState.BUSY] + states[SlotState.FAILED]
    if not node.ready:
        state = Span("✖ not ready", TextStyle.FAULT)
    elif not node.is_schedulable:
        state = Span("▲ cordoned", TextStyle.WARN)
    else:
        state = Span("● ready", TextStyle.OK)
    model = next((gpu.model for gpu in node.gpus if gpu.model), "cpu" if node.gpus else NOTHING)
    taints = " ".join(f"{taint.key}:{taint.effect}" for taint in node.taints)
    note = "; ".join(filter(None, (node.message, unseen)))
    gpus = sum(not gpu.is_cpu for gpu in node.gpus)
    return make_row(
        node.name,
        (Span(sanitize(node.name), TextStyle.STRONG), node.name),
        (state, state.text),
        (Span(str(gpus), TextStyle.DIM), gpus),
        (Span(_sum(states.total(), beside.total(), beside), TextStyle.DIM), states.total()),
        (
            Span(_sum(free, beside[SlotState.FREE], beside), TextStyle.OK if free else TextStyle.DIM),
            free,
        ),
        (Span(_sum(busy, beside[SlotState.BUSY] + beside[SlotState.FAILED], beside)), busy),
        (Span(str(failing or NOTHING), TextStyle.FAULT if failing else TextStyle.DIM), failing),
        (Span(str(unknown or NOTHING), TextStyle.WARN if unknown else TextStyle.DIM), unknown),
        (Span(NOTHING if num_pods is None else str(num_pods), TextStyle.DIM), -1 if num_pods is None else num_pods),
        (Span("", TextStyle.DIM), -node.created),  # sorts like the age, which is computed when it is drawn
        # Sorted by absolute use and displayed in percent: of equal shares the larger node comes first.
        (Span(percent(node.cpu_used, node.cpu_cores)), node.cpu_used or 0.0),
        (Span(percent(node.memory_used_bytes, node.memory_bytes)), node.memory_used_bytes or 0),
        _share((use.percent, 100) for use in node.gpu_use),
        _share((use.memory_used_bytes, use.memory_bytes) for use in node.gpu_use),
        (Span(format_cores(node.cpu_cores), TextStyle.DIM), node.cpu_cores),
        (Span(format_bytes(node.memory_bytes), TextStyle.DIM), node.memory_bytes),
        (Span(sanitize(model), TextStyle.DIM), model),
        (Span(sanitize(taints) or NOTHING, TextStyle.DIM), taints),
        (Span(sanitize(note), TextStyle.DIM), note),
        is_fault=not (node.ready and node.is_schedulable) or bool(failing),
        hidden=_gpu_cells(node, slots),
    )


def _gpu_cells(node: Node, slots: Sequence[Slot]) -> tuple[str, ...]:
    free = Counter(slot.id.gpu for slot in slots if slot.state is SlotState.FREE)
    gpus = (gpu for gpu in node.gpus if not gpu.is_cpu)
    return gpu_cells((free[gpu.index], sanitize(gpu.model), node.gpu_memory_bytes(gpu)) for gpu in gpus)


class EventTable(VirtualTable):
    """Recent events, newest first."""

    COLUMNS = columns_of(EVENTS)
    EMPTY = "Not asked yet."


class LeakTable(VirtualTable):
    """Objects left behind by deleted runs."""

    COLUMNS = columns_of(LEAKS)
    EMPTY = "Not asked yet."


def event_row(event: KubeEvent) -> Row:
    """Make the row of an event."""
    # The glyph is in the reason column: a narrow table drops the level, and colour is not enough.
    glyph, style = ("▲ ", TextStyle.WARN) if is_warning(event) else ("", TextStyle.PLAIN)
    return row_of(
        EVENTS,
        # Without time and count: an event that occurs again updates its row in place.
        f"{event.namespace}/{event.object}/{event.reason}/{event.message}",
        event,
        is_fault=is_warning(event),
        # Ascending by minus the time is newest first, as with ages in the other tables.
        age=(Span("", TextStyle.DIM), -event.time),
        reason=(Span(f"{glyph}{sanitize(event.reason)}", style), event.reason),
        count=(Span(str(event.count) if event.count > 1 else NOTHING, TextStyle.DIM), event.count),
    )


def leak_row(leak: Leak) -> Row:
    """Make the row of a leak."""
    return row_of(LEAKS, f"{leak.run}/{leak.kind}/{leak.name}", leak, is_fault=True)


ContextCell = tuple[Span, str]
"""Text and sort value."""
Source = TypeVar("Source", bound=tuple[Any, ...])
CONTEXT: Final = TableColumn("context", "context", most=24, rank=1)
_NO_CONTEXT: Final[ContextCell] = (Span(""), "")


def old_contexts(contexts: Sequence[ContextHealth], now: float) -> dict[str, str]:
    """Return the ages of contexts that do not answer, by name.

    Args:
        now: Seconds since the epoch.
    """
    return {own.name: age(now - own.old_since) for own in contexts if own.old_since is not None}


class ContextColumn:
    """Column of several tables; absent while a single context is shown."""

    def __init__(self) -> None:
        self._cells: dict[str, ContextCell] = {}

    def update(self, contexts: Sequence[ContextHealth], now: float) -> None:
        """Set the state of each context."""
        old = old_contexts(contexts, now)
        self._cells = {own.name: self._cell(own.name, old.get(own.name, "")) for own in contexts}

    def _cell(self, name: str, old: str) -> ContextCell:
        # The same object while its text is the same, so that no row is made again.
        text = f"{sanitize(name)} ▲ {old}" if old else sanitize(name)
        before = self._cells.get(name)
        if before is not None and before[0].text == text:
            return before
        return Span(text, TextStyle.WARN if old else TextStyle.ACCENT), name

    def show(
        self,
        table: VirtualTable,
        columns: Sequence[TableColumn],
        items: Iterable[tuple[str, Source]],
        make: Callable[[Source], Row],
    ) -> None:
        """Set columns and rows of a table, with this column after the one that names the row.

        Args:
            items: Key and source of each row; the first part of a source has the context.
        """
        cells = self._cells
        if not cells:
            table.set_columns(columns)
            table.set_sources(items, make)
            return
        table.set_columns((columns[0], CONTEXT, *columns[1:]))
        pairs = ((key, (cells.get(source[0].context, _NO_CONTEXT), source)) for key, source in items)
        table.set_sources(pairs, lambda pair: _with_cell(make(pair[1]), pair[0]))


def _with_cell(row: Row, cell: ContextCell) -> Row:
    (name, *cells), (first, *values) = row.cells, row.sort
    return Row(row.key, (name, cell[0], *cells), (first, cell[1], *values), row.is_fault)
