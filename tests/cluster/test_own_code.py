"""A project of two files with a package trains on a cluster without its own image, and starts again edited."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime

import pytest

from tests.cluster.conftest import eventually, kubectl, kubectl_json
from tests.cluster.kinds import NODE
from tests.fakes.own_code import EDIT, FAULT, FAULT_REASON, write_project

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PREPARATION_SECONDS = 10.0
"""Limit from the command to the start of the last process, on a machine whose cores have no other work."""


def seconds_of(began: float, stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp() - began


def launched(cli, spec, image) -> tuple[float, dict[str, str]]:
    """Launch and print the times of the pods; return the seconds until all run, and the output of each setup."""
    began = time.time()
    cli.run("launch", "-f", str(spec), "--image", image, "--no-pin", "--yes")
    print(f"{time.time() - began:6.2f} s  launched")

    def running():
        pods = kubectl_json("-n", cli.namespace, "get", "pods")["items"]
        states = [state["state"] for pod in pods for state in pod["status"].get("containerStatuses", [])]
        return pods if len(states) == 3 and all("running" in state for state in states) else None

    last, logs = 0.0, {}
    for pod in eventually("all pods run", running):
        name = pod["metadata"]["name"]
        (init,), (main,) = pod["status"]["initContainerStatuses"], pod["status"]["containerStatuses"]
        done = init["state"]["terminated"]
        times = [done["startedAt"], done["finishedAt"], main["state"]["running"]["startedAt"]]
        started, prepared, runs = (seconds_of(began, stamp) for stamp in times)
        print(f"{runs:6.2f} s  {name} runs; its setup {started:.1f} to {prepared:.1f} s")
        last = max(last, runs)
        logs[name] = kubectl("-n", cli.namespace, "logs", name, "-c", "workdir")
    return last, logs


def trains(cli) -> float:
    """Wait until the run learns; return the mean return of its episodes."""

    def mean_return():
        done = cli.call("metrics", "cart", "-o", "json")
        now = json.loads(done.stdout) if done.returncode == 0 else {}
        return now if now.get("updates") and now.get("mean_return") is not None else None

    return eventually("updates and episodes of own code", mean_return, 180)["mean_return"]


def test_edited_code_trains_again_within_seconds_and_without_pip(cli, image, volume, tmp_path):
    spec = write_project(tmp_path / "project", "{path: ., volume: l2r-data}")
    with spec.open("a") as file:
        file.write(f"pod: {{node_selector: {{kubernetes.io/hostname: {NODE}}}}}\n")
    first, logs = launched(cli, spec, image)
    # A pod that starts later finds the packages of the first in the volume.
    assert any("Successfully installed gustlib-1.0" in log for log in logs.values())
    assert trains(cli) == 0.0
    cli.run("destroy", "cart", "--yes")

    (spec.parent / "reward.py").write_text(EDIT)
    second, logs = launched(cli, spec, image)
    assert not any("Successfully installed" in log for log in logs.values())
    assert trains(cli) == pytest.approx(100.0)
    others = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    print(f"first launch {first:.1f} s, edited {second:.1f} s, load {others:.1f} per core")
    assert second < PREPARATION_SECONDS * others
    cli.run("destroy", "cart", "--yes")


def test_an_environment_that_fails_in_its_container_is_the_reason_of_the_run(cli, image, tmp_path):
    spec = write_project(tmp_path / "project")
    (spec.parent / "reward.py").write_text(FAULT)
    with spec.open("a") as file:
        file.write(f"pod: {{node_selector: {{kubernetes.io/hostname: {NODE}}}}}\n")
    cli.run("launch", "-f", str(spec), "--image", image, "--no-pin", "--yes")
    eventually(
        "the learner's container starts",
        lambda: (
            "running" in kubectl("-n", cli.namespace, "get", "pods", "-o", "jsonpath={..containerStatuses..state}")
        ),
    )
    eventually("the reason of the run", lambda: FAULT_REASON in str(cli.json("runs")), 30)
    cli.run("destroy", "cart", "--yes")
