"""Structs of the API → rows of a snapshot; pure, and the only place that knows both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.claims import holding
from l2rtui.backends.kubernetes.decode import Unread
from l2rtui.backends.kubernetes.devices import NodeDevices, quantity
from l2rtui.backends.kubernetes.seats import Seat
from l2rtui.backends.kubernetes.structs import (
    ConfigMapStruct,
    ContainerStatus,
    ControllerStruct,
    EventStruct,
    Meta,
    NodeMetricsStruct,
    NodeStruct,
    PodStruct,
    Terminated,
    epoch,
)
from l2rtui.backends.kubernetes.why import explain, explain_controller
from l2rtui.domain.ledger import Claim
from l2rtui.domain.node import GpuUse, Node, Taint
from l2rtui.domain.snapshot import PodView, RunView, SetView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role

UNREADABLE = "Unreadable"
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
    """The row of a node."""
    meta, status = node.metadata, node.status
    allocatable = status.allocatable or status.capacity
    conditions = {one.type: one for one in status.conditions or ()}
    ready = conditions.get("Ready")
    is_ready = ready is not None and ready.status == "True"
    pressing = [one for name, one in conditions.items() if name != "Ready" and one.status == "True"]
    messages = [one.message or one.reason or one.type for one in pressing]
    if not is_ready:
        messages.insert(0, (ready.message or ready.reason or "") if ready else "it has not reported yet")
    usage = metrics.usage if metrics is not None else None
    return Node(
        meta.name,
        devices.gpus,
        ready=is_ready,
        is_schedulable=not node.spec.unschedulable,
        is_use_known=is_use_known,
        cpu_cores=quantity(allocatable, "cpu"),
        memory_bytes=int(quantity(allocatable, "memory")),
        cpu_used=quantity(usage, "cpu") if usage else None,
        memory_used_bytes=int(quantity(usage, "memory")) if usage else None,
        gpu_use=gpu_use,
        taints=tuple(Taint(one.key, one.value or "", one.effect) for one in node.spec.taints or ()),
        labels=tuple(sorted((meta.labels or {}).items())),
        message="; ".join(filter(None, messages)),
    )


def pod_view(
    pod: PodStruct,
    devices: NodeDevices,
    seat: Seat | None,
    events: Sequence[EventStruct],
    now: float,
    node: NodeStruct | None = None,
    allocated: tuple[Claim, ...] | None = None,
) -> PodView:
    """The row of a pod.

    Args:
        devices: Of the node that it sits on or is pinned to.
        events: About this pod, in any order.
        node: The node that it sits on, where it is known.
        allocated: What its resource claims have been given, where that is known.
    """
    meta, status = pod.metadata, pod.status
    is_ours = is_own(meta)
    held = holding(pod, devices, seat.slots if seat is not None else None, allocated)
    statuses = pod.statuses
    ready = pod.condition("Ready")
    last = _last_end(statuses)
    controller = meta.controller
    reason, message = explain(pod, events, now, node=node)
    return PodView(
        meta.uid,
        meta.name,
        devices.node,
        meta.annotation(labels.OWNER) or meta.label(labels.OWNER) or meta.namespace,
        meta.label(labels.RUN) if is_ours else "",
        meta.label(labels.SET) if is_ours else "",
        _ROLES.get(meta.label(labels.ROLE)) if is_ours else None,
        seat.index if seat is not None else 0,
        _number(meta.label(labels.SEED)),
        # A successor holds the slot by now; what is being stopped beside it is on its way out.
        () if seat is not None and seat.is_lent else held.claims,
        _PHASES.get(status.phase or "Pending", Phase.UNKNOWN),
        reason,
        message,
        ready is not None and ready.status == "True",
        sum(one.restart_count or 0 for one in statuses),
        epoch(meta.creation_timestamp),
        _started(statuses),
        None if last is None else last.exit_code,
        meta.deletion_timestamp is not None,
        None,
        meta.namespace,
        f"{controller.kind} {controller.name}" if controller is not None else "",
        held.flags,
    )


def unread_pod_view(unread: Unread) -> PodView:
    """The row of a pod that cannot be decoded: it may hold anything, so its node's free slots become unknown."""
    meta = unread.metadata
    return PodView(
        meta.uid,
        meta.name,
        unread.node,
        owner=meta.annotation(labels.OWNER) or meta.namespace,
        claims=(Claim(None),) if unread.node else (),
        phase=Phase.UNKNOWN,
        reason=UNREADABLE,
        message=unread.error,
        created=epoch(meta.creation_timestamp),
        is_terminating=meta.deletion_timestamp is not None,
        namespace=meta.namespace,
    )


def run_view(
    run: ConfigMapStruct, controllers: Iterable[tuple[ControllerStruct, Sequence[EventStruct]]]
) -> RunView:
    """The row of a run; each of its controllers comes with the events about it."""
    meta = run.metadata
    spec = _spec((run.data or {}).get(labels.SPEC_KEY, ""))
    told = (_trouble(controller, events) for controller, events in controllers)
    reason, message = next((one for one in told if one[0]), ("", ""))
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
        tuple(SetView(one.name, _ROLES.get(one.role, Role.JOB), one.replicas) for one in spec.sets) if spec else (),
        reason,
        message,
        meta.deletion_timestamp is not None or bool(meta.annotation(labels.TERMINATING)),
        meta.namespace,
    )


def is_own(meta: Meta) -> bool:
    """Whether l2rtui made this object."""
    return bool(meta.label(labels.RUN_ID)) and meta.label(labels.APP_MANAGED_BY) == labels.MANAGED_BY


def planned_node(pod: PodStruct) -> str:
    """The node that a pod sits on or, before it is bound, the one that it is pinned to; empty for neither."""
    return pod.spec.node_name or (pod.spec.node_selector or {}).get(labels.HOSTNAME, "")


class _SetLook(msgspec.Struct, frozen=True):
    name: str
    role: str = ""
    replicas: int = 1


class _SpecLook(msgspec.Struct, frozen=True):
    experiment: str = ""
    kind: str = ""
    seed: int = 0
    sets: tuple[_SetLook, ...] = ()


_SPEC: Any = msgspec.json.Decoder(_SpecLook)


def _spec(text: str) -> _SpecLook | None:
    try:
        spec: _SpecLook = _SPEC.decode(text)
    except msgspec.DecodeError:
        return None
    return spec


def _trouble(controller: ControllerStruct, events: Sequence[EventStruct]) -> tuple[str, str]:
    """Why a controller makes no more pods; events of an hour ago do not count once it has them all."""
    given_up = controller.condition("Failed")
    if given_up is not None and given_up.status == "True":
        return given_up.reason or "Failed", f"{controller.metadata.name}: {given_up.message or 'it has given up'}"
    spec, status = controller.spec, controller.status
    wanted = spec.replicas if spec.replicas is not None else spec.parallelism
    there = status.replicas or (status.active or 0) + (status.succeeded or 0)
    return explain_controller(controller, events) if there < (1 if wanted is None else wanted) else ("", "")


def _last_end(statuses: Sequence[ContainerStatus]) -> Terminated | None:
    """How the container that ended last did so."""
    last: Terminated | None = None
    for one in statuses:
        for state in (one.state, one.last_state):
            end = state.terminated if state is not None else None
            if end is not None and (last is None or epoch(end.finished_at) > epoch(last.finished_at)):
                last = end
    return last


def _started(statuses: Sequence[ContainerStatus]) -> float | None:
    """Since when a process of the pod runs, or when the last one began."""
    running: float | None = None
    ended: float | None = None
    for one in statuses:
        if (state := one.state) is None:
            continue
        if state.running is not None:
            began = epoch(state.running.started_at)
            running = began if running is None or began < running else running
        if state.terminated is not None:
            began = epoch(state.terminated.started_at)
            ended = began if ended is None or began < ended else ended
    return running if running is not None else ended


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
