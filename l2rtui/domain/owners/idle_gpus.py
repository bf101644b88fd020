"""GPUs that are held and do nothing, and since when. Pure.

Only what a source measures counts, and only while somebody looks: a GPU without a figure is not called idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from l2rtui.domain.ledger import NodeLedger
from l2rtui.domain.node import Node
from l2rtui.domain.snapshot import ClusterSnapshot

IDLE_PERCENT: Final = 5.0
"""Utilisation below which a GPU does nothing: what a display or a driver's own work takes stays below it."""
LONG_SECONDS: Final = 600.0
"""Time from which that is worth saying: an evaluator that waits for the next policy pauses for less."""

DeviceKey = tuple[str, int]
"""Node and index of a device."""
IdleSpan = tuple[frozenset[str], float]
"""Uids of the pods on an idle GPU, and the time since which it is idle with these, seconds since the epoch."""


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
                self._look(node, ledger, now)
        if len(self._looked_at) > len(snapshot.nodes):
            self._looked_at = {name: pair for name, pair in self._looked_at.items() if name in snapshot.nodes}
        if any(node not in snapshot.nodes for node, _ in self._since):
            self._since = {key: since for key, since in self._since.items() if key[0] in snapshot.nodes}

    def _look(self, node: Node, ledger: NodeLedger | None, now: float) -> None:
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
            elif key not in self._since or self._since[key][0] != uids:  # another holder begins anew
                self._since[key] = uids, now

    def long_idle(self, now: float, least_seconds: float = LONG_SECONDS) -> Mapping[DeviceKey, float]:
        """Return the seconds for which GPUs have been idle, where that is long."""
        seconds = {key: now - since for key, (_, since) in self._since.items()}
        return {key: idle for key, idle in seconds.items() if idle >= least_seconds}
