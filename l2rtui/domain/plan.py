"""Plans: every step of a launch or a scale-up before anything is done.

Making a plan is pure; a backend executes it and reports each step. ``l2rtui plan`` prints the same plan, and the
app shows it before it asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.node import Gpu, Node, SlotId
from l2rtui.domain.placement import Pin, Placement, Seat
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.workload import RunSpec, SetSpec, pod_name


class StepVerb(StrEnum):
    """Effect of a step on its object."""

    CREATE = "create"
    CLAIM = "claim"
    KEEP = "keep"


class PlanStep(Struct, frozen=True):
    """Effect on one object; ``detail`` is a text for display."""

    verb: StepVerb
    kind: str
    name: str
    detail: str = ""


class StepDone(Struct, frozen=True):
    """Result of one step of a launch: ``error`` is empty, or a sentence that describes the failure."""

    step: PlanStep
    error: str = ""


class PodPlan(Struct, frozen=True):
    """Complete plan of one replica: its slots and the process that is started there.

    Attributes:
        node: Empty if the backend chooses the node.
        env: Variables of the spec and variables that bind the device, in order; later ones win.
        gpu: Device of its seat, or the first of several; None without a device.
        gpus: All devices of a seat that has several whole GPUs; otherwise empty.
    """

    name: str
    set_spec: SetSpec
    index: int
    node: str
    seat: Seat
    env: tuple[tuple[str, str], ...]
    gpu: Gpu | None = None
    gpus: tuple[Gpu, ...] = ()

    @property
    def devices(self) -> tuple[Gpu, ...]:
        """The devices of its seat."""
        return self.gpus or ((self.gpu,) if self.gpu is not None else ())


def gpu_count(pods: Sequence[PodPlan]) -> int:
    """Number of GPUs that these replicas use; a replica whose GPU the backend chooses counts as one."""
    chosen = {(gpu.node, gpu.index) for pod in pods for gpu in pod.devices if not gpu.is_cpu}
    return len(chosen) + sum(
        (pod.set_spec.gpus or 1) for pod in pods if pod.gpu is None and pod.set_spec.needs_device
    )


class RunPlan(Struct, frozen=True):
    """One run with all its replicas seated.

    Attributes:
        uid: Unique id of this launch. It marks every object, so that a rollback or a count of remaining objects
            never includes another run of the same name.
    """

    uid: str
    spec: RunSpec
    owner: str
    pods: tuple[PodPlan, ...]


class LaunchPlan(Struct, frozen=True):
    """All objects that one launch creates.

    Attributes:
        conflicts: Replicas without a slot; preflight refuses the plan for each.
        objects: Objects of the backend, where there are more than the runs and their pods; empty otherwise.
        wave: Start so many pods, wait until they run, then the next; 0 starts all at once.
        overcommitted: Slots that another pod holds already, used because the person allowed it.
        pins: Slots that the person named, to which a later scale keeps; empty for none.
    """

    runs: tuple[RunPlan, ...]
    conflicts: tuple[str, ...] = ()
    objects: tuple[PlanStep, ...] = ()
    overcommitted: tuple[SlotId, ...] = ()
    wave: int = 0
    pins: tuple[Pin, ...] = ()

    @property
    def slots(self) -> tuple[SlotId, ...]:
        """Slots of all pods of the plan."""
        return tuple(slot for run in self.runs for pod in run.pods for slot in pod.seat.slots)

    def steps(self) -> tuple[PlanStep, ...]:
        """The objects, in the order in which they are created."""
        if self.objects:
            return self.objects
        steps: list[PlanStep] = []
        for run in self.runs:
            steps.append(PlanStep(StepVerb.CREATE, "Run", run.spec.name, f"{run.spec.kind}, seed {run.spec.seed}"))
            for pod in run.pods:
                where = " ".join(map(str, pod.seat.slots)) or "any node, no device"
                detail = f"{pod.set_spec.role} on {where}: {' '.join(pod.set_spec.command)}"
                steps.append(PlanStep(StepVerb.CREATE, "Pod", pod.name, detail))
        return tuple(steps)


class PlannedPlaces(Struct, frozen=True):
    """Places that the launch of a run has chosen.

    Attributes:
        slots: Of each replica, by the name of its pod.
        pins: Slots that the person named; empty where the launch was free to choose.
    """

    slots: Mapping[str, tuple[SlotId, ...]]
    pins: tuple[Pin, ...] = ()


NO_PLACES: Final = PlannedPlaces({})


class ScalePlan(Struct, frozen=True):
    """Change of the number of replicas of a set.

    Attributes:
        added: Replicas to start. removed: Names of the pods to stop, highest index first.
        overcommitted: Slots that another pod already holds, used because the user allowed it.
    """

    run: str
    set_name: str
    replicas: int
    added: tuple[PodPlan, ...]
    removed: tuple[str, ...]
    conflicts: tuple[str, ...] = ()
    overcommitted: tuple[SlotId, ...] = ()


def planned_view(
    plan: PodPlan, run: str, owner: str, seed: int, *, uid: str = "", node: str = "", created: float = 0.0
) -> PodView:
    """Return the view of a pod with only the facts that its plan contains.

    Args:
        node: Node of the pod, if the plan leaves the choice to the backend.
    """
    return PodView(
        uid,
        plan.name,
        plan.node or node,
        owner,
        run,
        plan.set_spec.name,
        plan.set_spec.role,
        plan.index,
        seed,
        tuple(DeviceUsage(slot.gpu, slot.slot) for slot in plan.seat.slots),
        created=created,
    )


def device_env(gpu: Gpu | None, *more: Gpu) -> tuple[tuple[str, str], ...]:
    """Return environment variables that make only these devices visible to a process.

    Both carry the GPU's UUID if it is known. An index in ``CUDA_VISIBLE_DEVICES`` counts only visible devices, so
    ``3`` matches no device in a container that sees one GPU. A process without a GPU gets ``none`` (NVIDIA
    container runtime) and an empty list (CUDA); otherwise it would see all GPUs.
    """
    # Both variables are set even without a GPU: NVIDIA's images set NVIDIA_VISIBLE_DEVICES=all by default.
    if gpu is None or gpu.is_cpu:
        return (("NVIDIA_VISIBLE_DEVICES", "none"), ("CUDA_VISIBLE_DEVICES", ""))
    # All by index if one UUID is unknown: CUDA does not accept a mix of both.
    has_uuids = all(item.uuid for item in (gpu, *more))
    device = ",".join(item.uuid if has_uuids else str(item.index) for item in (gpu, *more))
    return (("NVIDIA_VISIBLE_DEVICES", device), ("CUDA_VISIBLE_DEVICES", device))


def plan_launch(
    specs: Sequence[RunSpec], placement: Placement, nodes: Mapping[str, Node], *, owner: str, uids: Sequence[str]
) -> LaunchPlan:
    """Combine specs and seats into a plan. Replicas without a seat are named in ``conflicts``.

    Args:
        uids: One unique id per spec.
    """
    seats = {seat.pod: seat for seat in placement.seats}
    runs = []
    for spec, uid in zip(specs, uids, strict=True):
        replicas = (
            (part, pod_name(spec.name, part.name, index)) for part in spec.sets for index in range(part.num_pods)
        )
        pods = tuple(plan_pod(spec, part, seats[name], nodes) for part, name in replicas if name in seats)
        runs.append(RunPlan(uid, spec, owner, pods))
    return LaunchPlan(tuple(runs), placement.conflicts, overcommitted=placement.overcommitted)


def plan_pod(spec: RunSpec, set_spec: SetSpec, seat: Seat, nodes: Mapping[str, Node]) -> PodPlan:
    """Return the plan of one replica on its seat, with the variables of its device."""
    node = nodes.get(seat.slots[0].node) if seat.slots else None
    devices = dict.fromkeys(slot.gpu for slot in seat.slots)
    gpus = tuple(gpu for index in devices if node and (gpu := node.gpu(index)) is not None)
    gpu = gpus[0] if gpus else None
    # Later entries win, so a spec cannot override the device that placement chose.
    # A set that is bound to the CPU sees no GPU, even if the user has named a GPU slot for it.
    visible = None if set_spec.pod.binding is Binding.CPU else gpu
    more = gpus[1:] if visible is not None else ()
    env = (*spec.env, *set_spec.env, *device_env(visible, *more))
    name = node.name if node else ""
    return PodPlan(seat.pod, set_spec, seat.index, name, seat, env, gpu, gpus if len(gpus) > 1 else ())
