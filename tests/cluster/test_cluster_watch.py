"""The feed of changes against a real API server: it matches kubectl, also after faults."""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from l2rtui.backends.kubernetes.api.backoff import Timing
from l2rtui.backends.kubernetes.api.client import connect
from l2rtui.backends.kubernetes.state.cluster_watch import ClusterWatch
from l2rtui.backends.kubernetes.state.node_devices import SlotRule
from l2rtui.domain.ledger import SlotState
from tests.cluster.faults import compact, proxied
from tests.cluster.following import Disturbance, following, pod

pytestmark = pytest.mark.cluster
ADMIN = os.environ.get("KUBECONFIG", "")
RULE = SlotRule()


@pytest.fixture
async def namespace():
    """A separate namespace for the test, through an undisturbed connection."""
    name = f"a-feed-{uuid.uuid4().hex[:8]}"
    api = await connect(kubeconfig=ADMIN)
    await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield api, name
    await api.delete("Namespace", None, name)
    await api.close()


@pytest.mark.smoke
async def test_a_pinned_pod_of_somebody_else_takes_its_slot_and_gives_it_back(namespace):
    api, name = namespace
    async with following(ADMIN) as follower:
        await api.create(pod("stranger", name, "6"))
        async with asyncio.timeout(20):
            while not any(item.pod == "stranger" for item in follower.snapshot.ledger.of_gpu("phortx1", 6)):
                await asyncio.sleep(0.05)
        usage = [item for item in follower.snapshot.ledger.of_gpu("phortx1", 6) if item.pod == "stranger"]
        assert [(item.state, item.owner) for item in usage] == [(SlotState.BUSY, name)]
        await api.delete("Pod", name, "stranger", grace_seconds=0)
        async with asyncio.timeout(20):
            while any(item.pod == "stranger" for item in follower.snapshot.ledger.of_gpu("phortx1", 6)):
                await asyncio.sleep(0.05)


@pytest.mark.smoke
async def test_a_look_and_a_watch_show_the_same(namespace):
    api, name = namespace
    for number in range(4):
        await api.create(pod(f"p{number}", name, str(number)))
    async with following(ADMIN) as follower:
        assert await follower.until_true(ADMIN, name, 30) < 30
        # Pods may start between the two reads: both agree once the pods run.
        end = asyncio.get_running_loop().time() + 30
        while True:
            look = await follower.feed.snapshot()
            listed = {uid: item for uid, item in look.pods.items() if item.namespace == name}
            watched = {uid: item for uid, item in follower.snapshot.pods.items() if item.namespace == name}
            is_settled = listed == watched and {str(item.phase) for item in listed.values()} == {"Running"}
            if is_settled or asyncio.get_running_loop().time() > end:
                break
            await asyncio.sleep(0.1)
        assert len(listed) == 4
        assert listed == watched
        assert look.problems == ()


FAULTS = ["cut", "refuse", "freeze", "compact"]


async def test_after_random_faults_the_snapshot_is_the_truth_again(namespace, tmp_path):
    api, name = namespace
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    disturbance = Disturbance(api, name, chance)
    # A silence counts as a dead connection after one second instead of ninety.
    timing = replace(Timing(), quiet=0.7, dead=1.0)
    async with proxied(ADMIN, tmp_path) as (proxy, through), following(through, timing, (name,)) as follower:
        for turn in range(12):
            fault = FAULTS[turn % len(FAULTS)]
            if fault == "refuse":
                await proxy.refuse()
            elif fault == "freeze":
                proxy.freeze()
            for _ in range(3):
                await disturbance.once()
            if fault == "compact":
                await asyncio.to_thread(compact)
                proxy.cut()
            elif fault == "cut":
                proxy.cut()
            elif fault == "refuse":
                await asyncio.sleep(chance.uniform(0.1, 2.0))
                await proxy.open()
            else:
                await asyncio.sleep(1.2)
                proxy.cut()
                proxy.thaw()
            assert await follower.until_true(ADMIN, name, 30) < 30, f"round {turn}, {fault}"


async def test_a_link_that_swallows_packets_is_reported_within_15_seconds_and_its_end_within_5(namespace, tmp_path):
    api, name = namespace
    clock, disturbance = asyncio.get_running_loop().time, Disturbance(api, name, random.Random(1))
    async with proxied(ADMIN, tmp_path) as (proxy, through), following(through, None, (name,)) as follower:
        for _ in range(2):
            await wait_until(lambda: follower.snapshot.silent_since is None)
            proxy.freeze()
            began = clock()
            await wait_until(lambda: follower.snapshot.silent_since is not None)
            print(f"said after {clock() - began:.1f} s")
            assert clock() - began <= 15.0
            await disturbance.once()
            proxy.thaw()
            began = clock()
            await wait_until(lambda: follower.snapshot.silent_since is None)
            print(f"gone after {clock() - began:.1f} s")
            assert clock() - began <= 5.0
            assert await follower.until_true(ADMIN, name, 30) < 30


async def wait_until(is_true):
    """Let the follower work until a condition holds."""
    async with asyncio.timeout(60):
        while not is_true():
            await asyncio.sleep(0.02)


RBAC = "rbac.authorization.k8s.io"


async def grant(api, user, rules, namespace=None):
    """Give a user rights, in one namespace or everywhere; return the name of the binding."""
    kind, name = ("Role" if namespace else "ClusterRole"), f"a-look-{uuid.uuid4().hex[:8]}"
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    await api.apply({"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": meta, "rules": rules})
    await api.apply(
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": f"{kind}Binding",
            "metadata": meta,
            "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
        }
    )
    return name


NARROW = [
    {"apiGroups": [""], "resources": ["pods", "configmaps", "events"], "verbs": ["list", "watch"]},
    {"apiGroups": ["apps", "batch"], "resources": ["*"], "verbs": ["list", "watch"]},
]


async def test_who_may_not_look_everywhere_sees_unknown_slots_and_the_missing_rights(namespace):
    api, name = namespace
    await grant(api, "researcher", NARROW, name)
    await api.create(pod("mine", name, "2"))
    kubeconfig = f"{os.environ['L2R_CLUSTER_DIR']}/researcher.kubeconfig"
    narrow = await connect(kubeconfig=kubeconfig, namespaces=(name,))
    try:
        look = await ClusterWatch(narrow, RULE).snapshot()
    finally:
        await narrow.close()
    assert [item.name for item in look.pods.values()] == ["mine"]
    slots = look.ledger.of_gpu("phortx1", 2)
    assert [item.state for item in slots] == [SlotState.UNKNOWN] * 3 + [SlotState.BUSY]
    assert look.ledger.free() == ()
    assert any("missing right: list and watch pods" in item for item in look.problems)
    assert any("missing right: list and watch nodes" in item for item in look.problems)


async def test_rights_that_are_granted_or_taken_later_change_what_is_shown(namespace, tmp_path):
    api, name = namespace
    user = f"late-{uuid.uuid4().hex[:8]}"
    config = yaml.safe_load(Path(ADMIN).read_text())
    config["users"][0]["user"]["as"] = user
    kubeconfig = tmp_path / "late.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    await grant(api, user, NARROW, name)
    await api.create(pod("mine", name, "2"))
    await api.create(pod("elsewhere", "default", "3") | {"metadata": {"name": user, "namespace": "default"}})
    everything = [{"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["list", "watch"]}]
    binding = None
    try:
        # An open watch outlives its right; the next one is refused.
        async with following(str(kubeconfig), replace(Timing(), forbidden=0.3, watch=1.0), (name,)) as follower:

            def free():
                return [
                    problem
                    for problem in follower.snapshot.ledger.of_gpu("phortx2", 7)
                    if problem.state is SlotState.FREE
                ]

            def names():
                return {problem.name for problem in follower.snapshot.pods.values()} & {"mine", user}

            assert (names(), free()) == ({"mine"}, [])
            binding = await grant(api, user, everything)
            await until(lambda: names() == {"mine", user} and free())
            assert not any("missing right" in problem for problem in follower.snapshot.problems)
            await api.delete("ClusterRoleBinding", None, binding)
            await until(lambda: names() == {"mine"} and not free())
            assert any("missing right: list and watch pods" in problem for problem in follower.snapshot.problems)
    finally:
        await api.delete("Pod", "default", user, grace_seconds=0)
        if binding is not None:
            await api.delete("ClusterRole", None, binding)


async def until(is_so):
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.05)
