"""Cases that moto cannot show, by answers in the shapes of Amazon's models: botocore's Stubber checks both sides.

Control planes that take minutes, node groups that find no machines, roles that are not known yet, stacks that roll
back, refusals: each with the wording of the service.
"""

from __future__ import annotations

from datetime import UTC, datetime

import boto3
import pytest
from botocore.stub import Stubber

from l2rtui.cloud.aws import eks, stacks
from l2rtui.cloud.aws.clients import Cloud, CloudError
from l2rtui.cloud.aws.cluster_spec import ClusterSpec, NodeGroup
from l2rtui.cloud.aws.templates import OWNER_TAG, tags_of
from l2rtui.cloud.aws.waiters import ClusterChange, WaitPolicy
from l2rtui.errors import BackendError

NOW = WaitPolicy(0.0, 20)
GROUP = NodeGroup("gpu", ("g5.xlarge",), 1, 0, 2)
SPEC = ClusterSpec("lab", "us-west-2", "1.33", ("us-west-2a", "us-west-2b"), (), (GROUP,))
WHEN = datetime(2026, 1, 1, tzinfo=UTC)
ROLE = "arn:aws:iam::123456789012:role/x"


@pytest.fixture
def cloud():
    """A cloud whose services return prepared answers, in order."""
    made = Cloud("us-west-2")
    stubs = {}
    session = boto3.session.Session(aws_access_key_id="x", aws_secret_access_key="y", region_name="us-west-2")
    for service in ("eks", "cloudformation"):
        made.clients[service] = session.client(service)
        stubs[service] = Stubber(made.clients[service])
        stubs[service].activate()
    made.stubs = stubs
    yield made
    for stub in stubs.values():
        stub.assert_no_pending_responses()


def cluster(status):
    tags = {OWNER_TAG: "lab"}
    return {"cluster": {"name": "lab", "status": status, "version": "1.33", "tags": tags, "createdAt": WHEN}}


def group(status, issues=()):
    scaling = {"minSize": 0, "maxSize": 2, "desiredSize": 1}
    answer = {
        "nodegroupName": "gpu",
        "status": status,
        "scalingConfig": scaling,
        "health": {"issues": list(issues)},
    }
    return {"nodegroup": answer}


def stack(status):
    answer = {"StackName": "l2rtui-lab-network", "StackStatus": status, "CreationTime": WHEN}
    return {"Stacks": [answer | {"Tags": [{"Key": OWNER_TAG, "Value": "lab"}]}]}


async def texts(step, cloud, *arguments, waits=NOW):
    """Execute a step of a change; return the texts of its progress lines."""
    lines = []
    await step(ClusterChange(cloud, lines.append, waits), *arguments)
    return [line.text for line in lines]


async def test_a_control_plane_takes_minutes_and_a_fresh_role_is_tried_again(cloud):
    stub = cloud.stubs["eks"]
    stub.add_client_error("describe_cluster", "ResourceNotFoundException", "No cluster found for name: lab.")
    stub.add_client_error(
        "create_cluster",
        "InvalidParameterException",
        "Role with arn: x, could not be assumed because it does not exist",
    )
    stub.add_response("create_cluster", cluster("CREATING"))
    for status in ("CREATING", "CREATING", "ACTIVE"):
        stub.add_response("describe_cluster", cluster(status))
    steps = await texts(eks.ensure_cluster, cloud, SPEC, ROLE, ["subnet-1", "subnet-2"])
    assert steps == ["asked for; it takes about ten minutes", "creating", "is there"]


async def test_a_failed_control_plane_is_removed_and_made_anew(cloud):
    stub = cloud.stubs["eks"]
    stub.add_response("describe_cluster", cluster("FAILED"))
    stub.add_response("describe_cluster", cluster("FAILED"))
    stub.add_response("delete_cluster", cluster("DELETING"))
    stub.add_response("describe_cluster", cluster("DELETING"))
    stub.add_client_error("describe_cluster", "ResourceNotFoundException", "No cluster found for name: lab.")
    stub.add_response("create_cluster", cluster("CREATING"))
    stub.add_response("describe_cluster", cluster("ACTIVE"))
    steps = await texts(eks.ensure_cluster, cloud, SPEC, ROLE, ["subnet-1", "subnet-2"])
    assert steps[-3:] == ["removed", "asked for; it takes about ten minutes", "is there"]


async def test_a_lack_of_machines_is_said_in_amazon_s_words(cloud):
    issue = {
        "code": "AsgInstanceLaunchFailures",
        "message": "We currently do not have sufficient g5.xlarge capacity.",
    }
    stub = cloud.stubs["eks"]
    stub.add_response("describe_nodegroup", group("CREATING"))
    stub.add_response("describe_nodegroup", group("CREATE_FAILED", [issue]))
    stub.add_response("describe_nodegroup", group("CREATE_FAILED", [issue]))
    with pytest.raises(BackendError, match=r"gpu is CREATE_FAILED.*AsgInstanceLaunchFailures: We currently do not"):
        await texts(eks.await_group, cloud, "lab", "gpu")
    # The same command again: it first removes the remains.
    stub.add_response("describe_nodegroup", group("CREATE_FAILED"))
    stub.add_response("describe_nodegroup", group("CREATE_FAILED"))
    stub.add_response("delete_nodegroup", group("DELETING"))
    stub.add_response("describe_nodegroup", group("DELETING"))
    stub.add_client_error("describe_nodegroup", "ResourceNotFoundException", "No node group found for name: gpu.")
    stub.add_response(
        "create_nodegroup",
        group("CREATING"),
        {
            "clusterName": "lab",
            "nodegroupName": "gpu",
            "nodeRole": ROLE,
            "subnets": ["subnet-1"],
            "instanceTypes": ["g5.xlarge"],
            "amiType": "AL2023_x86_64_NVIDIA",
            "diskSize": 80,
            "capacityType": "ON_DEMAND",
            "scalingConfig": {"minSize": 0, "maxSize": 2, "desiredSize": 1},
            "labels": {},
            "tags": tags_of(SPEC),
        },
    )
    steps = await texts(eks.request_group, cloud, SPEC, GROUP, ROLE, ["subnet-1"])
    assert steps[-1] == "asked for: 1 x g5.xlarge"


async def test_a_stack_that_rolled_back_says_its_first_reason_and_is_made_anew(cloud):
    stub = cloud.stubs["cloudformation"]
    missing = ("ValidationError", "Stack with id l2rtui-lab-network does not exist")
    stub.add_client_error("describe_stacks", *missing)
    stub.add_response("create_stack", {"StackId": "x"})
    for status in ("CREATE_IN_PROGRESS", "ROLLBACK_IN_PROGRESS", "ROLLBACK_COMPLETE", "ROLLBACK_COMPLETE"):
        stub.add_response("describe_stacks", stack(status))
    common = {"StackId": "x", "StackName": "l2rtui-lab-network", "EventId": "e", "Timestamp": WHEN}
    events = [
        common
        | {"LogicalResourceId": "Nat", "ResourceStatus": "CREATE_FAILED", "ResourceStatusReason": "cancelled"},
        common
        | {
            "LogicalResourceId": "Address",
            "ResourceStatus": "CREATE_FAILED",
            "ResourceStatusReason": "The maximum number of addresses has been reached.",
        },
    ]
    stub.add_response("describe_stack_events", {"StackEvents": events})
    work = (stacks.ensure_stack, cloud, "l2rtui-lab-network", {"Resources": {}}, tags_of(SPEC))
    with pytest.raises(BackendError, match=r"ROLLBACK_COMPLETE: Address: The maximum number of addresses"):
        await texts(*work)
    stub.add_response("describe_stacks", stack("ROLLBACK_COMPLETE"))
    stub.add_response("describe_stacks", stack("ROLLBACK_COMPLETE"))
    stub.add_response("delete_stack", {})
    stub.add_client_error("describe_stacks", *missing)
    stub.add_response("create_stack", {"StackId": "x"})
    stub.add_response("describe_stacks", stack("CREATE_COMPLETE"))
    stub.add_response("describe_stacks", stack("CREATE_COMPLETE"))
    assert (await texts(*work))[-2:] == ["asked for", "is there"]


async def test_a_stack_that_cannot_be_removed_says_what_holds_it(cloud):
    stub = cloud.stubs["cloudformation"]
    stub.add_response("describe_stacks", stack("CREATE_COMPLETE"))
    stub.add_response("delete_stack", {})
    stub.add_response("describe_stacks", stack("DELETE_FAILED"))
    event = {"StackId": "x", "StackName": "n", "EventId": "e", "Timestamp": WHEN, "LogicalResourceId": "Vpc"}
    event |= {"ResourceStatus": "DELETE_FAILED", "ResourceStatusReason": "The vpc has dependencies"}
    stub.add_response("describe_stack_events", {"StackEvents": [event]})
    with pytest.raises(BackendError, match=r"is DELETE_FAILED\. Vpc: The vpc has dependencies\. Remove what"):
        await texts(stacks.delete_stack, cloud, "l2rtui-lab-network", "lab")


async def test_what_never_comes_true_ends_with_what_to_do(cloud):
    stub = cloud.stubs["eks"]
    stub.add_response("describe_nodegroup", group("CREATING"))
    stub.add_response("describe_nodegroup", group("CREATING"))
    with pytest.raises(BackendError, match=r"still CREATING after .* minutes.*Run the same command again"):
        await texts(eks.await_group, cloud, "lab", "gpu", waits=WaitPolicy(0.0, -1.0))


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("AccessDeniedException", "Ask for the permission eks:DescribeCluster"),
        ("ExpiredTokenException", "Log in again"),
        ("ThrottlingException", "Rate exceeded"),
    ],
)
async def test_refusals_say_what_to_do(cloud, code, hint):
    cloud.stubs["eks"].add_client_error("describe_cluster", code, "Rate exceeded")
    with pytest.raises(CloudError, match=hint) as caught:
        await eks.find_cluster(cloud, "lab")
    assert caught.value.code == code
