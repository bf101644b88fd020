"""Runs whose Jobs are made by a JobSet, against a stand-in of its controller with Kueue behind it."""

from __future__ import annotations

import uuid

import pytest

from l2rtui.backends.kubernetes.actions import destroy as destroying
from l2rtui.backends.kubernetes.actions import launch as launching
from l2rtui.backends.kubernetes.actions import preflight
from l2rtui.backends.kubernetes.actions.describe import describe
from l2rtui.backends.kubernetes.actions.destroy import destroy
from l2rtui.backends.kubernetes.actions.diff import cluster_manifests
from l2rtui.backends.kubernetes.actions.preflight import check_plan
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.domain.placement import place
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.preflight import Severity
from l2rtui.domain.receipt import Receipt
from l2rtui.domain.workload import Kind, Queue, QueueSystem, RestartPolicy, Role, RunSpec, SetSpec
from tests.fakes.gang_controllers import FULL, JobSetServer
from tests.fakes.kubernetes_objects import serving
from tests.l2rtui.backends.kubernetes.actions.conftest import NODE, Cluster

PLAIN = Queue(QueueSystem.JOBSET)
QUEUED = Queue(QueueSystem.JOBSET, "team")


@pytest.fixture
async def server():
    async with serving(JobSetServer()) as running:
        running.put(NODE)
        yield running


@pytest.fixture
async def cluster(server, monkeypatch):
    monkeypatch.setattr(destroying, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(destroying, "_ROUND_SECONDS", (0.01,))
    api = server.api()
    api.server_version = (1, 31)
    yield Cluster(ClusterContext(api))
    await api.close()


async def planned(cluster, queue, restart=RestartPolicy.ON_FAILURE, wave=0):
    sets = (
        SetSpec("learner", Role.LEARNER, ("l",)),
        SetSpec("w", Role.WORKER, ("w",), replicas=2, restart=restart),
    )
    spec = RunSpec(Kind.LEARNER_WORKERS, "r", "r", sets, image="i:1", queue=queue)
    snapshot = await cluster.context.snapshot()
    plan = plan_launch(
        (spec,), place((spec,), snapshot.ledger), snapshot.nodes, owner="anna", uids=[uuid.uuid4().hex]
    )
    return await launching.with_objects(cluster.context, plan)


async def launched(cluster, queue):
    plan = await planned(cluster, queue)
    done = [step async for step in launching.launch(cluster.context, plan)]
    assert [step.error for step in done] == [""] * len(done)
    return [step.step.kind for step in done]


async def receipt_of(cluster, server):
    items = destroy(cluster.context, cluster.view(server), grace_seconds=0, purge=False, force=False)
    receipt = [item async for item in items][-1]
    assert isinstance(receipt, Receipt)
    return receipt


async def test_a_run_is_one_job_set_that_ends_with_its_learner(cluster, server):
    kinds = await launched(cluster, PLAIN)
    assert kinds.count("JobSet") == 1
    assert "Job" not in kinds
    job_set = server.get("JobSet", "r")
    assert {part["name"] for part in job_set["spec"]["replicatedJobs"]} == {"learner", "w"}
    assert job_set["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["learner"]}
    (workers,) = [part["template"]["spec"] for part in job_set["spec"]["replicatedJobs"] if part["name"] == "w"]
    assert (workers["parallelism"], workers["completions"], workers["completionMode"]) == (2, 2, "NonIndexed")
    assert server.names("Job") == ["Job/r-learner-0", "Job/r-w-0"]
    view = await cluster.run()
    assert {item.name: item.replicas for item in view.sets} == {"learner": 1, "w": 2}
    assert "job set" in " ".join(await describe(cluster.context.api, view))
    (shown,) = [
        item
        for item in await cluster_manifests(cluster.context, await planned(cluster, PLAIN))
        if item["kind"] == "JobSet"
    ]
    assert shown["metadata"]["name"] == "r"


async def test_a_run_that_its_queue_does_not_admit_has_no_pods_and_says_why(cluster, server):
    await launched(cluster, QUEUED)
    assert server.phases() == []
    assert server.get("JobSet", "r")["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    view = await cluster.run()
    assert view.reason == "Suspended"
    assert f"r (queue team of Kueue): suspended: {FULL}" in " ".join(await describe(cluster.context.api, view))
    server.room = 3
    server.admit()
    assert server.phases() == ["Running"] * 3
    assert (await cluster.run()).reason == ""
    assert "r (queue team of Kueue): under way" in " ".join(await describe(cluster.context.api, view))
    server.denied.add(("get", "jobsets"))
    assert "r: unknown: you may not read it" in " ".join(await describe(cluster.context.api, view))


async def test_a_destroy_removes_the_set_before_its_jobs_and_counts_both(cluster, server):
    await launched(cluster, PLAIN)
    server.requests.clear()
    receipt = await receipt_of(cluster, server)
    assert receipt.left == ()
    deleted = [kind for method, kind, _ in server.requests if method == "DELETE"]
    assert deleted[0] == "JobSet"
    assert not server.names("JobSet", "Job", "Pod", "ConfigMap")


async def test_a_set_that_stays_is_in_the_receipt_with_its_reason(cluster, server):
    await launched(cluster, PLAIN)
    server.denied.add(("delete", "jobsets"))
    receipt = await receipt_of(cluster, server)
    assert [(left.kind, left.name) for left in receipt.left if left.kind == "JobSet"] == [("JobSet", "r")]
    assert server.get("ConfigMap", "l2r-r")


async def test_preflight_tries_the_set_and_refuses_what_cannot_be_a_job(cluster, server):
    findings = await check_plan(cluster.context, await planned(cluster, PLAIN))
    assert not [item for item in findings if item.severity is Severity.REFUSAL]
    assert any(kind == "JobSet" for _, kind, _ in server.requests)
    assert not server.names("JobSet"), "it was a dry run"
    assert "its Jobs are made as one JobSet" in [item.sentence for item in findings]
    forever = await planned(cluster, PLAIN, RestartPolicy.ALWAYS)
    (refusal,) = [
        item
        for item in await preflight.check_queues(cluster.context.api, forever, "ml")
        if item.severity is Severity.REFUSAL
    ]
    assert refusal.sentence == "a JobSet consists of Jobs, and this set is always restarted"
    (missing,) = [
        item.sentence
        for item in await preflight.check_queues(cluster.context.api, await planned(cluster, QUEUED), "ml")
        if item.severity is Severity.REFUSAL
    ]
    assert missing == "there is no LocalQueue team in ml"
    server.missing_groups.add("jobset.x-k8s.io")
    api = server.api()  # a client that has not requested the groups yet
    (absent,) = await preflight.check_queues(api, await planned(cluster, PLAIN), "ml")
    await api.close()
    assert absent.sentence == "this cluster has no jobset: it serves nothing of jobset.x-k8s.io"
