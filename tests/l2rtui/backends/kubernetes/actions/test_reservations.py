"""Reservations on Kubernetes: compare and swap, a simultaneous launch, writes by others, expiry."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions.reservations import KubernetesReservations
from l2rtui.backends.kubernetes.actions.slot_leases import Claimant, SlotLeases, slots_by_device
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.config import Settings
from l2rtui.domain.ledger import SlotState
from l2rtui.domain.node import SlotId
from l2rtui.errors import RefusedError

FIRST, SECOND = SlotId("n1", 0, 0), SlotId("n1", 0, 1)


def of(context, owner):
    async def opened():
        return context

    return KubernetesReservations(opened, owner)


def in_an_hour() -> float:
    return time.time() + 3600


def owners(server, namespace="ml"):
    item = server.objects.get(("ConfigMap", namespace, labels.reservations_object("n1")))
    entries = json.loads(item["data"][labels.RESERVATIONS_KEY]) if item else []
    return {slot: entry["owner"] for entry in entries for slot in entry["slots"]}


async def test_of_many_who_reserve_a_slot_at_once_one_gets_it(context, other, server):
    async def has_won(name, where):
        try:
            await of(where, name).reserve([FIRST, SECOND], in_an_hour())
        except RefusedError:
            return False
        return True

    names = ["anna", "bob", "cleo", "dan"]
    results = await asyncio.gather(
        *(has_won(name, where) for name, where in zip(names, [context, other] * 2, strict=True))
    )
    assert sum(results) == 1
    assert owners(server) == dict.fromkeys(["0.0", "0.1"], names[results.index(True)])


async def test_a_slot_that_a_launch_has_just_claimed_is_refused_and_nothing_stays(context, server):
    await SlotLeases(context.api, "ml").claim(slots_by_device({Claimant("r", "r-id", "ml"): [SECOND]}))
    with pytest.raises(RefusedError, match=r"Slot n1/0\.1 was claimed by r just now, so nothing was reserved"):
        await of(context, "anna").reserve([FIRST, SECOND], in_an_hour())
    assert owners(server) == {}
    assert server.names("ConfigMap") == []
    await of(context, "anna").reserve([FIRST], in_an_hour())
    # The user's earlier reservations stay when further ones are refused.
    with pytest.raises(RefusedError):
        await of(context, "anna").reserve([FIRST, SECOND], in_an_hour())
    assert owners(server) == {"0.0": "anna"}


async def test_reservations_lie_where_the_claims_do(server):
    api = server.api()
    shared = ClusterContext(api, Settings(claims_namespace="shared"))
    await of(shared, "anna").reserve([FIRST], in_an_hour())
    assert owners(server, "shared") == {"0.0": "anna"}
    assert (await shared.snapshot()).ledger.slots[FIRST].state is SlotState.RESERVED
    await api.close()


async def test_what_somebody_else_has_written_there_harms_nobody(context, server):
    await of(context, "anna").reserve([FIRST], in_an_hour())
    item = server.objects["ConfigMap", "ml", labels.reservations_object("n1")]
    for text in ("{", "[[]]", json.dumps([{"owner": "eve", "until": 1e15, "slots": ["0.0"]}])):
        item["data"] = {labels.RESERVATIONS_KEY: text}
        assert (await context.snapshot()).ledger.slots[FIRST].state is SlotState.FREE
    assert (await context.snapshot()).runs == {}
    await of(context, "bob").reserve([FIRST], in_an_hour())
    assert owners(server) == {"0.0": "bob"}
