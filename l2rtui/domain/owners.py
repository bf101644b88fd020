"""Owners: the slots and GPUs that each person uses in each project, and the idle ones among them. Pure.

Only measured GPUs count as idle, and only while the app observes them: a GPU without a measurement is never called
idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import Struct

from l2rtui.domain.ledger import NodeLedger
from l2rtui.domain.node import CPU, Node
from l2rtui.domain.quantity import age
from l2rtui.domain.snapshot import ClusterSnapshot, PodView

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


HOLDER_SECONDS: Final = 1800.0
"""Time after which a claimed GPU counts as idle: evaluations and checkpoints take less."""
PROJECT_LABELS: Final = ("project", "app.kubernetes.io/part-of")
"""Labels of a pod that name its project, in order of precedence; without them its namespace does. Kubernetes
recommends the second one.
"""
_NOT_IDLE: Final = IdleTime(0.0)


class IdleGpu(Struct, frozen=True):
    """Claimed GPU that is idle, the duration, and the owner's pods on it.

    Attributes:
        is_least: It has been idle for at least these seconds; it was not observed before.
    """

    node: str
    gpu: int
    seconds: float
    pods: tuple[str, ...]
    is_least: bool = False

    @property
    def time(self) -> IdleTime:
        """Time for which it has been idle."""
        return IdleTime(self.seconds, self.is_least)


class Holding(Struct, frozen=True):
    """Slots and GPUs of one owner in one project.

    Attributes:
        owner, project: Empty if unknown.
        slots, cpu_slots: Number of GPU slots and of CPU slots. An over-committed slot counts for each pod on it.
        gpus: GPUs with a pod of the owner; a GPU that several people share counts for each of them.
        idle: GPUs that have been idle for ``HOLDER_SECONDS``.
        unknown_gpus: GPUs that are not measured, or were not observed for long enough.
    """

    owner: str
    project: str
    pods: int = 0
    runs: int = 0
    slots: int = 0
    cpu_slots: int = 0
    gpus: int = 0
    idle: tuple[IdleGpu, ...] = ()
    unknown_gpus: int = 0

    @property
    def idle_gpus(self) -> int | None:
        """Number of idle GPUs; None if none of its GPUs is observed."""
        return None if self.unknown_gpus == self.gpus > 0 else len(self.idle)


def holdings(snapshot: ClusterSnapshot, idle: Mapping[DeviceKey, IdleTime], now: float) -> tuple[Holding, ...]:
    """Return one row for each owner and project that uses a device, the largest first.

    Args:
        idle: Observed idle times of GPUs with unchanged holders, by node and index.
        now: Seconds since the epoch.
    """
    members: dict[tuple[str, str], list[PodView]] = {}
    for pod in snapshot.pods.values():
        if pod.devices and not pod.phase.is_over:
            members.setdefault((pod.owner, project_of(pod)), []).append(pod)
    rows = [_holding(*key, pods, snapshot.nodes, idle, now) for key, pods in members.items()]
    return tuple(sorted(rows, key=lambda row: (-row.slots, -row.cpu_slots, row.owner, row.project)))


def project_of(pod: PodView) -> str:
    """Return the project of a pod: the first project label, otherwise its namespace; empty without either."""
    labels = dict(pod.labels)
    return next((labels[name] for name in PROJECT_LABELS if labels.get(name)), pod.namespace)


def _holding(
    owner: str,
    project: str,
    pods: Sequence[PodView],
    nodes: Mapping[str, Node],
    idle: Mapping[DeviceKey, IdleTime],
    now: float,
) -> Holding:
    slots = {True: 0, False: 0}
    on_gpu: dict[DeviceKey, list[PodView]] = {}
    unnumbered = 0
    for pod in pods:
        for usage in pod.devices:
            is_cpu = _is_cpu(nodes.get(pod.node), usage.gpu)
            slots[is_cpu] += usage.count
            if usage.gpu is None:
                unnumbered += usage.count  # whole GPUs that a device plugin has chosen: their index is unknown
            elif not is_cpu and pod not in (on := on_gpu.setdefault((pod.node, usage.gpu), [])):
                on.append(pod)
    states = {key: _idle_time(nodes.get(key[0]), key, own, idle, now) for key, own in on_gpu.items()}
    long_idle = [
        IdleGpu(*key, state.seconds, tuple(pod.name for pod in on_gpu[key]), state.is_least)
        for key, state in sorted(states.items())
        if state is not None and state.seconds
    ]
    return Holding(
        owner,
        project,
        len(pods),
        len({pod.run for pod in pods if pod.run}),
        slots[False],
        slots[True],
        len(on_gpu) + unnumbered,
        tuple(long_idle),
        sum(state is None for state in states.values()) + unnumbered,
    )


def _is_cpu(node: Node | None, index: int | None) -> bool:
    """Return True for a cpu device; an index that the node does not list is assumed to be a GPU."""
    if index is None or node is None:
        return index == CPU
    device = node.gpu(index)
    return index == CPU if device is None else device.is_cpu


def _idle_time(
    node: Node | None, key: DeviceKey, pods: Sequence[PodView], idle: Mapping[DeviceKey, IdleTime], now: float
) -> IdleTime | None:
    """Return how long a GPU has been idle; 0 if not for long, None if unknown."""
    use = node.use(key[1]) if node is not None else None
    if use is None or use.percent is None:
        return None
    if use.percent >= IDLE_PERCENT:
        return _NOT_IDLE
    time = idle.get(key, _NOT_IDLE)
    if time.seconds >= HOLDER_SECONDS:
        return time
    # A GPU whose holder is young cannot have been idle for long, observed or not.
    is_young = min(pod.created for pod in pods) > now - HOLDER_SECONDS
    return _NOT_IDLE if is_young else None
