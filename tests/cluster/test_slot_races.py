"""Two people in two namespaces launch on the same exact GPUs at once: claims apart, shared, or shared by one alone.

Rounds run in lanes, each on two GPUs of its own: most of a round is waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
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
from tests.cluster.conftest import kubectl, kubectl_json, new_namespace
from tests.cluster.roles import ACCOUNT, grant, service_account

ROUNDS = int(os.environ.get("L2R_RACE_ROUNDS", "20"))
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60 * max(20, ROUNDS))]
NODE = os.environ.get("L2R_RACE_NODE", "phortx2")
LANES = [f"{NODE}/{gpu}.{slot},{NODE}/{gpu + 1}.{slot}" for gpu in (0, 2, 4, 6) for slot in (0, 1)]


@pytest.fixture(autouse=True)
def no_shared_namespace(monkeypatch):
    """The cluster may have the usual one, made by another test."""
    monkeypatch.setattr(labels, "CLAIMS_NAMESPACE", f"absent-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def shared_namespace(no_shared_namespace, monkeypatch):
    with new_namespace() as name:
        monkeypatch.setattr(labels, "CLAIMS_NAMESPACE", name)
        yield name


def doubles(namespaces, run):
    """Slots that pods of two controllers have, as kubectl tells."""
    count = Counter()
    for pod in kubectl_json("get", "pods", "-A", "-l", f"{labels.RUN}={run}")["items"]:
        meta = pod["metadata"]
        if meta["namespace"] in namespaces and not meta.get("deletionTimestamp"):
            (_, slots), *others = json.loads(meta["annotations"][labels.SEATS])
            assert not others
            count[meta["labels"][labels.HOST], meta["labels"][labels.GPU], *slots] += 1
    assert count
    return {slot: number for slot, number in count.items() if number > 1}


def spec(name):
    worker = SetSpec("w", Role.WORKER, ("sleep", "3600"), replicas=2, restart=RestartPolicy.ALWAYS)
    return RunSpec(Kind.JOB, name, name, (worker,), image="debian:bookworm-slim")


async def launched(backend, name, pins):
    """Plan and launch one run; whether it is there afterwards."""
    await asyncio.sleep(random.uniform(0.0, 0.5))
    try:
        prepared = await launcher.prepare_runs(backend, [spec(name)], pins=parse_pins(pins))
        async with contextlib.aclosing(launcher.launch(backend, prepared)) as steps:
            assert all([not done.error async for done in steps])
    except (SlotTakenError, RefusedError) as error:
        print(f"{name}: {error}")
        return False
    return True


async def race(backends, namespaces):
    """Return how many rounds ended with how many launches that stayed."""
    won = Counter()
    numbers = iter(range(ROUNDS))

    async def run_lane(pins):
        for number in numbers:
            name = f"r{number}"
            stays = await asyncio.gather(*(launched(backend, name, pins) for backend in backends))
            won[stays.count(True)] += 1
            assert stays.count(True) < 2, f"round {number}"
            print(f"round {number}: {stays}", flush=True)
            for backend, is_there in zip(backends, stays, strict=True):
                if is_there:
                    # By name: of another lane's run two may be on a slot until the second look.
                    assert await asyncio.to_thread(doubles, namespaces, name) == {}, f"round {number}"
                    run = (await backend.snapshot()).run_named(name)
                    receipts = [
                        item async for item in backend.destroy(run, grace_seconds=1) if isinstance(item, Receipt)
                    ]
                    assert [receipt.left for receipt in receipts] == [()]

    async with asyncio.TaskGroup() as group:
        for pins in LANES:
            group.create_task(run_lane(pins))
    print("launches that stayed, by number:", dict(won))
    return won


@contextlib.contextmanager
def ledger_reader(namespace, folder):
    """Kubeconfig of a user with the Roles for a namespace and the ledger, and no right to the shared claims."""
    config = service_account(namespace, folder)
    grant(namespace, "l2rtui-ledger", ("ClusterRole",))
    words = ("--clusterrole", f"l-{namespace}", "--serviceaccount", f"{namespace}:{ACCOUNT}")
    kubectl("create", "clusterrolebinding", f"l-{namespace}", *words)
    yield config
    kubectl("delete", "clusterrolebinding,clusterrole", f"l-{namespace}")


@pytest.fixture
async def people(request, kubeconfig, tmp_path, monkeypatch):
    """Backends and namespaces of two people: an administrator, and another or a user without the shared claims."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with new_namespace() as first, new_namespace() as second, contextlib.ExitStack() as stack:
        is_user = getattr(request, "param", "") == "user"
        config = stack.enter_context(ledger_reader(second, tmp_path)) if is_user else kubeconfig
        pairs = ((first, kubeconfig), (second, config))
        backends = [KubernetesBackend(Settings(namespaces=(name,)), path) for name, path in pairs]
        yield backends, (first, second)
        for backend in backends:
            await backend.close()


async def test_without_a_shared_namespace_a_slot_never_goes_to_two(people):
    won = await race(*people)
    assert won[1] >= ROUNDS - 2, "a launch is seldom taken back for nothing"


async def test_with_the_shared_namespace_a_slot_never_goes_to_two(shared_namespace, people):
    won = await race(*people)
    assert won == {1: ROUNDS}


@pytest.mark.parametrize("people", ["user"], indirect=True)
async def test_with_the_shared_namespace_and_no_right_to_it_neither(shared_namespace, people):
    won = await race(*people)
    assert won[1] >= ROUNDS - 2
