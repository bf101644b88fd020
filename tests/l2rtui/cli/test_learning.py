"""State of learning of a real run on this machine, whose processes are stopped and continued."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from tests.l2rtui.cli.conftest import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]

SPEC = """\
kind: learner-workers
name: t
learner: {}
workers:
  - name: w
    replicas: 2
train:
  environment: CartPole-v1
  algorithm: ppo
  num_envs: 4
  segment_steps: 64
  total_env_steps: 100000000
  ppo: {batch_steps: 512, minibatch_size: 256, epochs: 2}
"""


@pytest.fixture
def run(local):
    path = local.home / "spec.yaml"
    path.write_text(SPEC)
    local.json("launch", "-f", str(path), "--yes", "--wait")
    eventually(lambda: learning(local)["learning"] == "live", "learning")
    yield local
    send(local, "learner", signal.SIGCONT)
    send(local, "worker", signal.SIGCONT)
    local.run("destroy", "t", "--yes", "--purge")


def learning(local):
    (run,) = local.json("runs")
    return run


def send(local, role, number):
    """Send a signal to all processes of the pods of a role."""
    for pod in local.json("pods"):
        if pod["role"] == role and pod["pid"]:
            process = psutil.Process(pod["pid"])
            for member in (process, *process.children(recursive=True)):
                os.kill(member.pid, number)


def named(local, condition):
    """Wait until the state fulfils a condition, and return it."""
    states = []

    def is_named():
        states.append(learning(local))
        print(states[-1]["learning"], states[-1]["learning_reason"])  # shown if the test fails
        return condition(states[-1])

    eventually(is_named, "the state")
    return states[-1]


def test_a_stopped_learner_is_stalled_and_learns_again(run):
    send(run, "learner", signal.SIGSTOP)
    state = named(run, lambda state: state["learning"] != "live")
    assert state["learning"] == "stalled"
    assert state["learning_level"] == "bad"
    assert state["learning_reason"].startswith("t-learner-0 running: it was stopped (SIGSTOP)")
    assert state["state"] == "Degraded"
    send(run, "learner", signal.SIGCONT)
    named(run, lambda state: state["learning"] == "live")


def test_stopped_workers_starve_their_learner_and_are_named(run):
    send(run, "worker", signal.SIGSTOP)
    # Until a worker's next record is overdue it is unknown which one is silent, and one is overdue before the
    # other.
    both = "2 of 2 workers send nothing"
    state = named(run, lambda state: state["learning"] == "starved" and both in state["learning_reason"])
    assert "(t-w-0 running: it was stopped (SIGSTOP)" in state["learning_reason"]
    assert "t-w-1" in state["learning_reason"]
    assert state["learning_reason"].startswith("waits for data ")
    assert state["learning_reason"].endswith("see `l2rtui logs t/w`")
    send(run, "worker", signal.SIGCONT)
    named(run, lambda state: state["learning"] == "live")
