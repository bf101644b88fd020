"""The main job, end to end: the example run is launched, learns, survives kills, and is destroyed.

Only the evaluation is small: the learner updates, the workers drive, and sockets carry all data.
"""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import psutil
import pytest

from tests.fakes.supervisors import kill_supervisor
from tests.tiers import starts_processes

pytestmark = pytest.mark.process

SPEC = "manifests/racing-sac.yaml"
RUN = "racing-sac"
SMALL = ["--set", "train.eval_episodes=2", "--set", "train.checkpoint_seconds=2", "--set", "train.warmup_steps=600"]


@pytest.fixture
@starts_processes
def training(home):
    """A run that has started to learn, and its metrics at that moment."""
    launched = home.json("launch", "-f", SPEC, *SMALL, "--yes", "--wait")
    assert launched["run"] == RUN
    assert [pod["phase"] for pod in launched["pods"]] == ["Running"] * 6
    return launched, home.wait("the first policy", lambda: grown(home, {"updates": 0, "policy_version": 0}))


def grown(home, before):
    """The metrics, once every counter in ``before`` has grown."""
    now = home.metrics(RUN)
    return now if now and all(now[key] > value for key, value in before.items()) else None


def counters(metrics):
    return {key: metrics[key] for key in ("env_steps", "updates", "policy_version")}


def pods(home, set_name):
    return [pod for pod in home.json("pods") if pod["set"] == set_name]


@pytest.mark.slow
def test_the_example_learns_and_is_destroyed_with_proof(home, training):
    _, first = training

    later = home.wait("every counter rising", lambda: grown(home, counters(first)))
    assert later["policy_lag_max"] <= 1000
    assert {slot["state"] for slot in home.json("slots")} <= {"busy", "free"}
    assert sum(slot["run"] == RUN for slot in home.json("slots")) == 6
    assert '"l2r":"learner"' in home.run("logs", f"{RUN}/learner", "--tail", "50")

    receipt = home.json("destroy", RUN, "--yes")

    assert (receipt["run"], receipt["left"], receipt["leftovers"]) == (RUN, 0, [])
    assert home.processes() == []
    assert list((home.root / "state").rglob("ckpt-*.safetensors")), "checkpoints are results and are kept"
    assert home.json("runs") == []
    assert home.json("leaks") == []


@pytest.mark.slow
@pytest.mark.parametrize("set_name", ["w", "learner"])
def test_kill_9_of_a_pod_and_training_goes_on(home, training, set_name):
    victim = pods(home, set_name)[0]
    os.kill(victim["pid"], signal.SIGKILL)

    again = home.wait(
        "the pod back", lambda: [p for p in pods(home, set_name) if p["restarts"] == 1 and p["phase"] == "Running"]
    )
    assert again[0]["pod"] == victim["pod"]
    assert again[0]["exit_code"] == 137
    before = counters(home.metrics(RUN))
    home.wait("training to go on", lambda: grown(home, before))


@pytest.mark.slow
def test_kill_9_of_the_supervisor_and_training_goes_on(home, training):
    launched, _ = training
    parent = psutil.Process(launched["pods"][0]["pid"]).parent()
    assert parent is not None
    kill_supervisor(parent)
    home.wait("the loss to be seen", lambda: home.json("runs")[0]["reason"] == "Unsupervised")

    before = counters(home.metrics(RUN))
    home.wait("training to go on", lambda: grown(home, {"updates": 0}))
    home.run("kill", f"{RUN}/w/0", "--yes", "--grace", "1")
    home.wait("a supervisor again", lambda: not home.json("runs")[0]["reason"])
    home.wait("training to go on", lambda: grown(home, before))


@contextmanager
def app(home):
    """The app on a pseudo-terminal, once it shows the run; killed with SIGKILL at the end."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "l2rtui"],
        env={**home.env, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "45"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    try:
        screen = b""
        end = time.monotonic() + 30
        while RUN.encode() not in screen and time.monotonic() < end:
            if select.select([leader], [], [], 0.2)[0]:
                screen += os.read(leader, 65536)
        assert RUN.encode() in screen
        yield
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def test_kill_9_of_the_app_and_the_run_is_found_again(home, training):
    with app(home):
        pass

    assert [pod["phase"] for pod in home.json("pods")] == ["Running"] * 6
    home.wait("training to go on", lambda: grown(home, counters(home.metrics(RUN))))


@pytest.mark.slow
def test_the_app_gives_a_run_that_lost_its_supervisor_a_new_one(home, training):
    launched, _ = training
    pids = {pod["pod"]: pod["pid"] for pod in launched["pods"]}
    parent = psutil.Process(pids[f"{RUN}-learner-0"]).parent()
    assert parent is not None
    kill_supervisor(parent)
    home.wait("the loss to be seen", lambda: home.json("runs")[0]["reason"] == "Unsupervised")

    with app(home):
        home.wait("a supervisor again", lambda: not home.json("runs")[0]["reason"])

    assert {pod["pod"]: pod["pid"] for pod in home.json("pods")} == pids
