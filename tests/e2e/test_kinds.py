"""The other kinds end to end on this machine: an elastic job is damaged, servers train, a workshop is resumed."""

from __future__ import annotations

import os
import signal

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SECONDS = 240.0
"""For one change on a busy machine: several processes start, and each imports torch."""


def complete(home, run):
    return next((one for one in home.json("runs") if one["run"] == run and one["complete"]), None)


def training(home, run, nodes, after=-1):
    """The nodes of an elastic job, once this many train together in a later round than the given one."""
    rows = [row for row in home.metrics(run).get("nodes", ()) if row["state"] == "training" and row["step"]]
    fitting = [row for row in rows if row["world_size"] == nodes and row["round"] > after]
    return fitting if len(fitting) == nodes else None


@pytest.mark.slow
def test_an_elastic_job_loses_a_node_and_finishes(home):
    command = "[l2r-runtime, classify, train, --data, digits, --epochs, '4', --step-seconds, '0.2']"
    home.run("launch", "-f", "manifests/elastic-digits.yaml", "--set", f"nodes.command={command}", "--yes")
    both = home.wait("two nodes", lambda: training(home, "elastic-digits", 2), SECONDS)

    victim = next(pod for pod in home.json("pods") if pod["pod"] == "elastic-digits-nodes-0")
    os.kill(victim["pid"], signal.SIGKILL)
    home.wait("its successor", lambda: training(home, "elastic-digits", 2, both[0]["round"]), SECONDS)

    home.wait("its end", lambda: complete(home, "elastic-digits"), SECONDS)
    assert {row["state"] for row in home.metrics("elastic-digits")["nodes"]} == {"finished"}


@pytest.mark.slow
def test_parameter_servers_train_and_end(home):
    home.run("launch", "-f", "manifests/ps-digits.yaml", "--yes")
    home.wait("its end", lambda: complete(home, "ps-digits"), SECONDS)
    home.wait("the servers' end", lambda: {pod["phase"] for pod in home.json("pods")} == {"Succeeded"}, SECONDS)
    found = home.metrics("ps-digits")
    assert [one["global_step"] for one in found["peers"]] == [200] * 4
    assert {pod["restarts"] for pod in home.json("pods")} == {0}
    assert len(found["evaluation"]["classes"]) == 10
