"""Creation and removal of an EKS cluster, in the order that AWS requires; all state is in the cloud.

Created: network, roles, launch templates, control plane, node groups, Pod Identity, file system, mount targets.
Removed in reverse order, including resources that Kubernetes itself has put into the network. Every step reads the
current state first, so repeating a command that was stopped or has failed continues it, and ``delete`` removes
whatever exists.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.cloud.aws import eks, orphaned_resources, stacks, templates
from l2rtui.cloud.aws.clients import Cloud
from l2rtui.cloud.aws.cluster_spec import IDENTITY_AGENT, ClusterSpec
from l2rtui.cloud.aws.orphaned_resources import RemainingResource
from l2rtui.cloud.aws.reservations import Reservation, check_zones, find_reservations
from l2rtui.cloud.aws.waiters import ClusterChange
from l2rtui.errors import BackendError, NotFoundError, RefusedError, UsageError


async def check_file_system(cloud: Cloud, name: str, vpc: str, own: str) -> None:
    """Check that a file system can be mounted from the cluster's network.

    Args:
        name: Id of the file system. vpc: Id of the cluster's network; empty before it exists.
        own: Id of the file system that the cluster itself created; empty for none.

    Raises:
        NotFoundError: It does not exist here. RefusedError: It is the cluster's own, which is deleted with it.
        UsageError: It is being removed, or another network has its mount targets.
    """
    if name == own:
        raise RefusedError(
            f"{name} is the file system that this cluster created, and would be deleted with it.",
            "Take it out of the file: the cluster has it already.",
        )
    answer = await cloud.find("efs", "describe_file_systems", FileSystemId=name)
    systems = (answer or {}).get("FileSystems") or []
    if not systems:
        raise NotFoundError(f"There is no file system {name} in this region.", "Correct the id, or leave it out.")
    state = str(systems[0].get("LifeCycleState"))
    if state not in ("available", "updating"):
        raise UsageError(f"The file system {name} is {state}.", "Name another, or leave it out.")
    targets = await cloud.list_all("efs", "describe_mount_targets", "MountTargets", FileSystemId=name)
    # EFS: all mount targets of a file system are in one network.
    if other := next((target for target in targets if not vpc or target.get("VpcId") != vpc), None):
        raise UsageError(
            f"The file system {name} has mount targets in another network, {other.get('VpcId', 'unknown')}, "
            "and EFS allows one network at a time.",
            "Remove them there first, or leave it out and mount it by a PersistentVolume of your own.",
        )


STACKS: Final = ("network", "roles", "efs", "mounts")
OPTIONAL_STACKS: Final = ("launch", "identity")
"""Stacks that only some clusters have: launch templates of reservations, Pod Identity."""
_NO_RESERVATIONS: Final[Mapping[str, Reservation]] = {}
_BAD_ZONES = ("us-east-1e",)
"""Zones in which EKS creates no control plane."""


class ClusterReceipt(Struct, frozen=True):
    """Result of a delete, as listed by the cloud itself.

    Attributes:
        left: Resources that could not be removed. retained: Resources that were deliberately kept.
    """

    cluster: str
    left: tuple[RemainingResource, ...]
    retained: tuple[RemainingResource, ...] = ()

    @property
    def dollars_a_month(self) -> float:
        """Cost of all remaining resources, as far as it is known."""
        return sum(resource.dollars_a_month or 0.0 for resource in (*self.left, *self.retained))

    @property
    def sentence(self) -> str:
        """One line for display."""
        cost = f"about ${self.dollars_a_month:.2f} a month goes on"
        names = "; ".join(f"{resource.kind} {resource.id}" for resource in self.retained)
        retained = f"; kept on purpose: {names} ({cost})" if self.retained else ""
        if not self.left:
            return f"nothing left of {self.cluster}{retained}"
        remaining = "; ".join(
            f"{resource.kind} {resource.id}" + (f" ({resource.detail})" if resource.detail else "")
            for resource in self.left
        )
        return f"{len(self.left)} left of {self.cluster} ({cost}): {remaining}{retained}"


def steps_of(
    spec: ClusterSpec, *, has_files: bool, reservations: Mapping[str, Reservation] = _NO_RESERVATIONS
) -> tuple[tuple[str, str], ...]:
    """Return the steps of create() in order, as pairs of step and description."""
    zones = ", ".join(spec.zones)
    nat = ", one NAT gateway" if spec.needs_nat else ""
    steps = [
        (templates.stack_name(spec.name, "network"), f"VPC {templates.NETWORK} with subnets in {zones}{nat}"),
        (templates.stack_name(spec.name, "roles"), f"{1 + len(spec.groups)} IAM roles"),
    ]
    if any(group.reservation for group in spec.groups):
        lines = "; ".join(f"{name}: {reservation.summary}" for name, reservation in reservations.items())
        steps.append((templates.stack_name(spec.name, "launch"), f"launch templates: {lines}"))
    steps.append(
        (f"cluster {spec.name}", f"EKS control plane, Kubernetes {spec.version or 'as EKS offers by default'}")
    )
    now = [
        reservations[group.name].group_now(group) if group.name in reservations else group for group in spec.groups
    ]
    steps += [(f"node group {group.name}", group.summary) for group in now]
    if spec.has_identity_agent:
        accounts = f", roles for {', '.join(map(str, spec.identities))}" if spec.identities else ""
        steps.append((templates.stack_name(spec.name, "identity"), f"add-on {IDENTITY_AGENT}{accounts}"))
    if has_files and not spec.file_system:
        steps.append((templates.stack_name(spec.name, "efs"), "shared file system, encrypted"))
    if has_files:
        existing = f" of the file system {spec.file_system}, which stays when the cluster goes"
        text = f"mount targets in {zones}{existing if spec.file_system else ''}"
        steps.append((templates.stack_name(spec.name, "mounts"), text))
    return tuple(steps)


async def with_zones(cloud: Cloud, spec: ClusterSpec, needed: Collection[str] = ()) -> ClusterSpec:
    """Return the spec with zones: its own, otherwise the needed ones plus further ones of the region, three in
    all.
    """
    if spec.zones:
        return spec
    filters = [{"Name": "state", "Values": ["available"]}, {"Name": "zone-type", "Values": ["availability-zone"]}]
    zones = await cloud.list_all("ec2", "describe_availability_zones", "AvailabilityZones", Filters=filters)
    names = sorted(zone["ZoneName"] for zone in zones if zone["ZoneName"] not in _BAD_ZONES)
    if len(names) < 2:  # the control plane needs subnets in two zones
        raise UsageError(f"{spec.region} has fewer than two zones, which EKS needs.", "Choose another region.")
    # Sorted, so that a repeated `create` without zones in the file chooses the same ones.
    chosen = sorted(names, key=lambda zone: (zone not in needed, zone))[: max(3, len(set(needed)))]
    return replace(spec, zones=tuple(sorted(chosen)))


async def create(change: ClusterChange, spec: ClusterSpec, *, has_files: bool = True) -> None:
    """Create a cluster, or its missing parts. The spec must have its zones.

    Raises:
        BackendError: A step failed. Created parts stay; create() continues with them and delete() removes them.
    """
    cloud = change.cloud
    await eks.find_cluster(cloud, spec.name)  # refuses another tool's cluster first
    reservations = await find_reservations(cloud, spec)
    check_zones(spec, reservations)
    if has_files:
        await check_files(cloud, spec)
    await _ensure_stack(change, spec, "network", templates.network(spec))
    await _ensure_stack(change, spec, "roles", templates.roles(spec))
    if reservations:
        await _ensure_stack(change, spec, "launch", templates.launch_templates(spec))
    # From here on ids come from stack outputs, not from earlier steps: the command may be a second try.
    net = await _outputs(cloud, spec, "network")
    public, private = net["PublicSubnets"].split(","), net["PrivateSubnets"].split(",")
    await _create_machines(change, spec, public, private, reservations)
    if spec.has_identity_agent:
        await _ensure_stack(change, spec, "identity", templates.pod_identity(spec))
    else:
        # A permission that the file no longer names must not stay; nothing happens without such a stack.
        await stacks.delete_stack(change, templates.stack_name(spec.name, "identity"), spec.name)
    if has_files:
        await _create_files(change, spec, net["Vpc"], private)


async def _create_files(change: ClusterChange, spec: ClusterSpec, vpc: str, subnets: Sequence[str]) -> None:
    files = spec.file_system
    if not files:
        await _ensure_stack(change, spec, "efs", templates.file_system(spec))
        files = (await _outputs(change.cloud, spec, "efs"))["Files"]
    template = templates.mounts(spec.name, files, vpc, subnets, is_existing=bool(spec.file_system))
    await _ensure_stack(change, spec, "mounts", template)


async def check_files(cloud: Cloud, spec: ClusterSpec) -> None:
    """Check the existing file system that a spec names, if any. Raises like ``check_file_system``."""
    if spec.file_system:
        vpc = (await stacks.stack_outputs(cloud, templates.stack_name(spec.name, "network"))).get("Vpc", "")
        own = (await stacks.stack_outputs(cloud, templates.stack_name(spec.name, "efs"))).get("Files", "")
        await check_file_system(cloud, spec.file_system, vpc, own)


async def _ensure_stack(change: ClusterChange, spec: ClusterSpec, part: str, template: templates.Template) -> None:
    name = templates.stack_name(spec.name, part)
    await stacks.ensure_stack(change, name, template, templates.tags_of(spec))


async def _create_machines(
    change: ClusterChange,
    spec: ClusterSpec,
    public: Sequence[str],
    private: Sequence[str],
    reservations: Mapping[str, Reservation],
) -> None:
    """Create the control plane, then all node groups concurrently."""
    # Both kinds of subnets: zones of a control plane cannot be added later.
    roles = await _outputs(change.cloud, spec, "roles")
    await eks.ensure_cluster(change, spec, roles["Cluster"], [*public, *private])
    launch = await _outputs(change.cloud, spec, "launch") if reservations else {}
    # Two loops: each group takes minutes, and they are created concurrently.
    for group in spec.groups:
        role, subnets = roles[templates.node_role(group.name)], private if group.is_private else public
        if (reservation := reservations.get(group.name)) is None:
            await eks.request_group(change, spec, group, role, subnets)
            continue
        # Only in the reservation's zone: a group that also spans others would request machines there in vain.
        own, key = [subnets[spec.zones.index(reservation.zone)]], templates.launch_template(group.name)
        template = {"id": launch[key], "version": launch[f"{key}Version"]}
        await eks.request_group(change, spec, reservation.group_now(group), role, own, template)
        if not reservation.is_active:
            text = f"has no nodes until {reservation.summary}; then `l2rtui cluster scale {group.name}`"
            change.say(f"node group {group.name}", text, is_change=False)
    for group in spec.groups:
        await eks.await_group(change, spec.name, group.name)


async def delete(change: ClusterChange, name: str, *, keep_files: bool = False) -> ClusterReceipt:
    """Remove a cluster, or its existing parts.

    Args:
        keep_files: Keep the file system with its contents.

    Raises:
        BackendError: A step failed; the same call continues with the rest.
    """
    cloud = change.cloud
    # Read first: the network's id is needed to find resources in it, and its stack is removed below.
    net = await stacks.stack_outputs(cloud, templates.stack_name(name, "network"))
    if await eks.find_cluster(cloud, name) is not None:  # refuses another tool's cluster first
        await eks.delete_groups(change, name)
    # While the control plane exists: the add-on and the associations are removed through it.
    for part in OPTIONAL_STACKS:
        await stacks.delete_stack(change, templates.stack_name(name, part), name)
    await eks.delete_cluster(change, name)
    # Mount targets have network interfaces in the subnets, so they are removed before the network.
    for part in ("mounts",) if keep_files else ("mounts", "efs"):
        await stacks.delete_stack(change, templates.stack_name(name, part), name)
    if net:
        # Load balancers and interfaces that Kubernetes created would keep CloudFormation from removing the VPC.
        await orphaned_resources.sweep(change, name, net["Vpc"])
    # After groups and control plane: EKS uses the roles to remove them.
    for part in ("network", "roles"):
        await stacks.delete_stack(change, templates.stack_name(name, part), name)
    remaining = await orphaned_resources.find_remaining(cloud, name, net.get("Vpc", ""))
    files = [
        item for item in remaining if item.kind == "file system" or item.id == templates.stack_name(name, "efs")
    ]
    retained = tuple(files) if keep_files else ()
    return ClusterReceipt(name, tuple(resource for resource in remaining if resource not in retained), retained)


async def scale(change: ClusterChange, name: str, nodes: Mapping[str, tuple[int, int]]) -> None:
    """Set the numbers of nodes of node groups.

    Args:
        nodes: (nodes, minimum) by the group's name.

    Raises:
        NotFoundError: The cluster or a group does not exist.
    """
    await require(change.cloud, name)
    for group, (count, minimum) in nodes.items():
        await eks.scale_group(change, name, group, count, minimum)


async def require(cloud: Cloud, name: str) -> dict[str, Any]:
    """Return EKS' description of the cluster; NotFoundError if it does not exist."""
    cluster = await eks.find_cluster(cloud, name)
    if cluster is None:
        raise NotFoundError(f"There is no cluster {name} here.", "See the region, or `l2rtui cluster create`.")
    return cluster


async def status(cloud: Cloud, name: str) -> dict[str, Any]:
    """Return the existing parts of a cluster as a JSON object."""
    cluster = await eks.find_cluster(cloud, name)
    groups = [_group_document(group) for group in await eks.find_groups(cloud, name)] if cluster else []
    parts = (*STACKS, *OPTIONAL_STACKS)
    states = {part: await stacks.find_stack(cloud, templates.stack_name(name, part)) for part in parts}
    files = await stacks.stack_outputs(cloud, templates.stack_name(name, "efs"))
    mounts = await stacks.stack_outputs(cloud, templates.stack_name(name, "mounts"))
    return {
        "cluster": name,
        "region": await cloud.region(),
        "status": str(cluster["status"]) if cluster else "",
        "version": str(cluster.get("version", "")) if cluster else "",
        "endpoint": str(cluster.get("endpoint") or "") if cluster else "",
        "file_system": files.get("Files", ""),
        "existing_file_system": mounts.get("ExistingFiles", ""),
        "stacks": {
            part: str(stack["StackStatus"]) if stack else ""
            for part, stack in states.items()
            if stack or part in STACKS
        },
        "groups": groups,
    }


def _group_document(group: Mapping[str, Any]) -> dict[str, Any]:
    scaling = group.get("scalingConfig") or {}
    return {
        "group": group["nodegroupName"],
        "status": group["status"],
        "instance_types": list(group.get("instanceTypes") or ()),
        "capacity_type": str(group.get("capacityType") or ""),
        "nodes": scaling.get("desiredSize"),
        "min": scaling.get("minSize"),
        "max": scaling.get("maxSize"),
        "issues": [
            f"{issue.get('code')}: {issue.get('message', '')}"
            for issue in (group.get("health") or {}).get("issues") or ()
        ],
    }


async def _outputs(cloud: Cloud, spec: ClusterSpec, part: str) -> dict[str, str]:
    name = templates.stack_name(spec.name, part)
    outputs = await stacks.stack_outputs(cloud, name)
    if not outputs:
        raise BackendError(f"The stack {name} tells nothing of itself.", "Run the same command again.")
    return outputs
