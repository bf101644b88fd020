"""The first example on a machine whose NVML shows one GPU; its learner finds no CUDA there, and uses the CPU."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.fakes.nvml import FakeGpu, pynvml_folder

pytestmark = [pytest.mark.process, pytest.mark.slow]

EXAMPLE = str(Path(__file__).parents[3] / "manifests" / "racing-sac.yaml")
TIGHT = {"L2RTUI_SLOTS_PER_GPU": "1", "L2RTUI_MAX_CPU_SLOTS": "5"}
"""Exactly the slots of one launch of the example."""


@pytest.fixture
def workstation(local, tmp_path):
    """A home on a machine whose NVML shows one GPU."""
    path = pynvml_folder(tmp_path / "nvml", FakeGpu())
    local.env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(path), os.environ.get("PYTHONPATH"))))
    return local


def launch(cli, *words, code=0):
    done = cli.run("launch", "-f", EXAMPLE, "--yes", "--wait", "--timeout", "50", *words)
    assert done.returncode == code, done.stderr
    return done


def in_use(cli):
    """Number of pods on the slots of each kind."""
    pods = Counter()
    for slot in cli.json("slots"):
        pods[slot["kind"]] += len(slot["pods"])
    return dict(pods)


def test_the_first_example_runs_twice_over_where_slots_may_be_shared(workstation):
    workstation.env |= TIGHT
    launch(workstation)
    assert in_use(workstation) == {"gpu": 1, "cpu": 5}
    refused = launch(workstation, "--name", "again", code=3)
    assert "1 of 1 replica does not fit (0 of 1 slot are free" in refused.stderr
    assert "4 of 4 replicas do not fit (0 of 5 CPU slots are free" in refused.stderr
    launch(workstation, "--name", "again", "--overcommit")
    assert in_use(workstation) == {"gpu": 2, "cpu": 10}
    assert [(run["run"], run["ready"]) for run in workstation.json("runs")] == [("again", 6), ("racing-sac", 6)]
    (node,) = workstation.json("nodes")
    assert (node["slots"], node["free"], node["cpu_slots"], node["cpu_free"]) == (1, 0, 5, 0)


@pytest.mark.parametrize(
    ("words", "learners", "others"),
    [(("--seeds", "0-1"), 2, 10), (("--set", "workers.0.replicas=12"), 1, 13)],
    ids=["two seeds", "twelve workers"],
)
def test_more_of_it_runs_on_one_gpu(workstation, words, learners, others):
    workstation.env |= {"L2RTUI_MAX_CPU_SLOTS": "16", "L2RTUI_SLOTS_PER_CORE": "64"}
    planned = workstation.run("plan", "-f", EXAMPLE, *words)
    assert "it sits on CPU slots: its environment needs no GPU" in planned.stderr
    launch(workstation, *words)
    assert in_use(workstation) == {"gpu": learners, "cpu": others}
    assert {pod["slots"][0].split("/")[1].split(".")[0] for pod in workstation.json("pods")} == {"0", "cpu"}
