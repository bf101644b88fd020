"""What a cluster has left in the cloud, asked of the cloud itself, with what it goes on costing.

Kubernetes makes things of its own in an account (disks of volumes, load balancers of Services, addresses of pods)
that no stack knows of. They are found by the tags that their makers give them and by the network that they sit in.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Any

from l2rtui.backends.aws import prices
from l2rtui.backends.aws.clients import Cloud, CloudError
from l2rtui.backends.aws.templates import OWNER_TAG
from l2rtui.backends.aws.waiting import Progress
from l2rtui.domain.quantity import format_bytes

_GIB = 1 << 30
_BALANCER = "load balancer"
_NAT = "natgateway"


@dataclass(frozen=True, slots=True)
class Left:
    """Something that is still there.

    Attributes:
        dollars_a_month: What it goes on costing; 0 for nothing, None for unknown.
    """

    kind: str
    id: str
    detail: str = ""
    dollars_a_month: float | None = 0.0


def owned_tag(cluster: str) -> str:
    """The tag that Kubernetes' own controllers put on what they make in an account."""
    return f"kubernetes.io/cluster/{cluster}"


async def find_left(cloud: Cloud, cluster: str, vpc: str = "") -> list[Left]:
    """Everything of a cluster that is there now, most costly first.

    Args:
        vpc: The cluster's network, where it is still known.
    """
    found = [*await _disks(cloud, cluster), *await _files(cloud, cluster), *await _logs(cloud, cluster)]
    found += await _tagged(cloud, cluster)
    if vpc:
        found += [*await _balancers(cloud, vpc), *await _interfaces(cloud, vpc), *await _groups(cloud, vpc)]
    once = {(one.kind, one.id): one for one in reversed(found)}
    return sorted(once.values(), key=lambda one: -(one.dollars_a_month or 0))


async def sweep(cloud: Cloud, cluster: str, vpc: str) -> AsyncGenerator[Progress, None]:
    """Remove what the cluster's own controllers have left in its network: it would keep the network from going.

    Nothing is taken that somebody else has put there: it stays, and the receipt names it.
    """
    for one in await _balancers(cloud, vpc):
        is_modern = one.kind == _BALANCER
        service, key = ("elbv2", "LoadBalancerArn") if is_modern else ("elb", "LoadBalancerName")
        asked = {"ResourceArns": [one.id]} if is_modern else {"LoadBalancerNames": [one.id]}
        described = (await cloud.ask(service, "describe_tags", **asked)).get("TagDescriptions") or [{}]
        tags = _tags(described[0])
        if owned_tag(cluster) in tags or tags.get("elbv2.k8s.aws/cluster") == cluster:
            await cloud.ask(service, "delete_load_balancer", **{key: one.id})
            yield Progress(f"{one.kind} {one.id}", "removed", is_change=True)
    for interface in await _in_vpc(cloud, "describe_network_interfaces", "NetworkInterfaces", vpc):
        is_pods = str(interface.get("Description", "")).startswith("aws-K8S-")
        if is_pods and interface.get("Status") == "available":
            name = interface["NetworkInterfaceId"]
            await cloud.ask("ec2", "delete_network_interface", NetworkInterfaceId=name)
            yield Progress(f"network interface {name}", "removed", is_change=True)
    for group in await _in_vpc(cloud, "describe_security_groups", "SecurityGroups", vpc):
        if any(tag["Key"] == owned_tag(cluster) for tag in group.get("Tags") or ()):
            await cloud.ask("ec2", "delete_security_group", GroupId=group["GroupId"])
            yield Progress(f"security group {group['GroupId']}", "removed", is_change=True)


async def _disks(cloud: Cloud, cluster: str) -> Iterable[Left]:
    wanted = [{"Name": "tag-key", "Values": [owned_tag(cluster)]}]
    found = await cloud.all("ec2", "describe_volumes", "Volumes", Filters=wanted)
    return [
        Left("disk", one["VolumeId"], f"{one['Size']} GiB, {one['State']}", one["Size"] * prices.DISK_GIB_MONTH)
        for one in found
    ]


async def _files(cloud: Cloud, cluster: str) -> Iterable[Left]:
    found = await cloud.all("efs", "describe_file_systems", "FileSystems")
    ours = [one for one in found if _tags(one).get(OWNER_TAG) == cluster]
    return [_file_system(one) for one in ours]


def _file_system(one: dict[str, Any]) -> Left:
    size = int((one.get("SizeInBytes") or {}).get("Value") or 0)
    cost = size / _GIB * prices.FILES_GIB_MONTH
    return Left("file system", one["FileSystemId"], format_bytes(size), cost)


async def _logs(cloud: Cloud, cluster: str) -> Iterable[Left]:
    prefix = f"/aws/eks/{cluster}/"
    found = await cloud.all("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=prefix)
    return [
        Left(
            "log group",
            one["logGroupName"],
            format_bytes(int(one.get("storedBytes") or 0)),
            int(one.get("storedBytes") or 0) / _GIB * prices.LOGS_GIB_MONTH,
        )
        for one in found
    ]


async def _tagged(cloud: Cloud, cluster: str) -> Iterable[Left]:
    """Whatever carries our tag: the net under everything else."""
    wanted = [{"Key": OWNER_TAG, "Values": [cluster]}]
    found = await cloud.all(
        "resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList", TagFilters=wanted
    )
    left = [_by_arn(one["ResourceARN"]) for one in found]
    # The service that finds by tags goes on naming some things for an hour after their end.
    gone = set()
    if any(one.kind == _NAT for one in left):
        nats = await cloud.all("ec2", "describe_nat_gateways", "NatGateways")
        gone = {one["NatGatewayId"] for one in nats if one["State"] == "deleted"}
    return [one for one in left if one.id not in gone]


def _by_arn(arn: str) -> Left:
    _, _, _, _, _, rest = arn.split(":", 5)
    kind, _, name = rest.partition("/")
    hourly = {_NAT: prices.NAT_HOUR, "elastic-ip": prices.ADDRESS_HOUR, "cluster": prices.CLUSTER_HOUR}
    if kind == "file-system":
        return Left("file system", name, "", None)
    unknown = None if kind in ("instance", "nodegroup") else 0.0
    cost = hourly[kind] * prices.HOURS_A_MONTH if kind in hourly else unknown
    return Left(kind.replace("-", " "), name.partition("/")[0] if kind == "stack" else name, "", cost)


async def _balancers(cloud: Cloud, vpc: str) -> list[Left]:
    cost = prices.BALANCER_HOUR * prices.HOURS_A_MONTH
    modern = await cloud.all("elbv2", "describe_load_balancers", "LoadBalancers")
    classic = await cloud.all("elb", "describe_load_balancers", "LoadBalancerDescriptions")
    found = [
        Left(_BALANCER, one["LoadBalancerArn"], one["LoadBalancerName"], cost)
        for one in modern
        if one.get("VpcId") == vpc
    ]
    return found + [
        Left("classic load balancer", one["LoadBalancerName"], "", cost)
        for one in classic
        if one.get("VPCId") == vpc
    ]


async def _interfaces(cloud: Cloud, vpc: str) -> list[Left]:
    found = await _in_vpc(cloud, "describe_network_interfaces", "NetworkInterfaces", vpc)
    return [Left("network interface", one["NetworkInterfaceId"], str(one.get("Description", ""))) for one in found]


async def _groups(cloud: Cloud, vpc: str) -> list[Left]:
    found = await _in_vpc(cloud, "describe_security_groups", "SecurityGroups", vpc)
    return [
        Left("security group", one["GroupId"], str(one.get("GroupName", "")))
        for one in found
        if one.get("GroupName") != "default"
    ]


async def _in_vpc(cloud: Cloud, operation: str, key: str, vpc: str) -> list[dict[str, Any]]:
    try:
        return await cloud.all("ec2", operation, key, Filters=[{"Name": "vpc-id", "Values": [vpc]}])
    except CloudError as error:
        if error.is_missing:
            return []
        raise


def _tags(one: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in one.get("Tags") or ()}
