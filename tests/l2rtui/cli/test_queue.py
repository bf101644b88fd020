"""The queue with real processes: whole runs wait, start in order, and survive their keepers."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.l2rtui.cli.conftest import eventually, processes_of

pytestmark = pytest.mark.process

CLOCK = Path(__file__).parents[2] / "fakes" / "jumping_clock"
GATED = """\
kind: job
name: t
job: {command: [sh, -c, "while [ ! -e GATE ]; do sleep 0.05; done"], slots: 1}
"""
SHORT = """\
kind: job
name: t
job: {command: [sh, -c, "echo $L2R_RUN >> STARTS; sleep 2"], slots: 1}
"""


@pytest.fixture
def queue(local):
    """This machine with two slots; a spec whose runs end when the file ``gate`` exists."""
    local.env |= {"L2RTUI_SLOTS_PER_CORE": "2", "L2RTUI_MAX_CPU_SLOTS": "2"}
    (local.home / "spec.yaml").write_text(GATED.replace("GATE", str(local.home / "gate")))
    yield local
    local.run("queue", "cancel", "t", "--yes")
    (local.home / "gate").touch()
    eventually(lambda: not keepers(local), "the queue goes on")


def keepers(cli):
    """Process ids of live keepers, from the list of processes."""
    return [pid for pid in processes_of(cli.home) if b"l2rtui.services.queue.keeper" in command_of(pid)]


def supervisors(cli, waiting):
    """Process ids of live supervisors, except those of waiting runs."""
    commands = {pid: command_of(pid).split(b"\0") for pid in processes_of(cli.home)}
    return [
        pid
        for pid, words in commands.items()
        if b"l2rtui.backends.local.supervision.supervisor" in words
        and os.path.basename(os.fsdecode(words[-2])) not in waiting  # noqa: PTH119
    ]


def kill(pids):
    """Send SIGKILL; return the number of processes that got it."""
    killed = 0
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed += 1
    return killed


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def launch(cli, *words):
    return cli.json("launch", "-f", str(cli.home / "spec.yaml"), *words, "--yes")


def states(cli):
    return {run["run"]: run["state"] for run in cli.json("runs")}


@pytest.mark.slow
def test_what_does_not_fit_waits_whole_and_starts_when_there_is_room(queue):
    refused = queue.run("launch", "-f", str(queue.home / "spec.yaml"), "--seeds", "0-3", "--yes")
    assert refused.returncode == 3
    assert "Add --queue to let the runs that find no room wait" in refused.stderr
    launched = launch(queue, "--seeds", "0-3", "--queue")
    assert [(run["run"], len(run["pods"]), run.get("queued", False)) for run in launched] == [
        ("t-s0", 1, False), ("t-s1", 1, False), ("t-s2", 0, True), ("t-s3", 0, True),
    ]  # fmt: skip
    rows = queue.json("queue")
    assert [set(row) for row in rows] == [{"run", "position", "waits_for", "since"}] * 2
    assert [(row["run"], row["position"]) for row in rows] == [("t-s2", 1), ("t-s3", 2)]
    assert rows[0]["waits_for"] == "1 slot, 0 of 2 are free"
    assert rows[1]["waits_for"] == "1 slot, 0 of 2 are free, t-s2 comes first"
    runs = {run["run"]: run for run in queue.json("runs")}
    assert {name: run["state"] for name, run in runs.items()} | {"t-s0": "", "t-s1": ""} == {
        "t-s0": "", "t-s1": "", "t-s2": "Queued", "t-s3": "Queued",
    }  # fmt: skip
    assert runs["t-s3"]["sentence"] == "waits for 1 slot, number 2 in the queue"
    (experiment,) = queue.json("experiments")
    assert (experiment["runs"], experiment["queued"]) == (4, 2)
    assert [row["run"] for row in queue.json("queue", "move", "t-s3", "--to", "1")] == ["t-s3", "t-s2"]
    # The name of a queued run is taken, and a queued run has nothing to scale.
    assert (
        "a run named t-s2 exists" in queue.run("plan", "-f", str(queue.home / "spec.yaml"), "--seeds", "2").stderr
    )
    assert queue.run("scale", "t-s2/job", "2").returncode == 3
    (queue.home / "gate").touch()
    eventually(
        lambda: states(queue) == dict.fromkeys(("t-s0", "t-s1", "t-s2", "t-s3"), "Completed"), "the queue goes on"
    )
    assert queue.json("queue") == []
    eventually(lambda: not keepers(queue), "the queue goes on")


def test_of_launches_at_once_those_that_find_no_room_wait(queue):
    spec = str(queue.home / "spec.yaml")
    at_once = [queue.start("launch", "-f", spec, "--name", f"t{number}", "--queue", "--yes") for number in range(4)]
    for launching in at_once:
        _, err = launching.communicate(timeout=60)
        assert launching.returncode == 0, err
    # A launch that sees a run in the queue waits behind it, and the keeper starts what fits.
    eventually(
        lambda: sorted(states(queue).values()) == ["Queued", "Queued", "Running", "Running"], "two of them run"
    )


@pytest.mark.slow
def test_a_run_that_waits_is_cancelled_killed_or_destroyed_with_its_experiment(queue):
    launch(queue, "--seeds", "0-5", "--queue")
    assert queue.run("queue", "cancel", "t-s5", "--yes").returncode == 0
    assert queue.run("kill", "t-s4", "--yes").returncode == 0
    assert [row["run"] for row in queue.json("queue")] == ["t-s2", "t-s3"]
    assert queue.run("queue", "cancel", "t-s5", "--yes").returncode == 1
    assert queue.run("queue", "move", "t-s2").returncode == 2
    assert queue.run("queue", "ls", "t-s2").returncode == 2
    receipts = queue.json("destroy", "t", "--grace", "0", "--yes", "--all-matching")
    assert {receipt["run"]: receipt["queued"] for receipt in receipts} == {
        "t-s0": False, "t-s1": False, "t-s2": True, "t-s3": True,
    }  # fmt: skip
    assert all(receipt["left"] == 0 for receipt in receipts)
    assert queue.json("queue") == queue.json("runs") == []


@pytest.mark.slow
@pytest.mark.parametrize("text", [b'{"queue": {"tick', b'{"format": 2}', b'{"kweue": {}}'])
def test_a_damaged_queue_stops_only_what_needs_it(queue, text):
    launch(queue, "--seeds", "0-2", "--queue")
    (file,) = queue.home.rglob("queue.json")
    whole = file.read_bytes()
    eventually(lambda: keepers(queue), "the keeper is there")
    kill(keepers(queue))
    file.write_bytes(text)
    listed = queue.run("runs", "-o", "name")
    assert (listed.returncode, set(listed.stdout.split())) == (0, {"t-s0", "t-s1"})
    assert f"warning: The queue {file} cannot be read" in listed.stderr
    assert queue.run("queue").returncode == 1
    refused = queue.run("launch", "-f", str(queue.home / "spec.yaml"), "--name", "x", "--queue", "--yes")
    assert refused.returncode != 0
    assert queue.run("destroy", "t-s0", "--grace", "0", "--yes").returncode == 0
    assert file.read_bytes() == text
    file.write_bytes(whole)
    eventually(lambda: states(queue).get("t-s2") == "Running", "the run that waited starts")


@pytest.mark.slow
def test_what_would_never_fit_and_what_has_a_fault_is_refused_and_not_queued(queue):
    spec = str(queue.home / "spec.yaml")
    never = queue.run("launch", "-f", spec, "--queue", "--set", "job.replicas=3", "--yes")
    assert never.returncode == 3
    assert "t is more than there is" in never.stderr
    (queue.home / "faulty.yaml").write_text(
        "kind: job\nname: t\nqueue: true\njob: {command: [no-such], slots: 1}\n"
    )
    faulty = queue.run("launch", "-f", str(queue.home / "faulty.yaml"), "--seeds", "0-4", "--yes")
    assert faulty.returncode == 3
    assert "no-such" in faulty.stderr
    assert queue.run("launch", "-f", spec, "--queue", "--overcommit", "--yes").returncode == 2
    assert queue.run("launch", "-f", spec, "--queue", "--yes", L2RTUI_BACKEND="demo").returncode == 2
    assert queue.json("queue") == queue.json("runs") == []


@pytest.mark.slow
def test_a_spec_may_say_that_its_runs_wait_and_a_relaunch_does_as_well(queue):
    with (queue.home / "spec.yaml").open("a") as file:
        file.write("queue: true\n")
    launch(queue, "--seeds", "0-2")
    assert [row["run"] for row in queue.json("queue")] == ["t-s2"]
    queue.run("destroy", "t", "--grace", "0", "--yes", "--all-matching")
    queue.json("relaunch", "t", "--yes")
    assert [row["run"] for row in queue.json("queue")] == ["t-s2"]


@pytest.mark.slow
def test_a_keeper_that_was_killed_is_replaced_by_the_next_command(queue):
    launch(queue, "--seeds", "0-2", "--queue")
    (keeper,) = keepers(queue)
    os.kill(keeper, signal.SIGKILL)
    eventually(lambda: not keepers(queue), "the queue goes on")
    assert queue.run("nodes").returncode == 0
    (other,) = keepers(queue)
    assert other != keeper
    (queue.home / "gate").touch()
    eventually(lambda: states(queue).get("t-s2") == "Completed", "the queue goes on")


@pytest.mark.slow
def test_a_start_that_fails_is_tried_again_and_holds_nobody_up(queue):
    command = queue.home / "bin" / "worker"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    (queue.home / "other.yaml").write_text(f"kind: job\nname: u\njob: {{command: [{command}], slots: 1}}\n")
    launch(queue, "--seeds", "0-1", "--queue")
    queue.json("launch", "-f", str(queue.home / "other.yaml"), "--queue", "--yes")
    launch(queue, "--seeds", "2", "--queue")
    command.unlink()
    (queue.home / "gate").touch()
    eventually(lambda: states(queue).get("t-s2") == "Completed", "the queue goes on")
    (row,) = queue.json("queue")
    assert row["run"] == "u"
    assert "it did not start" in row["waits_for"]
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    eventually(lambda: states(queue).get("u") == "Completed", "the queue goes on")


@pytest.mark.slow
def test_fifty_runs_ten_at_a_time_while_keepers_and_supervisors_are_killed_and_the_clock_jumps(local):
    """No run is lost, none starts twice, and the order is kept."""
    chance, offset, starts = random.Random(18), local.home / "offset", local.home / "starts"
    local.env |= {"L2RTUI_SLOTS_PER_CORE": "10", "L2RTUI_MAX_CPU_SLOTS": "10"}
    local.env |= {"PYTHONPATH": str(CLOCK), "CLOCK_OFFSET": str(offset)}
    (local.home / "spec.yaml").write_text(SHORT.replace("STARTS", str(starts)))
    launched = launch(local, "--seeds", "0-49", "--queue")
    assert sum(not run.get("queued", False) for run in launched) == 10
    killed, until = Counter(), time.monotonic() + 480.0
    while waiting := {row["run"] for row in local.json("queue")}:
        assert time.monotonic() < until, waiting
        offset.write_text(str(chance.uniform(-86_400.0, 86_400.0)))
        time.sleep(chance.uniform(0.0, 1.0))  # at any moment of a start
        if chance.random() < 0.7:
            killed["keeper"] += kill(keepers(local))
        # Of started runs: a launch whose supervisor is killed is undone, and repeated.
        killed["supervisor"] += kill(supervisors(local, waiting)[:1])
    names = [f"t-s{seed}" for seed in range(50)]
    eventually(
        lambda: all(state in ("Completed", "Degraded", "Unsupervised") for state in states(local).values()),
        "the queue goes on",
    )
    assert sorted(states(local)) == sorted(names)
    assert sorted(starts.read_text().split()) == sorted(names)  # each program ran once
    log = (local.home / "state" / "l2rtui" / "l2rtui.log").read_text()
    begun = re.findall(r"launch (t-s\d+): begins", log)
    assert list(dict.fromkeys(begun)) == names[10:]
    assert killed["keeper"] > 0
    assert killed["supervisor"] > 0
