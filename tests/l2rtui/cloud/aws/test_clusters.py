"""A cluster created and deleted in moto's cloud: all resources listed, every step made to fail once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from l2rtui.cloud.aws import clusters
from l2rtui.cloud.aws.clients import Cloud, CloudError
from l2rtui.cloud.aws.cluster_spec import ClusterSpec, NodeGroup
from l2rtui.cloud.aws.templates import OWNER_TAG
from l2rtui.cloud.aws.waiters import ClusterChange, WaitPolicy
from l2rtui.errors import BackendError, NotFoundError, RefusedError
from tests.l2rtui.cloud.aws.conftest import CLIENTS, REGION

pytestmark = pytest.mark.filterwarnings("default")  # from moto

NOW = WaitPolicy(0.01, 20)
SPEC = ClusterSpec(
    "lab",
    REGION,
    "1.33",
    (f"{REGION}a", f"{REGION}b"),
    (("team", "racing"),),
    (
        NodeGroup("gpu", ("g5.xlarge",), 2, 0, 4, is_private=True, labels=(("nodetype", "phortx"),)),
        NodeGroup("cpu", ("m5.large",), 1, 1, 2, taints=(("for", "learners", "NO_SCHEDULE"),)),
    ),
)
MADE = {
    "vpc": 1, "subnet": 4, "route table": 3, "internet gateway": 1, "nat": 1, "address": 1, "security group": 2,
    "interface": 3, "role": 3, "stack": 4, "files": 1, "cluster": 1, "group": 2,
}  # fmt: skip
CHANGES = ("create_", "delete_", "update_")


class Watched(Cloud):
    """A cloud that records its changing calls, and refuses one of them.

    Attributes:
        changes: Operations in order, with the object's name. fail_at: the failing one, counted from 0.
        lose_answer: The call is executed, and its answer is lost.
        interrupt: Called in the thread of a call after its execution; by the number of the call.
    """

    def __init__(self) -> None:
        super().__init__(REGION)
        self._clients = CLIENTS
        self.changes: list[tuple[str, str]] = []
        self.fail_at = -1
        self.lose_answer = False
        self.interrupt: dict[int, Callable[[], object]] = {}

    def _call(self, service, operation, arguments):
        if not operation.startswith(CHANGES):
            return super()._call(service, operation, arguments)
        number = len(self.changes)
        name = next(
            (
                arguments[key]
                for key in ("StackName", "nodegroupName", "name", "LoadBalancerArn")
                if key in arguments
            ),
            "",
        )
        self.changes.append((operation, name))
        if number == self.fail_at:
            self.fail_at = -1
            if self.lose_answer:
                super()._call(service, operation, arguments)
            raise CloudError(f"Amazon's {service} refuses {operation}: injected.", code="InternalError")
        answer = super()._call(service, operation, arguments)
        if (interrupt := self.interrupt.pop(number, None)) is not None:
            interrupt()
        return answer


async def create(cloud, spec=SPEC, **options):
    steps = []
    await clusters.create(ClusterChange(cloud, steps.append, NOW), spec, **options)
    return steps


async def delete(cloud, name="lab", **options):
    return await clusters.delete(ClusterChange(cloud, lambda _: None, NOW), name, **options)


def counted(account):
    return {kind: len(names) for kind, names in account.inventory().items()}


async def test_what_is_made_is_all_removed_in_an_order_that_the_cloud_takes(account):
    cloud = Watched()
    steps = await create(cloud)
    assert counted(account) == MADE
    assert [step.step for step in steps if step.text == "is there"] == [
        step for step, _ in clusters.steps_of(SPEC, has_files=True)
    ]
    made = [change for change in cloud.changes if change[0].startswith("create_")]
    assert made == [
        ("create_stack", "l2rtui-lab-network"),
        ("create_stack", "l2rtui-lab-roles"),
        ("create_cluster", "lab"),
        ("create_nodegroup", "gpu"),
        ("create_nodegroup", "cpu"),
        ("create_stack", "l2rtui-lab-efs"),
        ("create_stack", "l2rtui-lab-mounts"),
    ]
    again = Watched()
    steps = await create(again)
    assert (again.changes, [step for step in steps if step.is_change]) == ([], [])

    lines = await clusters.status(cloud, "lab")
    assert (lines["status"], lines["version"], len(lines["groups"])) == ("ACTIVE", "1.33", 2)
    assert set(lines["stacks"].values()) == {"CREATE_COMPLETE"}
    assert lines["file_system"].startswith("fs-")

    cloud.changes.clear()
    receipt = await delete(cloud)
    assert (receipt.left, receipt.sentence) == ((), "nothing left of lab")
    assert account.inventory() == {}
    # moto itself refuses to delete a cluster with node groups, and a network in use; roles it deletes at any time.
    assert sorted(name for _, name in cloud.changes[:2]) == ["cpu", "gpu"]
    assert [name for _, name in cloud.changes[2:]] == [
        "lab", "l2rtui-lab-mounts", "l2rtui-lab-efs", "l2rtui-lab-network", "l2rtui-lab-roles",
    ]  # fmt: skip
    assert (await delete(cloud)).sentence == "nothing left of lab"


def owner(tags):
    return (
        tags.get(OWNER_TAG) if isinstance(tags, dict) else {tag["Key"]: tag["Value"] for tag in tags}.get(OWNER_TAG)
    )


async def test_everything_says_whose_it_is(account):
    await create(Watched())
    resources = account.inventory()
    ec2, iam, eks = account.client("ec2"), account.client("iam"), account.client("eks")
    ids = [resource for kind in ("vpc", "subnet", "internet gateway", "nat") for resource in resources[kind]]
    tags = ec2.describe_tags(Filters=[{"Name": "key", "Values": [OWNER_TAG]}])["Tags"]
    assert set(ids) <= {tag["ResourceId"] for tag in tags if tag["Value"] == "lab"}
    for stack in account.client("cloudformation").describe_stacks()["Stacks"]:
        assert owner(stack["Tags"]) == "lab"
    assert owner(eks.describe_cluster(name="lab")["cluster"]["tags"]) == "lab"
    assert owner(eks.describe_nodegroup(clusterName="lab", nodegroupName="gpu")["nodegroup"]["tags"]) == "lab"
    assert all(owner(iam.list_role_tags(RoleName=name)["Tags"]) == "lab" for name in resources["role"])
    assert owner(account.client("efs").describe_file_systems()["FileSystems"][0]["Tags"]) == "lab"


CREATES = 7
DELETES = 7


async def broken_in_turn(cloud, work, steps):
    """Let each step fail once, one after the other; the caller still has to continue from the last failure.

    A refused call has done nothing: the next attempt repeats it and breaks at the following one. A call whose
    answer was lost has done its work: the next attempt finds that and breaks at its first call.
    """
    for number in range(steps):
        cloud.changes.clear()
        cloud.fail_at = 0 if cloud.lose_answer or number == 0 else 1
        with pytest.raises(BackendError, match="injected"):
            await work()


@pytest.mark.parametrize("lose_answer", [False, True], ids=["refused", "answer-lost"])
@pytest.mark.slow
async def test_a_create_that_breaks_at_every_step_in_turn_is_resumed(account, lose_answer):
    cloud = Watched()
    cloud.lose_answer = lose_answer
    await broken_in_turn(cloud, lambda: create(cloud), CREATES)
    await create(cloud)
    assert counted(account) == MADE


@pytest.mark.parametrize("number", range(CREATES))
@pytest.mark.slow
async def test_a_create_that_breaks_at_any_step_is_rolled_back_by_delete(account, number):
    cloud = Watched()
    cloud.fail_at = number
    with pytest.raises(BackendError, match="injected"):
        await create(cloud)
    assert (await delete(cloud)).left == ()
    assert account.inventory() == {}


@pytest.mark.parametrize(
    "lose_answer", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["refused", "answer-lost"]
)
async def test_a_delete_that_breaks_at_every_step_in_turn_goes_on(account, lose_answer):
    cloud = Watched()
    await create(cloud)
    cloud.lose_answer = lose_answer
    await broken_in_turn(cloud, lambda: delete(cloud), DELETES)
    receipt = await delete(cloud)
    assert receipt.left == ()
    assert account.inventory() == {}


async def interrupted(cloud, work, number):
    """Simulate Ctrl-C just after a call was executed."""
    cloud.changes.clear()
    task, loop = asyncio.ensure_future(work()), asyncio.get_running_loop()
    cloud.interrupt = {number: lambda: loop.call_soon_threadsafe(task.cancel)}
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_ctrl_c_amid_a_create_and_a_delete_loses_nothing(account):
    cloud = Watched()
    await interrupted(cloud, lambda: create(cloud), 2)
    assert counted(account) != MADE
    await create(cloud)
    assert counted(account) == MADE
    await interrupted(cloud, lambda: delete(cloud), 2)
    assert account.inventory() != {}
    assert (await delete(cloud)).left == ()
    assert account.inventory() == {}


@pytest.mark.slow
async def test_node_groups_go_to_zero_and_back(account):
    cloud = Watched()
    await create(cloud, replace(SPEC, groups=SPEC.groups[:1]), has_files=False)
    change = ClusterChange(cloud, lambda _: None, NOW)

    async def scaled(nodes, minimum):
        await clusters.scale(change, "lab", {"gpu": (nodes, minimum)})
        group = account.client("eks").describe_nodegroup(clusterName="lab", nodegroupName="gpu")["nodegroup"]
        return group["scalingConfig"]

    assert await scaled(0, 0) == {"minSize": 0, "maxSize": 4, "desiredSize": 0}
    assert await scaled(2, 1) == {"minSize": 1, "maxSize": 4, "desiredSize": 2}
    changes = len(cloud.changes)
    assert await scaled(2, 1) == {"minSize": 1, "maxSize": 4, "desiredSize": 2}
    assert len(cloud.changes) == changes
    with pytest.raises(NotFoundError, match="has no node group none"):
        await clusters.scale(change, "lab", {"none": (1, 1)})
    with pytest.raises(NotFoundError, match="There is no cluster other"):
        await clusters.scale(change, "other", {})


async def test_what_others_have_made_is_not_touched(account):
    eks, iam, ec2 = account.client("eks"), account.client("iam"), account.client("ec2")
    role = iam.create_role(RoleName="theirs", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    eks.create_cluster(name="lab", roleArn=role, resourcesVpcConfig={"subnetIds": [subnet]})
    template = '{"Resources": {"Q": {"Type": "AWS::EC2::InternetGateway"}}}'
    account.client("cloudformation").create_stack(StackName="l2rtui-mine-network", TemplateBody=template)
    before = account.inventory()
    cloud = Watched()
    for work in (create(cloud), delete(cloud), create(cloud, replace(SPEC, name="mine")), delete(cloud, "mine")):
        with pytest.raises(RefusedError, match="that l2rtui has not made"):
            await work
    assert (account.inventory(), cloud.changes) == (before, [])


async def test_what_kubernetes_left_in_the_network_is_swept_and_the_rest_is_named_with_its_cost(account):
    cloud = Watched()
    await create(cloud, replace(SPEC, groups=()), has_files=False)
    ec2, elb = account.client("ec2"), account.client("elbv2")
    network = account.inventory()["vpc"][0]
    subnets = account.inventory()["subnet"]
    theirs = [{"Key": "kubernetes.io/cluster/lab", "Value": "owned"}]
    elb.create_load_balancer(Name="service", Subnets=subnets[:2], Tags=theirs)
    ec2.create_security_group(
        GroupName="k8s-elb-service", Description="x", VpcId=network,
        TagSpecifications=[{"ResourceType": "security-group", "Tags": theirs}],
    )  # fmt: skip
    ec2.create_network_interface(SubnetId=subnets[0], Description="aws-K8S-i-0123")
    ec2.create_volume(
        AvailabilityZone=f"{REGION}a", Size=100, TagSpecifications=[{"ResourceType": "volume", "Tags": theirs}]
    )
    account.client("logs").create_log_group(logGroupName="/aws/eks/lab/cluster")
    receipt = await delete(cloud)
    assert {(resource.kind, resource.dollars_a_month) for resource in receipt.left} == {
        ("disk", 8.0),
        ("log group", 0.0),
    }
    assert "2 left of lab (about $8.00 a month goes on): disk vol-" in receipt.sentence
    assert set(account.inventory()) == {"volume", "log group"}


async def test_the_file_system_can_be_kept(account):
    cloud = Watched()
    await create(cloud, replace(SPEC, groups=()))
    receipt = await delete(cloud, keep_files=True)
    assert receipt.left == ()
    assert "kept on purpose: file system fs-" in receipt.sentence
    assert set(account.inventory()) == {"files", "stack"}
    await create(cloud, replace(SPEC, groups=()))
    assert len(account.inventory()["files"]) == 1
    assert (await delete(cloud)).left == ()


async def test_zones_are_chosen_where_the_file_names_none(account):
    spec = await clusters.with_zones(Watched(), replace(SPEC, zones=()))
    assert spec.zones == tuple(f"{REGION}{zone}" for zone in "abc")
