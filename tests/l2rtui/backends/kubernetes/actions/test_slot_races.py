"""Two launches from two namespaces at once: of an exact slot one of them has it, with and without shared claims."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter

import pytest

from l2rtui.backends.common.refusals import SlotTakenError
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import destroy as destroying
from l2rtui.backends.kubernetes.actions import launch as launching
from l2rtui.backends.kubernetes.actions import preflight, scale, slot_races
from l2rtui.backends.kubernetes.actions.run_object import decode_spec, read_run
from l2rtui.backends.kubernetes.actions.slot_leases import seats_of
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.config import Settings
from l2rtui.domain.node import SlotId
from l2rtui.domain.placement import Seat
from l2rtui.domain.plan import ScalePlan, plan_pod
from l2rtui.domain.preflight import Severity
from l2rtui.domain.snapshot import RunView
from tests.fakes.kubernetes_objects import Failure
from tests.l2rtui.backends.kubernetes.actions.conftest import Cluster

GANG_RACES = int(os.environ.get("GANG_RACES", "10"))
"""Of each of six cases; 167 are a thousand together."""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(destroying, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(destroying, "_ROUND_SECONDS", (0.005,))
    # A busy machine takes longer than the other tests allow.
    monkeypatch.setattr(slot_races, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(slot_races, "APPEAR_SECONDS", 30.0)


@pytest.fixture(params=["apart"])
async def people(server, request):
    """Two people, each with a namespace; with `shared` both claim in the shared one, with `mixed` one of them."""
    if request.param != "apart":
        server.put({"kind": "Namespace", "metadata": {"name": labels.CLAIMS_NAMESPACE}})
    apis = [server.api(namespace) for namespace in ("anna", "ben")]
    elsewhere = Settings(claims_namespace="ben" if request.param == "mixed" else "")
    yield [Cluster(ClusterContext(api, settings)) for api, settings in zip(apis, (None, elsewhere), strict=True)]
    for api in apis:
        await api.close()


def holders(server):
    """Pods of l2rtui that are there, by slot: as labels and annotation say, without the program's own reading."""
    result = {}
    for (kind, namespace, name), pod in server.objects.items():
        own = pod["metadata"].get("labels") or {}
        if kind == "Pod" and labels.RUN in own:
            key = (own[labels.HOST], own[labels.GPU], pod["metadata"]["annotations"][labels.SEATS])
            result.setdefault(key, []).append(f"{namespace}/{name}")
    return result


async def attempt(cluster, plan, pause=0.0):
    """Launch a plan, and take it back when its slots are lost; whether it stays."""
    await asyncio.sleep(pause)
    try:
        assert all([not done.error async for done in launching.launch(cluster.context, plan)])
    except SlotTakenError:
        snapshot = await cluster.context.snapshot()
        if run := snapshot.runs.get(plan.runs[0].uid):
            assert [item async for item in destroying.destroy(cluster.context, run)]
        return False
    return True


async def race(server, people, rounds, pause=0.02):
    """Let both launch on the same slots, often; the number of slots that two had."""
    doubles = won = 0
    for number in range(rounds):
        plans = [await cluster.plan(f"r{number}", pins="n1/0.0,n1/1.2") for cluster in people]
        pauses = [random.uniform(0.0, pause) for _ in people]
        stays = await asyncio.gather(*map(attempt, people, plans, pauses))
        doubles += sum(len(pods) > 1 for pods in holders(server).values())
        won += sum(stays)
        for cluster, plan, is_there in zip(people, plans, stays, strict=True):
            if is_there:
                view = RunView(plan.runs[0].uid, f"r{number}", f"r{number}", namespace=cluster.context.namespace)
                assert [item async for item in destroying.destroy(cluster.context, view)]
        assert holders(server) == {}
        assert server.names("Lease") == []
    return doubles, won


@pytest.mark.slow
@pytest.mark.parametrize("people", ["apart", "shared", "mixed"], indirect=True)
async def test_of_two_people_in_two_namespaces_one_gets_the_slots(server, people):
    assert await race(server, people, 8) == (0, 8)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("people", ["apart", "shared", "mixed"], indirect=True)
async def test_two_hundred_rounds_give_no_slot_to_two(server, people):
    assert await race(server, people, 200) == (0, 200)


def gangs(server):
    """GPUs of each pod that is there, by run."""
    result = {}
    for (kind, namespace, _), pod in server.objects.items():
        own = pod["metadata"].get("labels") or {}
        if kind == "Pod" and labels.RUN in own:
            result.setdefault((namespace, own[labels.RUN]), []).append(labels.gpu_indices(own[labels.GPU]))
    return result


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("people", ["apart", "shared", "mixed"], indirect=True)
@pytest.mark.parametrize(("first", "second"), [((2, 2), (2, 2)), ((3, 1), (2, 2))])
async def test_of_gangs_that_want_the_same_gpus_each_is_whole_or_not_there(
    server, people, first, second, monkeypatch
):
    """Gangs of so many GPUs each, and how many of them a run has: together they never fit."""
    # All pods come; on a starved machine, later than the other tests wait for them.
    monkeypatch.setattr(slot_races, "APPEAR_SECONDS", 60.0)
    server.get("Node", "n1")["metadata"]["labels"][labels.GPUS] = "4"
    winners = Counter()
    for number in range(GANG_RACES):
        wanted = [first, second] if number % 2 else [second, first]
        plans = [
            await cluster.plan(f"g{number}", replicas=replicas, gpus=gpus)
            for cluster, (gpus, replicas) in zip(people, wanted, strict=True)
        ]
        assert not any(plan.conflicts for plan in plans)
        pauses = [random.uniform(0.0, 0.02) for _ in people]
        stays = await asyncio.gather(*map(attempt, people, plans, pauses))
        winners[tuple(stays)] += 1
        held = gangs(server)
        taken = [gpu for pods in held.values() for gpus in pods for gpu in gpus]
        assert len(taken) == len(set(taken)), f"a GPU was given twice: {stays} {held}"
        for cluster, (gpus, replicas), plan, is_there in zip(people, wanted, plans, stays, strict=True):
            own = held.pop((cluster.context.namespace, f"g{number}"), [])
            assert sorted(map(len, own)) == ([gpus] * replicas if is_there else []), "half a gang"
            if is_there:
                view = RunView(plan.runs[0].uid, f"g{number}", f"g{number}", namespace=cluster.context.namespace)
                assert [item async for item in destroying.destroy(cluster.context, view)]
        assert not held
        assert server.names("Lease") == []
    assert winners[False, False] == winners[True, True] == 0, winners


def put_pod(server, namespace, name):
    """Make a pod of another run on n1/0.0; its experiment has the run's name."""
    own_labels = {
        labels.APP_MANAGED_BY: labels.MANAGED_BY,
        labels.RUN: name,
        labels.RUN_ID: "ffff",
        labels.EXPERIMENT: name,
        labels.HOST: "n1",
        labels.GPU: "0",
    }
    meta = {"name": f"{name}-w-x", "labels": own_labels, "annotations": {labels.SEATS: "[[0,[0]]]"}}
    server.put({"kind": "Pod", "metadata": meta, "spec": {"nodeName": "n1"}, "status": {}}, namespace)


def once(server, kind, action):
    """Do something as soon as the server has created an object of a kind."""

    def hook(method, of, _):
        if (method, of) == ("POST", kind):
            server.hooks.clear()
            action()

    server.hooks.append(hook)


@pytest.mark.parametrize(("namespace", "run"), [("anna", "early"), ("ben", "late")])
async def test_the_first_stored_keeps_the_slot_and_the_later_is_named_it(server, people, namespace, run):
    # Of one namespace and one experiment, too, one user may have the right to the shared claims and another not.
    _, ben = people
    plan = await ben.plan("late", replicas=1, pins="n1/0.0")
    once(server, "Secret", lambda: put_pod(server, namespace, run))
    sentence = rf"Slot n1/0\.0 was taken by {run} in the namespace {namespace} at the same"
    with pytest.raises(SlotTakenError, match=sentence):
        async for _ in launching.launch(ben.context, plan):
            pass


@pytest.mark.parametrize("has_events", [True, False])
async def test_a_pod_that_is_stored_later_takes_no_slot_whatever_time_it_names(server, people, has_events):
    _, ben = people
    plan = await ben.plan("early", replicas=1, pins="n1/0.0")

    def follow():
        put_pod(server, "anna", "late")
        if not has_events:
            server.failures.append(Failure("GET", "Pod", 410, "Expired"))

    once(server, "ReplicaSet", follow)
    assert await attempt(ben, plan)


async def test_a_launch_whose_pods_a_controller_cannot_make_has_lost_a_slot_that_another_is_on(
    server, people, monkeypatch
):
    monkeypatch.setattr(slot_races, "APPEAR_SECONDS", 0.5)
    _, ben = people
    server.runs_controllers = False
    plan = await ben.plan("refused", replicas=1, pins="n1/0.0")
    once(server, "ReplicaSet", lambda: put_pod(server, "anna", "there"))
    assert not await attempt(ben, plan)


async def test_replicas_that_were_added_go_back_and_the_others_stay(server, people):
    anna, ben = people
    await anna.launch("r", replicas=1, pins="n1/0.0")
    other = await ben.plan("o", replicas=1, pins="n1/0.1")
    nodes = (await anna.context.snapshot()).nodes
    run = decode_spec(await read_run(anna.context.api, "anna", "r")).with_replicas("w", 2)
    seat = Seat("r-w-1", "w", 1, (SlotId("n1", 0, 1),))
    added = (plan_pod(run, run.sets[0], seat, nodes),)
    plan = ScalePlan("r", "w", 2, added, ())

    async def scaled():
        try:
            await scale.scale(anna.context, plan)
        except SlotTakenError:
            return False
        return True

    stays = await asyncio.gather(scaled(), attempt(ben, other))
    assert sum(stays) == 1
    pods = [pod for (kind, namespace, _), pod in server.objects.items() if (kind, namespace) == ("Pod", "anna")]
    assert len(pods) == (2 if stays[0] else 1)
    assert seats_of(server.get("ReplicaSet", "r-w", "anna"))[0] == (0, (0,))


@pytest.mark.parametrize(
    ("has_shared", "denied", "severity", "words"),
    [
        (True, (), Severity.OK, "through Leases in l2rtui-claims, which all namespaces share"),
        (
            False,
            (),
            Severity.OK,
            "within this namespace; if several namespaces launch simultaneously, a second look",
        ),
        (False, (("create", "leases"),), Severity.WARNING, "not claimed; if several namespaces launch"),
    ],
)
async def test_a_plan_says_which_of_both_protects(server, cluster, has_shared, denied, severity, words):
    if has_shared:
        server.put({"kind": "Namespace", "metadata": {"name": labels.CLAIMS_NAMESPACE}})
    server.denied |= set(denied)
    findings = await preflight.check_plan(cluster.context, await cluster.plan())
    (finding,) = [finding for finding in findings if finding.subject == "claims"]
    assert finding.severity is severity
    assert words in finding.sentence


async def test_without_a_sight_of_other_namespaces_the_plan_warns(server, cluster):
    plan = await cluster.plan()
    cluster.context.api.forget_permissions()
    server.granted = {(verb, "Lease", "", True) for verb in ("get", "create", "update", "delete")}
    finding = await slot_races.protection(cluster.context)
    assert plan.runs
    assert finding.severity is Severity.WARNING
    assert "in another namespace at the same moment may get the same ones" in finding.sentence
    assert "cluster prepare" in finding.hint
