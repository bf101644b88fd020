"""Claims on slots: compare and swap on Leases, many devices together, conflicts, expiry."""

from __future__ import annotations

import asyncio
import time

import pytest

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import slot_leases
from l2rtui.backends.kubernetes.actions.destroy import RunClaims
from l2rtui.backends.kubernetes.actions.slot_leases import (
    Claimant,
    SlotLeases,
    claims_of,
    device_of,
    slots_by_device,
)
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.domain.node import SlotId
from l2rtui.errors import BackendError, RefusedError
from tests.fakes.kubernetes_objects import Failure


@pytest.fixture
def leases(context):
    return SlotLeases(context.api, "ml")


def wish(name, gpus=(0,), slot=0):
    return slots_by_device({Claimant(name, f"{name}-id", "ml"): [SlotId("n", gpu, slot) for gpu in gpus]})


def held(server):
    return {
        f"{name.removeprefix('l2r-claim-')}.{slot}": claim["run"]
        for (kind, _, name), item in server.objects.items()
        if kind == "Lease"
        for slot, claim in claims_of(item).items()
    }


async def test_claims_of_two_runs_share_the_lease_of_a_device(leases, server):
    await leases.claim(wish("a"))
    await leases.claim(wish("b", slot=1))
    assert held(server) == {"n-0.0": "a", "n-0.1": "b"}
    await leases.release(["a-id"], [("n", 0)])
    assert held(server) == {"n-0.1": "b"}
    await leases.release(["b-id"], [("n", 0)])
    assert server.names("Lease") == []


async def test_a_slot_that_is_claimed_is_refused_and_nothing_stays_claimed(leases, server):
    await leases.claim(wish("a", (2,)))
    with pytest.raises(RefusedError, match=r"Slot n/2\.0 was claimed by a just now, so b cannot sit there"):
        await leases.claim(wish("b", (0, 1, 2, 3)))
    assert held(server) == {"n-2.0": "a"}


async def test_the_same_run_may_claim_again(leases, server):
    await leases.claim(wish("a"), seconds=1.0)
    await leases.claim(wish("a"), seconds=100.0)
    (claim,) = claims_of(server.get("Lease", labels.slot_lease("n", 0))).values()
    assert claim["until"] > time.time() + 50


async def test_of_many_that_want_the_same_devices_in_any_order_one_gets_all(leases, server):
    async def won(name, gpus):
        try:
            await leases.claim(wish(name, gpus))
        except RefusedError:
            return False
        return True

    orders = {"a": (0, 1, 2, 3), "b": (3, 2, 1, 0), "c": (2, 3, 0, 1)}
    results = await asyncio.gather(*(won(*pair) for pair in orders.items()))
    assert results.count(True) == 1
    winner = list(orders)[results.index(True)]
    assert held(server) == {f"n-{gpu}.0": winner for gpu in range(4)}


async def test_claims_of_different_slots_of_one_device_all_get_through(leases, server):
    await asyncio.gather(*(leases.claim(wish(f"r{slot}", slot=slot)) for slot in range(8)))
    assert held(server) == {f"n-0.{slot}": f"r{slot}" for slot in range(8)}


async def test_a_write_that_lost_the_race_is_read_and_tried_again(leases, server):
    await leases.claim(wish("a"))
    server.failures.append(Failure("PUT", "Lease", 409, "Conflict", times=3))
    await leases.claim(wish("b", slot=1))
    assert held(server) == {"n-0.0": "a", "n-0.1": "b"}


async def test_a_lease_that_always_changes_is_given_up_with_a_sentence(leases, server, monkeypatch):
    monkeypatch.setattr(slot_leases, "_ATTEMPTS", 3)
    await leases.claim(wish("a"))
    server.failures.append(Failure("PUT", "Lease", 409, "Conflict", times=99))
    with pytest.raises(BackendError, match="The claims on n/0 change all the time"):
        await leases.claim(wish("b", slot=1))


async def test_a_claim_that_expired_counts_no_more_when_its_run_is_gone(leases, server):
    await leases.claim(wish("dead"), seconds=-1.0)
    await leases.claim(wish("new"))
    assert held(server) == {"n-0.0": "new"}


@pytest.mark.parametrize(
    ("run_id", "seats", "state", "is_valid"),
    [
        ("dead-id", "[[0,[0]]]", {}, True),
        ("dead-id", "[[0,[1]]]", {}, False),
        ("dead-id", "broken", {}, False),
        ("later-id", "[[0,[0]]]", {}, False),
        ("dead-id", "[[0,[0]]]", {"conditions": [{"type": "Complete", "status": "True"}]}, False),
        ("dead-id", "[[0,[0]]]", {"conditions": [{"type": "Suspended", "status": "True"}]}, True),
    ],
)
async def test_an_expired_claim_holds_while_a_controller_would_put_a_pod_there(
    leases, server, run_id, seats, state, is_valid
):
    server.runs_controllers = False
    await leases.claim(wish("dead"), seconds=-1.0)
    server.put({"kind": "ConfigMap", "metadata": {"name": "l2r-dead", "labels": {labels.RUN_ID: run_id}}})
    own = {labels.RUN_ID: "dead-id", labels.HOST: "n", labels.GPU: "0"}
    meta = {"name": "dead-w", "labels": own, "annotations": {labels.SEATS: seats}}
    server.put({"kind": "Job", "metadata": meta, "spec": {}, "status": state})
    if is_valid:
        with pytest.raises(RefusedError):
            await leases.claim(wish("new"))
    else:
        await leases.claim(wish("new"))


async def test_a_run_of_another_namespace_is_named_with_it(leases):
    other = Claimant("r", "other-id", "ben")
    await leases.claim(slots_by_device({other: [SlotId("n", 0, 0)]}))
    with pytest.raises(RefusedError, match=r"was claimed by r in the namespace ben just now, so r cannot"):
        await leases.claim(wish("r"))


async def ended_job(server, run):
    """Put a run on slot 0 with a Job that completed immediately."""
    server.runs_controllers = False
    server.put({"kind": "ConfigMap", "metadata": {"name": f"l2r-{run}", "labels": {labels.RUN_ID: f"{run}-id"}}})
    own = {labels.RUN_ID: f"{run}-id", labels.HOST: "n", labels.GPU: "0"}
    meta = {"name": f"{run}-w", "labels": own, "annotations": {labels.SEATS: "[[0,[0]]]"}}
    status = {"conditions": [{"type": "Complete", "status": "True"}]}
    server.put({"kind": "Job", "metadata": meta, "spec": {}, "status": status})


async def test_a_young_claim_ends_with_the_job_that_it_was_for(leases, server):
    await leases.claim(wish("short"))
    with pytest.raises(RefusedError, match="was claimed by short just now"):
        await leases.claim(wish("next"))  # its launch is about to create the Job
    await ended_job(server, "short")
    await leases.claim(wish("next"))
    assert held(server) == {"n-0.0": "next"}


async def test_a_young_claim_holds_where_the_server_does_not_say_how_its_run_is(leases, server):
    await leases.claim(wish("short"))
    await ended_job(server, "short")
    server.failures.append(Failure("GET", "Job", 500, "InternalError", times=99))
    with pytest.raises(RefusedError, match="was claimed by short just now"):
        await leases.claim(wish("next"))


async def test_the_claim_of_a_scale_holds_beside_a_job_that_has_ended(leases, server):
    await ended_job(server, "r")
    scaling = Claimant("r", "r-id", "ml", is_scaling=True)
    await leases.claim(slots_by_device({scaling: [SlotId("n", 0, 0)]}))
    with pytest.raises(RefusedError, match="was claimed by r just now"):
        await leases.claim(wish("next"))


async def test_an_expired_claim_of_a_run_that_one_may_not_read_holds(leases, server):
    await leases.claim(wish("dead"), seconds=-1.0)
    server.denied.add(("get", "configmaps"))
    with pytest.raises(RefusedError, match="was claimed by dead"):
        await leases.claim(wish("new"))


async def test_what_was_claimed_is_given_back_when_the_server_refuses_another_device(leases, server):
    await leases.claim(wish("b", (1,), slot=1))
    server.denied.add(("update", "leases"))
    with pytest.raises(ApiError, match="lacks the right to update leases"):
        await leases.claim(wish("a", (0, 1)))
    assert held(server) == {"n-1.1": "b"}


async def test_a_claim_that_is_cancelled_gives_back_what_it_has(leases, context, server):
    await leases.claim(wish("b", (1,), slot=1))
    reached = asyncio.Event()
    read = context.api.read

    async def hang(kind, namespace, name):
        if name.endswith("-1") and not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return await read(kind, namespace, name)

    context.api.read = hang
    task = asyncio.ensure_future(leases.claim(wish("a", (0, 1))))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert held(server) == {"n-1.1": "b"}


async def test_a_sweep_removes_stale_claims_and_keeps_valid_ones(leases, server):
    await leases.claim(wish("dead"), seconds=-1.0)
    await leases.claim(wish("live", slot=2))
    assert await leases.sweep() == 1
    assert held(server) == {"n-0.2": "live"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": {}}', '{"0": 1}'])
def test_an_annotation_that_is_no_claim_is_none(text):
    assert claims_of({"metadata": {"annotations": {labels.CLAIMS: text}}}) == {}


@pytest.mark.parametrize("text", ["", "n1", "n1/", "n1/x", "/0"])
def test_a_lease_without_a_device_has_none(text):
    assert device_of({"metadata": {"annotations": {labels.HOST: text}}}) is None


async def test_claims_of_a_run_are_counted_and_released(leases, server):
    await leases.claim(wish("a", (0, 1)))
    await leases.claim(wish("b", (0,), slot=1))
    claims = RunClaims([leases], "a-id")
    assert await claims.count() == {("n", 0): 1, ("n", 1): 1}
    assert await claims.release()
    assert (claims.number, claims.trouble, held(server)) == (2, "", {"n-0.1": "b"})


async def test_who_may_not_read_leases_has_no_claims(leases, server):
    server.denied.add(("list", "leases"))
    claims = RunClaims([leases], "a-id")
    assert await claims.count() == {}
    assert await claims.release()


async def test_claims_that_cannot_be_removed_leave_their_reason(leases, server):
    await leases.claim(wish("a"))
    server.denied.add(("delete", "leases"))
    claims = RunClaims([leases], "a-id")
    assert not await claims.release()
    assert claims.trouble.startswith("could not be removed: ")
