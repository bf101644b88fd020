"""Steps that take long: the session lives on, records say how long, and a process that is asked to end does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from runtime.base import contract
from runtime.base.errors import PeerRefusedError
from runtime.base.metrics import Console
from runtime.rl.roles import step_watch
from runtime.rl.roles.step_watch import StepWatch

ENVIRONMENTS = """
import atexit, os, threading, time
import gymnasium as gym, numpy as np
from gymnasium import spaces


class Base(gym.Env):
    observation_space, action_space = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)

    def __init__(self):
        self.note("open")

    def note(self, word):
        with open(os.environ["NOTES"], "a") as file:
            file.write(word + "\\n")

    def reset(self, *, seed=None, options=None):
        self.note("reset")
        return np.zeros(4, np.float32), {}

    def step(self, action):
        return np.zeros(4, np.float32), 1.0, False, False, {}

    def close(self):
        self.note("close")


class Hangs(Base):
    def reset(self, *, seed=None, options=None):
        self.note("reset")
        time.sleep(1e6)


class Fails(Base):
    def reset(self, *, seed=None, options=None):
        raise OSError("the map is gone")


class Threads(Base):
    def __init__(self):
        super().__init__()
        threading.Thread(target=time.sleep, args=(1e6,), name="of the simulator").start()


class Hooks(Base):
    def __init__(self):
        super().__init__()
        atexit.register(time.sleep, 1e6)


class Raises(Threads):
    def reset(self, *, seed=None, options=None):
        raise RuntimeError("out of fuel")


for kind in (Base, Hangs, Fails, Threads, Hooks, Raises):
    gym.register(f"{kind.__name__}-v0", entry_point=kind)
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_watch, "NOTICE_SECONDS", 0.02)
    monkeypatch.setattr(step_watch, "RECORD_SECONDS", 0.05)


@pytest.mark.usefixtures("quick")
def test_a_slow_step_is_answered_for_and_recorded_and_a_quick_one_is_not() -> None:
    exchanged, recorded = threading.Event(), threading.Event()
    threads: set[str] = set()

    def exchange() -> None:
        threads.add(threading.current_thread().name)
        exchanged.set()

    with StepWatch("Slow-v0", exchange, recorded.set, Console()) as watch:
        with watch.foreign():
            pass
        assert watch.fields() == {}
        assert not exchanged.is_set()
        with watch.foreign():
            assert exchanged.wait(20)
            assert recorded.wait(20)
            assert watch.fields()["stepping_seconds"] > 0
        exchanged.clear()
        fields = watch.fields()
        assert fields["step_seconds"] == fields["longest_step_seconds"] > 0
        assert "stepping_seconds" not in fields
        # Outside of a step nobody else speaks for the process.
        assert not exchanged.wait(0.2)
    assert threads == {"step-watch"}


@pytest.mark.usefixtures("quick")
def test_what_the_thread_meets_is_raised_where_the_process_comes_back() -> None:
    refused = threading.Event()

    def exchange() -> None:
        refused.set()
        raise PeerRefusedError("another run")

    with (
        StepWatch("Slow-v0", exchange, lambda: None, Console()) as watch,
        pytest.raises(PeerRefusedError, match="another run"),
        watch.foreign(),
    ):
        assert refused.wait(20)


def worker(tmp_path: Path, name: str, copies: int = 2) -> subprocess.Popen[str]:
    (tmp_path / "env_of_test.py").write_text(ENVIRONMENTS)
    environ = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "NOTES": str(tmp_path / "notes"),
        contract.ENV_ENDPOINT: f"ipc://{tmp_path}/socket",
        contract.ENV_CONFIG: json.dumps(
            {"environment": f"env_of_test:{name}-v0", "algorithm": "ppo", "num_envs": copies}
        ),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "runtime", "worker"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def notes(tmp_path: Path) -> list[str]:
    path = tmp_path / "notes"
    return path.read_text().split() if path.exists() else []


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "is_signalled", "code", "said"),
    [
        ("Base", True, contract.EXIT_DONE, "worker ends: SIGTERM"),
        (
            "Threads",
            True,
            contract.EXIT_DONE,
            "ends by force: the thread of the simulator, of the simulator has not",
        ),
        ("Hooks", True, contract.EXIT_DONE, "ends by force: an exit hook has not ended"),
        ("Fails", False, contract.EXIT_FAILED, "the map is gone"),
        ("Raises", False, contract.EXIT_FAILED, "RuntimeError: out of fuel"),
    ],
)
def test_every_copy_is_closed_and_the_process_ends_with_a_code_that_says_why(
    tmp_path: Path, name: str, is_signalled: bool, code: int, said: str
) -> None:
    process = worker(tmp_path, name)
    try:
        wait_for(process, lambda: notes(tmp_path).count("reset") == 2 or not is_signalled)
        if is_signalled:
            process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, notes(tmp_path).count("close")) == (code, notes(tmp_path).count("open")), output
    assert said in output


@pytest.mark.process
def test_a_step_that_does_not_return_ends_its_process_within_the_grace(tmp_path: Path) -> None:
    process = worker(tmp_path, "Hangs")
    try:
        wait_for(process, lambda: "reset" in notes(tmp_path))
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == contract.EXIT_INTERRUPTED
    assert "a step of env_of_test:Hangs-v0 has not returned" in output
    assert time.monotonic() - began < 30  # the machine may be busy; 6 s are meant


def wait_for(process: subprocess.Popen[str], condition: object) -> None:
    deadline = time.monotonic() + 90
    while not condition():  # type: ignore[operator]
        assert process.poll() is None, process.stdout.read()  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        time.sleep(0.05)
