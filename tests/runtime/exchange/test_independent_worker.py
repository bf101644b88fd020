"""A worker written from docs/exchange.md with ZeroMQ and the standard library trains along with a real learner."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.base import contract
from runtime.exchange.protocol.messages import KINDS, RefusalCode
from tests.fakes.faults import free_port
from tests.runtime.conftest import RunUnderTest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
PLAIN = ROOT / "tests" / "fakes" / "plain_worker.py"
PAGE = (ROOT / "docs" / "exchange.md").read_text()
SEGMENT = 64


def start(run: RunUnderTest, token: str = "") -> subprocess.Popen[bytes]:
    arguments = [run.endpoint, "test", "test-1", "stranger-0", "4610", str(SEGMENT), token]
    return subprocess.Popen([sys.executable, "-I", str(PLAIN), *arguments], stdout=subprocess.PIPE)


def test_it_imports_nothing_but_zeromq_and_the_standard_library() -> None:
    tree = ast.parse(PLAIN.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names | {"zmq"}


@pytest.mark.slow
def test_it_trains_along_and_outlives_the_learner(run: RunUnderTest, wait_until: Callable[..., Any]) -> None:
    run.endpoint = f"tcp://127.0.0.1:{free_port()}"
    run.settings = {
        "environment": "CartPole-v1",
        "algorithm": "ppo",
        "num_envs": 1,
        "segment_steps": SEGMENT,
        "ppo": {"batch_steps": 2 * SEGMENT},
        "band_steps": 1024,
        "checkpoint_seconds": 0.5,
    }
    learner = run.start("learner")
    worker = start(run)
    wait_until(lambda: learner.last("learner").get("updates", 0) >= 6, "updates", log=learner)
    before = learner.last("learner")
    assert before["accepted"] * SEGMENT == before["env_steps"]
    assert before["mean_return"] > 5
    wait_until(lambda: "checkpoint ckpt-" in learner.text(), "a checkpoint", log=learner)
    learner.end(9)

    run.settings["total_env_steps"] = before["env_steps"] + 20 * SEGMENT
    successor = run.start("learner")
    assert successor.process.wait(60) == contract.EXIT_DONE, successor.text()
    last = successor.last("learner")
    assert last["accepted"] * SEGMENT == last["env_steps"]
    assert (last["malformed"], last["lost"]) == (0, 0)
    assert last["updates"] > before["updates"]
    output, _ = worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert json.loads(output)["over"][0] == "done"
    assert json.loads(output)["version"] > 0


def test_it_is_told_why_it_is_refused(run: RunUnderTest, wait_until: Callable[..., Any]) -> None:
    run.endpoint = f"tcp://127.0.0.1:{free_port()}"
    learner = run.start("learner")
    wait_until(lambda: "ready" in learner.text(), "the learner", log=learner)
    worker = start(run)
    output, _ = worker.communicate(timeout=30)
    assert worker.returncode == contract.EXIT_REFUSED
    assert "its environment is CartPole-v1 and the learner's racing" in json.loads(output)["over"][1]
    assert learner.end() == contract.EXIT_DONE


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_page_names_every_message_with_all_its_fields(kind: str) -> None:
    (row,) = (
        line
        for line in PAGE.split("\n")
        if re.match(rf"\| `{kind}`( \+ arena)? \|", line) and "as above" not in line
    )
    names = set(re.findall(r"`(\w+)`", row.split("|")[2]))
    assert names == set(KINDS[kind].__struct_fields__)


def test_the_page_names_the_version_and_every_refusal() -> None:
    assert f"Version {contract.PROTOCOL_VERSION}." in PAGE
    for code in RefusalCode:
        assert f"`refused` `{code.value}`" in PAGE
