"""A control plane and its node groups, by calls of EKS: found first, then made, changed or removed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from l2rtui.backends.aws.clients import Cloud, CloudError
from l2rtui.backends.aws.clusterfile import ClusterSpec, NodeGroup
from l2rtui.backends.aws.templates import OWNER_TAG, tags_of
from l2rtui.backends.aws.waiting import Progress, Waits, until
from l2rtui.errors import BackendError, NotFoundError, RefusedError

_ROLE_ATTEMPTS = 12
"""A role that has just been made is unknown to EKS for some seconds."""


async def find_cluster(cloud: Cloud, name: str) -> dict[str, Any] | None:
    """The cluster; None when there is none.

    Raises:
        RefusedError: it is there, and l2rtui has not made it.
    """
    try:
        found: dict[str, Any] = (await cloud.ask("eks", "describe_cluster", name=name))["cluster"]
    except CloudError as error:
        if error.is_missing:
            return None
        raise
    if (found.get("tags") or {}).get(OWNER_TAG) != name:
        raise RefusedError(
            f"There is a cluster {name} that l2rtui has not made.",
            "Choose another name, or use the tool that made it.",
        )
    return found


async def ensure_cluster(
    cloud: Cloud, spec: ClusterSpec, role: str, subnets: Sequence[str], waits: Waits
) -> AsyncGenerator[Progress, None]:
    """Make the control plane unless it is there, and wait until it answers."""
    step = f"cluster {spec.name}"
    found = await find_cluster(cloud, spec.name)
    if found is not None and found["status"] == "DELETING":
        async for one in until(step, _cluster_state(cloud, spec.name), ("",), ("FAILED",), waits):
            yield one
        found = None
    if found is not None and found["status"] == "FAILED":
        yield Progress(step, "what an earlier attempt left of it is removed first", is_change=True)
        async for one in delete_cluster(cloud, spec.name, waits):
            yield one
        found = None
    if found is None:
        await _create_cluster(cloud, spec, role, subnets, waits)
        yield Progress(step, "asked for; it takes about ten minutes", is_change=True)
    async for one in until(step, _cluster_state(cloud, spec.name), ("ACTIVE", "UPDATING"), ("FAILED",), waits):
        yield one
    if found is not None and spec.version and found.get("version") != spec.version:
        yield Progress(step, f"has version {found.get('version')}, not {spec.version}: it is left as it is")
    yield Progress(step, "is there", is_change=found is None)


async def _create_cluster(cloud: Cloud, spec: ClusterSpec, role: str, subnets: Sequence[str], waits: Waits) -> None:
    words: dict[str, Any] = {
        "name": spec.name,
        "roleArn": role,
        "resourcesVpcConfig": {
            "subnetIds": list(subnets),
            "endpointPublicAccess": True,
            "endpointPrivateAccess": True,
        },
        "accessConfig": {
            "authenticationMode": "API_AND_CONFIG_MAP",
            "bootstrapClusterCreatorAdminPermissions": True,
        },
        "tags": tags_of(spec),
    }
    words |= {"version": spec.version} if spec.version else {}
    for attempt in range(1, _ROLE_ATTEMPTS + 1):
        try:
            await cloud.ask("eks", "create_cluster", **words)
        except CloudError as error:
            if "could not be assumed" not in error.message or attempt == _ROLE_ATTEMPTS:
                raise
            await asyncio.sleep(waits.poll_seconds)
        else:
            return


async def delete_cluster(cloud: Cloud, name: str, waits: Waits) -> AsyncGenerator[Progress, None]:
    """Remove the control plane; nothing happens when it is not there."""
    step = f"cluster {name}"
    found = await find_cluster(cloud, name)
    if found is None:
        return
    if found["status"] != "DELETING":
        await cloud.ask("eks", "delete_cluster", name=name)
        yield Progress(step, "is being removed", is_change=True)
    async for one in until(step, _cluster_state(cloud, name), ("",), ("FAILED",), waits):
        yield one
    yield Progress(step, "removed", is_change=True)


# --- node groups ----------------------------------------------------------------------------------------------


async def find_groups(cloud: Cloud, cluster: str) -> list[dict[str, Any]]:
    """Every node group of a cluster, whoever made it; none where the cluster is not there."""
    try:
        names = await cloud.all("eks", "list_nodegroups", "nodegroups", clusterName=cluster)
    except CloudError as error:
        if error.is_missing:
            return []
        raise
    found = [await _find_group(cloud, cluster, name) for name in names]
    return [one for one in found if one is not None]


async def _find_group(cloud: Cloud, cluster: str, name: str) -> dict[str, Any] | None:
    try:
        answer = await cloud.ask("eks", "describe_nodegroup", clusterName=cluster, nodegroupName=name)
    except CloudError as error:
        if error.is_missing:
            return None
        raise
    found: dict[str, Any] = answer["nodegroup"]
    return found


async def ask_for_group(
    cloud: Cloud, spec: ClusterSpec, group: NodeGroup, role: str, subnets: Sequence[str], waits: Waits
) -> AsyncGenerator[Progress, None]:
    """Ask for a node group unless it is there; it takes minutes, and several are made at once."""
    step = f"node group {group.name}"
    found = await _find_group(cloud, spec.name, group.name)
    if found is not None and found["status"] in ("CREATE_FAILED", "DELETE_FAILED", "DELETING"):
        yield Progress(step, "what an earlier attempt left of it is removed first", is_change=True)
        async for one in delete_group(cloud, spec.name, group.name, waits):
            yield one
        found = None
    if found is None:
        await cloud.ask("eks", "create_nodegroup", **_group_words(spec, group, role, subnets))
        yield Progress(step, f"asked for: {group.desired} x {', '.join(group.instance_types)}", is_change=True)


async def await_group(cloud: Cloud, cluster: str, name: str, waits: Waits) -> AsyncGenerator[Progress, None]:
    """Wait until the nodes of a group have joined.

    Raises:
        BackendError: EKS gave up; the sentence holds its reasons, such as a lack of such machines.
    """
    step = f"node group {name}"
    try:
        async for one in until(
            step, _group_state(cloud, cluster, name), ("ACTIVE",), ("CREATE_FAILED", "DEGRADED"), waits
        ):
            yield one
    except BackendError as error:
        reasons = await _health(cloud, cluster, name)
        hint = "Correct that and run the same command again." if reasons else error.hint
        raise BackendError(f"{error.message} {reasons}".rstrip(), hint) from error
    yield Progress(step, "is there")


def _group_words(spec: ClusterSpec, group: NodeGroup, role: str, subnets: Sequence[str]) -> dict[str, Any]:
    words: dict[str, Any] = {
        "clusterName": spec.name,
        "nodegroupName": group.name,
        "nodeRole": role,
        "subnets": list(subnets),
        "instanceTypes": list(group.instance_types),
        "amiType": group.ami_type,
        "diskSize": group.volume_gib,
        "capacityType": "SPOT" if group.is_spot else "ON_DEMAND",
        "scalingConfig": {"minSize": group.minimum, "maxSize": group.maximum, "desiredSize": group.desired},
        "labels": dict(group.labels),
        "tags": {**dict(group.tags), **tags_of(spec)},
    }
    if group.taints:
        words["taints"] = [{"key": key, "value": value, "effect": effect} for key, value, effect in group.taints]
    if group.ssh_key:
        words["remoteAccess"] = {"ec2SshKey": group.ssh_key}
    return words


async def delete_groups(cloud: Cloud, cluster: str, waits: Waits) -> AsyncGenerator[Progress, None]:
    """Remove every node group with its nodes: all are asked to go before the first is waited for."""
    found = await find_groups(cloud, cluster)
    for one in found:
        async for step in _ask_to_go(cloud, cluster, one):
            yield step
    for one in found:
        async for step in delete_group(cloud, cluster, one["nodegroupName"], waits):
            yield step


async def _ask_to_go(cloud: Cloud, cluster: str, group: dict[str, Any]) -> AsyncGenerator[Progress, None]:
    if group["status"] != "DELETING":
        name = group["nodegroupName"]
        await cloud.ask("eks", "delete_nodegroup", clusterName=cluster, nodegroupName=name)
        yield Progress(f"node group {name}", "is being removed", is_change=True)


async def delete_group(cloud: Cloud, cluster: str, name: str, waits: Waits) -> AsyncGenerator[Progress, None]:
    """Remove a node group and its nodes."""
    step = f"node group {name}"
    if found := await _find_group(cloud, cluster, name):
        async for one in _ask_to_go(cloud, cluster, found):
            yield one
    async for one in until(step, _group_state(cloud, cluster, name), ("",), ("DELETE_FAILED",), waits):
        yield one
    yield Progress(step, "removed", is_change=True)


async def scale_group(
    cloud: Cloud, cluster: str, name: str, nodes: int, minimum: int, waits: Waits
) -> AsyncGenerator[Progress, None]:
    """Give a node group another number of nodes; 0 stops paying for them.

    Args:
        minimum: What an autoscaler may go down to; never more than ``nodes``.

    Raises:
        NotFoundError: there is no such group.
    """
    step = f"node group {name}"
    found = await _find_group(cloud, cluster, name)
    if found is None:
        raise NotFoundError(f"{cluster} has no node group {name}.", "See `l2rtui cluster status`.")
    now = found["scalingConfig"]
    wanted = {"minSize": min(minimum, nodes), "desiredSize": nodes, "maxSize": max(now["maxSize"], nodes, 1)}
    if now == wanted:
        yield Progress(step, f"has {nodes} nodes")
        return
    await cloud.ask("eks", "update_nodegroup_config", clusterName=cluster, nodegroupName=name, scalingConfig=wanted)
    yield Progress(step, f"from {now['desiredSize']} to {nodes} nodes", is_change=True)
    async for one in until(step, _group_state(cloud, cluster, name), ("ACTIVE",), ("DEGRADED",), waits):
        yield one


async def _health(cloud: Cloud, cluster: str, name: str) -> str:
    found = await _find_group(cloud, cluster, name)
    issues = ((found or {}).get("health") or {}).get("issues") or []
    return " ".join(f"{one.get('code')}: {str(one.get('message', '')).rstrip('.')}." for one in issues)


def _cluster_state(cloud: Cloud, name: str) -> Any:
    async def look() -> str:
        found = await find_cluster(cloud, name)
        return str(found["status"]) if found else ""

    return look


def _group_state(cloud: Cloud, cluster: str, name: str) -> Any:
    async def look() -> str:
        found = await _find_group(cloud, cluster, name)
        return str(found["status"]) if found else ""

    return look
