"""GPUs that are held but idle, and the time since which they are. Pure.

Only measured GPUs count, and only while the app observes them: a GPU without a measurement is never called idle.
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
"""Utilisation below which a GPU counts as idle: a display or the driver's own work uses less."""
LONG_SECONDS: Final = 600.0
"""Time after which idleness is reported: an evaluator that waits for the next policy pauses for less."""

DeviceKey = tuple[str, int]
"""Node and index of a device."""


class IdleSpan(NamedTuple):
    """State of an idle GPU.

    Attributes:
        holders: Uids of the pods on it.
        since: Time since which it is idle with these holders, seconds since the epoch.
        is_least: It was already idle when it was first observed, so it may have been idle for longer.
    """

    holders: frozenset[str]
    since: float
    is_least: bool = True


class IdleTime(NamedTuple):
    """Seconds for which a GPU has been idle; a lower bound if the beginning was not observed."""

    seconds: float
    is_least: bool = False

    @property
    def text(self) -> str:
        """Time for display: ``12m``, or ``≥12m`` if it may be longer."""
        return f"{'≥' if self.is_least else ''}{age(self.seconds)}"


class IdleGpus:
    """Time since which each held GPU has been idle, by node and index.

    Args:
        spans: Spans of a recent observation; they continue if nothing has changed since then.
    """

    def __init__(self, spans: Mapping[DeviceKey, IdleSpan] = MappingProxyType({})) -> None:
        self._looked_at: dict[str, tuple[Node, NodeLedger | None]] = {}
        self._since: dict[DeviceKey, IdleSpan] = dict(spans)

    @property
    def spans(self) -> Mapping[DeviceKey, IdleSpan]:
        """GPUs that are idle as of the latest observation, regardless of the time."""
        return self._since

    def take(self, snapshot: ClusterSnapshot, now: float) -> None:
        """Observe the nodes that have changed since the last call."""
        ledgers = snapshot.ledger.nodes
        for name, node in snapshot.nodes.items():
            before, ledger = self._looked_at.get(name), ledgers.get(name)
            # Compared by identity: thousands of GPUs, ten times a second, would take a fifth of a core.
            if before is None or before[0] is not node or before[1] is not ledger:
                self._looked_at[name] = node, ledger
                self._look(node, ledger, now, before[0] if before is not None else None)
        if len(self._looked_at) > len(snapshot.nodes):
            self._looked_at = {name: pair for name, pair in self._looked_at.items() if name in snapshot.nodes}
        if any(node not in snapshot.nodes for node, _ in self._since):
            self._since = {key: since for key, since in self._since.items() if key[0] in snapshot.nodes}

    def look_away(self) -> None:
        """Mark the time until the next ``take`` as unobserved: a GPU that is idle then may have been idle for
        longer.
        """
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
            elif key not in self._since or self._since[key].holders != uids:  # a new holder starts a new span
                use = before.use(gpu.index) if before is not None else None
                self._since[key] = IdleSpan(uids, now, is_least=use is None or use.percent is None)

    def long_idle(self, now: float, least_seconds: float = LONG_SECONDS) -> Mapping[DeviceKey, IdleTime]:
        """Return the idle time of the GPUs that have been idle for at least ``least_seconds``."""
        times = {key: IdleTime(now - span.since, span.is_least) for key, span in self._since.items()}
        return {key: idle for key, idle in times.items() if idle.seconds >= least_seconds}
