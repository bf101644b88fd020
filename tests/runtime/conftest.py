"""Real folders, sockets and processes for the runtime's tests, and a check that nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from runtime.base import contract
from tests.tiers import starts_processes

TINY: dict[str, Any] = {
    "hidden": [16],
    "num_envs": 4,
    "segment_steps": 8,
    "warmup_steps": 64,
    "updates_per_step": 0.25,
    "band_steps": 256,
    "publish_every": 5,
    "replay_capacity": 20_000,
    "sac": {"batch_size": 32},
    "checkpoint_seconds": 0.5,
    "eval_seconds": 1.0,
    "eval_episodes": 2,
    "eval_options": {"start": "line", "max_seconds": 6},
}
"""A short run that exercises everything within seconds."""


def eventually(condition: Callable[[], Any], what: str, seconds: float = 60.0, log: Started | None = None) -> Any:
    """Wait until `condition` returns a true value and return it; on timeout, show the end of `log`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        said = log.text()[-2000:] if log else ""
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s\n{said}"
        time.sleep(0.02)
    return found


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    return eventually


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short name: a Unix socket's path has little room."""
    folder = Path(tempfile.mkdtemp(prefix="l2r-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def warm_zmq() -> None:
    """Let pyzmq start its one helper thread for zero-copy sends, which lives until the process ends."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as push, context.socket(zmq.PULL) as pull:
        pull.bind("inproc://warm")
        push.connect("inproc://warm")
        push.send(bytes(10 * zmq.COPY_THRESHOLD), copy=False)
        pull.recv()


@pytest.fixture
def no_leaks(warm_zmq: None) -> Iterator[None]:
    """Fail if the test leaves a file descriptor, a thread or a child process."""
    me = psutil.Process()
    descriptors, threads = me.num_fds(), set(threading.enumerate())
    others = set(me.children(recursive=True))  # such as the resource tracker of multiprocessing, once started
    yield
    children = set(me.children(recursive=True)) - others
    assert not children, f"left behind: {children}"
    left = [each for each in threading.enumerate() if each not in threads and not each.daemon]
    assert not left, f"threads left behind: {left}"
    assert me.num_fds() <= descriptors, "file descriptors left open"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread, as a learner of small networks does."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Started:
    """One process of a run under test."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def text(self) -> str:
        return self.log.read_text()

    def records(self, kind: str) -> list[dict[str, Any]]:
        lines = self.text().split("\n")[:-1]
        found = [json.loads(line) for line in lines if line.startswith(contract.METRIC_PREFIX)]
        return [each for each in found if each["l2r"] == kind]

    def last(self, kind: str) -> dict[str, Any]:
        return (self.records(kind) or [{}])[-1]

    def end(self, number: int = signal.SIGTERM, seconds: float = 30.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)


class RunUnderTest:
    """Starts real processes with a launcher's variables, and ends them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endpoint = f"ipc://{folder}/x"
        self.settings = dict(TINY)
        self.started: list[Started] = []
        self.prefix: list[str] = []
        """Command that starts the processes, for example with other limits."""

    def start(self, role: str, index: int = 0, *options: str, **variables: str) -> Started:
        pod = f"{role[0]}-{index}"
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("L2R_")},
            contract.ENV_RUN: "test",
            contract.ENV_RUN_ID: "test-1",
            contract.ENV_POD: pod,
            contract.ENV_ROLE: role,
            contract.ENV_INDEX: str(index),
            contract.ENV_SEED: "7",
            contract.ENV_ENDPOINT: self.endpoint,
            contract.ENV_DIR: str(self.folder / "run"),
            contract.ENV_CONFIG: json.dumps(self.settings),
            **variables,
        }
        log = self.folder / f"{pod}.{len(self.started)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "runtime", role, *options],
                env=environ,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=Path(__file__).parents[2],
            )
        self.started.append(Started(process, log))
        return self.started[-1]

    def end_all(self) -> None:
        for each in self.started:
            if each.process.poll() is None:
                each.process.kill()
            each.process.wait()


@pytest.fixture
@starts_processes
def run(short_folder: Path, no_leaks: None) -> Iterator[RunUnderTest]:
    under_test = RunUnderTest(short_folder)
    yield under_test
    under_test.end_all()
