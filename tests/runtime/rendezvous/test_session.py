"""Sessions at one rendezvous within one process: rounds, stores, ends, and a rendezvous that forgets or fails."""

from __future__ import annotations

import fcntl
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.distributed import DistStoreError, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousClosedError, rendezvous_handler_registry
from torch.distributed.elastic.utils import store as store_util

from runtime.base.addresses import parse
from runtime.base.metrics import Console
from runtime.jobs.elastic.node import node_folder
from runtime.jobs.elastic.plan import ElasticPlan
from runtime.rendezvous.handler import GivenUpError, RendezvousHandler, configuration
from runtime.rendezvous.round_state import FAILED, FINISHED
from runtime.rendezvous.session import RendezvousSession
from runtime.rendezvous.shared_values import MemoryValues
from tests.runtime.programs import wait_for


def plan(name="a", min_nodes=2, max_nodes=2, max_restarts=3, place=None) -> ElasticPlan:
    return ElasticPlan(
        backend="c10d", endpoint=parse("tcp://127.0.0.1:29400"), run_id="run", min_nodes=min_nodes,
        max_nodes=max_nodes, processes=None, max_restarts=max_restarts, gather_seconds=1, command=("x",),
        local_address="127.0.0.1", token="", name=name, folder=None, place=place,
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def opened_by_torch():
    """The pipe that torch's store opens with its first server, and never closes."""
    TCPStore("127.0.0.1", 0, 1, is_master=True)


@pytest.fixture
def sessions():
    store = MemoryValues()
    made = []

    def make(name, processes=1, **limits) -> RendezvousSession:
        session = RendezvousSession(store, plan(name, **limits), processes, Console())
        session.start()
        made.append(session)
        return session

    with ThreadPoolExecutor() as pool:
        make.together = lambda call, *given: list(pool.map(call, given))
        make.store = store
        yield make
        for session in made:
            session.close()


def test_two_nodes_join_one_round_and_one_that_leaves_ends_it(sessions):
    first, second = sessions("a"), sessions("b")
    states = sessions.together(RendezvousSession.join, first, second)
    assert [node.id for node in states[0].members] == [node.id for node in states[1].members]
    assert {node.name for node in states[0].members} == {"a", "b"}
    assert not first.is_round_over()
    second.leave()
    wait_for(first.is_round_over, "the end of the round", seconds=20)


def test_at_a_fixed_place_a_new_start_replaces_the_one_before_at_once(sessions):
    second, first = sessions("b", place=1), sessions("a", place=0)
    states = sessions.together(RendezvousSession.join, second, first)
    assert [node.name for node in states[0].members] == ["a", "b"], "by place"
    again = sessions("a again", place=0)
    wait = ThreadPoolExecutor().submit(again.join)
    wait_for(second.is_round_over, "the end of the round", seconds=5)
    assert [node.name for node in second.join().members] == ["a again", "b"]
    assert wait.result(10).members[0].name == "a again"
    assert first.is_round_over()


def test_the_first_end_stands_and_who_joins_then_is_told(sessions):
    first, second = sessions("a"), sessions("b")
    sessions.together(RendezvousSession.join, first, second)
    assert first.finish(FAILED) == FAILED
    assert second.finish(FINISHED) == FAILED
    wait_for(second.is_round_over, "word of the failure", seconds=20)
    with pytest.raises(RendezvousClosedError, match="the training has failed"):
        second.join()


def test_a_rendezvous_that_has_forgotten_its_nodes_is_an_error(sessions):
    session = sessions("a", min_nodes=1, max_nodes=1)
    session.join()
    key = "l2r/elastic/run"
    sessions.store.replace(key, sessions.store.read(key), '{"version":0}')

    def has_failed() -> bool:
        try:
            session.is_round_over()
        except OSError as error:
            return "has forgotten its nodes" in str(error)
        return False

    wait_for(has_failed, "the thread's error", seconds=20)


def test_agents_learn_each_others_processes_and_wait_for_each_other(sessions):
    first, second = sessions("a", processes=2), sessions("b", processes=1)
    handlers = [RendezvousHandler(session, plan(), lambda *_: None) for session in (first, second)]
    infos = sessions.together(RendezvousHandler.next_rendezvous, *handlers)
    assert sorted(info.rank for info in infos) == [0, 1]
    assert infos[0].bootstrap_store_info == infos[1].bootstrap_store_info
    assert os.environ.pop("L2R_ROUND") == "0"
    stores = [info.store for info in infos]
    stores[0].multi_set(["x/0", "x/1"], [b"\x00\xff", "text"])
    assert stores[1].multi_get(["x/0", "x/1"]) == [b"\x00\xff", b"text"]
    stores[0].set("x/1", "other")
    stores[0].set("x/1", "other")
    assert stores[1].get("x/1") == b"other"
    sessions.together(lambda store: store_util.barrier(store, 2, "end"), *stores)
    # No other node can join this one: the round's end ends the waits.
    second.leave()
    store_util.barrier(stores[0], 2, "again")
    with pytest.raises(DistStoreError, match="is gone"):
        stores[0].get("never")


def test_failures_are_counted_per_membership_and_end_the_job(sessions):
    handler = RendezvousHandler(
        sessions("a", min_nodes=1, max_nodes=2), plan(min_nodes=1, max_restarts=1), lambda *_: None
    )
    handler.next_rendezvous()
    handler.next_rendezvous()
    with pytest.raises(GivenUpError, match="failed 2 times with the same nodes"):
        handler.next_rendezvous()
    os.environ.pop("L2R_ROUND")


def test_torchs_launcher_knows_the_handler_and_the_plain_name_says_whose_it_is(sessions):
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    handler = RendezvousHandler(sessions("a"), plan(), lambda *_: None)
    for _ in range(2):
        config = configuration(handler)
    parameters = RendezvousParameters(config["rdzv_backend"], "", "run", 1, 1, **config["rdzv_configs"])
    assert rendezvous_handler_registry.create_handler(parameters) is handler
    with pytest.raises(TypeError, match="is for nodes of `l2r-runtime`"):
        rendezvous_handler_registry.create_handler(RendezvousParameters("l2r", "", "run", 1, 1))


def test_a_nodes_folder_is_removed_at_its_end_or_by_the_next_node(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, alive, starting = (tmp_path / f"l2r-elastic-{name}" for name in ("killed", "alive", "starting"))
    for folder in (killed, alive):
        (folder / "state").mkdir(parents=True)
    starting.mkdir()
    descriptor = os.open(alive, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with node_folder() as folder:
        assert {path.name for path in folder.iterdir()} == {"logs", "state"}
        assert Path(folder).parent == tmp_path
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([folder.name, alive.name, starting.name])
    assert not folder.exists()
    os.close(descriptor)
