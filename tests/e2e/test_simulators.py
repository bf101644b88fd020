"""Training over simulators, end to end: the example over the wire protocol, and a killed simulator."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.e2e.test_main_job import SMALL

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(600),
]  # eleven processes start and learn on the available cores
SPEC = "manifests/l2r-reference.yaml"
RUN = "l2r-reference"


def grown(home, before):
    """The metrics, once every counter in ``before`` has grown."""
    now = home.metrics(RUN)
    return now if now and all(now[key] > value for key, value in before.items()) else None


def simulators(home):
    """Processes of reference simulators in this environment."""
    found = []
    for process in home.processes():
        words = process.cmdline()
        if "simulator" in words and "runtime" in words:
            found.append(process)
    return found


def worker_records(home):
    """The newest metric record of each worker."""
    newest = {}
    for line in home.run("logs", f"{RUN}/w", "--tail", "400").splitlines():
        pod, _, text = line.partition("|")
        if text.strip().startswith('{"l2r":"worker"'):
            newest[pod.strip()] = json.loads(text)
    return newest


@pytest.mark.slow
def test_sac_trains_over_the_wire_and_survives_a_killed_simulator(home):
    home.json("launch", "-f", SPEC, *SMALL, "--set", "train.eval_episodes=1", "--yes", "--wait")
    home.wait("updates", lambda: grown(home, {"updates": 0, "policy_version": 0}), 240)
    running = home.wait(
        "a simulator for each of 4 workers and the evaluator", lambda: len(simulators(home)) == 5, 60
    )
    assert running
    workers = {pod["pid"] for pod in home.json("pods") if pod["set"] == "w"}
    victim = next(one for one in simulators(home) if any(up.pid in workers for up in one.parents()))

    os.kill(victim.pid, signal.SIGKILL)

    home.wait(
        "a record of the restart",
        lambda: any(each["simulator_restarts"] == 1 for each in worker_records(home).values()),
        180,
    )
    records = worker_records(home).values()
    assert {each["simulator_state"] for each in records} <= {"ready", "lost", "starting"}
    assert any("SIGKILL" in (each["simulator_error"] or "") for each in records)
    assert all(pod["restarts"] == 0 for pod in home.json("pods")), "no worker had to be started anew"
    before = home.metrics(RUN)
    home.wait("training to go on", lambda: grown(home, {"env_steps": before["env_steps"]}), 60)

    status = home.json("simulator", "status", RUN)
    assert [each["state"] for each in status] == ["ready"] * 5, "of four workers and the evaluator"
    home.run("simulator", "restart", f"{RUN}/w/0", "--yes")
    home.wait(
        "the restart that was asked for",
        lambda: "by request" in home.json("simulator", "status", f"{RUN}/w/0")[0]["error"],
        60,
    )
    picture = home.run("simulator", "frame", f"{RUN}/w/1").splitlines()
    assert max(map(len, picture)) > 20, "shades of what the camera sees"

    receipt = home.json("destroy", RUN, "--yes")

    assert (receipt["left"], receipt["leftovers"]) == (0, [])
    assert home.processes() == []
