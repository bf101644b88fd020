"""The other kinds end to end on this machine: an elastic job is hurt, servers train, a workshop is resumed."""

from __future__ import annotations

import os
import signal

import pytest

pytestmark = pytest.mark.timeout(600)

SECONDS = 240.0
"""For one change on a busy machine: several processes start, and each imports torch."""


def complete(home, run):
    return next((one for one in home.json("runs") if one["run"] == run and one["complete"]), None)


def training(home, run, nodes, after=-1):
    """The nodes of an elastic job, once so many train together in a round after that one."""
    rows = [row for row in home.metrics(run).get("nodes", ()) if row["state"] == "training" and row["step"]]
    fitting = [row for row in rows if row["world_size"] == nodes and row["round"] > after]
    return fitting if len(fitting) == nodes else None


def test_an_elastic_job_grows_loses_a_node_and_finishes(home):
    words = ["--set", "nodes.replicas=1", "--set", "nodes.max=2"]
    command = "[l2r-runtime, classify, train, --data, digits, --epochs, '12', --step-seconds, '0.1']"
    home.run("launch", "-f", "manifests/elastic-digits.yaml", *words, "--set", f"nodes.command={command}", "--yes")
    (first,) = home.wait("one node", lambda: training(home, "elastic-digits", 1), SECONDS)

    home.run("scale", "elastic-digits/nodes", "2")
    both = home.wait("two nodes", lambda: training(home, "elastic-digits", 2, first["round"]), SECONDS)
    victim = next(pod for pod in home.json("pods") if pod["pod"] == "elastic-digits-nodes-0")
    os.kill(victim["pid"], signal.SIGKILL)
    again = home.wait("its successor", lambda: training(home, "elastic-digits", 2, both[0]["round"]), SECONDS)

    assert max(row["step"] for row in again) >= 20, "it goes on from a snapshot"
    home.wait("its end", lambda: complete(home, "elastic-digits"), SECONDS)
    assert {row["state"] for row in home.metrics("elastic-digits")["nodes"]} == {"finished"}


def test_parameter_servers_train_and_end(home):
    home.run("launch", "-f", "manifests/ps-digits.yaml", "--yes")
    home.wait("its end", lambda: complete(home, "ps-digits"), SECONDS)
    home.wait("the servers' end", lambda: {pod["phase"] for pod in home.json("pods")} == {"Succeeded"}, SECONDS)
    found = home.metrics("ps-digits")
    assert [one["global_step"] for one in found["peers"]] == [200] * 4
    assert {pod["restarts"] for pod in home.json("pods")} == {0}
    assert len(found["evaluation"]["classes"]) == 10


def test_a_workshop_goes_on_where_it_was_destroyed(home):
    command = "[l2r-runtime, classify, train, --epochs, '4', --step-seconds, '0.1']"
    words = ["--set", "steps.train.nodes.replicas=1", "--set", f"steps.train.nodes.command={command}"]
    home.run("launch", "-f", "manifests/workshop.yaml", *words, "--yes")
    snapshots = home.root / "state" / "l2rtui" / "local" / "volumes" / "workshop" / "checkpoints"
    home.wait("a snapshot", lambda: list(snapshots.glob("*.json")), SECONDS)
    home.run("destroy", "workshop", "--yes")

    home.run("relaunch", "workshop", "--yes")
    evaluation = home.wait("the accuracy", lambda: home.metrics("workshop").get("evaluation"), SECONDS)
    assert evaluation["accuracy"] > 0.5
    steps = {one["step"]: one["state"] for one in home.metrics("workshop")["steps"]}
    assert steps["data"] == "skipped"
    assert "resumed ckpt-" in home.run("logs", "workshop/train")
