"""A learner of two ranks, in one pod or in two: its GPUs are claimed together, and it goes on after a loss."""

from __future__ import annotations

import json

import pytest

from tests.cluster.conftest import NODE_IMAGE, eventually, kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

RUN = "ranks"
SPEC = f"""\
kind: learner-workers
name: {RUN}
image: {NODE_IMAGE}
learner: {{FORM, resources: {{cpu: 0.5}}}}
train:
  environment: CartPole-v1
  algorithm: ppo
  collect: device
  device: cpu
  num_envs: 16
  segment_steps: 32
  hidden: [16]
  checkpoint_seconds: 1
  ppo: {{minibatch_size: 128}}
placement: {{on: phortx0/0-1}}
"""
KILL = (
    'for each in /proc/[0-9]*; do if [ "$(cat $each/comm)" = "l2r rank 1" ]; then kill -9 ${each#/proc/}; fi; done'
)


@pytest.fixture
def launched(cli, namespace, image, tmp_path):
    """Return a function that launches a learner of a form, checks its slots, and returns its pods."""

    def launch(form):
        spec = tmp_path / "spec.yaml"
        spec.write_text(SPEC.replace("FORM", form))
        pods = cli.json("launch", "-f", str(spec), "--yes", "--wait", "--timeout", "300")["pods"]
        held = {slot["id"].partition(".")[0] for slot in cli.json("slots") if slot["run"] == RUN}
        assert held == {"phortx0/0", "phortx0/1"}, "all slots of two GPUs"
        return [pod["pod"] for pod in pods]

    return launch


def goes_on(logs):
    """Wait until records follow a resume; check their accounts."""

    def records():
        _, resumed, later = logs().rpartition("resumed ckpt-")
        if not resumed:
            return []
        return [json.loads(line) for line in later.splitlines() if line.startswith('{"l2r":"learner"')]

    first, *_, last = eventually("records of the ranks that follow", lambda: len(records()) > 1 and records(), 240)
    assert last["updates"] > first["updates"]
    for record in (first, last):
        assert record["sent"] == sum(record[name] for name in ("accepted", "refused", "lost", "missing"))
        assert record["accepted"] * 16 * 32 == record["learned_env_steps"]


def test_a_learner_of_two_ranks_goes_on_when_one_is_killed(cli, namespace, launched):
    (pod,) = launched("gpus: 2")

    def logs():
        return kubectl("-n", namespace, "logs", pod, check=False)

    eventually("a checkpoint", lambda: "checkpoint ckpt-" in logs(), 240)
    kubectl("-n", namespace, "exec", pod, "--", "sh", "-c", KILL)
    goes_on(logs)
    assert "all 2 ranks start again from the newest checkpoint" in logs()
    assert cli.json("pods")[0]["restarts"] == 0, "its container goes on"
    receipt = cli.json("destroy", RUN, "--yes")
    assert (receipt["left"], receipt["leftovers"]) == (0, [])


def test_a_learner_of_two_nodes_goes_on_when_one_is_lost(cli, namespace, launched):
    first, second = sorted(launched("nodes: 2, gpus: 1"))

    def logs():
        return kubectl("-n", namespace, "logs", first, check=False)

    eventually("a checkpoint", lambda: "checkpoint ckpt-" in logs(), 240)
    assert "2 nodes are there" in logs()
    cli.json("kill", second, "--yes")
    goes_on(logs)
    assert {pod["pod"]: pod["restarts"] for pod in cli.json("pods")}[first] == 0, "the other node goes on"
    receipt = cli.json("destroy", RUN, "--yes")
    assert (receipt["left"], receipt["leftovers"]) == (0, [])
