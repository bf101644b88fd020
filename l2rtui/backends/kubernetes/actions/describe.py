"""Descriptions of pods, runs and nodes, line by line, with their events and the queue that admits them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from l2rtui.backends.common.formatting import event_lines, fields, when
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.api.structs import (
    Container,
    ContainerStatus,
    ControllerStruct,
    EventStruct,
    NodeStruct,
    ObjectMeta,
    PartialObject,
    PodStruct,
    Terminated,
    epoch,
)
from l2rtui.backends.kubernetes.state import pod_reason
from l2rtui.domain.log import LAST_LINES, KubeEvent, last_words
from l2rtui.domain.node import Node
from l2rtui.domain.secret import is_secret_variable
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.status import exit_text
from l2rtui.errors import NotFoundError
from runtime.base import bounded_json

MAX_EVENTS = 300


async def of_group(api: Api, meta: ObjectMeta) -> tuple[tuple[str, str], ...]:
    """Return name and text of the fields on queue and group of a pod or Job; empty if it has none."""
    if name := meta.label(labels.JOB_SET):
        return (("job set", _job_set(name, await _read_or_why(api, "JobSet", meta.namespace, name))),)
    if group := meta.label(labels.KUEUE_GROUP):
        workload = await _read_or_why(api, "Workload", meta.namespace, group)
        return (("queue", f"{meta.label(labels.KUEUE_QUEUE)} (Kueue)"), ("admission", _admission(workload)))
    if group := meta.annotation(labels.VOLCANO_GROUP):
        return (("pod group", _phase(group, await _read_or_why(api, "VolcanoPodGroup", meta.namespace, group))),)
    if group := meta.label(labels.COSCHEDULING_GROUP):
        return (("pod group", _phase(group, await _read_or_why(api, "PodGroup", meta.namespace, group))),)
    return ()


async def _read_or_why(api: Api, kind: str, namespace: str, name: str) -> Mapping[str, Any] | str:
    """Return an object, or why it cannot be read: a description is still useful without it."""
    try:
        item = await api.find(kind, namespace, name)
    except ApiError as error:
        return "unknown: you may not read it" if error.is_forbidden else f"unknown: {error.message}"
    return item if item is not None else "unknown: there is no such object yet"


def _admission(workload: Mapping[str, Any] | str) -> str:
    """Return the state of a Kueue Workload from its conditions, the most decisive first."""
    if isinstance(workload, str):
        return workload
    by_type = {str(item.get("type")): item for item in _conditions(workload)}
    # In order of precedence: a finished workload was admitted, and an evicted one may be pending again.
    for kind, state in (("Finished", "finished"), ("Admitted", "admitted"), ("Evicted", "evicted")):
        if str(by_type.get(kind, {}).get("status")) == "True":
            return _with_cause(state, by_type[kind])
    return _with_cause("pending", by_type.get("QuotaReserved", {}))


def _job_set(name: str, item: Mapping[str, Any] | str) -> str:
    """Return the state of a JobSet from its conditions; without any it is in progress."""
    if isinstance(item, str):
        return f"{name}: {item}"
    queue = (item["metadata"].get("labels") or {}).get(labels.KUEUE_QUEUE)
    name = f"{name} (queue {queue} of Kueue)" if queue else name
    by_type = {str(entry.get("type")): entry for entry in _conditions(item)}
    for kind in ("Failed", "Completed", "Suspended"):
        if str(by_type.get(kind, {}).get("status")) == "True":
            return f"{name}: {_with_cause(kind.lower(), by_type[kind])}"
    return f"{name}: under way"


def _phase(group: str, item: Mapping[str, Any] | str) -> str:
    if isinstance(item, str):
        return f"{group}: {item}"
    status = item.get("status") or {}
    newest: Mapping[str, Any] = next(reversed(_conditions(item)), {})
    return f"{group}: {_with_cause(str(status.get('phase') or 'no state yet'), newest)}"


def _conditions(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    conditions = (item.get("status") or {}).get("conditions")
    return [entry for entry in conditions or () if isinstance(entry, dict)] if isinstance(conditions, list) else []


def _with_cause(state: str, condition: Mapping[str, Any]) -> str:
    message = " ".join(str(condition.get("message") or condition.get("reason") or "").split())
    return f"{state}: {message}" if message else state


async def describe(api: Api, target: PodView | RunView | Node) -> tuple[str, ...]:
    """Return the description of one object, its events last; NotFoundError for a deleted object."""
    match target:
        case PodView():
            lines = await _pod(api, target)
        case RunView():
            lines = await _run(api, target)
        case _:
            lines = await _node(api, target)
    return (*lines, "", "events:", *(f"  {line}" for line in await _event_lines(api, target)))


async def _event_lines(api: Api, target: PodView | RunView | Node) -> list[str]:
    try:
        object_events = await events(api, target)
    except ApiError as error:
        # Events of nodes need a permission in all namespaces, which few users have; the rest is useful without
        # them.
        if isinstance(target, Node) and error.is_forbidden:
            return [f"unknown: {error.message}"]
        raise
    return event_lines(object_events)


async def events(api: Api, target: PodView | RunView | Node | None = None) -> tuple[KubeEvent, ...]:
    """Return events of one object, or of all visible objects; newest last, at most MAX_EVENTS.

    A run's events include all its objects: the reason why a pod was never created is an event of its controller.
    """
    match target:
        case PodView():
            structs = await _of(api, target.namespace or api.namespace, {"involvedObject.uid": target.uid})
        case RunView():
            structs = await _of_run(api, target)
        case Node():
            structs = await _of(api, None, {"involvedObject.kind": "Node", "involvedObject.name": target.name})
        case _:
            namespaces = await api.visible_namespaces("Event")
            structs = [event for namespace in namespaces for event in await _of(api, namespace, {})]
    structs.sort(key=lambda event: event.last_seen)
    return tuple(_value(event) for event in structs[-MAX_EVENTS:])


async def explained(api: Api, pod: PodStruct, *, now: float) -> pod_reason.PodReason:
    """Return why a pod does not run, from its events, its node and the last line of its log."""
    namespace = pod.metadata.namespace
    pod_events = await _of(api, namespace, {"involvedObject.uid": pod.metadata.uid})
    node, is_gone = await _node_of(api, pod.spec.node_name or "")
    reason = pod_reason.explain(pod, pod_events, now, node=node, is_node_gone=is_gone)
    if pod_reason.needs_previous_log(reason) and "Its last words" not in reason[1]:
        container = next((status.name for status in (*pod.init_statuses, *pod.statuses) if _is_looping(status)), "")
        reason = pod_reason.with_log(reason, await last_line(api, namespace, pod.metadata.name, container))
    return reason


async def last_line(api: Api, namespace: str, pod: str, container: str) -> str:
    """Return the last words of the newest process of a container; empty if its log cannot be read."""
    # limitBytes: one "line" of a progress bar can be megabytes long.
    query = {"tailLines": str(LAST_LINES), "limitBytes": "65536"} | ({"container": container} if container else {})
    try:
        body = await api.request("GET", KINDS["Pod"].path(namespace, pod, "log"), query=query, timeout_seconds=5.0)
    except ApiError:
        return ""
    return last_words(body.decode("utf-8", "replace").splitlines())


# --- one kind each -----------------------------------------------------------------------------------------------
async def _pod(api: Api, view: PodView) -> list[str]:
    namespace = view.namespace or api.namespace
    pod = await _read(api, "Pod", namespace, view.name, PodStruct)
    if view.uid not in ("", pod.metadata.uid):
        raise NotFoundError(f"The pod {view.name} is gone; another has its name.", "Look at the pods again.")
    reason, sentence = await explained(api, pod, now=time.time())
    lines = [f"pod {view.name}", *_head(pod.metadata)]
    lines += fields(*await of_group(api, pod.metadata))
    lines += fields(
        ("node", pod.spec.node_name or "none yet"),
        ("phase", pod.status.phase or "Unknown"),
        ("address", pod.status.pod_ip or ""),
        ("slots", ", ".join(str(slot) for slot in view.slots)),
        ("why", f"{reason}: {sentence}" if reason else ""),
        ("grace", f"{pod.spec.termination_grace_period_seconds} s"),
        ("priority", _priority(pod)),
        ("scheduler", "" if (name := pod.spec.scheduler_name or "") == "default-scheduler" else name),
    )
    by_name = {status.name: status for status in (*pod.init_statuses, *pod.statuses)}
    for container in (*(pod.spec.init_containers or ()), *(pod.spec.containers or ())):
        lines += _container(container, by_name.get(container.name))
    lines += ["", "conditions:"]
    lines += [
        f"  {condition.type} {condition.status}"
        + (f" {condition.reason}" if condition.reason else "")
        + (f": {condition.message}" if condition.message else "")
        for condition in pod.status.conditions or ()
    ]
    return lines


def _priority(pod: PodStruct) -> str:
    name, value = pod.spec.priority_class_name or "", pod.spec.priority
    return f"{value or 0} ({name})" if name else str(value or "")


def _container(container: Container, status: ContainerStatus | None) -> Iterator[str]:
    yield ""
    yield f"container {container.name}:"
    state = status.state if status else None
    state_text = "not started"
    if state is not None and state.running is not None:
        state_text = f"runs since {when(epoch(state.running.started_at))}"
    elif state is not None and state.terminated is not None:
        state_text = f"ended with {_ending(state.terminated)}"
    elif state is not None and state.waiting is not None:
        state_text = f"waits: {state.waiting.reason or 'no reason is given'}"
    last = status.previous_end if status is not None else None
    resources = container.resources
    yield from (
        f"  {line}"
        for line in fields(
            ("image", container.image or ""),
            ("state", state_text),
            ("restarts", str(status.restart_count or 0) if status else "0"),
            ("before", _ending(last) if last else ""),
            ("requests", _quantities(resources.requests if resources else None)),
            ("limits", _quantities(resources.limits if resources else None)),
        )
    )
    for variable in container.env or ():
        value = variable.value if variable.value_from is None else "(from elsewhere)"
        yield f"  env {variable.name}={'(hidden)' if value and is_secret_variable(variable.name) else value or ''}"


def _ending(terminated: Terminated) -> str:
    return f"{exit_text(terminated.exit_code or 0)} {terminated.reason or ''}".rstrip()


async def _run(api: Api, view: RunView) -> list[str]:
    namespace = view.namespace or api.namespace
    own = await _read(api, "ConfigMap", namespace, labels.run_object(view.name), PartialObject)
    if own.metadata.label(labels.RUN_ID) != view.uid:
        raise NotFoundError(f"The run {view.name} is gone; another has its name.", "Look at the runs again.")
    lines = [f"run {view.name}", *_head(own.metadata)]
    lines += fields(
        ("owner", own.metadata.annotation(labels.OWNER) or view.owner),
        ("kind", view.kind),
        ("seed", str(view.seed)),
        ("sets", ", ".join(f"{view_set.name} ({view_set.role}) x {view_set.replicas}" for view_set in view.sets)),
        ("destroyed", own.metadata.annotation(labels.TERMINATING)),
    )
    selector = f"{labels.RUN_ID}={view.uid}"
    events_by_uid = pod_reason.events_by_uid(await _of(api, namespace, {}))
    grouped: list[ObjectMeta] = []
    for kind in ("Job", "ReplicaSet", "StatefulSet"):
        for raw in await api.list(kind, namespace, labels=selector):
            controller = bounded_json.convert(raw, ControllerStruct)
            grouped.append(controller.metadata)
            uid = controller.metadata.uid
            reason, sentence = pod_reason.explain_controller(controller, events_by_uid.get(uid, ()))
            lines.append(f"{kind} {controller.metadata.name}" + (f": {reason}: {sentence}" if reason else ""))
    now = time.time()
    pods = [bounded_json.convert(raw, PodStruct) for raw in await api.list("Pod", namespace, labels=selector)]
    # A queue may hold Jobs back before they have pods.
    for meta in [pod.metadata for pod in pods[:1]] or grouped[:1]:
        lines += fields(*await of_group(api, meta))
    names = sorted({pod.spec.node_name for pod in pods if pod.spec.node_name})
    nodes = dict(zip(names, await asyncio.gather(*(_node_of(api, name) for name in names)), strict=True))
    for pod in pods:
        node, is_gone = nodes.get(pod.spec.node_name or "", (None, False))
        events = events_by_uid.get(pod.metadata.uid, ())
        reason, sentence = pod_reason.explain(pod, events, now, node=node, is_node_gone=is_gone)
        state = f"{reason}: {sentence}" if reason else pod.status.phase or "Unknown"
        lines.append(f"Pod {pod.metadata.name} on {pod.spec.node_name or 'no node yet'}: {state}")
    return lines


async def _node(api: Api, target: Node) -> list[str]:
    node = await _read(api, "Node", None, target.name, NodeStruct)
    taints = (f"{taint.key}={taint.value or ''}:{taint.effect}" for taint in node.spec.taints or ())
    lines = [f"node {target.name}", *_head(node.metadata)]
    lines += fields(
        ("schedulable", "no: cordoned" if node.spec.unschedulable else "yes"),
        ("taints", ", ".join(taints)),
        ("capacity", _quantities(node.status.capacity)),
        ("allocatable", _quantities(node.status.allocatable)),
        ("gpus", str(len(target.gpus))),
    )
    lines += ["", "conditions:"]
    lines += [
        f"  {condition.type} {condition.status}: {condition.message or condition.reason or ''}"
        for condition in node.status.conditions or ()
    ]
    return lines


# --- parts -------------------------------------------------------------------------------------------------------
async def _read(api: Api, kind: str, namespace: str | None, name: str, struct: type) -> Any:
    try:
        return bounded_json.decode(await api.request("GET", KINDS[kind].path(namespace, name)), struct)
    except ApiError as error:
        if error.is_not_found:
            raise NotFoundError(f"{kind} {name} is gone.", "Look again.") from error
        raise


async def _node_of(api: Api, name: str) -> tuple[NodeStruct | None, bool]:
    """Return the node, None if the user may not read it, and whether it no longer exists."""
    if not name:
        return None, False
    try:
        return bounded_json.decode(await api.request("GET", KINDS["Node"].path(None, name)), NodeStruct), False
    except ApiError as error:
        return None, error.is_not_found


def _is_looping(status: ContainerStatus) -> bool:
    waiting = status.state.waiting if status.state else None
    return waiting is not None and waiting.reason == "CrashLoopBackOff"


async def _of(api: Api, namespace: str | None, fields: dict[str, str]) -> list[EventStruct]:
    """List events; an event that cannot be decoded is left out."""
    selector = ",".join(f"{key}={value}" for key, value in fields.items() if value)
    structs = []
    for raw in await api.list("Event", namespace, fields=selector):
        try:
            structs.append(bounded_json.convert(raw, EventStruct))
        except msgspec.ValidationError:
            pass  # one event of an unknown form must not hide the others
    return structs


async def _of_run(api: Api, run: RunView) -> list[EventStruct]:
    namespace = run.namespace or api.namespace
    selector = f"{labels.RUN_ID}={run.uid}"
    uids: set[str] = set()
    for kind in ("Pod", "Job", "ReplicaSet", "StatefulSet", "ConfigMap", "Service"):
        uids |= {str(item["metadata"]["uid"]) for item in await api.list(kind, namespace, labels=selector)}
    prefix = f"{run.name}-"
    # Deleted pods have no uid to compare, but their events remain for an hour: matched by name.
    return [
        event
        for event in await _of(api, namespace, {})
        if event.involved_object.uid in uids
        or ((event.involved_object.name or "").startswith(prefix) and event.last_seen >= run.created)
    ]


def _value(event: EventStruct) -> KubeEvent:
    about = event.involved_object
    return KubeEvent(
        event.last_seen,
        event.type or "Normal",
        event.reason or "",
        f"{about.kind or ''} {about.name or ''}".strip(),
        event.message or "",
        about.namespace or "",
        event.times,
    )


def _head(meta: ObjectMeta) -> list[str]:
    owners = [f"{owner.kind} {owner.name}" for owner in meta.owner_references or ()]
    return fields(
        ("namespace", meta.namespace),
        ("created", when(epoch(meta.creation_timestamp))),
        ("deleting", when(epoch(meta.deletion_timestamp)) if meta.deletion_timestamp else ""),
        ("finalizers", ", ".join(meta.finalizers or ())),
        ("owned by", ", ".join(owners)),
        ("labels", ", ".join(f"{key}={value}" for key, value in sorted((meta.labels or {}).items()))),
    )


def _quantities(quantities: dict[str, str | int | float] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted((quantities or {}).items()))
