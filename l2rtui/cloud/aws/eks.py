"""EKS control plane and managed node groups: read first, then created, changed or removed if they differ."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from l2rtui.cloud.aws.clients import Cloud, CloudError
from l2rtui.cloud.aws.cluster_spec import ClusterSpec, NodeGroup
from l2rtui.cloud.aws.templates import OWNER_TAG, tags_of
from l2rtui.cloud.aws.waiters import ClusterChange
from l2rtui.errors import BackendError, NotFoundError, RefusedError

_ROLE_ATTEMPTS = 12
"""IAM is eventually consistent: a newly created role is unknown to EKS for some seconds."""


async def find_cluster(cloud: Cloud, name: str) -> dict[str, Any] | None:
    """Return EKS' description of the cluster, or None; RefusedError for a cluster that l2rtui has not created."""
    answer = await cloud.find("eks", "describe_cluster", name=name)
    if answer is None:
        return None
    cluster: dict[str, Any] = answer["cluster"]
    # Checked before every change: someone else's cluster of this name must never be changed.
    if (cluster.get("tags") or {}).get(OWNER_TAG) != name:
        raise RefusedError(
            f"There is a cluster {name} that l2rtui has not made.",
            "Choose another name, or use the tool that made it.",
        )
    return cluster


async def ensure_cluster(change: ClusterChange, spec: ClusterSpec, role: str, subnets: Sequence[str]) -> None:
    """Create the control plane unless it exists, and wait until it responds."""
    step, find = f"cluster {spec.name}", partial(find_cluster, change.cloud, spec.name)
    cluster = await find()
    if cluster is not None and cluster["status"] == "DELETING":
        await change.wait_for_state(step, find, ("",), ("FAILED",))
        cluster = None
    # EKS cannot repair a control plane that failed to start; it can only be removed.
    if cluster is not None and cluster["status"] == "FAILED":
        change.say(step, "remains of an earlier attempt are removed first")
        await delete_cluster(change, spec.name)
        cluster = None
    if cluster is None:
        await _create_cluster(change, spec, role, subnets)
        change.say(step, "asked for; it takes about ten minutes")
    await change.wait_for_state(step, find, ("ACTIVE", "UPDATING"), ("FAILED",))
    if cluster is not None and spec.version and cluster.get("version") != spec.version:
        text = f"has version {cluster.get('version')}, not {spec.version}: it is left as it is"
        change.say(step, text, is_change=False)
    change.say(step, "is there", is_change=cluster is None)


async def _create_cluster(change: ClusterChange, spec: ClusterSpec, role: str, subnets: Sequence[str]) -> None:
    request: dict[str, Any] = {
        "name": spec.name,
        "roleArn": role,
        "resourcesVpcConfig": {
            "subnetIds": list(subnets),
            "endpointPublicAccess": True,
            "endpointPrivateAccess": True,
        },
        # Access entries (API) for the creator; CONFIG_MAP too, since many tools still write aws-auth.
        "accessConfig": {
            "authenticationMode": "API_AND_CONFIG_MAP",
            "bootstrapClusterCreatorAdminPermissions": True,
        },
        "tags": tags_of(spec),
    }
    request |= {"version": spec.version} if spec.version else {}
    for attempt in range(1, _ROLE_ATTEMPTS + 1):
        try:
            await change.cloud.call("eks", "create_cluster", **request)
        except CloudError as error:
            if "could not be assumed" not in error.message or attempt == _ROLE_ATTEMPTS:
                raise
            await asyncio.sleep(change.waits.poll_seconds)
        else:
            return


async def delete_cluster(change: ClusterChange, name: str) -> None:
    """Remove the control plane, and wait; a missing one is not an error."""
    step, find = f"cluster {name}", partial(find_cluster, change.cloud, name)
    cluster = await find()
    if cluster is None:
        return
    if cluster["status"] != "DELETING":
        await change.cloud.call("eks", "delete_cluster", name=name)
        change.say(step, "is being removed")
    await change.wait_for_state(step, find, ("",), ("FAILED",))
    change.say(step, "removed")


# --- node groups ----------------------------------------------------------------------------------------------
async def find_groups(cloud: Cloud, cluster: str) -> list[dict[str, Any]]:
    """Return every node group of a cluster, including groups of other tools; empty if the cluster is missing."""
    try:
        names = await cloud.list_all("eks", "list_nodegroups", "nodegroups", clusterName=cluster)
    except CloudError as error:
        if error.is_missing:
            return []
        raise
    groups = [await _find_group(cloud, cluster, name) for name in names]
    return [group for group in groups if group is not None]


async def _find_group(cloud: Cloud, cluster: str, name: str) -> dict[str, Any] | None:
    # A group may be removed between the list and this call.
    answer = await cloud.find("eks", "describe_nodegroup", clusterName=cluster, nodegroupName=name)
    return answer["nodegroup"] if answer else None


async def request_group(
    change: ClusterChange,
    spec: ClusterSpec,
    group: NodeGroup,
    role: str,
    subnets: Sequence[str],
    template: Mapping[str, str] | None = None,
) -> None:
    """Request a node group unless it exists, without waiting: it takes minutes, and all are created concurrently.

    Args:
        template: ``id`` and ``version`` of a launch template, which defines type and disk of the machines.
    """
    step = f"node group {group.name}"
    existing = await _find_group(change.cloud, spec.name, group.name)
    if existing is not None and existing["status"] in ("CREATE_FAILED", "DELETE_FAILED", "DELETING"):
        change.say(step, "remains of an earlier attempt are removed first")
        await delete_group(change, spec.name, group.name)
        existing = None
    if existing is None:
        request = _group_request(spec, group, role, subnets) | _machines(group, template)
        await change.cloud.call("eks", "create_nodegroup", **request)
        change.say(step, f"asked for: {group.summary}")


async def await_group(change: ClusterChange, cluster: str, name: str) -> None:
    """Wait until the nodes of a group have joined.

    Raises:
        BackendError: EKS gave up; the message has its reasons, such as a lack of such machines.
    """
    step = f"node group {name}"
    try:
        find = partial(_find_group, change.cloud, cluster, name)
        await change.wait_for_state(step, find, ("ACTIVE",), ("CREATE_FAILED", "DEGRADED"))
    except BackendError as error:
        reasons = await _health(change.cloud, cluster, name)
        hint = "Correct that and run the same command again." if reasons else error.hint
        raise BackendError(f"{error.message} {reasons}".rstrip(), hint) from error
    change.say(step, "is there", is_change=False)


def _group_request(spec: ClusterSpec, group: NodeGroup, role: str, subnets: Sequence[str]) -> dict[str, Any]:
    request: dict[str, Any] = {
        "clusterName": spec.name,
        "nodegroupName": group.name,
        "nodeRole": role,
        "subnets": list(subnets),
        "amiType": group.ami_type,
        "capacityType": group.capacity_type,
        "scalingConfig": {"minSize": group.minimum, "maxSize": group.maximum, "desiredSize": group.desired},
        "labels": dict(group.labels),
        "tags": {**dict(group.tags), **tags_of(spec)},
    }
    if group.taints:
        request["taints"] = [{"key": key, "value": value, "effect": effect} for key, value, effect in group.taints]
    if group.ssh_key:
        request["remoteAccess"] = {"ec2SshKey": group.ssh_key}
    return request


def _machines(group: NodeGroup, template: Mapping[str, str] | None) -> dict[str, Any]:
    if template is not None:
        return {"launchTemplate": dict(template)}
    return {"instanceTypes": list(group.instance_types), "diskSize": group.volume_gib}


async def delete_groups(change: ClusterChange, cluster: str) -> None:
    """Remove every node group with its nodes: all removals are requested before the first is awaited."""
    groups = await find_groups(change.cloud, cluster)
    for group in groups:
        await _request_removal(change, cluster, group)
    for group in groups:
        await delete_group(change, cluster, group["nodegroupName"])


async def _request_removal(change: ClusterChange, cluster: str, group: dict[str, Any]) -> None:
    if group["status"] != "DELETING":
        name = group["nodegroupName"]
        await change.cloud.call("eks", "delete_nodegroup", clusterName=cluster, nodegroupName=name)
        change.say(f"node group {name}", "is being removed")


async def delete_group(change: ClusterChange, cluster: str, name: str) -> None:
    """Remove a node group and its nodes, and wait."""
    step, find = f"node group {name}", partial(_find_group, change.cloud, cluster, name)
    if group := await find():
        await _request_removal(change, cluster, group)
    await change.wait_for_state(step, find, ("",), ("DELETE_FAILED",))
    change.say(step, "removed")


async def scale_group(change: ClusterChange, cluster: str, name: str, nodes: int, minimum: int) -> None:
    """Set the number of nodes of a group; 0 stops paying for them.

    Args:
        minimum: Lower limit of an autoscaler; at most ``nodes``.

    Raises:
        NotFoundError: The group does not exist.
    """
    step, find = f"node group {name}", partial(_find_group, change.cloud, cluster, name)
    group = await find()
    if group is None:
        raise NotFoundError(f"{cluster} has no node group {name}.", "See `l2rtui cluster status`.")
    current = group["scalingConfig"]
    # EKS refuses a maximum of 0, or below the desired number.
    scaling = {"minSize": min(minimum, nodes), "desiredSize": nodes, "maxSize": max(current["maxSize"], nodes, 1)}
    if current == scaling:
        change.say(step, f"has {nodes} nodes", is_change=False)
        return
    request = {"clusterName": cluster, "nodegroupName": name, "scalingConfig": scaling}
    await change.cloud.call("eks", "update_nodegroup_config", **request)
    change.say(step, f"from {current['desiredSize']} to {nodes} nodes")
    await change.wait_for_state(step, find, ("ACTIVE",), ("DEGRADED",))


async def _health(cloud: Cloud, cluster: str, name: str) -> str:
    group = await _find_group(cloud, cluster, name)
    issues = ((group or {}).get("health") or {}).get("issues") or []
    return " ".join(f"{issue.get('code')}: {str(issue.get('message', '')).rstrip('.')}." for issue in issues)
