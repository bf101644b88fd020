"""Nodes of a learner, each a process of this machine; and ranks that are stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from runtime.base import contract
from runtime.base.errors import SetupError
from runtime.base.metrics import Console
from runtime.base.signals import Stop
from runtime.rl.checkpoints.checkpoint_files import Checkpoints
from runtime.rl.roles import rank_launcher
from runtime.rl.roles.launch_context import Context
from tests.runtime.conftest import RunUnderTest, Started
from tests.runtime.rl.roles.test_ranks import OWN, SHARED, assert_exact, ranks_of

WITH_WORKERS: dict[str, Any] = {**OWN, **SHARED["ppo"], "collect": "workers", "num_envs": 16}


def peers_of(run: RunUnderTest, nodes: int) -> dict[str, str]:
    """Return the variables of each node."""
    peers = [f"ipc://{run.folder}/n{index}" for index in range(nodes)]
    return {contract.ENV_PEERS: json.dumps({"learner": peers}), contract.ENV_SET: "learner"}


def start_node(run: RunUnderTest, index: int, nodes: int = 2) -> Started:
    """Start a node; only node 0 has the folder of checkpoints."""
    folder = str(run.folder / ("run" if index == 0 else f"own-{index}"))
    return run.start("learner", index, **peers_of(run, nodes), **{contract.ENV_DIR: folder})


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("settings", [OWN, WITH_WORKERS], ids=["device", "workers"])
def test_a_run_resumes_on_another_number_of_nodes(run: RunUnderTest, settings: dict[str, Any]) -> None:
    for updates, nodes in ((3, 1), (6, 2), (9, 1)):
        run.settings = {**settings, "devices": nodes, "total_updates": updates}
        learners = [start_node(run, index, nodes) for index in range(nodes)]
        workers = [run.start("worker")] if settings is WITH_WORKERS else []
        for started in (*learners, *workers):
            assert started.process.wait(200) == contract.EXIT_DONE, started.text()
        record = learners[0].last("learner")
        assert (record["updates"], record["lost_updates"]) == (updates, 0)
        assert_exact(learners[0])
        assert all("Traceback" not in learner.text() for learner in learners)
    assert not (run.folder / "own-1" / "checkpoints").exists()


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nodes_meet_again_when_a_rank_or_a_node_is_lost(run: RunUnderTest, wait_until: Callable[..., Any]) -> None:
    run.settings = {**OWN, "devices": 2, "checkpoint_seconds": 1.0}
    nodes = [start_node(run, 0), start_node(run, 1)]

    def goes_on(log: Started, resumes: int) -> None:
        wait_until(lambda: log.text().count("resumed ckpt-") == resumes, "a resume", seconds=120.0, log=log)
        known = log.text().count("checkpoint ckpt-")
        wait_until(lambda: log.text().count("checkpoint ckpt-") > known, "a checkpoint", seconds=120.0, log=log)

    goes_on(nodes[0], 0)
    ranks_of(nodes[1])["1"].kill()
    goes_on(nodes[0], 1)
    ranks_of(nodes[1])["1"].suspend()
    goes_on(nodes[0], 2)
    assert "was stopped by a signal: it is killed" in nodes[1].text()
    nodes[1].process.kill()
    nodes[1] = start_node(run, 1)
    goes_on(nodes[0], 3)
    nodes[0].process.kill()
    nodes[0] = start_node(run, 0)
    goes_on(nodes[0], 1)
    # Node 0 ends in order; the other one waits for its next start, and ends when it is asked to.
    nodes[0].process.terminate()
    assert nodes[0].process.wait(60) == contract.EXIT_DONE
    assert "learner ends on SIGTERM" in nodes[0].text()
    nodes[0] = start_node(run, 0)
    goes_on(nodes[0], 1)
    for node in nodes:
        node.process.terminate()
    codes = [node.process.wait(60) for node in nodes]
    assert codes == [contract.EXIT_DONE, contract.EXIT_INTERRUPTED]
    assert_exact(nodes[0])


def test_devices_that_nodes_cannot_divide_are_refused(tmp_path: Path) -> None:
    environ = {
        contract.ENV_PEERS: json.dumps({"learner": [f"ipc://{tmp_path}/{name}" for name in "ab"]}),
        contract.ENV_ENDPOINT: f"ipc://{tmp_path}",
        contract.ENV_CONFIG: json.dumps({**OWN, "devices": 3}),
        contract.ENV_DIR: str(tmp_path),
    }
    context = Context.from_environment(environ, "learner")
    assert rank_launcher.are_wanted(context)
    checkpoints = Checkpoints(tmp_path / "checkpoints", 3)
    with pytest.raises(SetupError, match="devices is 3, and this learner has 2 nodes"):
        rank_launcher.launch(context, checkpoints, lambda _: 0, ["learner"], Stop(), Console())


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    script = "from runtime.base.processes import name_process; name_process('l2r rank 0'); input(print('.'))"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="this system does not show the state of processes in /proc")
def test_a_rank_that_stays_stopped_is_killed(
    rank: subprocess.Popen[bytes], tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    group, seconds = tmp_path / "group-0", rank_launcher.STOPPED_SECONDS
    processes = rank_launcher.RankProcesses(str(group), Console())
    # The second number is that of a process which is not a rank.
    for pid in (rank.pid, os.getpid()):
        Path(f"{group}{rank_launcher._PID}{pid}").touch()

    def look(times: int) -> None:
        for _ in range(times):
            processes.kill_stopped()

    def is_stopped() -> bool:
        return psutil.Process(rank.pid).status() == psutil.STATUS_STOPPED

    look(10 * seconds)
    for _ in range(2):
        rank.send_signal(signal.SIGSTOP)
        wait_until(is_stopped, "the stop")
        look(seconds - 1)
        rank.send_signal(signal.SIGCONT)
        wait_until(lambda: not is_stopped(), "its end")
        look(1)
        assert rank.poll() is None, "it goes on in time"
    rank.send_signal(signal.SIGSTOP)
    wait_until(is_stopped, "the stop")
    look(seconds)
    assert rank.wait(30) == -signal.SIGKILL


@pytest.mark.process
def test_ranks_end_at_once_when_a_round_is_over(rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    group = tmp_path / "group-0"
    for pid in (rank.pid, os.getpid()) if sys.platform == "linux" else (rank.pid,):
        Path(f"{group}{rank_launcher._PID}{pid}").touch()
    rank_launcher.RankProcesses(str(group), Console()).kill()
    assert rank.wait(30) == -signal.SIGKILL
