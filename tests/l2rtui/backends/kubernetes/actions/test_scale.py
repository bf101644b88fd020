"""Scales against an API server in memory."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions.run_object import decode_spec, read_run
from l2rtui.backends.kubernetes.actions.scale import scale
from l2rtui.backends.kubernetes.actions.slot_leases import claims_of
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.domain.plan import ScalePlan
from l2rtui.errors import NotFoundError, RefusedError
from tests.fakes.kubernetes_objects import Failure


async def scaled(cluster, server, replicas, pins=""):
    """A plan with another number of replicas of the set of two."""
    added, removed = (), ()
    if replicas > 2:
        wider = await cluster.plan("r", replicas - 2, pins)
        pods = [pod for run in wider.runs for pod in run.pods]
        added = tuple(replace(pod, name=f"r-w-{2 + number}", index=2 + number) for number, pod in enumerate(pods))
    else:
        removed = tuple(server.names("Pod")[: 2 - replicas])
        removed = tuple(name.removeprefix("Pod/") for name in removed)
    return ScalePlan("r", "w", replicas, added, removed)


def claimed(server):
    return sorted(
        f"{name}.{slot}"
        for (kind, _, name), item in server.objects.items()
        if kind == "Lease"
        for slot in claims_of(item)
    )


async def replicas_of(cluster):
    spec = decode_spec(await read_run(cluster.context.api, "ml", "r"))
    return spec.sets[0].replicas


async def test_more_replicas_on_the_same_device_grow_its_controller(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    await scale(cluster.context, await scaled(cluster, server, 3, "n1/0.2"))
    assert server.names("ReplicaSet") == ["ReplicaSet/r-w"]
    controller = server.get("ReplicaSet", "r-w")
    assert controller["spec"]["replicas"] == 3
    assert json.loads(controller["metadata"]["annotations"][labels.SEATS]) == [[0, [0]], [1, [1]], [2, [2]]]
    assert (await replicas_of(cluster), len(claimed(server))) == (3, 3)


async def test_more_replicas_on_another_device_get_a_controller_of_their_own(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    await scale(cluster.context, await scaled(cluster, server, 4, "n1/1.0-1"))
    assert server.names("ReplicaSet") == ["ReplicaSet/r-w", "ReplicaSet/r-w-g1"]
    owner = server.get("ConfigMap", "l2r-r")["metadata"]["uid"]
    assert server.get("ReplicaSet", "r-w-g1")["metadata"]["ownerReferences"][0]["uid"] == owner


async def test_fewer_replicas_stop_the_pods_of_the_plan_and_give_their_slots_back(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    plan = await scaled(cluster, server, 1)
    await scale(cluster.context, plan)
    assert f"Pod/{plan.removed[0]}" not in server.names("Pod")
    assert len(server.names("Pod")) == 1
    assert (await replicas_of(cluster), claimed(server)) == (1, ["l2r-claim-n1-0.0"])


async def test_no_replica_left_on_a_device_removes_its_controller(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    await scale(cluster.context, await scaled(cluster, server, 0))
    assert server.names("ReplicaSet", "Pod", "Lease") == []
    assert await replicas_of(cluster) == 0


async def test_a_replica_that_somebody_added_meanwhile_is_refused_and_nothing_changes(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    plan = await scaled(cluster, server, 3, "n1/0.2")
    await scale(cluster.context, plan)
    before = json.dumps(server.get("ReplicaSet", "r-w")["spec"])
    with pytest.raises(RefusedError, match="r/w has r-w-2 already"):
        await scale(cluster.context, plan)
    assert json.dumps(server.get("ReplicaSet", "r-w")["spec"]) == before


async def test_a_slot_that_was_taken_meanwhile_is_refused_and_the_runs_own_claims_stay(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    plan = await scaled(cluster, server, 3, "n1/0.2")
    await cluster.launch("other", 1, "n1/0.2")
    with pytest.raises(RefusedError, match=r"Slot n1/0.2 was claimed by other"):
        await scale(cluster.context, plan)
    assert claimed(server) == ["l2r-claim-n1-0.0", "l2r-claim-n1-0.1", "l2r-claim-n1-0.2"]
    assert await replicas_of(cluster) == 2


@pytest.mark.slow
async def test_a_config_map_that_was_changed_meanwhile_is_read_again(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    plan = await scaled(cluster, server, 3, "n1/0.2")
    server.failures.append(Failure("PUT", "ConfigMap", 409, "Conflict", times=2))
    await scale(cluster.context, plan)
    assert await replicas_of(cluster) == 3


async def test_a_scale_that_failed_halfway_does_the_rest_when_it_is_asked_again(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    plan = await scaled(cluster, server, 1)
    server.failures.append(Failure("PUT", "ConfigMap", 503, "ServiceUnavailable"))
    with pytest.raises(ApiError):
        await scale(cluster.context, plan)
    assert await replicas_of(cluster) == 2
    await scale(cluster.context, plan)
    assert (await replicas_of(cluster), len(server.names("Pod"))) == (1, 1)


async def test_a_scale_to_none_that_may_not_delete_its_controller_is_refused_and_not_recorded(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    server.denied.add(("delete", "replicasets"))
    with pytest.raises(ApiError, match="tester lacks the right to delete replicasets"):
        await scale(cluster.context, await scaled(cluster, server, 0))
    assert decode_spec(await read_run(cluster.context.api, "ml", "r")).set_named("w").replicas == 2


@pytest.mark.parametrize(("by_hand", "missing"), [(0, (0, 1)), (1, (1,))])
async def test_pods_that_kubectl_scale_has_stopped_come_back(cluster, server, by_hand, missing):
    await cluster.launch(pins="n1/0.0-1")
    await cluster.context.api.patch("ReplicaSet", "ml", "r-w", {"spec": {"replicas": by_hand}})
    run = await cluster.run()
    assert run.reason == "Scaled"
    assert run.message == (
        f"another program changed its set w to {by_hand} of 2 pods: `l2rtui scale r/w N` sets the number"
    )
    plan = await cluster.plan("r", 2, "n1/0.2-3")
    pods = [pod for pod in plan.runs[0].pods if pod.index in missing]
    await scale(cluster.context, ScalePlan("r", "w", 2, tuple(pods), ()))
    controller = server.get("ReplicaSet", "r-w")
    seats = json.loads(controller["metadata"]["annotations"][labels.SEATS])
    assert seats == [[index, [2 + index if index in missing else index]] for index in (0, 1)]
    assert (controller["spec"]["replicas"], len(server.names("Pod"))) == (2, 2)
    assert claimed(server) == [f"l2r-claim-n1-0.{slots[0]}" for _, slots in seats]
    assert (await cluster.run()).reason == ""


async def test_pods_that_kubectl_scale_has_added_are_stopped(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    await cluster.context.api.patch("ReplicaSet", "ml", "r-w", {"spec": {"replicas": 4}})
    assert "changed its set w to 4 of 2 pods" in (await cluster.run()).message
    await scale(cluster.context, ScalePlan("r", "w", 2, (), ()))
    assert server.get("ReplicaSet", "r-w")["spec"]["replicas"] == 2
    assert len(server.names("Pod")) == 2


async def test_a_run_or_a_set_that_is_not_there_is_named(cluster, server):
    with pytest.raises(NotFoundError, match="There is no run r"):
        await scale(cluster.context, ScalePlan("r", "w", 1, (), ()))
    await cluster.launch(pins="n1/0.0-1")
    with pytest.raises(NotFoundError, match="r has no set x"):
        await scale(cluster.context, ScalePlan("r", "x", 1, (), ()))
