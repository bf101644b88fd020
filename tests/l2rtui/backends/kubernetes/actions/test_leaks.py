"""Leaks against an API server in memory: leftovers of deleted runs, and objects that are not leaks."""

from __future__ import annotations

import pytest

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions.destroy import destroy
from l2rtui.backends.kubernetes.actions.owned_objects import find_leaks
from l2rtui.backends.kubernetes.actions.slot_leases import Claimant, SlotLeases, slots_by_device
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.domain.node import SlotId
from l2rtui.domain.receipt import Receipt
from tests.fakes.kubernetes_objects import Failure

OURS = {labels.APP_MANAGED_BY: labels.MANAGED_BY}


def put(server, kind, name, run_id="", **meta):
    own = OURS | ({labels.RUN: "r", labels.RUN_ID: run_id} if run_id else {})
    return server.put({"kind": kind, "metadata": {"name": name, "labels": own, **meta}, "spec": {}})


@pytest.fixture(autouse=True)
def without_controllers(server):
    server.runs_controllers = False


async def reasons(context):
    return {f"{leak.kind}/{leak.name}": leak.reason for leak in (await find_leaks(context)).leaks}


async def test_a_whole_run_is_no_leak(cluster, server):
    server.runs_controllers = True
    await cluster.launch(pins="n1/0.0-1")
    assert await reasons(cluster.context) == {}


async def test_objects_of_a_run_that_is_gone_are_leaks(context, server):
    put(server, "Service", "s", "gone")
    put(server, "Secret", "x", "gone", deletionTimestamp="2026-01-01T00:00:00Z")
    assert await reasons(context) == {
        "Service/s": "its run is gone",
        "Secret/x": "its run is gone, and it is being deleted",
    }


async def test_pods_without_a_controller_are_leaks_unless_they_are_going(context, server):
    put(server, "ConfigMap", "l2r-r", "live")
    put(server, "Pod", "bare", "live")
    owner = {"kind": "ReplicaSet", "name": "r-w", "uid": "no", "controller": True}
    put(server, "Pod", "orphan", "live", ownerReferences=[owner])
    put(server, "Pod", "going", "live", deletionTimestamp="2026-01-01T00:00:00Z")
    assert await reasons(context) == {
        "Pod/bare": "no controller looks after it",
        "Pod/orphan": "its ReplicaSet r-w is gone",
    }


async def test_a_pod_without_its_label_of_the_run_is_a_leak(context, server):
    put(server, "ConfigMap", "l2r-r", "live")
    own = OURS | {labels.RUN: "r"}
    server.put({"kind": "Pod", "metadata": {"name": "apart", "labels": own}, "spec": {}})
    reason = (await reasons(context))["Pod/apart"]
    assert reason.startswith("its label l2rtui.io/run-id was removed, so no controller looks after it: `kubectl -n")


async def test_what_carries_no_mark_of_a_run_is_left_alone(context, server):
    server.put({"kind": "Pod", "metadata": {"name": "worker-pods-1"}, "spec": {}})
    put(server, "Pod", "probe")
    assert await reasons(context) == {}


async def test_an_object_that_goes_while_one_looks_is_no_leak(context, server):
    put(server, "Service", "s", "gone")
    server.hooks.append(
        lambda _, kind, __: kind == "ConfigMap" and server.objects.pop(("Service", "ml", "s"), None)
    )
    assert await reasons(context) == {}


async def test_a_claim_is_a_leak_when_its_run_is_gone_and_its_time_over(context, server):
    leases = SlotLeases(context.api, "ml")
    await leases.claim(slots_by_device({Claimant("r", "gone", "ml"): [SlotId("n1", 0, 0)]}), seconds=-1.0)
    await leases.claim(slots_by_device({Claimant("q", "fresh", "ml"): [SlotId("n1", 0, 1)]}))
    await leases.claim(slots_by_device({Claimant("z", "far", "other"): [SlotId("n1", 0, 2)]}), seconds=-1.0)
    assert await reasons(context) == {"Lease/l2r-claim-n1-0": "claims slot n1/0.0, and its run is gone"}


async def test_a_destroy_of_the_run_of_each_leak_removes_it_and_proves_that(context, server):
    put(server, "ConfigMap", "l2r-r", "live")
    put(server, "Pod", "bare", "live")  # its run lives: `kill` is for it
    put(server, "Service", "s", "gone", annotations={labels.OWNER: "anna"})
    leases = SlotLeases(context.api, "ml")
    await leases.claim(slots_by_device({Claimant("r", "gone", "ml"): [SlotId("n1", 0, 0)]}), seconds=-1.0)
    await leases.claim(slots_by_device({Claimant("q", "old", "ml"): [SlotId("n1", 0, 1)]}), seconds=-1.0)
    runs = {leak.of.uid: leak.of for leak in (await find_leaks(context)).leaks if leak.of}
    assert {uid: (run.name, run.namespace) for uid, run in runs.items()} == {
        "gone": ("r", "ml"),
        "old": ("q", "ml"),
    }
    assert [leak.of.owner for leak in (await find_leaks(context)).leaks if leak.kind == "Service"] == ["anna"]
    receipts = []
    for run in runs.values():
        receipts += [item async for item in destroy(context, run, grace_seconds=1) if isinstance(item, Receipt)]
    assert [(receipt.objects, receipt.left) for receipt in receipts] == [(2, ()), (1, ())]
    assert await reasons(context) == {"Pod/bare": "no controller looks after it"}


async def test_kinds_that_may_not_be_listed_are_left_out_but_pods_are_needed(context, server):
    server.denied |= {("list", "secrets"), ("list", "leases")}
    put(server, "Service", "s", "gone")
    assert set(await reasons(context)) == {"Service/s"}
    assert (await find_leaks(context)).not_seen == "secrets, leases"
    server.denied.add(("list", "pods"))
    with pytest.raises(ApiError, match="lacks the right to list pods"):
        await find_leaks(context)


async def test_a_server_that_fails_is_an_error_and_not_an_empty_list(context, server):
    server.failures.append(Failure("GET", "Service", 503, "ServiceUnavailable"))
    with pytest.raises(ApiError):
        await find_leaks(context)
