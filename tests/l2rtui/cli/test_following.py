"""Followed lists and waits for runs: real processes on this machine, terminals and pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from tests.l2rtui.cli.conftest import DEADLINE_SECONDS, interrupt

pytestmark = pytest.mark.process

LEARNER = """
import json, sys, time
record = {"l2r": "learner", "policy_version": 3, "policy_lag": [0, 1, 2], "env_steps_per_second": 10.0,
          "updates_per_second": 1.0, "workers": 1}
for step in range(10_000):
    record |= {"time": time.time(), "env_steps": step, "updates": step, "mean_return": float(step)}
    print(json.dumps(record, separators=(",", ":")), flush=True)
    time.sleep(0.05)
    if step == int(sys.argv[1]):
        sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def launch(local):
    script = local.home / "learner.py"
    script.write_text(LEARNER)

    def learner(name: str, steps: int, code: int) -> None:
        """Launch a learner that ends after this many records with this exit code."""
        path = local.home / f"{name}.yaml"
        path.write_text(
            f"kind: learner-workers\nname: {name}\n"
            f"learner: {{command: [python3, -u, {script}, '{steps}', '{code}'], restart: Never}}\n"
            "workers: [{name: w, replicas: 1, command: [sleep, '600']}]\n"
        )
        done = local.run("launch", "-f", str(path), "--yes")
        assert done.returncode == 0, done.stderr

    return learner


def test_a_pipe_gets_one_object_for_each_change_in_the_life_of_a_run(local, launch):
    watch = local.start("pods", "r", "-o", "json", "-w")
    # An unknown name is an error, also with follow.
    assert watch.communicate(timeout=DEADLINE_SECONDS)[1].startswith("l2rtui: There is no pod 'r'")
    watch = local.start("pods", "r*", "-o", "json", "-w")
    launch("r", 9_999, 0)
    events = []

    def read_until(is_so):
        while not events or not is_so(events[-1]):
            events.append(json.loads(watch.stdout.readline()))
        return events[-1]

    added = read_until(lambda one: one["pod"] == "r-w-0" and one["ready"])
    assert events[0]["event"] == "added"
    assert local.run("kill", "r/w/0", "--grace", "0", "--yes").returncode == 0
    read_until(lambda one: one["pod"] == "r-w-0" and one["ready"] and one["pid"] != added["pid"])
    assert local.run("destroy", "r", "--grace", "0", "--yes").returncode == 0
    gone = set()
    while len(gone) < 2:
        gone.add(read_until(lambda one: one["event"] == "gone")["pod"])
        events.clear()
    assert gone == {"r-learner-0", "r-w-0"}
    code, _, _ = interrupt(watch)
    assert code == 130


def test_a_terminal_shows_a_table_that_follows_the_runs(local, launch):
    terminal = local.terminal("runs", "-w")
    terminal.read_until("AGE")
    terminal.text = ""
    launch("r", 9_999, 0)
    terminal.read_until("Running")
    terminal.read_until("live")
    terminal.text = ""
    assert local.run("destroy", "r", "--grace", "0", "--yes").returncode == 0
    terminal.read_until("AGE\x1b[K\r\n\x1b[J")  # the header, and nothing below it
    os.killpg(terminal.process.pid, signal.SIGINT)
    assert terminal.finish() == 130
    assert "Traceback" not in terminal.text


@pytest.mark.slow
def test_several_learners_are_followed_on_one_stream(local, launch):
    launch("one", 9_999, 0)
    launch("two", 9_999, 0)
    assert local.run("wait", "one", "two", "--for=running", "--timeout", "1m").returncode == 0
    watch = local.start("metrics", "-w", "-o", "json")
    runs = set()
    while runs != {"one", "two"}:
        runs.add(json.loads(watch.stdout.readline())["run"])
    assert interrupt(watch)[0] == 130


@pytest.mark.slow
def test_wait_tells_a_run_that_got_there_from_one_that_cannot(local, launch):
    launch("good", 40, 0)
    launch("bad", 5, 1)
    # The learner of `good` ends with a return of 40, so that its last record decides the last of these.
    for words, code, outcome in (
        (("good", "--for=learned=20"), 0, "reached"),
        (("good", "--for=done"), 0, "reached"),
        (("good", "--for=learned=40"), 0, "reached"),
        (("good", "--for=learned=41"), 5, "out of reach"),
        (("good", "--for=failed"), 5, "out of reach"),
        (("bad", "--for=failed"), 0, "reached"),
        (("bad", "--for=done"), 5, "out of reach"),
        (("bad", "--for=learned=7"), 5, "out of reach"),
    ):
        (found,) = local.json("wait", *words, "--timeout", "1m", code=code)
        assert (found["outcome"], found["reached"]) == (outcome, code == 0), words


def test_wait_says_how_it_stands_and_leaves_the_runs_alone_when_stopped(local, launch):
    launch("r", 9_999, 0)
    terminal = local.terminal("wait", "r", "--for=learned=1e9")
    terminal.read_until("return 1")
    assert "learned=1e+09: " in terminal.text
    os.killpg(terminal.process.pid, signal.SIGINT)
    assert terminal.finish() == 130
    assert "Interrupted: the runs go on." in terminal.text
    gone = local.terminal("wait", "r", "--for=gone", "-o", "name", streams={"stdout": subprocess.PIPE})
    gone.read_until("gone: ")  # it has seen the run: a name that was never seen is not printed
    assert local.run("destroy", "r", "--grace", "0", "--yes").returncode == 0
    assert gone.process.communicate(timeout=DEADLINE_SECONDS)[0] == b"r\n"
    assert gone.process.returncode == 0
