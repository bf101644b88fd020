"""Resources of a cluster that still exist in the cloud, with their monthly cost.

Kubernetes creates its own resources in an account (disks of volumes, load balancers of Services, addresses of pods)
that no stack contains. They are found by their controllers' tags and by their network.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from l2rtui.cloud.aws import prices
from l2rtui.cloud.aws.clients import Cloud, CloudError
from l2rtui.cloud.aws.templates import OWNER_TAG
from l2rtui.cloud.aws.waiters import ClusterChange
from l2rtui.domain.quantity import format_bytes

_GIB = 1 << 30
_BALANCER = "load balancer"
_NAT = "natgateway"


class RemainingResource(Struct, frozen=True):
    """One remaining resource; its cost is 0 if it is free, None if unknown."""

    kind: str
    id: str
    detail: str = ""
    dollars_a_month: float | None = 0.0


def owned_tag(cluster: str) -> str:
    """Return the tag key that Kubernetes' controllers add to resources that they create in an account."""
    return f"kubernetes.io/cluster/{cluster}"


async def find_remaining(cloud: Cloud, cluster: str, vpc: str = "") -> list[RemainingResource]:
    """Return every existing resource of a cluster, the most expensive first.

    Args:
        vpc: Id of the cluster's network; empty if its stack is gone.
    """
    resources = [*await _disks(cloud, cluster), *await _files(cloud, cluster), *await _logs(cloud, cluster)]
    resources += await _tagged(cloud, cluster)
    if vpc:
        resources += [*await _balancers(cloud, vpc), *await _interfaces(cloud, vpc), *await _groups(cloud, vpc)]
    # A resource may be found by its own service and by its tag; the first has size and cost, and is used.
    unique = {(resource.kind, resource.id): resource for resource in reversed(resources)}
    return sorted(unique.values(), key=lambda resource: -(resource.dollars_a_month or 0))


async def sweep(change: ClusterChange, cluster: str, vpc: str) -> None:
    """Remove resources that the cluster's controllers have left in its network, which would block its removal.

    Resources of other owners are kept, and the receipt names them.
    """
    cloud = change.cloud
    for balancer in await _balancers(cloud, vpc):
        is_modern = balancer.kind == _BALANCER
        service, key = ("elbv2", "LoadBalancerArn") if is_modern else ("elb", "LoadBalancerName")
        request = {"ResourceArns": [balancer.id]} if is_modern else {"LoadBalancerNames": [balancer.id]}
        described = (await cloud.call(service, "describe_tags", **request)).get("TagDescriptions") or [{}]
        tags = _tags(described[0])
        # The tag of the in-tree controller, or of the AWS Load Balancer Controller.
        if owned_tag(cluster) in tags or tags.get("elbv2.k8s.aws/cluster") == cluster:
            await cloud.call(service, "delete_load_balancer", **{key: balancer.id})
            change.say(f"{balancer.kind} {balancer.id}", "removed")
    # Interfaces before security groups: a group that an interface uses cannot be removed.
    for interface in await _in_vpc(cloud, "describe_network_interfaces", "NetworkInterfaces", vpc):
        # The VPC CNI uses this description for its interfaces; an attached one is removed with its node.
        is_pods = str(interface.get("Description", "")).startswith("aws-K8S-")
        if is_pods and interface.get("Status") == "available":
            name = interface["NetworkInterfaceId"]
            await cloud.call("ec2", "delete_network_interface", NetworkInterfaceId=name)
            change.say(f"network interface {name}", "removed")
    for group in await _in_vpc(cloud, "describe_security_groups", "SecurityGroups", vpc):
        if any(tag["Key"] == owned_tag(cluster) for tag in group.get("Tags") or ()):
            await cloud.call("ec2", "delete_security_group", GroupId=group["GroupId"])
            change.say(f"security group {group['GroupId']}", "removed")


async def _disks(cloud: Cloud, cluster: str) -> Iterable[RemainingResource]:
    filters = [{"Name": "tag-key", "Values": [owned_tag(cluster)]}]
    volumes = await cloud.list_all("ec2", "describe_volumes", "Volumes", Filters=filters)
    return [
        RemainingResource(
            "disk", volume["VolumeId"], f"{size} GiB, {volume['State']}", size * prices.DISK_GIB_MONTH
        )
        for volume in volumes
        for size in (volume["Size"],)
    ]


async def _files(cloud: Cloud, cluster: str) -> Iterable[RemainingResource]:
    # EFS has no filter by tag: every file system of the region is listed.
    systems = await cloud.list_all("efs", "describe_file_systems", "FileSystems")
    return [
        _stored(
            "file system",
            system["FileSystemId"],
            (system.get("SizeInBytes") or {}).get("Value"),
            prices.FILES_GIB_MONTH,
        )
        for system in systems
        if _tags(system).get(OWNER_TAG) == cluster
    ]


def _stored(kind: str, name: str, size: int | None, gib_month: float) -> RemainingResource:
    return RemainingResource(kind, name, format_bytes(int(size or 0)), int(size or 0) / _GIB * gib_month)


async def _logs(cloud: Cloud, cluster: str) -> Iterable[RemainingResource]:
    prefix = f"/aws/eks/{cluster}/"
    groups = await cloud.list_all("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=prefix)
    return [
        _stored("log group", group["logGroupName"], group.get("storedBytes"), prices.LOGS_GIB_MONTH)
        for group in groups
    ]


async def _tagged(cloud: Cloud, cluster: str) -> Iterable[RemainingResource]:
    """Return every resource with our tag, including kinds that no other function here knows."""
    filters = [{"Key": OWNER_TAG, "Values": [cluster]}]
    mappings = await cloud.list_all(
        "resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList", TagFilters=filters
    )
    tagged = [_by_arn(mapping["ResourceARN"]) for mapping in mappings]
    # The tagging API lists NAT gateways for about an hour after their deletion.
    gone = set()
    if any(resource.kind == _NAT for resource in tagged):
        nats = await cloud.list_all("ec2", "describe_nat_gateways", "NatGateways")
        gone = {nat["NatGatewayId"] for nat in nats if nat["State"] == "deleted"}
    return [resource for resource in tagged if resource.id not in gone]


def _by_arn(arn: str) -> RemainingResource:
    _, _, _, _, _, rest = arn.split(":", 5)  # arn:partition:service:region:account:kind/name
    kind, _, name = rest.partition("/")
    hourly = {_NAT: prices.NAT_HOUR, "elastic-ip": prices.ADDRESS_HOUR, "cluster": prices.CLUSTER_HOUR}
    if kind == "file-system":
        return RemainingResource("file system", name, "", None)
    # Instances and node groups cost as much as their machines, which an ARN does not reveal.
    unknown = None if kind in ("instance", "nodegroup") else 0.0
    cost = hourly[kind] * prices.HOURS_A_MONTH if kind in hourly else unknown
    return RemainingResource(kind.replace("-", " "), name.partition("/")[0] if kind == "stack" else name, "", cost)


async def _balancers(cloud: Cloud, vpc: str) -> list[RemainingResource]:
    cost = prices.BALANCER_HOUR * prices.HOURS_A_MONTH
    # Neither API filters by network, and each covers only its own generation.
    modern = await cloud.list_all("elbv2", "describe_load_balancers", "LoadBalancers")
    classic = await cloud.list_all("elb", "describe_load_balancers", "LoadBalancerDescriptions")
    resources = [
        RemainingResource(_BALANCER, balancer["LoadBalancerArn"], balancer["LoadBalancerName"], cost)
        for balancer in modern
        if balancer.get("VpcId") == vpc
    ]
    return resources + [
        RemainingResource("classic load balancer", balancer["LoadBalancerName"], "", cost)
        for balancer in classic
        if balancer.get("VPCId") == vpc
    ]


async def _interfaces(cloud: Cloud, vpc: str) -> list[RemainingResource]:
    interfaces = await _in_vpc(cloud, "describe_network_interfaces", "NetworkInterfaces", vpc)
    return [
        RemainingResource(
            "network interface", interface["NetworkInterfaceId"], str(interface.get("Description", ""))
        )
        for interface in interfaces
    ]


async def _groups(cloud: Cloud, vpc: str) -> list[RemainingResource]:
    groups = await _in_vpc(cloud, "describe_security_groups", "SecurityGroups", vpc)
    return [
        RemainingResource("security group", group["GroupId"], str(group.get("GroupName", "")))
        for group in groups
        if group.get("GroupName") != "default"
    ]


async def _in_vpc(cloud: Cloud, operation: str, key: str, vpc: str) -> list[dict[str, Any]]:
    try:
        return await cloud.list_all("ec2", operation, key, Filters=[{"Name": "vpc-id", "Values": [vpc]}])
    except CloudError as error:
        if error.is_missing:  # the network itself is gone, so it contains nothing
            return []
        raise


def _tags(resource: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags") or ()}
