"""Strangers at the port of a real learner: no code is executed, memory stays stable, training continues."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.base import contract
from runtime.exchange.protocol.framing import decode
from runtime.exchange.protocol.messages import ProtocolError
from runtime.exchange.transport import curve_keys
from tests.fakes.abuse import abuse, almost
from tests.runtime.conftest import RunUnderTest
from tests.runtime.exchange.test_sockets import free_ports

pytestmark = pytest.mark.process


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.timeout(300)
def test_a_port_that_is_abused_executes_nothing_and_trains_on(
    run: RunUnderTest, wait_until: Callable[..., Any], encrypted: bool
) -> None:
    port = free_ports()
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
