"""Describe pods, runs and nodes line by line, and what the cluster says has happened to them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from l2rtui.backends.base import KubeEvent
from l2rtui.backends.describing import fields, when
from l2rtui.backends.kubernetes import labels, why
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.kinds import KINDS
from l2rtui.backends.kubernetes.structs import (
    Container,
    ContainerStatus,
    ControllerStruct,
    EventStruct,
    Meta,
    NodeStruct,
    PodStruct,
    epoch,
)
from l2rtui.domain.keyscan import hides_value
from l2rtui.domain.node import Node
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.status import exit_text
from l2rtui.errors import NotFoundError

MOST_EVENTS = 300


async def describe(api: Api, target: PodView | RunView | Node) -> tuple[str, ...]:
    """All that is known of one object, its events last.

    Raises:
        NotFoundError: it is gone.
    """
    match target:
        case PodView():
            lines = await _pod(api, target)
        case RunView():
            lines = await _run(api, target)
        case _:
            lines = await _node(api, target)
    found = await events(api, target)
    lines += ["", "events:"] + ([f"  {_event(one)}" for one in found] or ["  none are kept"])
    return tuple(lines)


async def events(api: Api, target: PodView | RunView | Node | None = None) -> tuple[KubeEvent, ...]:
    """Events of an object, or of all that can be seen; newest last, at most MOST_EVENTS.

    A run's are those of every object that belongs to it: pods that were never made speak through their controller.
    """
    match target:
        case PodView():
            found = await _of(api, target.namespace or api.namespace, {"involvedObject.uid": target.uid})
        case RunView():
            found = await _of_run(api, target)
        case Node():
            found = await _of(api, None, {"involvedObject.kind": "Node", "involvedObject.name": target.name})
        case _:
            found = [one for place in await _places(api) for one in await _of(api, place, {})]
    found.sort(key=lambda one: one.last_seen)
    return tuple(_value(one) for one in found[-MOST_EVENTS:])


async def explained(api: Api, pod: PodStruct, *, now: float) -> why.Why:
    """Why a pod does not run, with its events, its node and the last line of its log asked for."""
    namespace = pod.metadata.namespace
    about = await _of(api, namespace, {"involvedObject.uid": pod.metadata.uid})
    found = why.explain(pod, about, now, node=await _node_of(api, pod.spec.node_name or ""))
    if why.needs_log(found) and "Its last words" not in found[1]:
        container = next((one.name for one in (*pod.init_statuses, *pod.statuses) if _is_looping(one)), "")
        found = why.with_log(found, await last_line(api, namespace, pod.metadata.name, container))
    return found


async def last_line(api: Api, namespace: str, pod: str, container: str) -> str:
    """The last line that the newest process of a container has written; empty when there is none to be had."""
    query = {"tailLines": "1", "limitBytes": "4096"} | ({"container": container} if container else {})
    try:
        body = await api.request("GET", KINDS["Pod"].path(namespace, pod, "log"), query=query, timeout_seconds=5.0)
    except ApiError:
        return ""
    return body.decode("utf-8", "replace").strip()


# --- one kind each -----------------------------------------------------------------------------------------------
async def _pod(api: Api, view: PodView) -> list[str]:
    namespace = view.namespace or api.namespace
    pod = await _read(api, "Pod", namespace, view.name, PodStruct)
    if view.uid not in ("", pod.metadata.uid):
        raise NotFoundError(f"The pod {view.name} is gone; another has its name.", "Look at the pods again.")
    reason, sentence = await explained(api, pod, now=time.time())
    lines = [f"pod {view.name}", *_head(pod.metadata)]
    lines += fields(
        ("node", pod.spec.node_name or "none yet"),
        ("phase", pod.status.phase or "Unknown"),
        ("address", pod.status.pod_ip or ""),
        ("slots", ", ".join(str(slot) for slot in view.slots)),
        ("why", f"{reason}: {sentence}" if reason else ""),
        ("mismatch", "; ".join(view.flags)),
        ("grace", f"{pod.spec.termination_grace_period_seconds} s"),
    )
    by_name = {one.name: one for one in (*pod.init_statuses, *pod.statuses)}
    for one in (*(pod.spec.init_containers or ()), *(pod.spec.containers or ())):
        lines += _container(one, by_name.get(one.name))
    lines += ["", "conditions:"]
    lines += [
        f"  {one.type} {one.status}"
        + (f" {one.reason}" if one.reason else "")
        + (f": {one.message}" if one.message else "")
        for one in pod.status.conditions or ()
    ]
    return lines


def _container(one: Container, status: ContainerStatus | None) -> Iterator[str]:
    yield ""
    yield f"container {one.name}:"
    state = status.state if status else None
    words = "not started"
    if state is not None and state.running is not None:
        words = f"runs since {when(epoch(state.running.started_at))}"
    elif state is not None and state.terminated is not None:
        words = f"ended with {exit_text(state.terminated.exit_code or 0)} {state.terminated.reason or ''}".rstrip()
    elif state is not None and state.waiting is not None:
        words = f"waits: {state.waiting.reason or 'no reason is given'}"
    last = status.last_state.terminated if status and status.last_state else None
    resources = one.resources
    yield from (
        f"  {line}"
        for line in fields(
            ("image", one.image or ""),
            ("state", words),
            ("restarts", str(status.restart_count or 0) if status else "0"),
            ("before", f"{exit_text(last.exit_code or 0)} {last.reason or ''}".rstrip() if last else ""),
            ("requests", _quantities(resources.requests if resources else None)),
            ("limits", _quantities(resources.limits if resources else None)),
        )
    )
    for variable in one.env or ():
        value = variable.value if variable.value_from is None else "(from elsewhere)"
        yield f"  env {variable.name}={'(hidden)' if value and hides_value(variable.name) else value or ''}"


async def _run(api: Api, view: RunView) -> list[str]:
    namespace = view.namespace or api.namespace
    own = await _read(api, "ConfigMap", namespace, labels.run_object(view.name), _OnlyMeta)
    if own.metadata.label(labels.RUN_ID) != view.uid:
        raise NotFoundError(f"The run {view.name} is gone; another has its name.", "Look at the runs again.")
    lines = [f"run {view.name}", *_head(own.metadata)]
    lines += fields(
        ("owner", own.metadata.annotation(labels.OWNER) or view.owner),
        ("kind", view.kind),
        ("seed", str(view.seed)),
        ("sets", ", ".join(f"{one.name} ({one.role}) x {one.replicas}" for one in view.sets)),
        ("destroyed", own.metadata.annotation(labels.TERMINATING)),
    )
    selector = f"{labels.RUN_ID}={view.uid}"
    about = why.by_pod(await _of(api, namespace, {}))
    for kind in ("Job", "ReplicaSet", "StatefulSet"):
        for raw in await api.list(kind, namespace, labels=selector):
            controller = msgspec.convert(raw, ControllerStruct)
            uid = controller.metadata.uid
            reason, sentence = why.explain_controller(controller, about.get(uid, ()))
            lines.append(f"{kind} {controller.metadata.name}" + (f": {reason}: {sentence}" if reason else ""))
    now = time.time()
    for raw in await api.list("Pod", namespace, labels=selector):
        pod = msgspec.convert(raw, PodStruct)
        reason, sentence = why.explain(pod, about.get(pod.metadata.uid, ()), now)
        state = f"{reason}: {sentence}" if reason else pod.status.phase or "Unknown"
        lines.append(f"Pod {pod.metadata.name} on {pod.spec.node_name or 'no node yet'}: {state}")
    return lines


class _OnlyMeta(msgspec.Struct):
    """An object of which only the head is shown."""

    metadata: Meta = Meta()


async def _node(api: Api, target: Node) -> list[str]:
    node = await _read(api, "Node", None, target.name, NodeStruct)
    lines = [f"node {target.name}", *_head(node.metadata)]
    lines += fields(
        ("schedulable", "no: cordoned" if node.spec.unschedulable else "yes"),
        ("taints", ", ".join(f"{one.key}={one.value or ''}:{one.effect}" for one in node.spec.taints or ())),
        ("capacity", _quantities(node.status.capacity)),
        ("allocatable", _quantities(node.status.allocatable)),
        ("gpus", str(len(target.gpus))),
    )
    lines += ["", "conditions:"]
    lines += [
        f"  {one.type} {one.status}: {one.message or one.reason or ''}" for one in node.status.conditions or ()
    ]
    return lines


# --- parts -------------------------------------------------------------------------------------------------------
async def _read(api: Api, kind: str, namespace: str | None, name: str, struct: type) -> Any:
    try:
        return msgspec.json.decode(await api.request("GET", KINDS[kind].path(namespace, name)), type=struct)
    except ApiError as error:
        if error.is_not_found:
            raise NotFoundError(f"{kind} {name} is gone.", "Look again.") from error
        raise


async def _node_of(api: Api, name: str) -> NodeStruct | None:
    """The node, where the user may read it."""
    if not name:
        return None
    try:
        return msgspec.json.decode(await api.request("GET", KINDS["Node"].path(None, name)), type=NodeStruct)
    except ApiError:
        return None


def _is_looping(status: ContainerStatus) -> bool:
    waiting = status.state.waiting if status.state else None
    return waiting is not None and waiting.reason == "CrashLoopBackOff"


async def _places(api: Api) -> tuple[str | None, ...]:
    if api.namespaces:
        return api.namespaces
    return (None,) if await api.can("list", "Event", None) else (api.namespace,)


async def _of(api: Api, namespace: str | None, fields: dict[str, str]) -> list[EventStruct]:
    """Events; one that cannot be read is left out."""
    selector = ",".join(f"{key}={value}" for key, value in fields.items() if value)
    found = []
    for raw in await api.list("Event", namespace, fields=selector):
        try:
            found.append(msgspec.convert(raw, EventStruct))
        except msgspec.ValidationError:
            pass  # one odd event says nothing about the others
    return found


async def _of_run(api: Api, run: RunView) -> list[EventStruct]:
    namespace = run.namespace or api.namespace
    selector = f"{labels.RUN_ID}={run.uid}"
    uids: set[str] = set()
    for kind in ("Pod", "Job", "ReplicaSet", "StatefulSet", "ConfigMap", "Service"):
        uids |= {str(one["metadata"]["uid"]) for one in await api.list(kind, namespace, labels=selector)}
    prefix = f"{run.name}-"
    # Of pods that are gone the name alone is left.
    return [
        one
        for one in await _of(api, namespace, {})
        if one.involved_object.uid in uids
        or ((one.involved_object.name or "").startswith(prefix) and one.last_seen >= run.created)
    ]


def _value(one: EventStruct) -> KubeEvent:
    about = one.involved_object
    return KubeEvent(
        one.last_seen,
        one.type or "Normal",
        one.reason or "",
        f"{about.kind or ''} {about.name or ''}".strip(),
        one.message or "",
        about.namespace or "",
        one.times,
    )


def _event(one: KubeEvent) -> str:
    times = f" (x{one.count})" if one.count > 1 else ""
    return f"{when(one.time)} {one.level} {one.reason} {one.object}: {' '.join(one.message.split())}{times}"


def _head(meta: Meta) -> list[str]:
    owners = [f"{one.kind} {one.name}" for one in meta.owner_references or ()]
    return fields(
        ("namespace", meta.namespace),
        ("created", when(epoch(meta.creation_timestamp))),
        ("deleting", when(epoch(meta.deletion_timestamp)) if meta.deletion_timestamp else ""),
        ("finalizers", ", ".join(meta.finalizers or ())),
        ("owned by", ", ".join(owners)),
        ("labels", ", ".join(f"{key}={value}" for key, value in sorted((meta.labels or {}).items()))),
    )


def _quantities(found: dict[str, str | int | float] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted((found or {}).items()))
