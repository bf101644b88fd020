"""Status bar, the first line: context, slots in use, failing pods, and the age of the data."""

from __future__ import annotations

from typing import Final, NamedTuple

from textual.reactive import reactive

from l2rtui.domain.ledger import Ledger, SlotState
from l2rtui.domain.node import CPU
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.ui.state.connection_status import ConnectionStatus, name_of, right_of
from l2rtui.ui.state.snapshot_index import PodCounts
from l2rtui.ui.text import Line, Span, TextStyle
from l2rtui.ui.widgets.bars import SplitLine


class Slots(NamedTuple):
    """Number of all slots, of busy, free and off ones; CPU slots of GPU nodes are counted only separately."""

    there: int
    busy: int
    free: int
    cpu_there: int = 0
    cpu_busy: int = 0
    off: int = 0


NO_SLOTS: Final = Slots(0, 0, 0)


class StatusBar(SplitLine):
    """Status line of the screen."""

    DEFAULT_CSS = "StatusBar { height: 1; }"

    snapshot: reactive[ClusterSnapshot] = reactive(ClusterSnapshot, repaint=False)
    health: reactive[ConnectionStatus] = reactive(ConnectionStatus, repaint=False)
    pod_counts: reactive[PodCounts] = reactive(PodCounts, repaint=False)
    stalled: reactive[int] = reactive(0, repaint=False)
    """Number of runs whose pods run and which do not learn."""
    _ledger: Ledger | None = None
    _slots = NO_SLOTS

    def watch_snapshot(self) -> None:
        """Redraw if the text has changed."""
        # The ledger of a snapshot is computed on first access: not before there is a snapshot to show.
        if self.health.is_connected and self.snapshot.ledger is not self._ledger:
            self._ledger = self.snapshot.ledger
            self._slots = slots_of(self._ledger)
        left = left_of(self.snapshot, self.health, self.pod_counts, self._slots, self.stalled)
        self.show(left, right_of(self.snapshot.problems, self.health))

    watch_health = watch_stalled = watch_snapshot


def slots_of(ledger: Ledger) -> Slots:
    """Count the slots; linear in their number, so callers cache by ledger."""
    busy = free = off = cpu_there = cpu_busy = 0
    for slot in ledger.slots.values():
        state = slot.state
        is_busy = state is SlotState.BUSY or state is SlotState.FAILED
        if slot.id.gpu == CPU:
            cpu_there += 1
            cpu_busy += is_busy
        else:
            busy += is_busy
            free += state is SlotState.FREE
            off += state is SlotState.OFF
    return Slots(len(ledger.slots) - cpu_there, busy, free, cpu_there, cpu_busy, off)


def left_of(
    snapshot: ClusterSnapshot, health: ConnectionStatus, pod_counts: PodCounts, slots: Slots, stalled: int = 0
) -> tuple[Line, ...]:
    """Name, context and counts; least important last, as the line is cut at the right."""
    groups = name_of(health)
    # Counts of an unknown cluster would read as zero.
    if not health.is_connected:
        return groups
    failing = pod_counts.failing
    return (
        *groups,
        _pair("slots", f"{slots.busy}/{slots.there}"),
        _pair("free", f"{slots.free}"),
        *((_pair("unusable", f"{slots.off}"),) if slots.off else ()),
        *((_pair("cpu", f"{slots.cpu_busy}/{slots.cpu_there}"),) if slots.cpu_there else ()),
        _pair(
            "failing pods", f"{'✖ ' if failing else ''}{failing}", TextStyle.FAULT if failing else TextStyle.PLAIN
        ),
        *((_pair("stalled", f"✖ {stalled}", TextStyle.FAULT),) if stalled else ()),
        _pair("pending", f"{pod_counts.waiting}", TextStyle.WAIT if pod_counts.waiting else TextStyle.PLAIN),
        _pair("my slots", f"{pod_counts.mine}"),
        _pair("runs", f"{len(snapshot.runs)}"),
        _pair("nodes", f"{sum(node.ready for node in snapshot.nodes.values())}/{len(snapshot.nodes)}"),
    )


def _pair(label: str, value: str, style: TextStyle = TextStyle.PLAIN) -> Line:
    return Span(f"  {label} ", TextStyle.DIM), Span(value, style)
