"""Weights used by a worker in the learner's memory: never mixed from two versions, never from freed memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.base.addresses import Endpoint, parse
from runtime.base.metrics import Console
from runtime.base.signals import Stop
from runtime.base.training import Settings
from runtime.exchange import learner_client
from runtime.exchange.learner_client import LearnerClient
from runtime.exchange.learner_server import LearnerServer
from runtime.exchange.machines.member_state import SessionTerms, Totals
from runtime.exchange.policy_store import F4
from runtime.exchange.protocol.framing import SegmentArena
from runtime.exchange.protocol.messages import Get, Trajectory
from runtime.exchange.transport import shared_memory, weights_cache
from runtime.exchange.transport.shared_memory import SharedMemoryError
from runtime.exchange.transport.weights_cache import WeightsCache
from runtime.rl.algos.actor import NumpyActor
from runtime.rl.buffers.replay import Replay
from runtime.rl.roles.launch_context import Context, environment_plan, make_environment
from runtime.rl.roles.rate_limiter import RateLimiter
from runtime.rl.roles.worker import RolloutWorker
from tests.fakes.faults import free_port

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs sealed memory files"),
    pytest.mark.usefixtures("no_leaks"),
]
SETTINGS = Settings(environment="Pendulum-v1", num_envs=2, segment_steps=4, hidden=(160, 160), warmup_steps=0)
"""A policy of 100 KB: large enough for the learner's memory."""


def context_at(place: Path | str, pod: str = "w-0") -> Context:
    """``place`` is a folder for sockets, or the text of an endpoint."""
    return Context(
        "r",
        "id",
        pod,
        "worker",
        0,
        1,
        endpoint_of(place),
        "",
        None,
        1.0,
        environment=SETTINGS.environment,
        settings=SETTINGS,
    )


def endpoint_of(place: Path | str) -> Endpoint:
    return parse(place if isinstance(place, str) else f"ipc://{place}")


class Learner:
    """The exchange of a learner that only publishes: a version is its number in every weight."""

    def __init__(self, place: Path | str, epoch: int) -> None:
        plan = environment_plan(SETTINGS, make_environment(SETTINGS, 1, {}))
        terms = SessionTerms(
            run="r",
            run_id="id",
            token="",
            epoch=epoch,
            environment=SETTINGS.environment,
            layout=plan.layout.text,
            actor_floats=plan.shape.size,
            transition_bytes=plan.layout.item_bytes,
            tail_bytes=plan.layout.tail_bytes,
            segment_transitions=plan.segment_transitions,
            max_policy_lag=1_000,
        )
        self._floats = plan.shape.size
        self.store = Replay(10_000, plan.layout, 0)
        limiter = RateLimiter(0, 1.0, 10**9)
        self._exchange = LearnerServer(endpoint_of(place), None, terms, self.store, limiter, lambda _: None)
        self._exchange.start()

    def publish(self, version: int) -> None:
        # As if a worker of this host had requested weights, so that each version is put into shared memory
        # immediately.
        self._exchange.policies.answer_get(Get("", 0, 0, F4, shared_memory.host_identity()))
        self._exchange.publish(version, np.full(self._floats, version * 1e-6, dtype=np.float32), 0)

    def record(self) -> dict[str, Any]:
        return self._exchange.metric_fields()

    def totals(self) -> dict[str, int]:
        return dict(self._exchange.status()["traffic"])

    def through_memory(self) -> bool:
        return any(peer["through_memory"] for peer in self._exchange.status()["peers"])

    @property
    def accounts(self) -> Totals:
        return self._exchange.membership.accounts.totals

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exchange.close()


@contextmanager
def peer_at(place: Path | str, pod: str = "w-0") -> Iterator[LearnerClient[NumpyActor]]:
    context = context_at(place, pod)
    plan = environment_plan(SETTINGS, make_environment(SETTINGS, 1, {}))
    actor = NumpyActor(plan.shape)
    with LearnerClient(context, actor, plan.layout, plan.segment_transitions, Console()) as peer:
        yield peer


def until_adopted(peer: LearnerClient[NumpyActor], version: int, *, in_place: bool = True) -> bool:
    peer.exchange(0.01)
    peer.use_newest_weights(in_place=in_place)
    return peer.policy_version == version


def is_all_of(weights: NDArray[Any], version: int) -> bool:
    return bool((weights == np.float32(version * 1e-6)).all())


def test_weights_in_place_are_the_learner_s_own_until_it_writes_over_them(short_folder, wait_until) -> None:
    with Learner(short_folder, 1) as learner, peer_at(short_folder) as peer:
        learner.publish(1)
        wait_until(lambda: until_adopted(peer, 1), "the first version")
        lent = peer.actor.weights
        assert is_all_of(lent, 1)
        assert not lent.flags.writeable
        for version in (2, 3):
            learner.publish(version)
            assert not peer.is_overtaken
        assert is_all_of(lent, 1), "two later versions leave it as it is"
        learner.publish(4)
        assert peer.is_overtaken
        peer.use_newest_weights(in_place=True)
        assert (peer.policy_version, peer.is_overtaken) == (4, False), "the newest, without another word"
        assert is_all_of(peer.actor.weights, 4)
        learner.publish(5)
        wait_until(lambda: until_adopted(peer, 5, in_place=False), "a copy of the fifth")
        for version in range(6, 10):
            learner.publish(version)
        assert is_all_of(peer.actor.weights, 5), "a copy is nobody else's"
        assert not peer.is_overtaken


def test_weights_of_a_learner_that_is_gone_stay_until_those_of_the_next_come(short_folder, wait_until) -> None:
    with peer_at(short_folder) as peer:
        with Learner(short_folder, 1) as first:
            first.publish(1)
            wait_until(lambda: until_adopted(peer, 1), "the first version")
        assert is_all_of(peer.actor.weights, 1)
        assert not peer.is_overtaken
        with Learner(short_folder, 2) as second:
            second.publish(7)
            wait_until(lambda: until_adopted(peer, 7), "the next learner's")
            assert is_all_of(peer.actor.weights, 7)


def test_a_step_with_weights_of_two_versions_is_not_taken(short_folder, wait_until) -> None:
    with Learner(short_folder, 1) as learner, peer_at(short_folder) as peer:
        learner.publish(1)
        wait_until(lambda: until_adopted(peer, 1), "the first version")
        env = make_environment(SETTINGS, SETTINGS.num_envs, {})
        plan = environment_plan(SETTINGS, env)
        worker = RolloutWorker(context_at(short_folder), plan, env, peer, Console())
        outputs, stop, used = peer.actor.outputs, Stop(), list[tuple[int, bool]]()

        def disturbed(obs: NDArray[Any]) -> NDArray[np.float32]:
            result = outputs(obs)
            if len(used) == 5:
                for version in range(2, 5):
                    learner.publish(version)
            used.append((peer.policy_version, peer.is_overtaken))
            if len(used) == 9:
                stop.reason = "enough"
            return result

        peer.actor.outputs = disturbed
        worker.loop(stop)
        assert used == [*[(1, False)] * 5, (1, True), *[(4, False)] * 3]
        assert peer.env_steps == 8 * SETTINGS.num_envs, "one of nine was not taken"
        wait_until(lambda: learner.store.inserted == 2 * SETTINGS.segment_transitions, "both segments")


def test_a_segment_whose_tail_does_not_belong_to_it_is_a_misfit_and_harms_nobody(short_folder, wait_until) -> None:
    """Between two valid ones in the same message; the learner continues."""
    with Learner(short_folder, 1) as learner, peer_at(short_folder) as peer:
        layout = learner.store.layout
        for truncated in (1, 0, 1):  # two observations after four steps of one copy: one of them was truncated
            arena = SegmentArena.of(bytearray(layout.segment_bytes(4, 2)))
            columns = layout.columns(arena.view, 4, 2)
            for column in columns:
                column[:] = 0
            columns[layout.names.index("ended")][3] = 2 * truncated + (1 - truncated) * 4
            peer.session.queue_segment(Trajectory(4, 0, 0, 0, 0.0, 0.0, 2), arena)

        def settled() -> bool:
            peer.exchange(0.01)
            return peer.session.is_joined and peer.session.unsettled == 0

        wait_until(settled, "all three")
        totals = learner.accounts
        assert (totals.accepted, totals.misfit) == (2, 1)
        assert learner.store.inserted == 8


def test_a_learner_records_its_traffic_and_names_its_peers_when_they_change(short_folder, wait_until) -> None:
    with Learner(short_folder, 1) as learner:
        alone = learner.record()
        assert (alone["peers"], alone["workers"], alone["evaluators"]) == ([], 0, 0)
        assert alone["listens"] == [f"ipc://{short_folder}/data.sock", f"ipc://{short_folder}/model.sock"]
        assert {"stale", "inflight_transitions"} <= alone.keys()
        with peer_at(short_folder) as peer:
            learner.publish(1)
            wait_until(lambda: until_adopted(peer, 1), "the first version")
            wait_until(lambda: learner.totals()["messages_out"] >= 2, "a welcome and the weights counted")
            record = learner.record()
            assert (record["peers"], record["workers"]) == (["w-0"], 1)
            for name in ("messages_in", "bytes_in", "messages_out", "bytes_out"):
                assert record[f"{name}_per_second"] > 0, name
            assert record["inflight_transitions"] > 0, "credit for segments that have not come"
            later = [learner.record() for _ in range(15)]
            assert [number for number, row in enumerate(later) if "peers" in row] == [14], "else now and then"
        wait_until(lambda: learner.record().get("peers") == [], "the goodbye")


def test_segments_in_shared_memory_count_as_bytes_that_came(short_folder, wait_until) -> None:
    with Learner(short_folder, 1) as learner, peer_at(short_folder) as peer:
        layout = learner.store.layout

        def settled() -> bool:
            peer.exchange(0.01)
            return peer.session.is_joined and peer.session.unsettled == 0

        def sent(count: int) -> int:
            before = learner.totals()["bytes_in"]
            for _ in range(count):
                arena = SegmentArena.of(bytearray(layout.segment_bytes(4, 1)))
                for column in layout.columns(arena.view, 4, 1):
                    column[:] = 0
                peer.session.queue_segment(Trajectory(4, 0, 0, 0, 0.0, 0.0, 1), arena)
            wait_until(settled, "all of them")
            return learner.totals()["bytes_in"] - before

        size = layout.segment_bytes(4, 1)
        assert sent(1) >= size
        wait_until(lambda: peer.exchange(0.01) or learner.through_memory(), "a ring")
        assert sent(3) >= 3 * size
        assert learner.accounts.accepted == 4


@pytest.fixture
def remote(monkeypatch, tmp_path) -> Iterator[tuple[Learner, list[LearnerClient[NumpyActor]]]]:
    """A learner on a TCP port, and workers whose host is not the learner's."""
    # Not the machine's: another test with the same run may use that at the same time.
    monkeypatch.setattr(weights_cache, "_MEMORY", tmp_path)
    monkeypatch.setattr(learner_client, "PULL_SECONDS", 0.3)
    place = f"tcp://127.0.0.1:{free_port()}"
    with Learner(place, 1) as learner, ExitStack() as stack:
        monkeypatch.setattr(shared_memory, "host_identity", lambda: "")
        yield learner, [stack.enter_context(peer_at(place, f"w-{index}")) for index in range(4)]


def all_have(peers: list[LearnerClient[NumpyActor]], version: int) -> bool:
    return {until_adopted(peer, version, in_place=False) for peer in peers} == {True}


def test_a_version_is_sent_once_to_a_host_whatever_the_number_of_its_workers(remote, wait_until, tmp_path) -> None:
    learner, peers = remote
    size = peers[0].actor.weights.nbytes
    for version in range(1, 6):
        before = learner.totals()["bytes_out"]
        learner.publish(version)
        wait_until(lambda version=version: all_have(peers, version), "all workers have it")
        assert all(is_all_of(peer.actor.weights, version) for peer in peers)
        assert learner.totals()["bytes_out"] - before < 1.5 * size
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(list(folder.glob("*.weights"))) == 1, "older versions are removed"
    for peer in peers:
        peer.close_cache()
    assert not folder.exists(), "the last one removes it"


def test_a_worker_asks_itself_when_the_one_that_asks_is_gone_or_stuck(remote, wait_until) -> None:
    learner, (stuck, *others) = remote
    wait_until(
        lambda: {until_adopted(peer, 0) and peer.session.is_joined for peer in (stuck, *others)} == {True},
        "all join",
    )
    assert stuck.cache.may_ask(), "it asks, and nothing more is heard of it"
    learner.publish(1)
    wait_until(lambda: all_have(others, 1), "the others have it")
    stuck.cache.close()
    stuck.cache = None
    before = learner.totals()["bytes_out"]
    learner.publish(2)
    wait_until(lambda: all_have(others, 2), "the others have it")
    assert learner.totals()["bytes_out"] - before < 1.5 * stuck.actor.weights.nbytes, "its lock went with it"


@pytest.mark.process
def test_folders_of_killed_workers_are_removed_and_those_of_others_are_not_used(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(weights_cache, "_MEMORY", tmp_path)
    script = (
        "import os, pathlib, sys; from runtime.exchange.transport import weights_cache as module\n"
        "module._MEMORY = pathlib.Path(sys.argv[1]); cache = module.WeightsCache('old', '', 'f4', 4)\n"
        "assert cache.may_ask() and cache.put(1, 1, memoryview(bytes(16))); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == -9
    (left,) = tmp_path.iterdir()
    used = WeightsCache("used", "", "f4", 4)
    assert not left.exists()
    assert used.newest(1, 0) is None
    assert used.put(1, 3, memoryview(b"0123456789abcdef"))
    (folder,) = tmp_path.iterdir()
    (folder / "f4-1-9.partial-17").write_bytes(b"half")
    (folder / "bf2-1-9.weights").write_bytes(b"in another form")
    beside = WeightsCache("used", "", "f4", 4)
    version, weights = beside.newest(1, 2) or (0, memoryview(b""))
    assert (version, bytes(weights)) == (3, b"0123456789abcdef")
    assert beside.newest(1, 3) is None
    assert beside.newest(2, 0) is None, "of another learner"
    folder.chmod(0o777)
    with pytest.raises(SharedMemoryError, match="others may write"):
        WeightsCache("used", "", "f4", 4)
    used.close()
    assert folder.exists()
    beside.close()
    assert not folder.exists()
