"""The whole backend against an API server in memory: a run from its plan to its receipt, seen through the watch."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import aclosing

import pytest

from l2rtui.backends.common.refusals import SlotTakenError
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import destroy as destroying
from l2rtui.backends.kubernetes.actions.slot_leases import Claimant, SlotLeases, slots_by_device
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.config import Settings
from l2rtui.domain.change import apply
from l2rtui.domain.node import SlotId
from l2rtui.domain.placement import PlacementPolicy, parse_pins, place
from l2rtui.domain.plan import ScalePlan, plan_launch
from l2rtui.domain.preflight import Severity
from l2rtui.domain.receipt import Receipt
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, PodView
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec
from l2rtui.errors import NotFoundError, RefusedError
from l2rtui.services import destroyed_specs, launcher
from tests.fakes.kubernetes_objects import ObjectServer, serving


@pytest.fixture
async def server():
    async with serving(ObjectServer()) as running:
        node = {"metadata": {"name": "n1", "labels": {labels.GPUS: "2"}}, "spec": {}, "status": {}}
        node["status"] = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "8"}}
        running.put({"kind": "Node", **node})
        yield running


@pytest.fixture
async def backend(server, tmp_path, monkeypatch):
    monkeypatch.setattr(destroying, "_SETTLE_SECONDS", 0.0)
    config = {
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server.base}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    settings = Settings(namespaces=("ml",), image="default:1", grace_seconds=3.0)
    made = KubernetesBackend(settings, str(path))
    yield made
    await made.close()


async def plan_of(backend, name="r"):
    snapshot = await backend.snapshot()
    set_spec = SetSpec("w", Role.WORKER, ("w",), replicas=2, restart=RestartPolicy.ALWAYS)
    spec = RunSpec(Kind.JOB, name, name, (set_spec,))
    placement = place((spec,), snapshot.ledger)
    plan = plan_launch((spec,), placement, snapshot.nodes, owner="me", uids=[uuid.uuid4().hex])
    return await backend.planned(plan)


async def launched(backend):
    steps = [done async for done in backend.launch(await plan_of(backend))]
    assert [done.error for done in steps] == [""] * len(steps)
    return await backend.snapshot()


async def test_a_run_from_its_plan_to_its_receipt(backend, server):
    assert backend.location == ""
    assert backend.acts_on() == "on the cluster"
    plan = await plan_of(backend)
    assert backend.location == "lab · ml · as u"
    assert backend.acts_on() == "on context lab, namespace ml, as u"
    assert backend.acts_on(["b", "a", ""]) == "on context lab, namespaces a, b, as u"
    assert {run.spec.image for run in plan.runs} == {"default:1"}
    assert (await backend.manifests(plan))[0]["kind"] == "ConfigMap"
    assert not any(one.severity is Severity.REFUSAL for one in await backend.check(plan))
    snapshot = await launched(backend)
    assert len(snapshot.pods_of("r")) == 2
    assert (await backend.spec("r")).set_named("w").replicas == 2
    await backend.scale(ScalePlan("r", "w", 1, (), (snapshot.pods_of("r")[1].name,)))
    assert (await backend.spec("r")).set_named("w").replicas == 1
    run = snapshot.run_named("r")
    *_, receipt = [item async for item in backend.destroy(run)]
    assert isinstance(receipt, Receipt)
    assert receipt.left == ()
    assert (await backend.leaks()).leaks == ()
    with pytest.raises(NotFoundError, match="There is no run r"):
        await backend.spec("r")


async def test_the_watch_builds_what_a_snapshot_shows(backend):
    await launched(backend)
    observed = EMPTY_SNAPSHOT
    async with asyncio.timeout(30), aclosing(backend.watch()) as batches:
        async for changes in batches:
            observed = apply(observed, changes)
            if len(observed.pods_of("r")) == 2 and observed.run_named("r"):
                break
    assert observed.ledger.slots == (await backend.snapshot()).ledger.slots


async def test_the_grace_of_the_settings_holds_unless_another_is_asked_for(backend, server):
    server.has_stubborn_pods = True
    pods = (await launched(backend)).pods_of("r")
    await backend.kill(pods[:1])
    await backend.kill(pods[1:], 7.0)
    graces = [server.get("Pod", pod.name)["metadata"]["deletionGracePeriodSeconds"] for pod in pods]
    assert graces == [3, 7]


async def test_pods_that_l2rtui_did_not_launch_are_not_killed(backend):
    with pytest.raises(RefusedError, match="x is a pod of anna that l2rtui did not launch"):
        await backend.kill([PodView("u", "x", owner="anna")])


async def test_panes_that_ask_at_once_share_one_connection(backend):
    first, second = await asyncio.gather(backend.context(), backend.context())
    assert first is second


async def test_leases_are_in_the_shared_namespace_or_in_that_of_the_run(server):
    api = server.api()
    own, shared = ClusterContext(api), ClusterContext(api, Settings(claims_namespace="gpus"))
    assert (await own.lease_namespace(), await own.lease_namespaces_of("other")) == ("ml", ("other",))
    assert await shared.lease_namespace() == "gpus"
    assert await shared.lease_namespaces_of("other") == ("gpus", "other")
    await api.close()


async def test_leases_are_in_the_namespace_that_an_administrator_made_for_all(server):
    server.put({"kind": "Namespace", "metadata": {"name": "l2rtui-claims"}})
    api = server.api()
    context = ClusterContext(api)
    assert await context.lease_namespace() == "l2rtui-claims"
    assert await context.lease_namespaces_of("ml") == ("l2rtui-claims", "ml")
    assert await ClusterContext(api, Settings(claims_namespace="gpus")).lease_namespace() == "gpus"
    await api.close()


@pytest.mark.parametrize("missing", [("get", "namespaces"), ("create", "leases"), ("delete", "leases")])
async def test_who_may_not_claim_there_claims_in_the_own_namespace(server, missing):
    server.put({"kind": "Namespace", "metadata": {"name": "l2rtui-claims"}})
    server.denied.add(missing)
    api = server.api()
    assert await ClusterContext(api).lease_namespace() == "ml"
    await api.close()


async def test_a_shared_namespace_that_is_being_deleted_is_none(server):
    manifest = {"kind": "Namespace", "metadata": {"name": "l2rtui-claims"}, "status": {"phase": "Terminating"}}
    server.put(manifest)
    api = server.api()
    assert await ClusterContext(api).lease_namespace() == "ml"
    await api.close()


async def test_a_recent_snapshot_is_used_again_and_an_old_one_is_not(server, monkeypatch):
    api, lists = server.api(), []
    context = ClusterContext(api)

    async def listed():
        lists.append(1)
        return EMPTY_SNAPSHOT

    context.list_cluster = listed
    await context.recent_snapshot()
    await context.recent_snapshot()
    await context.server_facts([])
    assert len(lists) == 1
    monkeypatch.setattr("l2rtui.backends.kubernetes.context._RECENT_SECONDS", -1.0)
    await context.recent_snapshot()
    await context.server_facts([])
    assert len(lists) == 2
    await api.close()


def workers(name, replicas):
    part = SetSpec("w", Role.WORKER, ("w",), replicas=replicas, slots=0, restart=RestartPolicy.ALWAYS)
    return RunSpec(Kind.JOB, name, name, (part,), image="i:1")


@pytest.mark.slow
async def test_a_launch_of_hundreds_of_pods_that_is_cancelled_is_taken_back_whole(backend, server):
    specs = [workers(f"r{number}", 50) for number in range(6)]
    prepared = await launcher.prepare_runs(backend, specs)
    before = server.names()
    begun = asyncio.Event()
    server.hooks.append(lambda *_: len(server.names("Pod")) >= 100 and begun.set())

    async def launch():
        async with aclosing(launcher.launch(backend, prepared)) as steps:
            async for _ in steps:
                pass

    task = asyncio.create_task(launch())
    async with asyncio.timeout(60):
        await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.names() == before


@pytest.mark.process
async def test_what_a_killed_launcher_left_is_launched_again_whole(backend, server, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    prepared = await launcher.prepare_runs(backend, [workers("r", 3)])
    async with aclosing(backend.launch(prepared.plan)) as steps:  # no roll-back: as if it was killed
        await anext(steps)
    assert len(server.names("Pod")) < 3
    run = (await backend.snapshot()).run_named("r")
    receipt = [item async for item in launcher.destroy(backend, run)][-1]
    assert isinstance(receipt, Receipt)
    assert receipt.left == ()
    again = await launcher.prepare_runs(backend, destroyed_specs.find("r"))
    assert [done.error async for done in launcher.launch(backend, again) if done.error] == []
    assert len(server.names("Pod")) == 3


async def prepared(backend, pins="", replicas=2, **options):
    set_spec = SetSpec("w", Role.WORKER, ("w",), replicas=replicas, restart=RestartPolicy.ALWAYS)
    spec = RunSpec(Kind.JOB, "r", "r", (set_spec,))
    return await launcher.prepare_runs(backend, [spec], pins=parse_pins(pins) if pins else (), **options)


def slots_of(plan):
    return [str(slot) for pod in plan.added for slot in pod.seat.slots]


async def test_replicas_that_come_back_take_the_places_of_the_plan(backend, server):
    plan = (await prepared(backend, "n1/1.2,n1/1.3")).plan
    assert all([not done.error async for done in backend.launch(plan)])
    server.forget_controllers("r-w")
    assert (await backend.snapshot()).pods_of("r") == ()
    assert slots_of(await launcher.plan_scale(backend, "r", "w", 2)) == ["n1/1.2", "n1/1.3"]
    assert slots_of(await launcher.scale(backend, "r", "w", 2)) == ["n1/1.2", "n1/1.3"]
    assert {str(slot) for pod in (await backend.snapshot()).pods_of("r") for slot in pod.slots} == {
        "n1/1.2",
        "n1/1.3",
    }


async def test_a_scale_names_the_pods_that_kubectl_scale_has_added(backend, server):
    plan = (await prepared(backend, "n1/1.2,n1/1.3")).plan
    assert all([not done.error async for done in backend.launch(plan)])
    api = server.api()
    await api.patch("ReplicaSet", "ml", "r-w", {"spec": {"replicas": 4}})
    await api.close()
    plan = await launcher.plan_scale(backend, "r", "w", 2)
    assert (plan.added, len(set(plan.removed))) == ((), 2)


async def test_replicas_that_come_back_take_the_places_that_a_policy_gave_them(backend, server):
    plan = (await prepared(backend, policy=PlacementPolicy.SPREAD)).plan
    chosen = [str(slot) for pod in plan.runs[0].pods for slot in pod.seat.slots]
    assert len({slot.split(".")[0] for slot in chosen}) == 2, "a scale alone would fill one device"
    assert all([not done.error async for done in backend.launch(plan)])
    for name in server.names("ReplicaSet"):
        server.forget_controllers(name.removeprefix("ReplicaSet/"))
    assert slots_of(await launcher.plan_scale(backend, "r", "w", 2)) == chosen


async def test_more_replicas_stay_on_the_slots_that_a_person_named(backend, server):
    plan = (await prepared(backend, "n1/1")).plan
    assert all([not done.error async for done in backend.launch(plan)])
    assert slots_of(await launcher.plan_scale(backend, "r", "w", 4)) == ["n1/1.2", "n1/1.3"]
    with pytest.raises(RefusedError, match="it was launched on n1/1"):
        await launcher.plan_scale(backend, "r", "w", 5)


async def test_a_run_without_named_slots_grows_wherever_there_is_room(backend):
    plan = (await prepared(backend)).plan
    assert plan.pins == ()
    assert plan == await backend.planned(plan), "a checked plan has the objects that its launch creates"
    assert all([not done.error async for done in backend.launch(plan)])
    assert len(slots_of(await launcher.plan_scale(backend, "r", "w", 8))) == 6


async def test_a_scale_takes_other_slots_than_those_that_a_launch_has_just_claimed(backend):
    assert all([not done.error async for done in backend.launch((await prepared(backend, replicas=1)).plan)])
    chosen = (await launcher.plan_scale(backend, "r", "w", 2)).added[0].seat.slots
    context = await backend.context()
    leases = SlotLeases(context.api, await context.lease_namespace())
    await leases.claim(slots_by_device({Claimant("s", "s-id", "ml"): chosen}))
    plans = []
    plan = await launcher.scale(backend, "r", "w", 2, planned=plans.append)
    assert [slots_of(plan) for plan in plans] == [[str(slot) for slot in chosen], slots_of(plan)]
    assert slots_of(plan) != [str(slot) for slot in chosen]


async def test_a_scale_on_exact_slots_names_the_launch_that_has_just_claimed_one(backend):
    plan = (await prepared(backend, "n1/1.2,n1/1.3", replicas=1)).plan
    assert all([not done.error async for done in backend.launch(plan)])
    context = await backend.context()
    leases = SlotLeases(context.api, await context.lease_namespace())
    await leases.claim(slots_by_device({Claimant("s", "s-id", "ml"): [SlotId("n1", 1, 3)]}))
    with pytest.raises(SlotTakenError, match=r"Slot n1/1\.3 was claimed by s just now"):
        await launcher.scale(backend, "r", "w", 2)


async def test_a_place_of_the_plan_that_is_taken_is_left_to_its_holder(backend, server):
    plan = (await prepared(backend, "n1/1.2-3", replicas=1)).plan
    assert all([not done.error async for done in backend.launch(plan)])
    server.forget_controllers("r-w")
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "1"}]
    stranger = {"nodeName": "n1", "containers": [{"name": "c", "env": env}]}
    server.put(
        {"kind": "Pod", "metadata": {"name": "s"}, "spec": stranger, "status": {"phase": "Running"}}, "other"
    )
    taken = {str(slot) for pod in (await backend.snapshot()).pods.values() for slot in pod.slots}
    added = slots_of(await launcher.plan_scale(backend, "r", "w", 1, overcommit=True))
    assert not set(added) & taken
