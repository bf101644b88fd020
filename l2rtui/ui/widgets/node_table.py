"""Nodes as rows: what they have, what is free, why they take nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from l2rtui.domain.ledger import Slot, SlotState
from l2rtui.domain.node import Node
from l2rtui.domain.quantity import format_bytes, format_cores
from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.text import NOTHING, Span, Tone, percent
from l2rtui.ui.widgets.rows import Column, Row
from l2rtui.ui.widgets.virtual_table import VirtualTable

COLUMNS: Final = (
    Column("node", "node", most=40),
    Column("state", "state", most=14),
    Column("gpus", "gpus", most=5, right=True, rank=2),
    Column("slots", "slots", most=7, right=True, rank=1),
    Column("free", "free", most=6, right=True),
    Column("busy", "busy", most=6, right=True, rank=3),
    Column("failing", "failing", most=7, right=True, rank=3),
    Column("unknown", "unknown", most=7, right=True, rank=6),
    Column("cpu", "cpu", most=5, right=True, rank=2),
    Column("mem", "mem", most=5, right=True, rank=2),
    Column("cores", "cores", most=6, right=True, rank=5),
    Column("memory", "memory", most=8, right=True, rank=5),
    Column("model", "model", most=28, rank=4),
    Column("taints", "taints", most=40, rank=7),
    Column("note", "note", most=60, rank=8),
)


class NodeTable(VirtualTable):
    """All nodes."""

    def __init__(self, *, clock: Callable[[], float] = time.time, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(COLUMNS, empty="No nodes can be seen.", clock=clock, id=id)


def node_row(node: Node, slots: Sequence[Slot]) -> Row:
    """One node with its slots."""
    states = Counter(slot.state for slot in slots)
    free, unknown, failing = states[SlotState.FREE], states[SlotState.UNKNOWN], states[SlotState.FAILED]
    busy = states[SlotState.BUSY] + failing
    if not node.ready:
        state = Span("✖ not ready", Tone.BAD)
    elif not node.is_schedulable:
        state = Span("▲ cordoned", Tone.WARN)
    else:
        state = Span("● ready", Tone.OK)
    model = next((gpu.model for gpu in node.gpus if gpu.model), "cpu" if node.gpus else NOTHING)
    taints = " ".join(f"{taint.key}:{taint.effect}" for taint in node.taints)
    gpus = sum(not gpu.is_cpu for gpu in node.gpus)
    cells = (
        Span(sanitize(node.name), Tone.STRONG),
        state,
        Span(str(gpus), Tone.DIM),
        Span(str(len(slots)), Tone.DIM),
        Span(str(free), Tone.OK if free else Tone.DIM),
        Span(str(busy)),
        Span(str(failing) if failing else NOTHING, Tone.BAD if failing else Tone.DIM),
        Span(str(unknown) if unknown else NOTHING, Tone.WARN if unknown else Tone.DIM),
        Span(percent(node.cpu_used, node.cpu_cores)),
        Span(percent(node.memory_used_bytes, node.memory_bytes)),
        Span(format_cores(node.cpu_cores), Tone.DIM),
        Span(format_bytes(node.memory_bytes), Tone.DIM),
        Span(sanitize(model), Tone.DIM),
        Span(sanitize(taints) or NOTHING, Tone.DIM),
        Span(sanitize(node.message), Tone.DIM),
    )
    sort = (
        node.name,
        state.text,
        gpus,
        len(slots),
        free,
        busy,
        failing,
        unknown,
        node.cpu_used or 0.0,
        node.memory_used_bytes or 0,
        node.cpu_cores,
        node.memory_bytes,
        model,
        taints,
        node.message,
    )
    return Row(node.name, cells, sort, is_fault=not (node.ready and node.is_schedulable) or bool(failing))
