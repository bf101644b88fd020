"""Plans: what will be done, step by step, before anything is done.

Making a plan is pure; a backend carries it out and reports each step. The same plan is printed by
``l2rtui plan``, shown by the app before it asks, and executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from l2rtui.domain.node import Gpu, Node, SlotId
from l2rtui.domain.placement import Placement, Seat
from l2rtui.domain.workload import RunSpec, SetSpec, pod_name


class Verb(StrEnum):
    """What a step does to its object."""

    CREATE = "create"
    CLAIM = "claim"
    DELETE = "delete"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Step:
    """One object and what is done to it; ``detail`` is for people."""

    verb: Verb
    kind: str
    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PodPlan:
    """One replica, complete: where it sits and what is started there.

    Attributes:
        node: Empty where the backend chooses.
        env: The spec's variables and those that bind the device, in order; later ones win.
        gpu: The device of its seat; None without one.
    """

    name: str
    set_spec: SetSpec
    index: int
    node: str
    seat: Seat
    env: tuple[tuple[str, str], ...]
    gpu: Gpu | None = None


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run with all its replicas seated.

    Attributes:
        uid: Unique id of this launch: it marks every object, so that taking back a launch, or counting what is
            left of it, never touches another run of the same name.
    """

    uid: str
    spec: RunSpec
    owner: str
    pods: tuple[PodPlan, ...]


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything that one launch creates.

    Attributes:
        conflicts: Replicas that found no place; preflight refuses the plan for each.
        objects: What the backend makes of it, where that is more than the runs and their pods; empty otherwise.
        wave: Start so many pods, wait until they run, then the next; 0 starts all at once.
        overcommitted: Slots that somebody holds already, used because the person asked for it.
    """

    runs: tuple[RunPlan, ...]
    conflicts: tuple[str, ...] = ()
    objects: tuple[Step, ...] = ()
    overcommitted: tuple[SlotId, ...] = ()
    wave: int = 0

    def steps(self) -> tuple[Step, ...]:
        """The objects, in the order in which they are made."""
        if self.objects:
            return self.objects
        steps: list[Step] = []
        for run in self.runs:
            steps.append(Step(Verb.CREATE, "Run", run.spec.name, f"{run.spec.kind}, seed {run.spec.seed}"))
            steps.extend(
                Step(
                    Verb.CREATE,
                    "Pod",
                    pod.name,
                    f"{pod.set_spec.role} on {_where(pod)}: {' '.join(pod.set_spec.command)}",
                )
                for pod in run.pods
            )
        return tuple(steps)


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """A set gets another number of replicas.

    Attributes:
        added: Replicas to start. removed: names of the pods to stop, highest index first.
    """

    run: str
    set_name: str
    replicas: int
    added: tuple[PodPlan, ...]
    removed: tuple[str, ...]
    conflicts: tuple[str, ...] = ()


def device_env(gpu: Gpu | None) -> tuple[tuple[str, str], ...]:
    """The variables that show a process its device and no other.

    Both carry the GPU's UUID where it is known: an index in ``CUDA_VISIBLE_DEVICES`` counts among the visible
    devices only, so ``3`` finds none in a container that sees one GPU. A process without a GPU gets ``none``
    (NVIDIA container runtime) and an empty list (CUDA), or it would see all of them.
    """
    if gpu is None or gpu.is_cpu:
        return (("NVIDIA_VISIBLE_DEVICES", "none"), ("CUDA_VISIBLE_DEVICES", ""))
    device = gpu.uuid or str(gpu.index)
    return (("NVIDIA_VISIBLE_DEVICES", device), ("CUDA_VISIBLE_DEVICES", device))


def plan_launch(
    specs: Sequence[RunSpec],
    placement: Placement,
    nodes: Mapping[str, Node],
    *,
    owner: str,
    uids: Sequence[str],
) -> LaunchPlan:
    """Join specs and seats into a plan. Replicas without a seat are named in ``conflicts``.

    Args:
        uids: One unique id for each spec.
    """
    seats = {seat.pod: seat for seat in placement.seats}
    runs = tuple(
        RunPlan(
            uid,
            spec,
            owner,
            tuple(
                plan_pod(spec, one, seat, nodes)
                for one in spec.sets
                for index in range(one.replicas)
                if (seat := seats.get(pod_name(spec.name, one.name, index))) is not None
            ),
        )
        for spec, uid in zip(specs, uids, strict=True)
    )
    return LaunchPlan(runs, placement.conflicts, overcommitted=placement.overcommitted)


def plan_pod(spec: RunSpec, one: SetSpec, seat: Seat, nodes: Mapping[str, Node]) -> PodPlan:
    """One replica on its seat, with the variables of its device."""
    node = nodes.get(seat.slots[0].node) if seat.slots else None
    gpu = node.gpu(seat.slots[0].gpu) if node else None
    env = (*spec.env, *one.env, *device_env(gpu))
    return PodPlan(seat.pod, one, seat.index, node.name if node else "", seat, env, gpu)


def _where(pod: PodPlan) -> str:
    return " ".join(map(str, pod.seat.slots)) or "any node, no device"
