"""Strangers at the port of a real learner: no code is executed, memory stays stable, training continues."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from runtime.base import contract
from runtime.exchange.protocol.framing import decode
from runtime.exchange.protocol.messages import ProtocolError
from runtime.exchange.transport import curve_keys
from tests.fakes.abuse import abuse, almost
from tests.fakes.faults import free_port
from tests.runtime.conftest import RunUnderTest

pytestmark = pytest.mark.process


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.timeout(300)
def test_a_port_that_is_abused_executes_nothing_and_trains_on(
    run: RunUnderTest, wait_until: Callable[..., Any], encrypted: bool
) -> None:
    port = free_port()
    run.endpoint = f"tcp://127.0.0.1:{port}"
    (run.folder / "token").write_text("right")
    variables = {contract.ENV_TOKEN_FILE: str(run.folder / "token")}
    if encrypted:
        folder = run.folder / "keys"
        folder.mkdir()
        for name, content in curve_keys.make_files().items():
            (folder / name).write_bytes(content)
        variables[contract.ENV_KEYS] = str(folder)
    learner, worker = run.start("learner", **variables), run.start("worker", **variables)
    wait_until(lambda: learner.last("learner").get("updates", 0) > 0, "updates", seconds=120.0, log=learner)
    trap = run.folder / "executed"
    resident = psutil.Process(learner.process.pid).memory_info().rss
    before = learner.last("learner")
    done = abuse(port, 6.0, str(trap), connections=200)
    assert done["shouts"] > 10
    wait_until(lambda: learner.last("learner")["updates"] > before["updates"], "more updates", log=learner)
    after = learner.last("learner")
    assert psutil.Process(learner.process.pid).memory_info().rss < resident + 64 * 2**20
    assert not trap.exists()
    assert (after["malformed"] > 0) is not encrypted, "with keys no stranger's message is even looked at"
    assert worker.end() == learner.end() == contract.EXIT_DONE
    assert "Traceback" not in learner.text()
    last = learner.last("learner")
    assert last["accepted"] * 32 == last["env_steps"]


@pytest.fixture
def silent_crowd() -> Iterator[Callable[[int, int], None]]:
    """Return a function that connects a number of clients to a port; they speak ZeroMQ and never say Hello."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[1], 4_096), limits[1]))
    clients: list[zmq.Socket[bytes]] = []
    with zmq.Context() as context:

        def connect(port: int, count: int) -> None:
            for number in range(count):
                clients.append(client := context.socket(zmq.DEALER))
                client.setsockopt(zmq.LINGER, 0)
                client.setsockopt(zmq.IDENTITY, b"silent-%d" % number)
                client.connect(f"tcp://127.0.0.1:{port + number % 2}")

        yield connect
        for client in clients:
            client.close(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_silent_connections_stop_neither_checkpoints_nor_members(
    run: RunUnderTest, wait_until: Callable[..., Any], silent_crowd: Callable[[int, int], None]
) -> None:
    port = free_port()
    run.endpoint = f"tcp://127.0.0.1:{port}"
    run.settings |= {"checkpoint_seconds": 1.0}
    (run.folder / "token").write_text("right")
    variables = {contract.ENV_TOKEN_FILE: str(run.folder / "token")}
    run.prefix = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh"]
    learner, first = run.start("learner", **variables), run.start("worker", **variables)
    wait_until(lambda: learner.last("learner").get("updates", 0) > 0, "updates", seconds=120.0, log=learner)
    silent_crowd(port, 400)
    wait_until(lambda: "file descriptors are in use" in learner.text(), "a warning", seconds=60.0, log=learner)
    wait_until(lambda: "descriptors_used" in learner.last("learner"), "a record of it", seconds=60.0, log=learner)
    before = learner.text().count("checkpoint ckpt-")
    second = run.start("worker", 1, **variables)
    wait_until(lambda: "worker w-1 joined" in learner.text(), "a member", seconds=60.0, log=learner)
    wait_until(lambda: learner.text().count("checkpoint ckpt-") >= before + 3, "checkpoints", log=learner)
    assert learner.text().count("file descriptors are in use") == 1
    assert "could not be written" not in learner.text()
    assert first.end() == second.end() == learner.end() == contract.EXIT_DONE


@given(st.integers(0, 2**32))
def test_what_is_almost_a_message_is_one_or_is_refused(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    trap = tmp_path_factory.getbasetemp() / "missing" / "trap"
    try:
        message, arena = decode(almost(random.Random(seed), str(trap)))
    except ProtocolError:
        return
    assert message.kind
    assert arena is None or arena.nbytes <= 200_000
    assert not trap.exists()
