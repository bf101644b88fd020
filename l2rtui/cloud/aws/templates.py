"""CloudFormation templates of a cluster: network, roles, files, launch templates, Pod Identity. Pure functions.

They are separate stacks, so that each can be inspected, created and removed independently: roles before the cluster
and after it, the file system perhaps never. EKS itself is created by API calls (``eks.py``), which a fake can
answer.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, Final

from l2rtui.cloud.aws.cluster_spec import IDENTITY_AGENT, ClusterSpec, NodeGroup

OWNER_TAG: Final = "l2rtui/cluster"
"""Tag key of all created resources; its value is the cluster's name."""
NETWORK: Final = "192.168.0.0/16"
_NODE_POLICIES: Final = ("AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryReadOnly")
_NFS: Final = 2049

Template = dict[str, Any]


def stack_name(cluster: str, part: str) -> str:
    """Return the name of the stack of a part, such as ``network``."""
    return f"l2rtui-{cluster}-{part}"


def tags_of(spec: ClusterSpec) -> dict[str, str]:
    """Return the tags of all resources of a cluster."""
    return {**dict(spec.tags), OWNER_TAG: spec.name}


def network(spec: ClusterSpec) -> Template:
    """Return a VPC with a public and a private subnet per zone, and a NAT gateway if private nodes need one."""
    # Eight /19 blocks of 8,187 addresses each: four zones with two subnets each.
    blocks = list(ipaddress.ip_network(NETWORK).subnets(new_prefix=19))
    resources: Template = {
        "Vpc": _resource(
            "EC2::VPC",
            CidrBlock=NETWORK,
            Tags=[_named(spec, "vpc")],
            EnableDnsSupport=True,
            EnableDnsHostnames=True,
        ),
        "Internet": _resource("EC2::InternetGateway"),
        "Attachment": _resource("EC2::VPCGatewayAttachment", VpcId=_ref("Vpc"), InternetGatewayId=_ref("Internet")),
        "PublicRoutes": _resource("EC2::RouteTable", VpcId=_ref("Vpc"), Tags=[_named(spec, "public")]),
        # Not by reference: a route to a gateway is refused until the gateway is attached to the VPC.
        "PublicRoute": _default_route("PublicRoutes", GatewayId=_ref("Internet")) | {"DependsOn": "Attachment"},
        "PrivateRoutes": _resource("EC2::RouteTable", VpcId=_ref("Vpc"), Tags=[_named(spec, "private")]),
    }
    for number, zone in enumerate(spec.zones):
        resources |= _subnet(spec, f"Public{number}", zone, str(blocks[number]), "elb", is_public=True)
        resources |= _subnet(
            spec, f"Private{number}", zone, str(blocks[4 + number]), "internal-elb", is_public=False
        )
    # One gateway for all zones: each costs 33 dollars per month, and training survives the loss of a zone by
    # checkpoints.
    if spec.needs_nat:
        address = {"Fn::GetAtt": ["Address", "AllocationId"]}
        resources |= {
            "Address": _resource("EC2::EIP", Domain="vpc") | {"DependsOn": "Attachment"},
            "Nat": _resource("EC2::NatGateway", SubnetId=_ref("Public0"), AllocationId=address)
            | {"DependsOn": "PublicRoute"},
            "PrivateRoute": _default_route("PrivateRoutes", NatGatewayId=_ref("Nat")),
        }
    zones = range(len(spec.zones))
    outputs = {
        "Vpc": _ref("Vpc"),
        "PublicSubnets": {"Fn::Join": [",", [_ref(f"Public{number}") for number in zones]]},
        "PrivateSubnets": {"Fn::Join": [",", [_ref(f"Private{number}") for number in zones]]},
    }
    return _template(f"Network of the cluster {spec.name}", resources, outputs)


def _default_route(table: str, **gateway: Any) -> Template:
    return _resource("EC2::Route", RouteTableId=_ref(table), DestinationCidrBlock="0.0.0.0/0", **gateway)


def _named(spec: ClusterSpec, name: str) -> dict[str, str]:
    return {"Key": "Name", "Value": f"{spec.name}-{name}"}


def _subnet(spec: ClusterSpec, name: str, zone: str, block: str, role: str, *, is_public: bool) -> Template:
    # The load balancer controller finds the subnets of public and internal balancers by the role tag.
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
    """Return the role of the control plane, and one for the nodes of each group."""
    resources = {"Cluster": _role(spec, "eks.amazonaws.com", [_policy("AmazonEKSClusterPolicy")])}
    outputs: dict[str, Any] = {"Cluster": {"Fn::GetAtt": ["Cluster", "Arn"]}}
    for group in spec.groups:
        name = node_role(group.name)
        resources[name] = _role(spec, "ec2.amazonaws.com", [*map(_policy, _NODE_POLICIES), *group.policies])
        outputs[name] = {"Fn::GetAtt": [name, "Arn"]}
    return _template(f"Roles of the cluster {spec.name}", resources, outputs)


def node_role(group: str) -> str:
    """Return the logical id of a group's role: CloudFormation only allows letters and digits."""
    return f"Node{_letters(group)}"


def _letters(name: str) -> str:
    return name.encode().hex()  # hexadecimal: two names such as a-b and a_b must stay different


def launch_templates(spec: ClusterSpec) -> Template:
    """Return a launch template for each group with a capacity reservation, which EKS requires for reservations.

    Source: "Create a managed node group with capacity blocks" in the EKS user guide.
    """
    resources: Template = {}
    outputs: dict[str, Any] = {}
    for group in spec.groups:
        if group.reservation:
            name = launch_template(group.name)
            resources[name] = _resource("EC2::LaunchTemplate", LaunchTemplateData=_launch_data(spec, group))
            outputs |= {name: _ref(name), f"{name}Version": {"Fn::GetAtt": [name, "LatestVersionNumber"]}}
    return _template(f"Launch templates of the cluster {spec.name}", resources, outputs)


def launch_template(group: str) -> str:
    """Return the logical id of a group's launch template."""
    return f"Launch{_letters(group)}"


def _launch_data(spec: ClusterSpec, group: NodeGroup) -> Template:
    # Disk size and machine type are set here: EKS refuses them in addition to a launch template with them.
    disk = {"VolumeSize": group.volume_gib, "VolumeType": "gp3", "DeleteOnTermination": True}
    data: Template = {
        "InstanceType": group.instance_types[0],
        "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": disk}],  # root disk of Amazon Linux
        "CapacityReservationSpecification": {
            "CapacityReservationTarget": {"CapacityReservationId": group.reservation}
        },
        "TagSpecifications": [{"ResourceType": kind, "Tags": _tag_list(spec)} for kind in ("instance", "volume")],
    }
    return data | ({"InstanceMarketOptions": {"MarketType": "capacity-block"}} if group.is_block else {})


def pod_identity(spec: ClusterSpec) -> Template:
    """Return the add-on that gives credentials to pods, and for each service account a role and its association."""
    resources = {
        "Agent": _resource("EKS::Addon", ClusterName=spec.name, AddonName=IDENTITY_AGENT, Tags=_tag_list(spec))
    }
    for identity in spec.identities:
        name = _letters(str(identity))
        role: Any = identity.role
        if not role:
            # TagSession: EKS tags each session with cluster, namespace and service account, for policies to read.
            actions = ["sts:AssumeRole", "sts:TagSession"]
            resources[f"Role{name}"] = _role(spec, "pods.eks.amazonaws.com", identity.policies, actions)
            role = {"Fn::GetAtt": [f"Role{name}", "Arn"]}
        resources[f"Association{name}"] = _resource(
            "EKS::PodIdentityAssociation",
            ClusterName=spec.name,
            Namespace=identity.namespace,
            ServiceAccount=identity.service_account,
            RoleArn=role,
            Tags=_tag_list(spec),
        )
    return _template(f"Pod identities of the cluster {spec.name}", resources, {})


def file_system(spec: ClusterSpec) -> Template:
    """Return an encrypted shared file system; EFS costs depend on the amount of stored data."""
    tags = [_named(spec, "shared"), *_tag_list(spec)]
    resources = {"Files": _resource("EFS::FileSystem", Encrypted=True, FileSystemTags=tags)}
    return _template(f"Shared files of the cluster {spec.name}", resources, {"Files": _ref("Files")})


def mounts(cluster: str, files: str, vpc: str, subnets: Sequence[str], *, is_existing: bool = False) -> Template:
    """Return a mount target of the file system in each zone, accessible only from the cluster's own network.

    Args:
        is_existing: The file system is not the cluster's own; an output tells later commands so.
    """
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
    outputs = {"ExistingFiles": files} if is_existing else {}
    return _template(f"Mount targets of the cluster {cluster}", resources, outputs)


def _role(
    spec: ClusterSpec, service: str, policies: Sequence[str], actions: str | list[str] = "sts:AssumeRole"
) -> Template:
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": actions}
    trust = {"Version": "2012-10-17", "Statement": [statement]}
    arns = list(dict.fromkeys(policies))  # CloudFormation requires unique items
    return _resource("IAM::Role", AssumeRolePolicyDocument=trust, ManagedPolicyArns=arns, Tags=_tag_list(spec))


def _tag_list(spec: ClusterSpec) -> list[dict[str, str]]:
    """Return the tags for resources to which CloudFormation does not always propagate the tags of their stack."""
    return [{"Key": key, "Value": value} for key, value in tags_of(spec).items()]


def _policy(name: str) -> str:
    return f"arn:aws:iam::aws:policy/{name}"


def _ref(name: str) -> dict[str, str]:
    return {"Ref": name}


def _resource(kind: str, **properties: Any) -> Template:
    return {"Type": f"AWS::{kind}", **({"Properties": properties} if properties else {})}


def _template(description: str, resources: Template, outputs: Mapping[str, Any]) -> Template:
    values = {key: {"Value": value} for key, value in outputs.items()}
    head = {"AWSTemplateFormatVersion": "2010-09-09", "Description": description, "Resources": resources}
    return head | ({"Outputs": values} if values else {})
