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
from l2rtui.backends.kubernetes.structs import NodeStruct, PodStruct
from l2rtui.backends.kubernetes.why import node_trouble, stuck


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
