"""Holdings: current use of each owner in each project, from the pods that the ledger counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from l2rtui.domain.node import CPU, Node
from l2rtui.domain.owners.idle_gpus import IDLE_PERCENT, DeviceKey, IdleTime
from l2rtui.domain.snapshot import ClusterSnapshot, PodView

HOLDER_SECONDS: Final = 1800.0
"""Time after which a claimed GPU counts as idle: evaluations and checkpoints take less."""
PROJECT_LABELS: Final = ("project", "app.kubernetes.io/part-of")
"""Labels of a pod that name its project, in order of precedence; without them its namespace does. Kubernetes
recommends the second one.
"""
_NOT_IDLE: Final = IdleTime(0.0)


@dataclass(frozen=True, slots=True)
class IdleGpu:
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


@dataclass(frozen=True, slots=True)
class Holding:
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
