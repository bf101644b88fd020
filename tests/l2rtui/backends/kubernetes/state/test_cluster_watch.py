"""The watch and the snapshot of a scripted cluster: unknown, hidden and recovered state."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from l2rtui.backends.common.liveness import LivenessTiming
from l2rtui.backends.kubernetes.api.backoff import Timing
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.state import cluster_watch
from l2rtui.backends.kubernetes.state.cluster_watch import ClusterWatch
from l2rtui.backends.kubernetes.state.node_devices import SlotRule
from l2rtui.domain.change import apply
from l2rtui.domain.ledger import SlotState
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT
from l2rtui.domain.status import Phase
from tests.fakes.virtual_time import run_virtually
from tests.l2rtui.backends.kubernetes.api_server import Server, serving
from tests.l2rtui.backends.kubernetes.state.cluster_server import NODE, POD, Cluster, connected

# A fiftieth of the real delays.
FAST = Timing(
    first=0.02, longest=0.6, calm=0.1, healthy=0.05, relist=0.2, short=0.1, forbidden=0.1, probe=0.1, refused=0.03,
    denied=0.02, patience=0.6, page=5.0, stale=0.06, tick=0.02,
)  # fmt: skip
METRICS = {"/apis/metrics.k8s.io/v1beta1": {"resources": [{"name": "nodes", "verbs": ["get", "list"]}]}}


@pytest.fixture
def cluster():
    return Cluster()


async def until(batches, snapshot, is_so):
    """Apply batches until the snapshot satisfies a condition."""
    async with asyncio.timeout(30):
        while not is_so(snapshot):
            snapshot = apply(snapshot, await anext(batches))
    return snapshot


def states(snapshot):
    return sorted(slot.state for slot in snapshot.ledger.slots.values())


async def test_slots_are_unknown_until_all_pods_have_been_listed(cluster):
    cluster.is_ill = True
    async with connected(cluster) as api, aclosing(ClusterWatch(api, SlotRule(), FAST).watch()) as batches:
        first = apply(EMPTY_SNAPSHOT, await anext(batches))
        assert cluster.pages >= 1
        assert first.pods == {}  # an incomplete list is not used
        assert set(states(first)) == {SlotState.UNKNOWN}
        assert any(problem.startswith("pods are not read yet") for problem in first.problems)
        cluster.is_ill = False
        snapshot = await until(batches, first, lambda snapshot: snapshot.pods and not snapshot.problems)
        assert states(snapshot) == [SlotState.BUSY] + [SlotState.FREE] * 3


async def test_a_snapshot_and_the_first_batch_of_a_watch_show_the_same(cluster):
    cluster.groups = METRICS
    async with connected(cluster) as api:
        watch = ClusterWatch(api, SlotRule(), FAST)
        snapshot = await watch.snapshot()
        assert snapshot.nodes["n"].cpu_used == 2.0
        assert (set(snapshot.pods), snapshot.problems) == ({"p"}, ())
        async with aclosing(watch.watch()) as batches:
            is_measured = await until(
                batches, EMPTY_SNAPSHOT, lambda visible: "n" in visible.nodes and visible.nodes["n"].cpu_used == 2.0
            )
            assert (is_measured.nodes, is_measured.pods) == (snapshot.nodes, snapshot.pods)
            assert watch.stale_seconds == 0.0


async def test_a_snapshot_needs_pods_and_names_any_other_kind_that_is_missing(cluster):
    cluster.failing = {"events"}
    async with connected(cluster) as api:
        snapshot = await ClusterWatch(api, SlotRule(), FAST).snapshot()
        assert set(snapshot.pods) == {"p"}
        assert snapshot.problems == ("events in the namespace default cannot be read: broken.",)
        cluster.failing = {"pods"}
        with pytest.raises(ApiError, match="broken"):
            await ClusterWatch(api, SlotRule(), FAST).snapshot()


async def test_a_pod_that_cannot_be_decoded_is_shown_and_makes_its_node_s_slots_unknown(cluster):
    cluster.items["pods"] = [{**POD, "status": {"phase": ["odd"]}}]
    async with connected(cluster) as api:
        snapshot = await ClusterWatch(api, SlotRule(), FAST).snapshot()
    assert snapshot.pods["p"].reason == "Unreadable"
    assert SlotState.FREE not in states(snapshot)
    assert snapshot.problems[0].startswith("1 of the pods cannot be decoded: ml/p (")


async def test_permissions_that_are_withdrawn_and_granted_change_what_is_shown(cluster):
    other = {**POD, "metadata": {**POD["metadata"], "name": "mine", "uid": "mine", "namespace": "default"}}
    async with connected(cluster) as api, aclosing(ClusterWatch(api, SlotRule(), FAST).watch()) as batches:
        cluster.allowed = lambda _, namespace: namespace is not None
        cluster.items["pods"] = [other]
        hidden = await until(
            batches, EMPTY_SNAPSHOT, lambda snapshot: "mine" in snapshot.pods and len(snapshot.problems) == 2
        )
        assert ("pods", "default") in cluster.lists
        assert set(states(hidden)) <= {SlotState.UNKNOWN, SlotState.BUSY}, "foreign pods are hidden"
        cluster.allowed = lambda *_: True
        cluster.items["pods"] = [POD]
        # While its watches are reopened, kinds may be old for a moment, which is reported.
        visible = await until(
            batches, hidden, lambda snapshot: set(snapshot.pods) == {"p"} and not snapshot.problems
        )
        assert states(visible) == [SlotState.BUSY] + [SlotState.FREE] * 3


async def test_a_kind_that_fails_is_reported_once_with_the_time_and_the_others_go_on(cluster):
    cluster.failing = {"nodes"}
    async with connected(cluster) as api, aclosing(ClusterWatch(api, SlotRule(), FAST).watch()) as batches:
        first = await until(batches, EMPTY_SNAPSHOT, lambda snapshot: bool(snapshot.problems))
        (sentence,) = first.problems
        assert sentence.startswith("nodes are not read yet, or shown as of ")
        assert "broken" in sentence
        cluster.failing = set()
        snapshot = await until(batches, first, lambda snapshot: snapshot.nodes and not snapshot.problems)
        assert snapshot.nodes["n"].name == NODE["metadata"]["name"]


async def test_a_server_that_answers_nothing_is_silent_and_its_watches_are_opened_again_when_it_is_back(cluster):
    liveness = LivenessTiming(quiet=0.1, answer=0.1, silent=0.3, again=0.05)
    async with connected(cluster) as api:
        watch = ClusterWatch(api, SlotRule(), FAST, clock=lambda: 1000.0, liveness=liveness)
        async with aclosing(watch.watch()) as batches:
            snapshot = await until(
                batches, EMPTY_SNAPSHOT, lambda snapshot: snapshot.pods and not snapshot.problems
            )
            assert snapshot.silent_since is None
            cluster.running.clear()
            snapshot = await until(batches, snapshot, lambda snapshot: snapshot.silent_since is not None)
            assert 990.0 < snapshot.silent_since <= 999.8
            assert set(snapshot.pods) == {"p"}, "what was seen stays, and is old"
            watches, lists = cluster.watches, len(cluster.lists)
            cluster.running.set()
            snapshot = await until(batches, snapshot, lambda snapshot: snapshot.silent_since is None)
            async with asyncio.timeout(30):
                while cluster.watches < 2 * watches:
                    await asyncio.sleep(0.01)
            assert cluster.lists[lists:] == [], "each watch resumes, nothing is listed again"


@pytest.mark.parametrize("has_monotonic_clock_stood", [False, True], ids=["process-stopped", "machine-slept"])
def test_after_four_minutes_of_sleep_the_age_is_said_and_all_that_is_watched_is_listed_anew(
    cluster, has_monotonic_clock_stood
):
    run_virtually(sleep_and_wake(cluster, has_monotonic_clock_stood))


async def sleep_and_wake(cluster, has_monotonic_clock_stood):
    loop, slept = asyncio.get_running_loop(), 0.0
    later = {**POD, "metadata": {**POD["metadata"], "name": "later", "uid": "later"}}

    def clock():
        return 1_700_000_000.0 + loop.time() + slept

    async with serving(Server(on_request=cluster.answer)) as server:
        api = server.api()
        async with aclosing(ClusterWatch(api, SlotRule(), clock=clock).watch()) as batches:
            snapshot = await until(batches, EMPTY_SNAPSHOT, lambda snapshot: snapshot.pods)
            await asyncio.sleep(30.0)
            went = clock()
            assert cluster.watches >= len(cluster.lists) > 3, "every kind is watched"
            if has_monotonic_clock_stood:
                slept = 240.0
            else:
                loop.stop_for(240.0)
            # The open watches are dead and silent, their revision is compacted, and the network is not up yet.
            cluster.items["pods"], cluster.is_compacted = [later], True
            cluster.running.clear()
            snapshot = await until(batches, snapshot, lambda snapshot: snapshot.silent_since is not None)
            assert went - 5.0 <= snapshot.silent_since <= went
            assert clock() - went < 250.0
            assert set(snapshot.pods) == {"p"}, "what was seen stays, and is old"
            listed = {kind for kind, _ in cluster.lists}
            cluster.lists.clear()
            cluster.running.set()
            back = loop.time()
            snapshot = await until(batches, snapshot, lambda snapshot: set(snapshot.pods) == {"later"})
            assert snapshot.silent_since is None
            assert loop.time() - back < 6.0
            assert {kind for kind, _ in cluster.lists} == listed
        await api.close()


async def test_a_login_that_is_refused_is_said_and_what_it_covers_becomes_unknown(cluster, monkeypatch):
    monkeypatch.setattr(cluster_watch, "_SIGHT_SECONDS", 0.05)
    monkeypatch.setattr(cluster_watch, "_UNSEEN_SECONDS", 0.1)
    async with connected(cluster) as api, aclosing(ClusterWatch(api, SlotRule(), FAST).watch()) as batches:
        snapshot = await until(batches, EMPTY_SNAPSHOT, lambda snapshot: snapshot.pods and not snapshot.problems)
        assert [pod.phase for pod in snapshot.pods.values()] == [Phase.RUNNING]
        cluster.refuses_login = True
        # The open watches still bring what happens.
        # On a busy machine the server may be called silent first.
        snapshot = await until(
            batches, snapshot, lambda snapshot: snapshot.problems[:1] and "login refused" in snapshot.problems[0]
        )
        assert snapshot.problems[0].startswith("login refused since ")
        cluster.cut_watches()
        snapshot = await until(
            batches, snapshot, lambda snapshot: {pod.reason for pod in snapshot.pods.values()} == {"Unseen"}
        )
        (pod,) = snapshot.pods.values()
        assert (pod.phase, pod.ready) == (Phase.UNKNOWN, False)
        assert "the login is refused. Log in to the cluster again" in pod.message
        cluster.refuses_login = False
        snapshot = await until(
            batches, snapshot, lambda snapshot: {pod.phase for pod in snapshot.pods.values()} == {Phase.RUNNING}
        )
        await until(batches, snapshot, lambda snapshot: not snapshot.problems)


async def test_a_namespace_that_is_gone_is_said(cluster, monkeypatch):
    monkeypatch.setattr(cluster_watch, "_SIGHT_SECONDS", 0.05)
    async with connected(cluster) as api:
        watch = ClusterWatch(api, SlotRule(), FAST)
        async with aclosing(watch.watch()) as batches:
            snapshot = await until(batches, EMPTY_SNAPSHOT, lambda snapshot: snapshot.pods)
            cluster.gone.add("default")
            gone = ("The namespace default does not exist.",)
            # On a busy machine the server may be called silent first.
            await until(batches, snapshot, lambda snapshot: snapshot.problems == gone)
        assert "The namespace default does not exist." in (await watch.snapshot()).problems
