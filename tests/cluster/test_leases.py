"""Claims on several GPUs together, by several launches that compete for some of them."""

from __future__ import annotations

import asyncio

import pytest

from l2rtui.backends.kubernetes.actions import slot_leases
from l2rtui.backends.kubernetes.api.client import connect
from l2rtui.domain.node import SlotId
from l2rtui.errors import RefusedError
from tests.cluster.conftest import kubectl_json

pytestmark = [pytest.mark.cluster, pytest.mark.smoke, pytest.mark.timeout(300)]


@pytest.fixture
async def api(namespace, kubeconfig):
    made = await connect(kubeconfig=kubeconfig, namespaces=(namespace,))
    yield made
    await made.close()


def wish(name, namespace, gpus):
    """Slot 0 of some GPUs."""
    claimant = slot_leases.Claimant(name, f"{name}-id", namespace)
    return slot_leases.slots_by_device({claimant: [SlotId("n", gpu, 0) for gpu in gpus]})


async def claimed(api, namespace, name, gpus):
    try:
        await slot_leases.SlotLeases(api, namespace).claim(wish(name, namespace, gpus))
    except RefusedError:
        return False
    return True


def holders(namespace):
    """Holders according to the server: run → GPUs."""
    found = {}
    for lease in kubectl_json("-n", namespace, "get", "leases")["items"]:
        for claim in slot_leases.claims_of(lease).values():
            found.setdefault(claim["run"], set()).add(int(lease["metadata"]["name"].rpartition("-")[2]))
    return found


async def test_of_launches_that_want_the_same_gpus_one_gets_all_and_the_others_none(api, namespace):
    for number in range(6):
        wanted = {f"a{number}": (0, 1, 2, 3), f"b{number}": (3, 2, 1, 0), f"c{number}": (2, 3, 4)}
        won = await asyncio.gather(*(claimed(api, namespace, name, gpus) for name, gpus in wanted.items()))
        winners = {name: set(gpus) for (name, gpus), is_won in zip(wanted.items(), won, strict=True) if is_won}
        assert holders(namespace) == winners
        assert len(winners) == 1
        for name, gpus in wanted.items():
            await slot_leases.SlotLeases(api, namespace).release([f"{name}-id"], wish(name, namespace, gpus))
        assert holders(namespace) == {}


async def test_launches_that_want_different_gpus_do_not_see_each_other(api, namespace):
    names = [f"r{number}" for number in range(6)]
    gpus = {name: tuple(range(3 * number, 3 * number + 3)) for number, name in enumerate(names)}
    assert all(await asyncio.gather(*(claimed(api, namespace, name, gpus[name]) for name in names)))
    assert holders(namespace) == {name: set(found) for name, found in gpus.items()}
