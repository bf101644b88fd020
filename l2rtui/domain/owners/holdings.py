"""Holdings: what each owner uses in each project now, from the pods that the ledger counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from l2rtui.domain.node import CPU, Node
from l2rtui.domain.owners.idle_gpus import IDLE_PERCENT, DeviceKey, IdleTime
from l2rtui.domain.snapshot import ClusterSnapshot, PodView

HOLDER_SECONDS: Final = 1800.0
"""Time from which a GPU that is claimed and does nothing counts: evaluations and checkpoints take less."""
PROJECT_LABELS: Final = ("project", "app.kubernetes.io/part-of")
"""Labels of a pod that name its project, the first that it has; else its namespace does. The second is one of those
that Kubernetes recommends."""
_NOT_IDLE: Final = IdleTime(0.0)


@dataclass(frozen=True, slots=True)
class IdleGpu:
    """GPU that is claimed and does nothing, for how long, and the owner's pods on it.

    Attributes:
        is_least: It does nothing for at least these seconds: nobody has looked before.
    """

    node: str
    gpu: int
    seconds: float
    pods: tuple[str, ...]
    is_least: bool = False

    @property
    def time(self) -> IdleTime:
        """Time for which it has done nothing."""
        return IdleTime(self.seconds, self.is_least)


@dataclass(frozen=True, slots=True)
class Holding:
    """Slots and GPUs of one owner in one project.

    Attributes:
        owner, project: Empty where they are unknown.
        slots, cpu_slots: Of GPUs, and of CPUs. An over-committed slot counts for each pod on it.
        gpus: GPUs with a pod of the owner; one that several people share counts for each of them.
        idle: GPUs that have been idle for ``HOLDER_SECONDS``.
        unknown_gpus: GPUs of which nobody can say: without a measurement, or not watched for so long.
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
        """Number of idle GPUs; None where nothing is known of any of them."""
        return None if self.unknown_gpus == self.gpus > 0 else len(self.idle)


def holdings(snapshot: ClusterSnapshot, idle: Mapping[DeviceKey, IdleTime], now: float) -> tuple[Holding, ...]:
    """Return one row for each owner and project that uses a device, the largest first.

    Args:
        idle: Times for which GPUs have been seen idle with the same holders, by node and index.
        now: Seconds since the epoch.
    """
    members: dict[tuple[str, str], list[PodView]] = {}
    for pod in snapshot.pods.values():
        if pod.devices and not pod.phase.is_over:
            members.setdefault((pod.owner, project_of(pod)), []).append(pod)
    rows = [_holding(*key, pods, snapshot.nodes, idle, now) for key, pods in members.items()]
    return tuple(sorted(rows, key=lambda row: (-row.slots, -row.cpu_slots, row.owner, row.project)))


def project_of(pod: PodView) -> str:
    """Return the project of a pod: a label of its own, else its namespace; empty without either."""
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
                unnumbered += usage.count  # whole GPUs that a device plugin has chosen: nobody says which
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
    """Return True for a cpu device; an index that the node does not list is taken for a GPU."""
    if index is None or node is None:
        return index == CPU
    device = node.gpu(index)
    return index == CPU if device is None else device.is_cpu


def _idle_time(
    node: Node | None, key: DeviceKey, pods: Sequence[PodView], idle: Mapping[DeviceKey, IdleTime], now: float
) -> IdleTime | None:
    """Return for how long a GPU has been idle, 0 while it is not for long, None where nobody can say."""
    use = node.use(key[1]) if node is not None else None
    if use is None or use.percent is None:
        return None
    if use.percent >= IDLE_PERCENT:
        return _NOT_IDLE
    time = idle.get(key, _NOT_IDLE)
    if time.seconds >= HOLDER_SECONDS:
        return time
    # Whoever has claimed it a moment ago has not let it rest for long, whether somebody has looked or not.
    is_young = min(pod.created for pod in pods) > now - HOLDER_SECONDS
    return _NOT_IDLE if is_young else None
