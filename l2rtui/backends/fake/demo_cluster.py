"""Initial contents of the demo cluster: three nodes of eight GPUs, and the runs of three users."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from uuid import NAMESPACE_DNS, uuid5

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.node import Gpu, GpuShare, GpuUse, Node
from l2rtui.domain.placement import Placement, PlacementPolicy, place
from l2rtui.domain.plan import LaunchPlan, plan_launch
from l2rtui.domain.snapshot import ClusterSnapshot, PodView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec, with_seeds

GIB = 2**30
CORDONED = "phortx3"
CRASHING = "racing-sac-s1-w-3"
"""Demo pod that repeatedly runs out of memory."""


_LOADS: Mapping[Role | None, tuple[int, int]] = {
    Role.LEARNER: (38, 9),
    Role.WORKER: (11, 2),
    Role.EVALUATOR: (4, 1),
}
"""GPU utilisation in percent and memory in GiB per slot of one process."""
_FOREIGN_LOAD = (21, 14)
_IDLE_BYTES = 437 << 20
_IDLE_WATTS = 61.0
_NODE_SECONDS = 120 * 86_400.0
"""Age of the first node; the others joined later."""


class DemoCluster(Struct, frozen=True):
    """Initial contents of an in-memory cluster.

    Attributes:
        plans: Runs that l2rtui launched, with the age of each in seconds.
        foreign_pods: Pods that l2rtui did not launch.
    """

    nodes: tuple[Node, ...] = ()
    plans: tuple[tuple[LaunchPlan, float], ...] = ()
    foreign_pods: tuple[PodView, ...] = ()


EMPTY = DemoCluster()


def demo_cluster(owner: str, now: float, slots_per_gpu: int = 4) -> DemoCluster:
    """Return the demo cluster, equal for equal arguments.

    Args:
        owner: Name of the user; two of the runs are theirs.
        now: Seconds since the epoch; ages are counted back from it.
    """
    nodes = tuple(_node(number, slots_per_gpu, now - _NODE_SECONDS / number) for number in (1, 2, 3))
    # Placed like real runs, so that the demo shows the effect of the placement policy.
    open_nodes = ClusterSnapshot({node.name: node for node in nodes})
    mine = with_seeds(_racing("racing-sac", workers=4), (0, 1))
    theirs = (_racing("lidar-ppo", workers=7),)
    placement = place((*mine, *theirs), open_nodes.ledger, policy=PlacementPolicy.PACK)
    return DemoCluster(
        nodes,
        (
            (_plan(mine, placement, open_nodes, owner), 3_600.0),
            (_plan(theirs, placement, open_nodes, "u17"), 86_400.0),
        ),
        (
            foreign_pod("notebook-7f9c", "phortx2", "u23", DeviceUsage(4, None, slots_per_gpu), now - 7_200.0),
            foreign_pod("segment-train-0", "phortx2", "u23", DeviceUsage(6, None, 2), now - 900.0),
            foreign_pod("render-farm-0", CORDONED, "u31", DeviceUsage(0, None, 1), now - 172_800.0),
        ),
    )


def _plan(specs: tuple[RunSpec, ...], placement: Placement, nodes: ClusterSnapshot, owner: str) -> LaunchPlan:
    # uuid5 of names instead of random ids: screenshots of two demo runs are equal.
    uids = [str(uuid5(NAMESPACE_DNS, f"{spec.name}.{owner}.demo")) for spec in specs]
    return plan_launch(specs, placement, nodes.nodes, owner=owner, uids=uids)


def _node(number: int, slots_per_gpu: int, created: float) -> Node:
    name = f"phortx{number}"
    gpus = tuple(
        Gpu(
            name,
            index,
            f"GPU-{uuid5(NAMESPACE_DNS, f'{index}.{name}.demo')}",
            "NVIDIA A100-SXM4-80GB",
            80 * GIB,
            slots_per_gpu,
        )
        for index in range(8)
    )
    return Node(
        name,
        gpus,
        is_schedulable=name != CORDONED,
        cpu_cores=96.0,
        memory_bytes=512 * GIB,
        cpu_used=(58.5, 33.6, 2.1)[number - 1],
        memory_used_bytes=(205, 180, 31)[number - 1] * GIB,
        labels=(("kubernetes.io/hostname", name), ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB")),
        message="cordoned for a driver update" if name == CORDONED else "",
        ip=f"10.20.0.{number}",
        created=created,
    )


def with_gpu_use(node: Node, pods: Iterable[PodView]) -> Node:
    """Return a node whose GPUs are as busy as its running pods would make them."""
    percent: Counter[int] = Counter()
    memory: Counter[int] = Counter()
    shares: dict[int, list[GpuShare]] = {}
    for pod in pods:
        for usage in pod.devices if pod.ready and pod.node == node.name else ():
            busy, gibibytes = (figure * usage.count for figure in _LOADS.get(pod.role, _FOREIGN_LOAD))
            percent[usage.gpu or 0] += busy
            memory[usage.gpu or 0] += gibibytes
            # Like a cluster in which only runs of l2rtui report the use of their own processes.
            if pod.run:
                shares.setdefault(usage.gpu or 0, []).append(GpuShare(pod.uid, float(busy), gibibytes * GIB))
    uses = (
        GpuUse(
            gpu.index,
            share := float(min(99, percent[gpu.index])),
            min(gpu.memory_bytes, memory[gpu.index] * GIB + _IDLE_BYTES),
            gpu.memory_bytes,
            watts=round(_IDLE_WATTS + 3.1 * share, 1),
            celsius=float(31 + round(0.35 * share)),
            shares=tuple(shares.get(gpu.index, ())),
        )
        for gpu in node.gpus
    )
    return replace(node, gpu_use=tuple(uses))


def _racing(name: str, workers: int) -> RunSpec:
    run = ("l2r-runtime",)
    return RunSpec(
        Kind.LEARNER_WORKERS,
        name,
        name,
        (
            SetSpec("learner", Role.LEARNER, (*run, "learner")),
            SetSpec("w", Role.WORKER, (*run, "worker"), replicas=workers),
            SetSpec("eval", Role.EVALUATOR, (*run, "evaluator")),
        ),
    )


def foreign_pod(name: str, node: str, owner: str, usage: DeviceUsage, created: float) -> PodView:
    """Return a pod of another user that no run of ours has."""
    return PodView(
        uid=str(uuid5(NAMESPACE_DNS, f"{name}.{node}.demo")),
        name=name,
        node=node,
        owner=owner,
        devices=(usage,),
        phase=Phase.RUNNING,
        ready=True,
        created=created,
        started=created + 2.0,
    )
