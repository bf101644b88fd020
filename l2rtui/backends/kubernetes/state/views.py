"""Views (rows of a snapshot) from API structs. Pure, and the only module that knows both.

Names of a controller's pods are random, but replicas of the plan are numbered, so each pod gets an index. It keeps
the index while it lives, so that rows do not change their names under the user's cursor. A new pod gets the lowest
index that no living pod has. A pod that is terminating or has ended shares its index with its successor, and no
longer uses a slot from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.decode import UndecodedObject
from l2rtui.backends.kubernetes.api.structs import (
    ConfigMapStruct,
    ContainerStatus,
    ControllerStruct,
    EventStruct,
    NodeMetricsStruct,
    NodeStruct,
    ObjectMeta,
    PodStruct,
    Terminated,
    epoch,
)
from l2rtui.backends.kubernetes.state.gpu_usage import PodGpuUsage, read_gpu_usage
from l2rtui.backends.kubernetes.state.node_devices import NodeDevices, quantity
from l2rtui.backends.kubernetes.state.pod_reason import NO_REASON, NODE_LOST, explain, explain_controller
from l2rtui.domain.history import spec_id
from l2rtui.domain.kinds import RestartPolicy, Role
from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.node import GpuUse, Node, Taint
from l2rtui.domain.quantity import counted, whole_number
from l2rtui.domain.snapshot import LOST, SCALED, PodView, RunView, SetView
from l2rtui.domain.status import Phase
from l2rtui.domain.sweeps import Trial
from runtime.base import bounded_json

UNREADABLE = "Unreadable"
OVER: Final = tuple(phase for phase in Phase if phase.is_over)
_PHASES = {str(phase): phase for phase in Phase}
_ROLES = {str(role): role for role in Role}


def node_view(
    node: NodeStruct,
    devices: NodeDevices,
    metrics: NodeMetricsStruct | None,
    gpu_use: tuple[GpuUse, ...] = (),
    *,
    is_use_known: bool,
) -> Node:
    """Make the row of a node."""
    meta, status = node.metadata, node.status
    allocatable = status.allocatable or status.capacity
    conditions = {item.type: item for item in status.conditions or ()}
    ready = conditions.get("Ready")
    is_ready = ready is not None and ready.status == "True"
    # Ready is the only condition that is good when True: the others (MemoryPressure, DiskPressure …) are problems.
    pressing = [item for name, item in conditions.items() if name != "Ready" and item.status == "True"]
    messages = [item.message or item.reason or item.type for item in pressing]
    if not is_ready:
        messages.insert(0, (ready.message or ready.reason or "") if ready else "it has not reported yet")
    messages += filter(None, (resource.health for resource in devices.resources))
    messages += [f"{gpu.label} is not healthy" for gpu in devices.gpus if not gpu.is_healthy]
    usage = metrics.usage if metrics is not None else None
    return Node(
        meta.name,
        devices.gpus,
        ready=is_ready,
        is_schedulable=not node.spec.unschedulable,
        is_use_known=is_use_known,
        cpu_cores=quantity(allocatable, "cpu"),
        memory_bytes=int(quantity(allocatable, "memory")),
        # None, not 0, without metrics: an idle node and an unmeasured one must look different.
        cpu_used=quantity(usage, "cpu") if usage else None,
        memory_used_bytes=int(quantity(usage, "memory")) if usage else None,
        gpu_use=gpu_use,
        taints=tuple(Taint(item.key, item.value or "", item.effect) for item in node.spec.taints or ()),
        labels=tuple(sorted((meta.labels or {}).items())),
        message="; ".join(filter(None, messages)),
        cpu=devices.cpu,
        ip=next((item.address for item in status.addresses or () if item.type == "InternalIP"), ""),
        kubelet_version=(status.node_info.kubelet_version or "") if status.node_info is not None else "",
        runtimes=tuple(filter(None, (item.name for item in status.runtime_handlers or ()))),
        created=epoch(meta.creation_timestamp),
        resources=devices.resources,
    )


def pod_view(
    pod: PodStruct,
    devices: NodeDevices,
    replica: PlannedReplica | None,
    events: Sequence[EventStruct],
    now: float,
    node: NodeStruct | None = None,
    usage: PodGpuUsage | None = None,
    *,
    is_node_gone: bool = False,
) -> PodView:
    """Make the row of a pod.

    Args:
        devices: Devices of the node that it is bound or pinned to.
        replica: Its replica in the plan; None for a foreign pod.
        events: Events about this pod, in any order.
        node: The node that it is bound to, if known. is_node_gone: That node no longer exists.
        usage: Its GPU usage, if more is known than the pod itself shows.
    """
    meta, status = pod.metadata, pod.status
    is_ours = is_own(meta)
    usage = usage or read_gpu_usage(pod, devices, replica.slots if replica is not None else None)
    statuses = pod.statuses
    ready = pod.condition("Ready")
    last = _last_end(statuses)
    controller = meta.controller
    reason, message = explain(pod, events, now, node=node, is_node_gone=is_node_gone)
    return PodView(
        meta.uid,
        meta.name,
        devices.node,
        meta.annotation(labels.OWNER) or meta.label(labels.OWNER) or meta.namespace,
        meta.label(labels.RUN) if is_ours else "",
        meta.label(labels.SET) if is_ours else "",
        _ROLES.get(meta.label(labels.ROLE)) if is_ours else None,
        replica.index if replica is not None else 0,
        _number(meta.label(labels.SEED)),
        # Its successor already has the slot: if both counted, the device would look overbooked until the pod ends.
        () if replica is not None and replica.has_successor else usage.devices,
        # The last report of a node that is silent: Running and ready, whatever has become of the pod.
        Phase.UNKNOWN if reason == NODE_LOST else _PHASES.get(status.phase or "Pending", Phase.UNKNOWN),
        reason,
        message,
        ready is not None and ready.status == "True" and reason != NODE_LOST,
        sum([status_item.restart_count or 0 for status_item in statuses]),
        epoch(meta.creation_timestamp),
        _started(statuses),
        None if last is None else last.exit_code,
        meta.deletion_timestamp is not None,
        None,
        meta.namespace,
        f"{controller.kind} {controller.name}" if controller is not None else "",
        usage.flags,
        status.pod_ip or "",
        tuple(meta.labels.items()) if meta.labels else (),
        "",
        usage.requests,
        bool(pod.spec.node_name) or status.phase == "Running",
        len(pod.spec.containers or ()) or 1,
        len([status_item for status_item in statuses if status_item.ready]),
        ended=epoch(last.finished_at) or None if last is not None and status.phase in OVER else None,
    )


def undecoded_pod_view(undecoded: UndecodedObject) -> PodView:
    """Make the row of a pod that cannot be decoded: it may use any GPU, so its node's free slots become unknown."""
    meta = undecoded.metadata
    return PodView(
        meta.uid,
        meta.name,
        undecoded.node,
        owner=meta.annotation(labels.OWNER) or meta.namespace,
        devices=(DeviceUsage(None),) if undecoded.node else (),
        phase=Phase.UNKNOWN,
        reason=UNREADABLE,
        message=undecoded.error,
        created=epoch(meta.creation_timestamp),
        is_terminating=meta.deletion_timestamp is not None,
        namespace=meta.namespace,
    )


def run_view(
    run: ConfigMapStruct, controllers: Sequence[tuple[ControllerStruct, Sequence[EventStruct]]]
) -> RunView:
    """Make the row of a run from its ConfigMap and its controllers, each with the events about it.

    Its reason is ``LOST`` where controllers are missing, and also while its launch has yet to make them.
    """
    meta = run.metadata
    text = (run.data or {}).get(labels.SPEC_KEY, "")
    spec = _spec(text)
    run_name = meta.label(labels.RUN)
    troubles = (_trouble(run_name, controller, events) for controller, events in controllers)
    # The first controller with a problem: one sentence fits into the row, and causes are mostly shared.
    reason, message = next((item for item in troubles if item[0]), ("", ""))
    # Those of a run that starts in waves come one after the other, those of a queue when it admits them.
    if spec is not None and spec.queue is None and not meta.annotation(labels.WAVE):
        lost = _lost_controller(meta, spec, [controller for controller, _ in controllers])
        reason, message = (LOST, lost) if lost else (reason, message)
    if spec is None:
        reason, message = UNREADABLE, f"its spec in the ConfigMap {meta.name} cannot be read"
    return RunView(
        meta.label(labels.RUN_ID),
        meta.label(labels.RUN),
        spec.experiment if spec is not None else meta.label(labels.EXPERIMENT),
        meta.annotation(labels.OWNER) or meta.label(labels.OWNER),
        spec.seed if spec is not None else _number(meta.label(labels.SEED)),
        spec.kind if spec is not None else "",
        epoch(meta.creation_timestamp),
        tuple(
            SetView(item.name, _ROLES.get(item.role, Role.JOB), item.replicas, item.slots > 0) for item in spec.sets
        )
        if spec
        else (),
        reason,
        message,
        meta.deletion_timestamp is not None or bool(meta.annotation(labels.TERMINATING)),
        meta.namespace,
        trial=spec.trial if spec is not None else None,
        spec_id=spec_id(text),
    )


def is_own(meta: ObjectMeta) -> bool:
    """Return True if l2rtui created this object."""
    own = meta.labels
    return bool(own and own.get(labels.RUN_ID)) and meta.label(labels.APP_MANAGED_BY) == labels.MANAGED_BY


def planned_node(pod: PodStruct) -> str:
    """Return the node that a pod is bound to or, before that, pinned to; empty for neither."""
    return pod.spec.node_name or (pod.spec.node_selector or {}).get(labels.HOSTNAME, "")


# Only the fields that a row shows: a spec written by a newer version of l2rtui must not hide its run.
class _StoredSet(msgspec.Struct, frozen=True):
    name: str
    role: str = ""
    replicas: int = 1
    slots: int = 1
    restart: str = ""
    stable: bool = False


class _StoredSpec(msgspec.Struct, frozen=True):
    experiment: str = ""
    kind: str = ""
    seed: int = 0
    sets: tuple[_StoredSet, ...] = ()
    trial: Trial | None = None
    queue: Any = None


_decode_spec: Final = bounded_json.decoder(_StoredSpec)


def _spec(text: str) -> _StoredSpec | None:
    try:
        spec: _StoredSpec = _decode_spec(text)
        is_whole = spec.trial is None or isinstance(bounded_json.loads(spec.trial.values), dict)
    except bounded_json.UndecodableError:
        return None
    return spec if is_whole else None


def _lost_controller(meta: ObjectMeta, spec: _StoredSpec, controllers: Sequence[ControllerStruct]) -> str:
    """Return a sentence on a set whose controllers do not have all of its replicas; empty where none is missing.

    They are compared by the seats of their annotations: `kubectl scale` changes only the number of pods.
    """
    run = meta.label(labels.RUN)
    for part in spec.sets:
        own = [item.metadata for item in controllers if item.metadata.label(labels.SET) == part.name]
        seats = sum(
            len(read_planned_replicas(item)) * (whole_number(item.annotation(labels.WORKERS)) or 1) for item in own
        )
        # Damaged annotations are ignored.
        if seats >= part.replicas or (own and not seats):
            continue
        is_job = part.restart != RestartPolicy.ALWAYS or part.role == Role.LEARNER or part.stable
        kind, again = ("Job", "") if is_job else ("ReplicaSet", f"`l2rtui scale {run}/{part.name} {part.replicas}`")
        what = (
            f"one {kind} of its set {part.name}" if own else f"its {kind} {labels.controller_name(run, part.name)}"
        )
        hint = f"{again} makes it again" if again else f"`l2rtui destroy {run}`, and launch it again"
        return f"{what} was deleted, by none of l2rtui's verbs: {hint}"
    return ""


def _trouble(run: str, controller: ControllerStruct, events: Sequence[EventStruct]) -> tuple[str, str]:
    """Return why a controller lacks pods; old events do not count once it has them all."""
    given_up = controller.condition("Failed")  # only for a Job: its backoffLimit is used up
    if given_up is not None and given_up.status == "True":
        return given_up.reason or "Failed", f"{controller.metadata.name}: {given_up.message or 'it has given up'}"
    spec, status = controller.spec, controller.status
    desired = spec.replicas if spec.replicas is not None else spec.parallelism
    # A Job counts by active and succeeded pods, the others by replicas.
    existing = status.replicas or (status.active or 0) + (status.succeeded or 0)
    desired = 1 if desired is None else desired
    if existing < desired and (why := explain_controller(controller, events)) != NO_REASON:
        return why
    return _scaled_by_hand(run, controller.metadata, desired)


def _scaled_by_hand(run: str, meta: ObjectMeta, desired: int) -> tuple[str, str]:
    """Return what `kubectl scale` or `kubectl edit` left of a controller: it changes only the number of pods."""
    planned = len(read_planned_replicas(meta))
    if not planned or desired == planned:
        return NO_REASON
    part = meta.label(labels.SET)
    sentence = f"another program changed its set {part} to {desired} of {counted(planned, 'pod')}"
    return SCALED, f"{sentence}: `l2rtui scale {run}/{part} N` sets the number"


def _last_end(statuses: Sequence[ContainerStatus]) -> Terminated | None:
    """Return the end of the container that ended last."""
    last: Terminated | None = None
    for container in statuses:
        for state in (container.state, container.last_state):
            end = state.terminated if state is not None else None
            if end is not None and (last is None or epoch(end.finished_at) > epoch(last.finished_at)):
                last = end
    return last


def _started(statuses: Sequence[ContainerStatus]) -> float | None:
    """Return the time since which a process of the pod runs, otherwise the start of the last one."""
    running: float | None = None
    ended: float | None = None
    for container in statuses:
        if (state := container.state) is None:
            continue
        if state.running is not None:
            began = epoch(state.running.started_at)
            running = began if running is None or began < running else running
        if state.terminated is not None:
            began = epoch(state.terminated.started_at)
            ended = began if ended is None or began < ended else ended
    return running if running is not None else ended


def _number(text: str) -> int:
    return (whole_number(text) or 0) if text else 0  # nearly no pod of a cluster has one


class PlannedReplica(Struct, frozen=True):
    """Replica of the plan.

    Attributes:
        slots: Slots of the controller's device; empty if the cluster chooses the device.
        has_successor: A newer pod already has this index.
    """

    index: int
    slots: tuple[int, ...] = ()
    has_successor: bool = False


def read_planned_replicas(meta: ObjectMeta) -> tuple[PlannedReplica, ...]:
    """Read the replicas from the annotation of a controller or of one of its pods; empty if unreadable."""
    text = meta.annotation(labels.SEATS)
    try:
        parsed = bounded_json.loads(text) if text else []
        return tuple(PlannedReplica(int(index), tuple(map(int, slots))) for index, slots in parsed)
    except (ValueError, TypeError, OverflowError):
        return ()


class ReplicaIndexer:
    """Assignment of pods to replica indices, remembered by controller."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {}

    def assign(
        self, controller: str, planned: tuple[PlannedReplica, ...], pods: Iterable[PodStruct]
    ) -> Mapping[str, PlannedReplica]:
        """Assign a replica to each pod of a controller (its uid), by the pod's uid; pods come in any order."""
        if not planned:
            self._numbers.pop(controller, None)
            return {}
        previous = self._numbers.get(controller, {})
        ordered = sorted(pods, key=_age)
        # By age, so that two clients that start at different times assign the same indices.
        living = [pod.metadata.uid for pod in ordered if is_living(pod)]
        others = [pod.metadata.uid for pod in ordered if not is_living(pod)]
        numbers: dict[str, int] = {}
        for uid in living:
            if previous.get(uid, len(planned)) < len(planned):
                numbers[uid] = previous[uid]
        left = sorted(set(range(len(planned))) - set(numbers.values()))
        lent = {previous[uid] for uid in others if uid in previous}
        # Free indices first, then indices of terminating pods, whose slots may be in use until their grace period
        # ends.
        left.sort(key=lambda number: (number in lent, number))
        for uid in living:
            if uid not in numbers and left:
                numbers[uid] = left.pop(0)
        living_numbers = set(numbers.values())
        replicas = {uid: planned[number] for uid, number in numbers.items()}
        for position, uid in enumerate(others):
            number = previous.get(uid)
            # Unknown after a restart of this program, or beyond the end after a change of scale.
            if number is None or number >= len(planned):
                number = left.pop(0) if left else position % len(planned)
            numbers[uid] = number
            replicas[uid] = PlannedReplica(planned[number].index, planned[number].slots, number in living_numbers)
        if numbers:
            self._numbers[controller] = numbers
        else:
            self._numbers.pop(controller, None)
        return replicas


def is_living(pod: PodStruct) -> bool:
    """Return True if a pod has neither ended nor is terminating."""
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in (Phase.SUCCEEDED, Phase.FAILED)


def _age(pod: PodStruct) -> tuple[float, str]:
    return epoch(pod.metadata.creation_timestamp), pod.metadata.name
