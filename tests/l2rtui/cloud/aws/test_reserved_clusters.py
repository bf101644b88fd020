"""Clusters with reserved machines, Pod Identity and an existing file system, in moto's cloud.

moto has no capacity reservations: their answers have the shape of Amazon's model, checked by botocore's own
validator. It skips resources of EKS in templates: those templates are checked by cfn-lint, which has AWS' schemas.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from botocore.stub import Stubber
from msgspec.structs import replace

from l2rtui.cloud.aws import clusters, reservations, stacks, templates
from l2rtui.cloud.aws.clients import CloudError
from l2rtui.cloud.aws.cluster_spec import ClusterSpec, NodeGroup, PodIdentity
from l2rtui.errors import NotFoundError, RefusedError, UsageError
from tests.l2rtui.cloud.aws.conftest import REGION
from tests.l2rtui.cloud.aws.test_clusters import Watched, counted, create, delete

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore:Tried to parse"),
]  # from moto

RESERVATION = "cr-0123456789abcdef0"
BLOCK = NodeGroup(
    "block", ("p5.48xlarge",), 2, 1, 2, volume_gib=300, is_private=True, reservation=RESERVATION, is_block=True
)
SPEC = ClusterSpec("lab", REGION, "1.33", (f"{REGION}a", f"{REGION}b"), (), (BLOCK,))
POLICY = "arn:aws:iam::aws:policy/service-role/AmazonEFSCSIDriverPolicy"
IDENTITIES = (
    PodIdentity("kube-system", "efs-csi-controller", (POLICY,)),
    PodIdentity("ml", "trainer", role="arn:aws:iam::123456789012:role/trainer"),
)
STARTS, ENDS = datetime(2026, 12, 1, 11, 30, tzinfo=UTC), datetime(2026, 12, 2, 11, 30, tzinfo=UTC)


def reserved(**more):
    """A reservation in the form of EC2."""
    item = {
        "CapacityReservationId": RESERVATION, "InstanceType": "p5.48xlarge", "AvailabilityZone": f"{REGION}b",
        "TotalInstanceCount": 2, "State": "active", "ReservationType": "capacity-block",
        "StartDate": STARTS, "EndDate": ENDS,
    }  # fmt: skip
    return item | more


class ReservedCloud(Watched):
    """moto's cloud with one capacity reservation; None if its id is unknown."""

    def __init__(self, reservation):
        super().__init__()
        self.reservation = reservation

    def _call(self, service, operation, arguments):
        if operation != "describe_capacity_reservations":
            return super()._call(service, operation, arguments)
        assert arguments == {"CapacityReservationIds": [RESERVATION]}
        if self.reservation is None:
            code = "InvalidCapacityReservationId.NotFound"
            raise CloudError(f"Amazon's ec2 refuses {operation}: it does not exist.", code=code)
        answer = {"CapacityReservations": [self.reservation]}
        Stubber(self._client("ec2")).add_response(operation, answer, arguments)  # raises if the shape is wrong
        return answer


async def test_a_block_is_used_through_a_launch_template_in_its_own_zone(account):
    cloud = ReservedCloud(reserved())
    steps = await create(cloud, SPEC, has_files=False)
    assert ("node group block", "asked for: 2 x p5.48xlarge of the block cr-0123456789abcdef0") in [
        (step.step, step.text) for step in steps
    ]
    group = account.client("eks").describe_nodegroup(clusterName="lab", nodegroupName="block")["nodegroup"]
    assert (group["capacityType"], group["scalingConfig"]["desiredSize"]) == ("CAPACITY_BLOCK", 2)
    ec2 = account.client("ec2")
    template, version = group["launchTemplate"]["id"], group["launchTemplate"]["version"]
    (launch,) = ec2.describe_launch_template_versions(LaunchTemplateId=template, Versions=[version])[
        "LaunchTemplateVersions"
    ]
    data = launch["LaunchTemplateData"]
    assert data["InstanceType"] == "p5.48xlarge"
    assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    target = data["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": RESERVATION}
    assert data["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 300
    (subnet,) = ec2.describe_subnets(SubnetIds=group["subnets"])["Subnets"]
    assert (subnet["AvailabilityZone"], subnet["MapPublicIpOnLaunch"]) == (f"{REGION}b", False)

    again = ReservedCloud(reserved())
    steps = await create(again, SPEC, has_files=False)
    assert (again.changes, [step for step in steps if step.is_change]) == ([], [])
    status = await clusters.status(cloud, "lab")
    assert status["stacks"]["launch"] == "CREATE_COMPLETE"
    assert status["groups"][0]["capacity_type"] == "CAPACITY_BLOCK"
    assert (await delete(cloud)).left == ()
    assert account.inventory() == {}
    assert ec2.describe_launch_templates()["LaunchTemplates"] == []


async def test_a_block_that_has_not_started_gives_a_group_without_nodes(account):
    cloud = ReservedCloud(reserved(State="scheduled"))
    steps = await create(cloud, SPEC, has_files=False)
    group = account.client("eks").describe_nodegroup(clusterName="lab", nodegroupName="block")["nodegroup"]
    assert group["scalingConfig"] == {"minSize": 0, "maxSize": 2, "desiredSize": 0}
    (text,) = [step.text for step in steps if "has no nodes until" in step.text]
    assert "from 2026-12-01 11:30 UTC to 2026-12-02 11:30 UTC" in text
    blocks = await reservations.find_reservations(cloud, SPEC)
    plan = dict(clusters.steps_of(SPEC, has_files=False, reservations=blocks))
    assert plan["node group block"].startswith("0 x p5.48xlarge of the block")
    assert "capacity block cr-0123456789abcdef0: 2 in us-west-2b, from 2026" in plan["l2rtui-lab-launch"]


@pytest.mark.parametrize(
    ("reservation", "error", "sentence"),
    [
        (None, NotFoundError, "There is no capacity reservation cr-0123456789abcdef0 in this region"),
        (reserved(State="expired"), UsageError, "is expired"),
        (
            reserved(InstanceType="p4d.24xlarge"),
            UsageError,
            "holds p4d.24xlarge, and the node group block wants p5",
        ),
        (reserved(TotalInstanceCount=1), UsageError, "holds 1 machine, and the node group wants 2"),
        (reserved(ReservationType="default"), UsageError, "is not a capacity block: leave instanceMarketOptions"),
        (reserved(AvailabilityZone=f"{REGION}c"), UsageError, "is in us-west-2c, and the cluster is in us-west-2a"),
    ],
)
async def test_a_reservation_that_does_not_fit_is_refused_before_anything_is_made(
    account, reservation, error, sentence
):
    cloud = ReservedCloud(reservation)
    with pytest.raises(error, match=sentence):
        await create(cloud, SPEC)
    assert (cloud.changes, account.inventory()) == ([], {})


async def test_a_reservation_on_demand_needs_no_market_and_a_block_does(account):
    plain = replace(SPEC, groups=(replace(BLOCK, is_block=False),))
    with pytest.raises(UsageError, match="is a capacity block: write instanceMarketOptions"):
        await create(ReservedCloud(reserved()), plain)
    cloud = ReservedCloud(reserved(ReservationType="default"))
    await create(cloud, plain, has_files=False)
    group = account.client("eks").describe_nodegroup(clusterName="lab", nodegroupName="block")["nodegroup"]
    assert group["capacityType"] == "ON_DEMAND"
    body = json.dumps(templates.launch_templates(plain))
    assert RESERVATION in body
    assert "InstanceMarketOptions" not in body


async def test_a_group_on_spot_takes_whichever_of_its_types_has_room(account):
    spot = NodeGroup("spot", ("g6.xlarge", "g5.xlarge", "g4dn.xlarge"), 2, 0, 4, is_spot=True)
    cloud = Watched()
    await create(cloud, replace(SPEC, groups=(spot,)), has_files=False)
    group = account.client("eks").describe_nodegroup(clusterName="lab", nodegroupName="spot")["nodegroup"]
    assert (group["capacityType"], group["instanceTypes"]) == ("SPOT", ["g6.xlarge", "g5.xlarge", "g4dn.xlarge"])
    assert group["amiType"] == "AL2023_x86_64_NVIDIA"
    assert "l2rtui-lab-launch" not in account.inventory()["stack"]
    (row,) = (await clusters.status(cloud, "lab"))["groups"]
    assert row["capacity_type"] == "SPOT"


async def test_zones_are_chosen_with_that_of_the_reservation(account):
    spec = await clusters.with_zones(Watched(), replace(SPEC, zones=()), {f"{REGION}d"})
    assert spec.zones == (f"{REGION}a", f"{REGION}b", f"{REGION}d")


# --- Pod Identity ---------------------------------------------------------------------------------------------


async def test_identities_come_with_the_cluster_and_go_with_it(account):
    spec = replace(SPEC, groups=(), identities=IDENTITIES, has_identity_agent=True)
    cloud = Watched()
    await create(cloud, spec, has_files=False)
    roles = account.client("iam").list_roles()["Roles"]
    (trust,) = [role for role in roles if "pods.eks.amazonaws.com" in str(role["AssumeRolePolicyDocument"])]
    assert "sts:TagSession" in str(trust["AssumeRolePolicyDocument"])
    assert (await clusters.status(cloud, "lab"))["stacks"]["identity"] == "CREATE_COMPLETE"
    assert dict(clusters.steps_of(spec, has_files=False))["l2rtui-lab-identity"] == (
        "add-on eks-pod-identity-agent, roles for kube-system/efs-csi-controller, ml/trainer"
    )
    # Removing the associations needs the control plane.
    cloud.changes.clear()
    assert (await delete(cloud)).left == ()
    assert [name for _, name in cloud.changes][:2] == ["l2rtui-lab-identity", "lab"]
    assert account.inventory() == {}


async def test_identities_that_the_file_no_longer_names_are_taken_back(account):
    cloud = Watched()
    plain = replace(SPEC, groups=())
    await create(cloud, replace(plain, identities=IDENTITIES, has_identity_agent=True), has_files=False)
    before = counted(account)["role"]
    await create(cloud, plain, has_files=False)
    assert counted(account)["role"] == before - 1
    assert await stacks.find_stack(cloud, "l2rtui-lab-identity") is None


def lint(template):
    from cfnlint.api import lint
    from cfnlint.config import ManualArgs

    problems = lint(json.dumps(template), config=ManualArgs(regions=[REGION]))
    return [problem.message for problem in problems if problem.rule.id.startswith("E")]


@pytest.mark.slow
def test_templates_are_what_amazon_s_schemas_allow():
    spec = replace(SPEC, identities=IDENTITIES, has_identity_agent=True, tags=(("team", "racing"),))
    for template in (
        templates.network(spec),
        templates.roles(spec),
        templates.file_system(spec),
        templates.launch_templates(spec),
        templates.pod_identity(spec),
        templates.mounts(
            "lab", "fs-0123456789abcdef0", "vpc-0123456789abcdef0", ["subnet-0123456789abcdef0"], is_existing=True
        ),
    ):
        assert lint(template) == []
    wrong = templates.pod_identity(spec)
    del wrong["Resources"]["Agent"]["Properties"]["ClusterName"]
    assert lint(wrong) == ["'ClusterName' is a required property"]


# --- an existing file system ----------------------------------------------------------------------------------


async def test_a_file_system_that_exists_is_mounted_and_stays(account):
    files = account.client("efs").create_file_system(CreationToken="theirs")["FileSystemId"]
    spec = replace(SPEC, groups=(), file_system=files)
    cloud = Watched()
    await create(cloud, spec)
    assert account.inventory()["files"] == [files]
    assert len(account.client("efs").describe_mount_targets(FileSystemId=files)["MountTargets"]) == 2
    status = await clusters.status(cloud, "lab")
    assert (status["file_system"], status["existing_file_system"]) == ("", files)
    plan = dict(clusters.steps_of(spec, has_files=True))
    assert "l2rtui-lab-efs" not in plan
    assert f"of the file system {files}, which stays when the cluster goes" in plan["l2rtui-lab-mounts"]
    again = Watched()
    await create(again, spec)
    assert again.changes == []
    receipt = await delete(cloud)
    assert (receipt.left, receipt.sentence) == ((), "nothing left of lab")
    assert account.inventory() == {"files": [files]}
    assert account.client("efs").describe_mount_targets(FileSystemId=files)["MountTargets"] == []


async def test_a_file_system_that_cannot_be_mounted_is_refused_before_anything_is_made(account):
    efs, ec2 = account.client("efs"), account.client("ec2")
    cloud = Watched()
    missing = replace(SPEC, groups=(), file_system="fs-0123456789abcdef0")
    with pytest.raises(NotFoundError, match="There is no file system fs-0123456789abcdef0 in this region"):
        await create(cloud, missing)
    files = efs.create_file_system(CreationToken="theirs")["FileSystemId"]
    subnet = ec2.describe_subnets()["Subnets"][0]
    efs.create_mount_target(FileSystemId=files, SubnetId=subnet["SubnetId"])
    with pytest.raises(UsageError, match=f"mount targets in another network, {subnet['VpcId']}"):
        await create(cloud, replace(SPEC, groups=(), file_system=files))
    assert cloud.changes == []


async def test_the_cluster_s_own_file_system_cannot_be_named_as_that_of_others(account):
    cloud = Watched()
    plain = replace(SPEC, groups=())
    await create(cloud, plain)
    (files,) = account.inventory()["files"]
    changes = len(cloud.changes)
    with pytest.raises(
        RefusedError, match="is the file system that this cluster created, and would be deleted with it"
    ):
        await create(cloud, replace(plain, file_system=files))
    assert len(cloud.changes) == changes
