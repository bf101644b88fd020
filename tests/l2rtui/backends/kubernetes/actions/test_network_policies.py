"""Network policies of runs: allowed traffic, creation and deletion with their run, and launches without them."""

from __future__ import annotations

import json
import uuid

import pytest
from msgspec.structs import replace

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import destroy, diff, network_policies, owned_objects
from l2rtui.backends.kubernetes.actions import launch as launching
from l2rtui.backends.kubernetes.actions.network_policies import needs_policy, network_policy
from l2rtui.config import Settings
from l2rtui.domain.placement import place
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.preflight import Severity
from l2rtui.domain.receipt import Receipt
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec

ALWAYS = RestartPolicy.ALWAYS
LEARNING = (
    SetSpec("learner", Role.LEARNER, ("learn",)),
    SetSpec("w", Role.WORKER, ("work",), replicas=2, restart=ALWAYS),
)


async def plan_of(context, sets=LEARNING, name="r"):
    spec = RunSpec(Kind.LEARNER_WORKERS, name, name, sets, image="i:1")
    snapshot = await context.snapshot()
    placement = place((spec,), snapshot.ledger)
    plan = plan_launch((spec,), placement, snapshot.nodes, owner="anna", uids=[uuid.uuid4().hex])
    return await launching.with_objects(context, plan)


async def launched(context, **options):
    plan = await plan_of(context, **options)
    return plan, [done async for done in launching.launch(context, plan)]


async def test_a_run_gets_a_policy_of_its_own_before_its_pods_and_owned_by_it(context, server):
    plan, done = await launched(context)
    assert [(step.step.kind, step.error) for step in done][:3] == [
        ("ConfigMap", ""),
        ("Lease", ""),
        ("NetworkPolicy", ""),
    ]
    policy, run = server.get("NetworkPolicy", "l2r-r"), server.get("ConfigMap", "l2r-r")
    own = {"matchLabels": {labels.RUN_ID: plan.runs[0].uid}}
    assert policy["spec"] == {
        "podSelector": own,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": own}]}],
    }
    (owner,) = policy["metadata"]["ownerReferences"]
    assert owner["uid"] == run["metadata"]["uid"]
    # Every pod of the run carries the label that selects it and that the other pods admit.
    for pod in (item for (kind, _, _), item in server.objects.items() if kind == "Pod"):
        assert pod["metadata"]["labels"][labels.RUN_ID] == plan.runs[0].uid
    order = [kind for method, kind, _ in server.requests if method == "POST"]
    assert order.index("NetworkPolicy") < min(order.index("Job"), order.index("ReplicaSet"))
    printed = await diff.cluster_manifests(context, plan)
    assert [item["kind"] for item in printed][:3] == ["ConfigMap", "NetworkPolicy", "Secret"]
    json.dumps(printed)


async def test_the_receipt_counts_the_policy_and_the_leak_check_knows_it(context, server, cluster):
    plan, _ = await launched(context)
    *_, receipt = [item async for item in destroy.destroy(context, cluster.view(server), grace_seconds=0.0)]
    assert isinstance(receipt, Receipt)
    assert receipt.left == ()
    assert server.names("NetworkPolicy") == []
    policy = network_policy(plan.runs[0], "ml")
    server.put(policy)
    assert [(leak.kind, leak.name) for leak in (await owned_objects.find_leaks(context)).leaks] == [
        ("NetworkPolicy", "l2r-r")
    ]


async def test_without_the_right_a_launch_goes_on_and_the_check_says_so(context, server):
    server.denied.add(("create", "networkpolicies"))
    plan, done = await launched(context)
    assert not any(step.error for step in done)
    assert not [step for step in plan.objects if step.kind == "NetworkPolicy"]
    assert server.names("NetworkPolicy") == []
    (finding,) = await network_policies.check(context, plan)
    assert finding.severity is Severity.WARNING
    assert "you may not create networkpolicies in ml" in finding.sentence


async def test_a_right_that_is_lost_after_the_plan_is_told_in_its_step_alone(context, server):
    plan = await plan_of(context)
    server.denied.add(("create", "networkpolicies"))
    done = [item async for item in launching.launch(context, plan)]
    assert [item.step.kind for item in done if item.error] == ["NetworkPolicy"]
    assert server.names("Job")


@pytest.mark.parametrize("metrics", ["", "monitoring"])
async def test_the_settings_choose_whether_there_is_one_and_whether_prometheus_comes_in(context, server, metrics):
    context.settings = Settings(metrics_namespace=metrics)
    await launched(context)
    ingress = server.get("NetworkPolicy", "l2r-r")["spec"]["ingress"]
    allowed = [
        {
            "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            "ports": [{"protocol": "TCP", "port": 5557}],
        }
    ]
    assert ingress[1:] == (allowed if metrics else [])
    context.settings = Settings(network_policy=False)
    plan, _ = await launched(context, name="other")
    assert server.names("NetworkPolicy") == ["NetworkPolicy/l2r-r"]
    (finding,) = await network_policies.check(context, plan)
    assert "network_policy is off" in finding.sentence


async def test_a_plan_without_objects_is_launched_with_policies_too(context, server):
    plan = replace(await plan_of(context), objects=())
    assert not any([done.error async for done in launching.launch(context, plan)])
    assert server.names("NetworkPolicy") == ["NetworkPolicy/l2r-r"]


async def test_runs_in_which_nobody_listens_get_none(context):
    job = (SetSpec("j", Role.JOB, ("j",)),)
    plan = await plan_of(context, sets=job, name="j")
    assert not needs_policy(plan.runs[0])
    assert await network_policies.check(context, plan) == ()
    stable = (SetSpec("j", Role.JOB, ("j",), port=2222),)
    assert needs_policy((await plan_of(context, sets=stable, name="s")).runs[0])
