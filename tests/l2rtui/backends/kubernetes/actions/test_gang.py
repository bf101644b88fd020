"""Runs that start as a whole, against stand-ins of Kueue, Volcano and coscheduling."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from l2rtui.backends.kubernetes.actions import destroy as destroying
from l2rtui.backends.kubernetes.actions import launch as launching
from l2rtui.backends.kubernetes.actions import preflight
from l2rtui.backends.kubernetes.actions.describe import describe
from l2rtui.backends.kubernetes.actions.destroy import destroy
from l2rtui.backends.kubernetes.actions.preflight import check_plan
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.domain.preflight import Severity
from l2rtui.domain.receipt import Receipt
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Queue, QueueSystem
from tests.fakes.gang_controllers import FULL, GROUP, KueueServer, PodGroupServer
from tests.fakes.kubernetes_objects import Failure, ObjectServer, serving
from tests.l2rtui.backends.kubernetes.actions.conftest import NODE, Cluster

KUEUE = Queue(QueueSystem.KUEUE, "team")
VOLCANO = Queue(QueueSystem.VOLCANO, "gpus")
COSCHEDULING = Queue(QueueSystem.COSCHEDULING)
NOT_READY = "pod group is not ready, 1 Pending, 2 minAvailable; Pending: 1 Undetermined"
SIBLINGS = "pre-filter pod r-w cannot find enough sibling pods, current pods number: 1, minMember of group: 2"


@pytest.fixture
def short_waits(monkeypatch):
    monkeypatch.setattr(destroying, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(destroying, "_ROUND_SECONDS", (0.01,))


@pytest.fixture(params=["kueue", "volcano", "coscheduling"])
def system(request):
    """The queue of a run, and the server with the program behind it."""
    return {
        "kueue": lambda: (KUEUE, KueueServer()),
        "volcano": lambda: (VOLCANO, PodGroupServer("volcano", "VolcanoPodGroup", NOT_READY)),
        "coscheduling": lambda: (
            COSCHEDULING,
            PodGroupServer("scheduler-plugins-scheduler", "PodGroup", SIBLINGS),
        ),
    }[request.param]()


async def opened(server):
    server.put(NODE)
    api = server.api()
    api.server_version = (1, 31)
    return Cluster(ClusterContext(api))


async def queued(cluster, queue, **options):
    plan = await cluster.plan(**options)
    runs = tuple(replace(run, spec=replace(run.spec, queue=queue)) for run in plan.runs)
    return await launching.with_objects(cluster.context, replace(plan, runs=runs, objects=()))


async def launched(cluster, plan):
    done = [step async for step in launching.launch(cluster.context, plan)]
    assert [step.error for step in done] == [""] * len(done)
    return done


async def test_all_pods_of_a_run_start_or_none(system):
    queue, server = system
    async with serving(server):
        cluster = await opened(server)
        server.room = 1
        steps = await launched(cluster, await queued(cluster, queue, replicas=2))
        assert ("PodGroup" in {step.step.kind for step in steps}) == (queue is not KUEUE)
        assert server.phases() == ["Pending"] * 2
        pods = [pod for pod in (await cluster.context.snapshot()).pods.values() if pod.run == "r"]
        assert {pod.phase for pod in pods} == {Phase.PENDING}
        reasons = {pod.reason for pod in pods}
        assert reasons == ({"SchedulingGated"} if queue is KUEUE else {"Unschedulable"})
        assert all("its run" in pod.message for pod in pods)
        # Slots of waiting pods are held: no other run may be placed there.
        assert sum(bool(slot.pod) for slot in (await cluster.context.snapshot()).ledger.slots.values()) == 2
        server.room = 2
        server.admit()
        assert server.phases() == ["Running"] * 2
        await cluster.context.api.close()


async def test_two_runs_that_do_not_fit_together_never_run_in_halves(system):
    queue, server = system
    async with serving(server):
        cluster = await opened(server)
        server.room = 3
        await launched(cluster, await queued(cluster, queue, replicas=2))
        await launched(cluster, await queued(cluster, queue, name="s", replicas=2))
        assert server.phases() == ["Pending"] * 2 + ["Running"] * 2
        assert {pod["metadata"]["labels"]["l2rtui.io/run"] for pod in server.pods() if is_running(pod)} == {"r"}
        await cluster.context.api.close()


def is_running(pod):
    return pod["status"]["phase"] == "Running"


@pytest.mark.usefixtures("short_waits")
async def test_a_destroy_removes_the_group_as_well():
    async with serving(PodGroupServer("volcano", "VolcanoPodGroup", NOT_READY)) as server:
        cluster = await opened(server)
        await launched(cluster, await queued(cluster, VOLCANO))
        items = destroy(cluster.context, cluster.view(server), grace_seconds=0, purge=False, force=False)
        receipt = [item async for item in items][-1]
        assert isinstance(receipt, Receipt)
        assert receipt.left == ()
        assert not server.names("PodGroup", "VolcanoPodGroup", "Pod")
        await cluster.context.api.close()


async def test_a_description_says_what_the_queue_lacks_and_by_whom_a_run_was_put_out():
    async with serving(KueueServer()) as server:
        cluster = await opened(server)
        await launched(cluster, await queued(cluster, KUEUE))
        lines = await describe(cluster.context.api, await cluster.run())
        assert any("team (Kueue)" in line for line in lines)
        assert any(f"pending: {FULL}" in line for line in lines)
        server.room = 2
        server.admit()
        lines = await describe(cluster.context.api, await cluster.run())
        assert any("admitted: The workload is admitted" in line for line in lines)
        server.evict(server.pods()[0]["metadata"]["labels"][GROUP])
        pods = [pod for pod in (await cluster.context.snapshot()).pods.values() if pod.run == "r"]
        assert {pod.reason for pod in pods} == {"Preempted"}
        assert all("workload (UID: u-9) due to prioritization" in pod.message for pod in pods)
        await cluster.context.api.close()


@pytest.mark.parametrize(
    ("queue", "kind", "scheduler", "spec"),
    [
        (VOLCANO, "VolcanoPodGroup", "volcano", {"minMember": 2, "queue": "gpus"}),
        (COSCHEDULING, "PodGroup", "scheduler-plugins-scheduler", {"minMember": 2}),
    ],
)
async def test_the_description_names_the_pod_group(queue, kind, scheduler, spec):
    async with serving(PodGroupServer(scheduler, kind, NOT_READY)) as server:
        cluster = await opened(server)
        await launched(cluster, await queued(cluster, queue))
        (name,) = [name.partition("/")[2] for name in server.names(kind)]
        group = server.get(kind, name)
        assert group["spec"] == spec
        lines = await describe(cluster.context.api, await cluster.run())
        assert any(f"{name}: no state yet" in line for line in lines)
        group["status"] = {"phase": "Inqueue", "conditions": [{"type": "Unschedulable", "message": NOT_READY}]}
        lines = await describe(cluster.context.api, await cluster.run())
        assert any(f"{name}: Inqueue: {NOT_READY}" in line for line in lines)
        server.denied.add(("get", "podgroups"))
        lines = await describe(cluster.context.api, await cluster.run())
        assert any("unknown: you may not read it" in line for line in lines)
        server.denied.clear()
        server.failures.append(Failure("GET", kind, 400, "BadRequest"))
        lines = await describe(cluster.context.api, await cluster.run())
        assert any(f"{name}: unknown: " in line for line in lines)
        await cluster.context.api.close()


# --- preflight ----------------------------------------------------------------------------------------------
async def findings(cluster, queue, **options):
    plan = await queued(cluster, queue, **options)
    return {item.sentence: item.severity for item in await preflight.check_queues(cluster.context.api, plan, "ml")}


async def test_a_queue_that_is_there_is_said_and_one_that_is_not_refuses():
    async with serving(ObjectServer()) as server:
        cluster = await opened(server)
        missing = await findings(cluster, KUEUE)
        assert missing == {"there is no LocalQueue team in ml": Severity.REFUSAL}
        server.put({"kind": "LocalQueue", "metadata": {"name": "team"}})
        present = await findings(cluster, KUEUE)
        assert present == {"all 2 pods start together, when kueue admits them through team": Severity.OK}
        server.denied.add(("get", "localqueues"))
        hidden = await findings(cluster, KUEUE)
        assert set(hidden.values()) == {Severity.WARNING}
        plan = await queued(cluster, VOLCANO)
        sentences = [item.sentence for item in await check_plan(cluster.context, plan)]
        assert "all 2 pods start together, when volcano admits them through gpus" in sentences
        assert await preflight.check_queues(cluster.context.api, await cluster.plan(), "ml") == []
        await cluster.context.api.close()


async def test_an_older_server_has_no_gates_and_waves_contradict_a_whole(monkeypatch):
    async with serving(ObjectServer()) as server:
        cluster = await opened(server)
        server.put({"kind": "LocalQueue", "metadata": {"name": "team"}})
        (in_waves,) = [text for text, kind in (await findings(cluster, KUEUE, wave=1)).items() if kind != "ok"]
        assert "--wave starts them one after another" in in_waves
        cluster.context.api.server_version = (1, 20)
        (old,) = await findings(cluster, KUEUE)
        assert old.endswith("of Kubernetes 1.27; this server is 1.20")

        async def none(_group):
            return ()

        monkeypatch.setattr(cluster.context.api, "group_versions", none)
        (absent,) = await findings(cluster, COSCHEDULING)
        assert absent == "this cluster has no coscheduling: it serves nothing of scheduling.x-k8s.io"
        await cluster.context.api.close()
