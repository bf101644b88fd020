"""A cluster made and taken down, in the order in which the cloud takes it; its state is kept in the cloud alone.

Made: network, roles, control plane, node groups, file system, mount targets. Taken down the other way round, with
what Kubernetes itself has put into the network in between. Every step looks first, so a command that was stopped,
or has failed, goes on when it is given again; and ``delete`` takes down whatever part of it is there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from l2rtui.backends.aws import eks, leftovers, stacks, templates
from l2rtui.backends.aws.clients import Cloud
from l2rtui.backends.aws.clusterfile import ClusterSpec
from l2rtui.backends.aws.leftovers import Left
from l2rtui.backends.aws.waiting import Progress, Waits
from l2rtui.errors import BackendError, NotFoundError, UsageError

STACKS = ("network", "roles", "efs", "mounts")
_BAD_ZONES = ("us-east-1e",)
"""EKS makes no control planes there."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The end of a delete, counted in the cloud itself.

    Attributes:
        kept: What was kept on purpose.
    """

    cluster: str
    left: tuple[Left, ...]
    kept: tuple[Left, ...] = ()

    @property
    def dollars_a_month(self) -> float:
        """What goes on being paid for, as far as it is known."""
        return sum(one.dollars_a_month or 0.0 for one in (*self.left, *self.kept))

    @property
    def sentence(self) -> str:
        """The line that people read."""
        cost = f"about ${self.dollars_a_month:.2f} a month goes on"
        names = "; ".join(f"{one.kind} {one.id}" for one in self.kept)
        kept = f"; kept on purpose: {names} ({cost})" if self.kept else ""
        if not self.left:
            return f"nothing left of {self.cluster}{kept}"
        shown = "; ".join(f"{one.kind} {one.id}" + (f" ({one.detail})" if one.detail else "") for one in self.left)
        return f"{len(self.left)} left of {self.cluster} ({cost}): {shown}{kept}"


def steps_of(spec: ClusterSpec, *, has_files: bool) -> tuple[tuple[str, str], ...]:
    """What create() would make, in order: (step, what it is)."""
    zones = ", ".join(spec.zones)
    nat = ", one NAT gateway" if spec.needs_nat else ""
    found = [
        (templates.stack_name(spec.name, "network"), f"VPC {templates.NETWORK} with subnets in {zones}{nat}"),
        (templates.stack_name(spec.name, "roles"), f"{1 + len(spec.groups)} IAM roles"),
        (f"cluster {spec.name}", f"EKS control plane, Kubernetes {spec.version or 'as EKS offers by default'}"),
    ]
    found += [
        (f"node group {group.name}", f"{group.desired} x {', '.join(group.instance_types)}")
        for group in spec.groups
    ]
    if has_files:
        found.append((templates.stack_name(spec.name, "efs"), "shared file system, encrypted"))
        found.append((templates.stack_name(spec.name, "mounts"), f"mount targets in {zones}"))
    return tuple(found)


async def with_zones(cloud: Cloud, spec: ClusterSpec) -> ClusterSpec:
    """The spec with zones: its own, else the first three of the region."""
    if spec.zones:
        return spec
    wanted = [{"Name": "state", "Values": ["available"]}, {"Name": "zone-type", "Values": ["availability-zone"]}]
    found = await cloud.all("ec2", "describe_availability_zones", "AvailabilityZones", Filters=wanted)
    names = sorted(one["ZoneName"] for one in found if one["ZoneName"] not in _BAD_ZONES)
    if len(names) < 2:
        raise UsageError(f"{spec.region} has fewer than two zones, which EKS needs.", "Choose another region.")
    return spec.with_zones(tuple(names[:3]))


async def create(
    cloud: Cloud, spec: ClusterSpec, waits: Waits, *, has_files: bool = True
) -> AsyncGenerator[Progress, None]:
    """Make a cluster, or what is still missing of it. The spec has its zones.

    Raises:
        BackendError: a step failed; what was made is there, create() goes on with it and delete() takes it down.
    """
    await eks.find_cluster(cloud, spec.name)  # somebody else's is refused before anything is made
    for part, template in (("network", templates.network(spec)), ("roles", templates.roles(spec))):
        async for one in _stack(cloud, spec, part, template, waits):
            yield one
    net = await _outputs(cloud, spec, "network")
    public, private = net["PublicSubnets"].split(","), net["PrivateSubnets"].split(",")
    async for one in _machines(cloud, spec, public, private, waits):
        yield one
    if has_files:
        async for one in _stack(cloud, spec, "efs", templates.file_system(spec), waits):
            yield one
        files = (await _outputs(cloud, spec, "efs"))["Files"]
        async for one in _stack(
            cloud, spec, "mounts", templates.mounts(spec.name, files, net["Vpc"], private), waits
        ):
            yield one


def _stack(
    cloud: Cloud, spec: ClusterSpec, part: str, template: templates.Template, waits: Waits
) -> AsyncGenerator[Progress, None]:
    name = templates.stack_name(spec.name, part)
    return stacks.ensure_stack(cloud, name, template, templates.tags_of(spec), waits)


async def _machines(
    cloud: Cloud, spec: ClusterSpec, public: Sequence[str], private: Sequence[str], waits: Waits
) -> AsyncGenerator[Progress, None]:
    """The control plane, then all node groups at once."""
    roles = await _outputs(cloud, spec, "roles")
    async for one in eks.ensure_cluster(cloud, spec, roles["Cluster"], [*public, *private], waits):
        yield one
    for group in spec.groups:
        role, subnets = roles[templates.node_role(group.name)], private if group.is_private else public
        async for one in eks.ask_for_group(cloud, spec, group, role, subnets, waits):
            yield one
    for group in spec.groups:
        async for one in eks.await_group(cloud, spec.name, group.name, waits):
            yield one


async def delete(
    cloud: Cloud, name: str, waits: Waits, *, keep_files: bool = False
) -> AsyncGenerator[Progress | Receipt, None]:
    """Take down a cluster, or what is there of it; the last item is the receipt.

    Args:
        keep_files: The file system stays, with what is in it.

    Raises:
        BackendError: a step failed; the same call goes on with the rest.
    """
    net = await stacks.stack_outputs(cloud, templates.stack_name(name, "network"))
    if await eks.find_cluster(cloud, name) is not None:  # somebody else's is refused before anything is removed
        async for one in eks.delete_groups(cloud, name, waits):
            yield one
    async for one in eks.delete_cluster(cloud, name, waits):
        yield one
    for part in ("mounts",) if keep_files else ("mounts", "efs"):
        async for one in stacks.delete_stack(cloud, templates.stack_name(name, part), name, waits):
            yield one
    if net:
        async for one in leftovers.sweep(cloud, name, net["Vpc"]):
            yield one
    for part in ("network", "roles"):
        async for one in stacks.delete_stack(cloud, templates.stack_name(name, part), name, waits):
            yield one
    found = await leftovers.find_left(cloud, name, net.get("Vpc", ""))
    kept = tuple(one for one in found if keep_files and _is_files(one, name))
    yield Receipt(name, tuple(one for one in found if one not in kept), kept)


def _is_files(one: Left, cluster: str) -> bool:
    return one.kind == "file system" or one.id == templates.stack_name(cluster, "efs")


async def scale(
    cloud: Cloud, name: str, nodes: Mapping[str, tuple[int, int]], waits: Waits
) -> AsyncGenerator[Progress, None]:
    """Give node groups other numbers of nodes.

    Args:
        nodes: (nodes, minimum) by the group's name.

    Raises:
        NotFoundError: there is no such cluster or group.
    """
    await require(cloud, name)
    for group, (count, minimum) in nodes.items():
        async for one in eks.scale_group(cloud, name, group, count, minimum, waits):
            yield one


async def require(cloud: Cloud, name: str) -> dict[str, Any]:
    """The cluster as EKS describes it.

    Raises:
        NotFoundError: there is none.
    """
    found = await eks.find_cluster(cloud, name)
    if found is None:
        raise NotFoundError(f"There is no cluster {name} here.", "See the region, or `l2rtui cluster create`.")
    return found


async def status(cloud: Cloud, name: str) -> dict[str, Any]:
    """What there is of a cluster, as JSON has it."""
    found = await eks.find_cluster(cloud, name)
    groups = [_group_document(one) for one in await eks.find_groups(cloud, name)] if found else []
    states = {part: await stacks.find_stack(cloud, templates.stack_name(name, part)) for part in STACKS}
    files = await stacks.stack_outputs(cloud, templates.stack_name(name, "efs"))
    return {
        "cluster": name,
        "region": await cloud.region(),
        "status": str(found["status"]) if found else "",
        "version": str(found.get("version", "")) if found else "",
        "endpoint": str(found.get("endpoint") or "") if found else "",
        "file_system": files.get("Files", ""),
        "stacks": {part: str(one["StackStatus"]) if one else "" for part, one in states.items()},
        "groups": groups,
    }


def _group_document(one: Mapping[str, Any]) -> dict[str, Any]:
    scaling = one.get("scalingConfig") or {}
    return {
        "group": one["nodegroupName"],
        "status": one["status"],
        "instance_types": list(one.get("instanceTypes") or ()),
        "nodes": scaling.get("desiredSize"),
        "min": scaling.get("minSize"),
        "max": scaling.get("maxSize"),
        "issues": list(_issues(one)),
    }


def _issues(one: Mapping[str, Any]) -> Iterable[str]:
    for issue in (one.get("health") or {}).get("issues") or ():
        yield f"{issue.get('code')}: {issue.get('message', '')}"


async def _outputs(cloud: Cloud, spec: ClusterSpec, part: str) -> dict[str, str]:
    name = templates.stack_name(spec.name, part)
    found = await stacks.stack_outputs(cloud, name)
    if not found:
        raise BackendError(f"The stack {name} tells nothing of itself.", "Run the same command again.")
    return found
