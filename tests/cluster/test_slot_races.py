"""Two people in two namespaces launch on the same exact GPUs at once, with and without the shared namespace."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import uuid
from collections import Counter

import pytest

from l2rtui.backends.common.refusals import SlotTakenError
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.config import Settings
from l2rtui.domain.kinds import Kind, RestartPolicy, Role
from l2rtui.domain.placement import parse_pins
from l2rtui.domain.receipt import Receipt
from l2rtui.domain.workload import RunSpec, SetSpec
from l2rtui.errors import RefusedError
from l2rtui.services import launcher
from tests.cluster.conftest import kubectl_json, new_namespace

ROUNDS = int(os.environ.get("L2R_RACE_ROUNDS", "20"))
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60 * max(20, ROUNDS))]
PINS = "phortx2/5.0,phortx2/6.0"


@pytest.fixture(autouse=True)
def no_shared_namespace(monkeypatch):
    """The cluster may have the usual one, made by another test."""
    monkeypatch.setattr(labels, "CLAIMS_NAMESPACE", f"absent-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def shared_namespace(no_shared_namespace, monkeypatch):
    with new_namespace() as name:
        monkeypatch.setattr(labels, "CLAIMS_NAMESPACE", name)
        yield name


def doubles(namespaces):
    """Slots that pods of two controllers have, as kubectl tells."""
    count = Counter()
    for pod in kubectl_json("get", "pods", "-A", "-l", labels.MANAGED)["items"]:
        meta = pod["metadata"]
        if meta["namespace"] in namespaces and not meta.get("deletionTimestamp"):
            (_, slots), *others = json.loads(meta["annotations"][labels.SEATS])
            assert not others
            count[meta["labels"][labels.HOST], meta["labels"][labels.GPU], *slots] += 1
    assert count or namespaces
    return {slot: number for slot, number in count.items() if number > 1}


def spec(name):
    worker = SetSpec("w", Role.WORKER, ("sleep", "3600"), replicas=2, restart=RestartPolicy.ALWAYS)
    return RunSpec(Kind.JOB, name, name, (worker,), image="debian:bookworm-slim")


async def launched(backend, name):
    """Plan and launch one run; whether it is there afterwards."""
    try:
        prepared = await launcher.prepare_runs(backend, [spec(name)], pins=parse_pins(PINS))
        async with contextlib.aclosing(launcher.launch(backend, prepared)) as steps:
            assert all([not done.error async for done in steps])
    except (SlotTakenError, RefusedError):
        return False
    return True


async def race(backends, namespaces):
    won = Counter()
    for number in range(ROUNDS):
        stays = await asyncio.gather(*(launched(backend, f"r{number}") for backend in backends))
        assert doubles(namespaces) == {}, f"round {number}"
        won[stays.count(True)] += 1
        for backend, is_there in zip(backends, stays, strict=True):
            if is_there:
                run = (await backend.snapshot()).run_named(f"r{number}")
                receipts = [
                    item async for item in backend.destroy(run, grace_seconds=1) if isinstance(item, Receipt)
                ]
                assert [receipt.left for receipt in receipts] == [()]
    return won


@pytest.fixture
async def two_people(kubeconfig, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with new_namespace() as first, new_namespace() as second:
        backends = [KubernetesBackend(Settings(namespaces=(name,)), kubeconfig) for name in (first, second)]
        yield backends, (first, second)
        for backend in backends:
            await backend.close()


async def test_without_a_shared_namespace_a_slot_never_goes_to_two(two_people):
    won = await race(*two_people)
    print("launches that stayed, by number:", dict(won))
    assert won[1] >= ROUNDS - 2, "a launch is seldom taken back for nothing"


async def test_with_the_shared_namespace_a_slot_never_goes_to_two(shared_namespace, two_people):
    won = await race(*two_people)
    assert won == {1: ROUNDS}
