"""Why something is still there, in a few words: what a receipt says of each leftover."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import msgspec

from l2rtui.backends.base import Leftover
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.inventory import Found
from l2rtui.backends.kubernetes.kinds import KINDS
from l2rtui.backends.kubernetes.structs import Meta, NodeStruct, PodStruct, epoch

_OF_PROPAGATION = ("foregroundDeletion", "orphan")


async def node_troubles(api: Api, names: Iterable[str]) -> dict[str, str]:
    """Nodes that cannot stop a container now, with the reason; a node that we may not read is not judged."""
    found: dict[str, str] = {}
    for name in sorted({name for name in names if name}):
        try:
            node = msgspec.json.decode(await api.request("GET", KINDS["Node"].path(None, name)), type=NodeStruct)
        except ApiError as error:
            if error.is_not_found:
                found[name] = f"its node {name} is gone"
        else:
            if trouble := node_trouble(node):
                found[name] = f"its node {name} {trouble}"
    return found


def node_trouble(node: NodeStruct) -> str:
    """Say why a node cannot be relied on: ``is NotReady``; empty when it can."""
    ready = next((one for one in node.status.conditions or () if one.type == "Ready"), None)
    if ready is None or ready.status == "True":
        return ""
    words = "is NotReady" if ready.status == "False" else "does not answer (Ready is Unknown)"
    return f"{words}: {ready.message}" if ready.message else words


def own_finalizers(meta: Meta) -> tuple[str, ...]:
    """Finalizers other than those by which a deletion waits for what the object owns."""
    return tuple(one for one in meta.finalizers or () if one not in _OF_PROPAGATION)


def stuck(meta: Meta, trouble: str, now: float) -> str:
    """Why an object whose deletion has begun is still there.

    Args:
        trouble: What is wrong with the node of a pod; empty for nothing.
        now: Seconds since the epoch.
    """
    if finalizers := own_finalizers(meta):
        return f"the finalizer {', '.join(finalizers)} holds it"
    if trouble:
        return trouble
    # A deletion timestamp lies in the future by the grace.
    left = epoch(meta.deletion_timestamp) - now
    if left > 0:
        return f"grace {left:.0f} s left"
    if "foregroundDeletion" in (meta.finalizers or ()):
        return "waits for what it owns"
    grace = meta.deletion_grace_period_seconds
    return f"is still Terminating {-left:.0f} s after its grace" if grace else "is still Terminating"


def leftover(
    one: Found, *, troubles: Mapping[str, str], refusals: Mapping[tuple[str, str], str], now: float
) -> Leftover:
    """One object that is still there, with its reason.

    Args:
        troubles: What is wrong with nodes, by name. refusals: what the server said to the last deletion, by object.
    """
    node = one.pod.spec.node_name if one.pod else ""
    if one.is_going:
        reason = stuck(one.meta, troubles.get(node or "", ""), now)
    else:
        reason = refusals.get(one.key, "its deletion was not asked for")
    return Leftover(one.kind, one.meta.name, reason)


def was_alive(pod: PodStruct) -> bool:
    """Whether a container of the pod may have run when it was seen last."""
    if not pod.spec.node_name:
        return False
    statuses = (*pod.init_statuses, *pod.statuses)
    if any(one.state is not None and one.state.running is not None for one in statuses):
        return True
    return (pod.status.phase or "") in ("Running", "Unknown")


def kept_claims(spec: str) -> str:
    """Where the results of a run lie that a destroy leaves: claims and the paths under which its pods saw them.

    Args:
        spec: The run's spec as its ConfigMap has it.
    """
    try:
        sets = json.loads(spec).get("sets", ())
        mounts = [
            mount for one in sets for mount in (one.get("pod") or {}).get("mounts") or () if mount.get("claim")
        ]
    except (ValueError, AttributeError, TypeError):
        return ""
    places = {
        f"claim {mount['claim']}"
        + (f"/{mount['sub_path']}" if mount.get("sub_path") else "")
        + f" ({mount['path']})"
        for mount in mounts
    }
    return ", ".join(sorted(places))


def spec_of(run_object: Mapping[str, object]) -> str:
    """The spec in a run's ConfigMap; empty when it holds none."""
    data = run_object.get("data")
    found = data.get(labels.SPEC_KEY, "") if isinstance(data, dict) else ""
    return found if isinstance(found, str) else ""
