"""A run in containers of the real node: a learner stops, a simulator hangs, a network is cut, a disk is full."""

from __future__ import annotations

import json
import subprocess
from functools import partial

import psutil
import pytest

from tests.cluster.conftest import NODE_IMAGE, eventually
from tests.fakes.named_faults import DIVERGES, FULL, ON_VOLUME, SPEC, STOPS, Faults, filled, small_disk

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

IMAGE = f"image: {NODE_IMAGE}"
ON = "placement: {on: phortx0/0-7}"


def output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout


def processes(pod):
    """Processes of the pod's containers, without the one that holds its network."""
    names = output("docker", "ps", "-q", "--filter", f"label=io.kubernetes.pod.uid={pod['uid']}").split()
    found = []
    for state in json.loads(output("docker", "inspect", *names)):
        if state["Config"]["Labels"].get("io.kubernetes.docker.type") != "podsandbox":
            process = psutil.Process(state["State"]["Pid"])
            found += [process, *process.children(recursive=True)]
    return found


@pytest.fixture
def faults(cli, image):
    return Faults(cli.json, eventually, processes)


def test_what_stops_or_is_cut_off_is_named_and_goes_when_it_is_over(cli, faults, tmp_path):
    faults.begin(tmp_path, SPEC, image=IMAGE, more=ON)
    # Two of them: the others look the same here as on one machine, and take a minute more.
    faults.check_stopped_processes((STOPS[0], STOPS[-1]))

    first, *_ = faults.pods("worker")
    inside = ("nsenter", "-t", str(processes(first)[0].pid), "-n", "ip", "link", "set", "eth0")
    output(*inside, "down")
    faults.named("1 of 2 workers sends nothing", "is not connected to its learner")
    output(*inside, "up")
    cli.run("destroy", "faults", "--yes", "--grace", "1")


def test_a_learning_rate_that_makes_nan_is_named(cli, faults, tmp_path):
    faults.begin(tmp_path, DIVERGES, image=IMAGE, more=ON)
    faults.check_not_finite(lambda pod: cli.run("logs", pod))
    cli.run("destroy", "nan", "--yes", "--grace", "1")


def test_a_disk_that_is_full_at_a_checkpoint_is_named_until_there_is_room(cli, faults, volume, tmp_path):
    with small_disk(volume):
        faults.begin(tmp_path, SPEC, image=IMAGE, more=f"{ON}\n{ON_VOLUME}")
        faults.check_full_disk(partial(filled, volume), FULL)
        cli.run("destroy", "faults", "--yes", "--grace", "1")
