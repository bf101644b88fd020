"""Launches against an API server in memory: names, claims, lost answers, refusals, waves."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing

import pytest

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import launch as launching
from l2rtui.backends.kubernetes.actions.slot_leases import claims_of
from l2rtui.domain.workload import RestartPolicy
from l2rtui.errors import RefusedError
from tests.fakes.kubernetes_objects import Failure


def claims(server):
    return {
        f"{name}.{slot}": claim["run"]
        for (kind, _, name), lease in server.objects.items()
        if kind == "Lease"
        for slot, claim in claims_of(lease).items()
    }


async def test_a_launch_makes_its_objects_in_order_and_all_belong_to_its_config_map(cluster, server):
    steps = await cluster.launch(replicas=3, pins="n1/0.0-1,n1/1.0")
    assert [step.error for step in steps] == [""] * len(steps)
    assert [step.step.kind for step in steps[:3]] == ["ConfigMap", "Lease", "Lease"]
    owner = server.get("ConfigMap", "l2r-r")["metadata"]["uid"]
    made = [item for (kind, _, _), item in server.objects.items() if kind in ("Secret", "ReplicaSet")]
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in made} == {owner}
    assert len(server.names("Pod")) == 3
    assert claims(server) == {"l2r-claim-n1-0.0": "r", "l2r-claim-n1-0.1": "r", "l2r-claim-n1-1.0": "r"}


async def test_a_name_is_taken_once_and_the_first_run_stays_as_it_is(cluster, server):
    plan = await cluster.plan(pins="n1/1.0-1")
    await cluster.launch(pins="n1/0.0-1")
    before = server.names()
    with pytest.raises(RefusedError, match="A run named r exists"):
        [done async for done in launching.launch(cluster.context, plan)]
    assert server.names() == before


async def test_of_two_launches_on_one_slot_one_gets_it_and_nothing_of_the_other_is_left(cluster, other, server):
    plans = [(cluster.context, await cluster.plan("a", 1, "n1/0.0")), (other, await cluster.plan("b", 1, "n1/0.0"))]

    async def outcome(context, plan):
        try:
            return [done async for done in launching.launch(context, plan)]
        except RefusedError as error:
            return error.message

    results = await asyncio.gather(*(outcome(*pair) for pair in plans))
    lost = [result for result in results if isinstance(result, str)]
    assert len(lost) == 1
    assert "Slot n1/0.0 was claimed by" in lost[0]
    winner = "a" if isinstance(results[1], str) else "b"
    assert server.names("ConfigMap") == [f"ConfigMap/l2r-{winner}"]
    assert claims(server) == {"l2r-claim-n1-0.0": winner}


async def test_a_run_that_is_done_at_once_leaves_its_slot_to_the_next(cluster, server):
    await cluster.launch("short", 1, "n1/0.0", restart=RestartPolicy.NEVER)
    for (kind, _, _), item in server.objects.items():
        if kind == "Job":
            item["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        elif kind == "Pod":
            item["status"] = {"phase": "Succeeded"}
    assert [step.error for step in await cluster.launch("next", 1, "n1/0.0") if step.error] == []
    assert claims(server) == {"l2r-claim-n1-0.0": "next"}


async def test_a_slot_that_a_pod_took_since_the_plan_is_refused_and_the_claim_given_back(cluster, server):
    plan = await cluster.plan("late", 1, "n1/0.0")
    await cluster.launch("early", 1, "n1/0.0")
    for key in [key for key in server.objects if key[0] == "Lease"]:
        del server.objects[key]  # as if the other launch could not use Leases
    with pytest.raises(RefusedError, match=r"Slot n1/0.0 is .* by early"):
        [done async for done in launching.launch(cluster.context, plan)]
    assert server.names("ConfigMap", "Lease") == ["ConfigMap/l2r-early"]


@pytest.mark.parametrize("status", [0, 503])
async def test_an_object_whose_creation_got_no_answer_is_made_once(cluster, server, status):
    server.failures.append(Failure("POST", "ReplicaSet", status, "ServiceUnavailable", is_done=True))
    steps = await cluster.launch(pins="n1/0.0-1")
    assert [step.error for step in steps] == [""] * len(steps)
    assert len(server.names("ReplicaSet")) == 1


async def test_an_object_of_somebody_else_is_not_adopted_after_a_lost_answer(cluster, server):
    server.failures.append(Failure("POST", "ReplicaSet", 503, "ServiceUnavailable"))
    server.hooks.append(lambda method, kind, _: kind == "Secret" and method == "POST" and theirs())

    def theirs():
        server.hooks.clear()
        server.runs_controllers = False
        server.put({"kind": "ReplicaSet", "metadata": {"name": "r-w"}, "spec": {}})

    steps = await cluster.launch(pins="n1/0.0-1")
    assert "already exists" in steps[-1].error


async def test_too_many_requests_are_repeated_when_the_server_says(cluster, server):
    busy = Failure("POST", "ReplicaSet", 429, "TooManyRequests", times=2, headers={"Retry-After": "0"})
    server.failures.append(busy)
    steps = await cluster.launch(pins="n1/0.0-1")
    assert [step.error for step in steps] == [""] * len(steps)
    assert server.requests.count(("POST", "ReplicaSet", "")) == 3


async def test_an_object_that_is_refused_is_one_failed_step_and_the_rest_is_made(cluster, server):
    server.denied.add(("create", "secrets"))
    steps = {done.step.kind: done.error for done in await cluster.launch(pins="n1/0.0-1")}
    assert "lacks the right to create secrets" in steps["Secret"]
    assert steps["ReplicaSet"] == ""
    assert server.names("ReplicaSet")


async def test_without_the_right_to_leases_nothing_is_claimed(cluster, server):
    server.denied.add(("create", "leases"))
    steps = await cluster.launch(pins="n1/0.0-1")
    assert "Lease" not in {done.step.kind for done in steps}
    assert len(server.names("Pod")) == 2


async def test_a_run_that_is_destroyed_meanwhile_is_launched_no_further(cluster, server):
    def destroyed(method, kind, _):
        if (method, kind) == ("POST", "Secret"):
            item = server.get("ConfigMap", "l2r-r")
            item["metadata"].setdefault("annotations", {})[labels.TERMINATING] = "2026-01-01T00:00:00Z"

    server.hooks.append(destroyed)
    with pytest.raises(RefusedError, match="r: destroyed while it was being launched"):
        await cluster.launch(pins="n1/0.0-1")
    assert server.names("ReplicaSet", "Secret", "Pod") == []


async def test_a_wave_starts_when_the_one_before_runs(cluster, server):
    sizes = []

    def count(method, kind, _):
        if method in ("POST", "PATCH") and kind == "ReplicaSet":
            sizes.append(len(server.names("Pod")))

    server.hooks.append(count)
    steps = await cluster.launch(replicas=4, pins="n1/0.0-3", wave=2)
    assert [step.error for step in steps] == [""] * len(steps)
    assert sizes == [2, 4]


async def test_a_wave_that_never_runs_stops_the_launch_with_a_sentence(cluster, server, monkeypatch):
    monkeypatch.setattr(launching, "WAVE_SECONDS", 0.0)
    server.runs_controllers = False
    steps = await cluster.launch(replicas=4, pins="n1/0.0-3", wave=2)
    assert "only 0 of the 2 pods before it run" in steps[-1].error


async def test_requests_that_fail_after_the_launch_was_given_up_leave_no_traceback(cluster, server):
    plan = await cluster.plan(replicas=4, pins="n1/0.0-1,n1/1.0-1")
    invalid, busy = Failure("POST", "ReplicaSet", 422), Failure("POST", "ReplicaSet", 429)
    busy.headers = {"Retry-After": "0.2"}
    server.failures = [invalid, busy, Failure("POST", "ReplicaSet", 422)]
    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    async with aclosing(launching.launch(cluster.context, plan)) as steps:
        async for step in steps:
            if step.error:
                break
    gc.collect()
    assert reports == []
