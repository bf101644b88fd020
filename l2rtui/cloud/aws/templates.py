"""What CloudFormation makes for a cluster: network, roles, shared file system. Pure: a spec in, templates out.

They are separate stacks so that each can be looked at, made and removed by itself: roles before the cluster and
after it, the file system perhaps never. EKS itself is made by calls (``eks.py``), which is what tests can reach.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, Final

from l2rtui.backends.aws.clusterfile import ClusterSpec

OWNER_TAG: Final = "l2rtui/cluster"
"""On everything that is made here; its value is the cluster's name."""
NETWORK: Final = "192.168.0.0/16"
_NODE_POLICIES: Final = ("AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryReadOnly")
_NFS: Final = 2049

Template = dict[str, Any]


def stack_name(cluster: str, part: str) -> str:
    """Name of a stack: ``network``, ``roles``, ``efs`` or ``mounts``."""
    return f"l2rtui-{cluster}-{part}"


def tags_of(spec: ClusterSpec) -> dict[str, str]:
    """Tags of everything that belongs to a cluster."""
    return {**dict(spec.tags), OWNER_TAG: spec.name}


def network(spec: ClusterSpec) -> Template:
    """A VPC with a public and a private subnet in each zone; a NAT gateway where private nodes need one."""
    blocks = list(ipaddress.ip_network(NETWORK).subnets(new_prefix=19))
    resources: Template = {
        "Vpc": _resource(
            "EC2::VPC",
            CidrBlock=NETWORK,
            EnableDnsSupport=True,
            EnableDnsHostnames=True,
            Tags=[_named(spec, "vpc")],
        ),
        "Internet": _resource("EC2::InternetGateway"),
        "Attachment": _resource("EC2::VPCGatewayAttachment", VpcId=_ref("Vpc"), InternetGatewayId=_ref("Internet")),
        "PublicRoutes": _resource("EC2::RouteTable", VpcId=_ref("Vpc"), Tags=[_named(spec, "public")]),
        "PublicRoute": {
            **_resource(
                "EC2::Route",
                RouteTableId=_ref("PublicRoutes"),
                DestinationCidrBlock="0.0.0.0/0",
                GatewayId=_ref("Internet"),
            ),
            "DependsOn": "Attachment",
        },
        "PrivateRoutes": _resource("EC2::RouteTable", VpcId=_ref("Vpc"), Tags=[_named(spec, "private")]),
    }
    for number, zone in enumerate(spec.zones):
        resources |= _subnet(spec, f"Public{number}", zone, str(blocks[number]), "elb", is_public=True)
        resources |= _subnet(
            spec, f"Private{number}", zone, str(blocks[4 + number]), "internal-elb", is_public=False
        )
    if spec.needs_nat:
        resources |= {
            "Address": {**_resource("EC2::EIP", Domain="vpc"), "DependsOn": "Attachment"},
            "Nat": {
                **_resource(
                    "EC2::NatGateway",
                    SubnetId=_ref("Public0"),
                    AllocationId={"Fn::GetAtt": ["Address", "AllocationId"]},
                ),
                "DependsOn": "PublicRoute",
            },
            "PrivateRoute": _resource(
                "EC2::Route",
                RouteTableId=_ref("PrivateRoutes"),
                DestinationCidrBlock="0.0.0.0/0",
                NatGatewayId=_ref("Nat"),
            ),
        }
    zones = range(len(spec.zones))
    outputs = {
        "Vpc": _ref("Vpc"),
        "PublicSubnets": {"Fn::Join": [",", [_ref(f"Public{number}") for number in zones]]},
        "PrivateSubnets": {"Fn::Join": [",", [_ref(f"Private{number}") for number in zones]]},
    }
    return _template(f"Network of the cluster {spec.name}", resources, outputs)


def _named(spec: ClusterSpec, name: str) -> dict[str, str]:
    return {"Key": "Name", "Value": f"{spec.name}-{name}"}


def _subnet(spec: ClusterSpec, name: str, zone: str, block: str, role: str, *, is_public: bool) -> Template:
    tags = {"Name": f"{spec.name}-{name.lower()}", f"kubernetes.io/role/{role}": "1"}
    return {
        name: _resource(
            "EC2::Subnet",
            VpcId=_ref("Vpc"),
            AvailabilityZone=zone,
            CidrBlock=block,
            MapPublicIpOnLaunch=is_public,
            Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
        ),
        f"{name}Routes": _resource(
            "EC2::SubnetRouteTableAssociation",
            SubnetId=_ref(name),
            RouteTableId=_ref("PublicRoutes" if is_public else "PrivateRoutes"),
        ),
    }


def roles(spec: ClusterSpec) -> Template:
    """The role of the control plane, and one for the nodes of each group."""
    resources = {"Cluster": _role(spec, "eks.amazonaws.com", [_policy("AmazonEKSClusterPolicy")])}
    outputs: dict[str, Any] = {"Cluster": {"Fn::GetAtt": ["Cluster", "Arn"]}}
    for group in spec.groups:
        name = node_role(group.name)
        resources[name] = _role(spec, "ec2.amazonaws.com", [*map(_policy, _NODE_POLICIES), *group.policies])
        outputs[name] = {"Fn::GetAtt": [name, "Arn"]}
    return _template(f"Roles of the cluster {spec.name}", resources, outputs)


def node_role(group: str) -> str:
    """The role of a group in its stack: names there know letters and digits alone."""
    return f"Node{group.encode().hex()}"


def file_system(spec: ClusterSpec) -> Template:
    """A shared file system: it costs by what is in it."""
    tags = [_named(spec, "shared"), *_tag_list(spec)]
    resources = {"Files": _resource("EFS::FileSystem", Encrypted=True, FileSystemTags=tags)}
    return _template(f"Shared files of the cluster {spec.name}", resources, {"Files": _ref("Files")})


def mounts(cluster: str, files: str, vpc: str, subnets: Sequence[str]) -> Template:
    """An entrance to the file system in each zone, open to the cluster's own network alone."""
    resources = {
        "Entrance": _resource(
            "EC2::SecurityGroup",
            GroupDescription=f"NFS within the cluster {cluster}",
            VpcId=vpc,
            SecurityGroupIngress=[{"IpProtocol": "tcp", "FromPort": _NFS, "ToPort": _NFS, "CidrIp": NETWORK}],
        )
    }
    for number, subnet in enumerate(subnets):
        resources[f"Mount{number}"] = _resource(
            "EFS::MountTarget", FileSystemId=files, SubnetId=subnet, SecurityGroups=[_ref("Entrance")]
        )
    return _template(f"Mount targets of the cluster {cluster}", resources, {})


def _role(spec: ClusterSpec, service: str, policies: Sequence[str]) -> Template:
    trust = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}],
    }
    arns = list(dict.fromkeys(policies))
    return _resource("IAM::Role", AssumeRolePolicyDocument=trust, ManagedPolicyArns=arns, Tags=_tag_list(spec))


def _tag_list(spec: ClusterSpec) -> list[dict[str, str]]:
    """CloudFormation hands a stack's tags on, but to roles and file systems not everywhere."""
    return [{"Key": key, "Value": value} for key, value in tags_of(spec).items()]


def _policy(name: str) -> str:
    return f"arn:aws:iam::aws:policy/{name}"


def _ref(name: str) -> dict[str, str]:
    return {"Ref": name}


def _resource(kind: str, **properties: Any) -> Template:
    return {"Type": f"AWS::{kind}", **({"Properties": properties} if properties else {})}


def _template(description: str, resources: Template, outputs: Mapping[str, Any]) -> Template:
    found: Template = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": description,
        "Resources": resources,
    }
    if outputs:
        found["Outputs"] = {key: {"Value": value} for key, value in outputs.items()}
    return found
