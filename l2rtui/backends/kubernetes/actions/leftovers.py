"""Reasons why objects of a destroyed run still exist, one sentence each, for the receipt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from l2rtui.backends.kubernetes.actions.owned_objects import OwnedObject
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.api.structs import NodeStruct, PodStruct
from l2rtui.backends.kubernetes.state.pod_reason import deletion_blocker, node_trouble
from l2rtui.domain.receipt import Leftover
from runtime.base import bounded_json


async def node_troubles(api: Api, names: Iterable[str]) -> dict[str, str]:
    """Return nodes that cannot stop a container now, with the reason; unreadable nodes are left out."""
    troubles: dict[str, str] = {}
    for name in sorted({name for name in names if name}):
        try:
            node = bounded_json.decode(await api.request("GET", KINDS["Node"].path(None, name)), NodeStruct)
        except ApiError as error:
            if error.is_not_found:
                troubles[name] = f"its node {name} is gone"
        else:
            if trouble := node_trouble(node):
                troubles[name] = f"its node {name} {trouble}"
    return troubles


def leftover(
    item: OwnedObject, *, troubles: Mapping[str, str], refusals: Mapping[tuple[str, str], str], now: float
) -> Leftover:
    """Return the receipt's entry for an object that still exists.

    Args:
        troubles: Problems of nodes, by name.
        refusals: The server's response to the last deletion, by kind and uid.
        now: Seconds since the epoch.
    """
    node = item.pod.spec.node_name if item.pod else ""
    if item.is_going:
        reason = deletion_blocker(item.meta, troubles.get(node or "", ""), now)
    else:
        reason = refusals.get(item.key, "its deletion was not asked for")
    return Leftover(item.kind, item.meta.name, reason)


def was_alive(pod: PodStruct) -> bool:
    """Return whether a container of the pod may have been running when the pod was last listed."""
    if not pod.spec.node_name:
        return False
    statuses = (*pod.init_statuses, *pod.statuses)
    if any(status.state is not None and status.state.running is not None for status in statuses):
        return True
    # The phase counts as well: container statuses are missing until the kubelet has reported once.
    return (pod.status.phase or "") in ("Running", "Unknown")


def results_location(spec: str) -> str:
    """Return the volume claims that a destroy keeps, with their paths in the pods, from the ConfigMap's spec."""
    try:
        sets = bounded_json.loads(spec).get("sets", ())
        mounts = [
            mount
            for set_spec in sets
            for mount in (set_spec.get("pod") or {}).get("mounts") or ()
            if mount.get("claim")
        ]
    except (ValueError, AttributeError, TypeError):  # a spec of another version: the destroy continues without it
        return ""
    paths = {
        f"claim {mount['claim']}"
        + (f"/{mount['sub_path']}" if mount.get("sub_path") else "")
        + f" ({mount.get('path', '?')})"
        for mount in mounts
    }
    return ", ".join(sorted(paths))
