"""GPUs that are held and do nothing, and since when. Pure.

Only what a source measures counts, and only while somebody looks: a GPU without a figure is not called idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from l2rtui.domain.ledger import NodeLedger
from l2rtui.domain.node import Node
from l2rtui.domain.quantity import age
from l2rtui.domain.snapshot import ClusterSnapshot

IDLE_PERCENT: Final = 5.0
"""Utilisation below which a GPU does nothing: what a display or a driver's own work takes stays below it."""
LONG_SECONDS: Final = 600.0
"""Time from which that is worth saying: an evaluator that waits for the next policy pauses for less."""

DeviceKey = tuple[str, int]
"""Node and index of a device."""


class IdleSpan(NamedTuple):
    """State of an idle GPU.

    Attributes:
        holders: Uids of the pods on it.
        since: Time since which it is idle with these, seconds since the epoch.
        is_least: It was idle already when it was first looked at: since when before that, nobody knows.
    """

    holders: frozenset[str]
    since: float
    is_least: bool = True


class IdleTime(NamedTuple):
    """Seconds for which a GPU has been idle; at least so many where its beginning was not seen."""

    seconds: float
    is_least: bool = False

    @property
    def text(self) -> str:
        """The time for display: ``12m``, or ``≥12m`` where it may be longer."""
        return f"{'≥' if self.is_least else ''}{age(self.seconds)}"


class IdleGpus:
    """Time since which each held GPU has been idle, by node and index.

    Args:
        spans: Those of a look a moment ago, which go on where nothing has changed since.
    """

    def __init__(self, spans: Mapping[DeviceKey, IdleSpan] = MappingProxyType({})) -> None:
        self._looked_at: dict[str, tuple[Node, NodeLedger | None]] = {}
        self._since: dict[DeviceKey, IdleSpan] = dict(spans)

    @property
    def spans(self) -> Mapping[DeviceKey, IdleSpan]:
        """GPUs that are idle as far as they were looked at, whatever the time."""
        return self._since

    def take(self, snapshot: ClusterSnapshot, now: float) -> None:
        """Look at the nodes that differ from the last time."""
        ledgers = snapshot.ledger.nodes
        for name, node in snapshot.nodes.items():
            before, ledger = self._looked_at.get(name), ledgers.get(name)
            # By identity: thousands of GPUs, ten times a second, would be a fifth of a core.
            if before is None or before[0] is not node or before[1] is not ledger:
                self._looked_at[name] = node, ledger
                self._look(node, ledger, now, before[0] if before is not None else None)
        if len(self._looked_at) > len(snapshot.nodes):
            self._looked_at = {name: pair for name, pair in self._looked_at.items() if name in snapshot.nodes}
        if any(node not in snapshot.nodes for node, _ in self._since):
            self._since = {key: since for key, since in self._since.items() if key[0] in snapshot.nodes}

    def look_away(self) -> None:
        """Know nothing of the time from now on to the next look: what is idle then may be so for longer."""
        self._looked_at.clear()

    def _look(self, node: Node, ledger: NodeLedger | None, now: float, before: Node | None) -> None:
        holders: dict[int, set[str]] = {}
        for slot in ledger.slots.values() if ledger is not None else ():
            if slot.pod_uid:
                holders.setdefault(slot.id.gpu, set()).add(slot.pod_uid)
        idle = {
            use.gpu: frozenset(holders[use.gpu])
            for use in node.gpu_use
            if use.gpu in holders and use.percent is not None and use.percent < IDLE_PERCENT
        }
        for gpu in node.gpus:
            key, uids = (node.name, gpu.index), idle.get(gpu.index)
            if uids is None:
                self._since.pop(key, None)
            elif key not in self._since or self._since[key].holders != uids:  # another holder begins anew
                use = before.use(gpu.index) if before is not None else None
                self._since[key] = IdleSpan(uids, now, is_least=use is None or use.percent is None)

    def long_idle(self, now: float, least_seconds: float = LONG_SECONDS) -> Mapping[DeviceKey, IdleTime]:
        """Return how long GPUs have been idle, where that is long."""
        times = {key: IdleTime(now - span.since, span.is_least) for key, span in self._since.items()}
        return {key: idle for key, idle in times.items() if idle.seconds >= least_seconds}
