"""State of the group in which a queue or gang scheduler admits the pods of a run, for descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.structs import ObjectMeta


async def of_group(api: Api, meta: ObjectMeta) -> tuple[tuple[str, str], ...]:
    """Return name and text of the fields on queue and group of a pod or Job; empty if it has none."""
    if name := meta.label(labels.JOB_SET):
        return (("job set", _job_set(name, await _read(api, "JobSet", meta.namespace, name))),)
    if group := meta.label(labels.KUEUE_GROUP):
        workload = await _read(api, "Workload", meta.namespace, group)
        return (("queue", f"{meta.label(labels.KUEUE_QUEUE)} (Kueue)"), ("admission", _admission(workload)))
    if group := meta.annotation(labels.VOLCANO_GROUP):
        return (("pod group", _phase(group, await _read(api, "VolcanoPodGroup", meta.namespace, group))),)
    if group := meta.label(labels.COSCHEDULING_GROUP):
        return (("pod group", _phase(group, await _read(api, "PodGroup", meta.namespace, group))),)
    return ()


async def _read(api: Api, kind: str, namespace: str, name: str) -> Mapping[str, Any] | str:
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
