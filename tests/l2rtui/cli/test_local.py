"""The verbs on this machine, with real processes; failures as well as successes."""

from __future__ import annotations

import array
import fcntl
import json
import os
import re
import signal
import termios
import time
from datetime import UTC, datetime

import psutil
import pytest

from l2rtui.backends.local.paths import StateFolder
from tests.fakes.nvml import GIB, FakeGpu, pynvml_folder
from tests.fakes.supervisors import kill_supervisor
from tests.l2rtui.cli.conftest import eventually, interrupt, processes_of

pytestmark = pytest.mark.process

RECORD = (
    '{"l2r":"learner","time":%f,"env_steps":%d,"updates":7,"policy_version":3,"policy_lag":[0,1,2],'
    '"env_steps_per_second":10.0,"updates_per_second":1.0,"mean_return":1.5,"workers":2}'
)
LEARNER = f"""
import time
for step in range(10_000):
    print('{RECORD}' % (time.time(), step), flush=True)
    time.sleep(0.1)
"""
SPEC = """\
kind: learner-workers
name: t
learner:
  command: [python3, -u, learner.py]
workers:
  - name: w
    replicas: 2
    command: [sh, -c, "echo hello from $L2R_POD; exec sleep 600"]
"""


STUBBORN = """\
kind: job
name: t
job: {command: [sh, -c, "trap '' TERM; echo ready; exec sleep 600"]"""


@pytest.fixture
def spec(local):
    script = local.home / "learner.py"
    script.write_text(LEARNER)
    path = local.home / "spec.yaml"
    path.write_text(SPEC.replace("learner.py", str(script)))
    return str(path)


@pytest.mark.slow
def test_what_the_driver_says_of_a_gpu_is_in_nodes_slots_and_check(local):
    folder = pynvml_folder(local.home / "nvml", FakeGpu(percent=64, used_bytes=30 * GIB, watts=402.5, celsius=66))
    local.env["PYTHONPATH"] = str(folder)
    (node,) = local.json("nodes")
    (gpu,) = (gpu for gpu in node["gpus"] if gpu["device"] == "GPU0")
    figures = ("use_percent", "memory_used_bytes", "power_watts", "temperature_celsius")
    assert [gpu[name] for name in figures] == [64.0, 30 * GIB, 402.5, 66.0]
    slots = [slot for slot in local.json("slots") if slot["device"] == "GPU0"]
    assert {(slot["gpu_use_percent"], slot["gpu_memory_used_bytes"]) for slot in slots} == {(64.0, 30 * GIB)}
    findings = {finding["subject"]: finding["sentence"] for finding in local.json("check")}
    assert findings["gpu"] == "1 GPU: 1 x NVIDIA H100 80GB HBM3, driver 580.95.05"
    assert findings["torch"].startswith("torch ")

    pynvml_folder(folder, FakeGpu(is_lost=True))
    (node,) = local.json("nodes")
    assert node["message"] == "GPU0 cannot be read: NVML says GPU is lost"


def test_of_two_launches_at_once_that_want_the_last_slot_one_is_refused_with_a_sentence(local):
    local.env |= {"L2RTUI_SLOTS_PER_CORE": "1", "L2RTUI_MAX_CPU_SLOTS": "1"}
    path = local.home / "job.yaml"
    path.write_text("kind: job\nname: t\njob: {command: [sleep, '600'], slots: 1}\n")
    assert local.json("slots")[0]["state"] == "free"
    folder = StateFolder(local.home / "state" / "l2rtui" / "local")
    folder.path.mkdir(parents=True, exist_ok=True)
    with folder.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # both have made their plan before either takes the slot
        launches = {name: local.start("launch", "-f", str(path), "--name", name, "--yes") for name in ("a", "b")}
        for process in launches.values():
            assert "launching" in process.stderr.readline()
    ends = {name: (*process.communicate(timeout=60), process.returncode) for name, process in launches.items()}
    (winner,) = (name for name, (_, _, code) in ends.items() if code == 0)
    (loser,) = (name for name, (_, _, code) in ends.items() if code == 3)
    assert f"is held by {winner}-job-0, so {loser}-job-0 cannot sit there" in ends[loser][1]
    assert "Traceback" not in ends[loser][1]
    assert [run["run"] for run in local.json("runs")] == [winner]


@pytest.mark.slow
def test_a_run_from_launch_to_receipt(local, spec):
    launched = local.json("launch", "-f", spec, "--yes", "--wait")
    assert launched["run"] == "t"
    assert [(one["set"], one["replicas"], one["ready"]) for one in launched["sets"]] == [
        ("learner", 1, 1),
        ("w", 2, 2),
    ]
    assert {pod["phase"] for pod in launched["pods"]} == {"Running"}
    (run,) = local.json("runs")
    assert (run["run"], run["ready"], run["failing"]) == ("t", 3, 0)
    held = [slot for slot in local.json("slots") if slot["run"] == "t"]
    assert {slot["pod"] for slot in held} == {"t-learner-0", "t-w-0", "t-w-1"}
    assert {slot["state"] for slot in held} == {"busy"}

    eventually(lambda: local.run("metrics", "t").returncode == 0, "a metric record")
    first = local.json("metrics", "t")
    eventually(lambda: local.json("metrics", "t")["env_steps"] > first["env_steps"], "more steps")

    eventually(lambda: "hello from t-w-1" in local.run("logs", "t/w").stdout, "the worker's line")
    lines = [
        json.loads(line) for line in local.run("logs", "t/w", "--grep", "hello", "-o", "json").stdout.splitlines()
    ]
    assert {(line["pod"], line["text"]) for line in lines} == {
        ("t-w-0", "hello from t-w-0"),
        ("t-w-1", "hello from t-w-1"),
    }

    done = local.run("exec", "t/w/0", "--", "sh", "-c", "echo $L2R_POD; exit 7")
    assert (done.returncode, done.stdout) == (7, "t-w-0\n")

    (victim,) = local.json("kill", "t/w/0", "--grace", "0", "--yes")
    assert victim["pod"] == "t-w-0"

    def is_back():
        pods = {pod["pod"]: pod for pod in local.json("pods")}
        fresh = pods.get("t-w-0", {})
        return fresh.get("ready") and fresh["pid"] != victim["pid"]

    eventually(is_back, "a new worker")

    assert local.json("scale", "t/w", "3")["added"] == ["t-w-2"]
    eventually(lambda: local.json("runs")[0]["ready"] == 4, "the third worker")
    assert local.json("scale", "t/w", "1")["removed"] == ["t-w-2", "t-w-1"]
    eventually(lambda: len(local.json("pods")) == 2, "two workers less")

    receipt = local.json("destroy", "t", "--yes", "--purge")
    assert (receipt["run"], receipt["left"], receipt["leftovers"]) == ("t", 0, [])
    assert processes_of(local.home) == []
    assert local.json("runs") == []
    assert local.json("leaks") == []


def test_one_run_a_seed_and_destroy_by_experiment(local, spec):
    launched = local.json("launch", "-f", spec, "--yes", "--seeds", "0-1", "--set", "workers.0.replicas=1")
    assert [(run["run"], run["seed"], len(run["pods"])) for run in launched] == [("t-s0", 0, 2), ("t-s1", 1, 2)]
    receipts = local.json("destroy", "t", "--grace", "0", "--yes", "--all-matching")
    assert [(receipt["run"], receipt["left"]) for receipt in receipts] == [("t-s0", 0), ("t-s1", 0)]
    assert processes_of(local.home) == []


def test_following_logs_goes_on_until_it_is_stopped(local, spec):
    local.json("launch", "-f", spec, "--yes", "--wait")
    follower = local.start("logs", "t/learner", "-f", "--tail", "1", "--timestamps")
    first, second = follower.stdout.readline(), follower.stdout.readline()
    assert first.split()[0] < second.split()[0] <= datetime.now(UTC).isoformat().replace("+00:00", "Z")
    code, _, err = interrupt(follower)
    assert (code, err) == (130, "")


def test_watching_metrics_prints_a_line_for_each_record(local, spec):
    local.json("launch", "-f", spec, "--yes", "--wait")
    eventually(lambda: local.run("logs", "t/learner").stdout.count("\n") > 5, "some history")
    before = local.json("metrics", "t")["env_steps"]
    watcher = local.start("metrics", "t", "-w", "-o", "json")
    steps = [json.loads(watcher.stdout.readline())["env_steps"] for _ in range(3)]
    assert steps == sorted(set(steps))
    assert steps[0] >= before
    assert interrupt(watcher)[0] == 130


@pytest.mark.parametrize(
    ("text", "words", "code", "sentence"),
    [
        (None, (), 2, "nothing.yaml"),
        ("kind: [", (), 2, "nothing.yaml:1: not YAML"),
        ("kind: job\nname: t\nprogram: {}\njob: {command: [true]}\n", (), 2, "program"),
        ("kind: job\nname: t\njob: {comand: [sleep, '9']}\n", (), 2, "did you mean command"),
        ("kind: job\nname: t\njob: {command: [sleep, '9'], replicas: -1}\n", (), 2, "replicas"),
        ("kind: job\nname: t\njob: {command: [sleep, '9']}\n", ("--set", "job.replicas=-3"), 2, "replicas"),
        ("kind: job\nname: t\njob: {command: [sleep, '9'], replicas: 999, slots: 1}\n", (), 3, "not fit"),
        ("kind: job\nname: t\njob: {command: [no-such-command]}\n", (), 3, "no-such-command"),
        (
            "kind: job\nname: t\njob: {command: [sleep, '9'], slots: 1}\n",
            ("--on", "nowhere/0"),
            3,
            "no slot nowhere/0 is known",
        ),
        ("kind: job\nname: Bad_Name\njob: {command: [sleep, '9']}\n", (), 2, "Bad_Name"),
    ],
    ids=[
        "missing",
        "malformed",
        "field",
        "typo",
        "negative",
        "negative-set",
        "too-many",
        "no-command",
        "pin",
        "name",
    ],
)
def test_a_bad_spec_is_a_sentence_and_starts_nothing(local, text, words, code, sentence):
    path = local.home / "nothing.yaml"
    if text is not None:
        path.write_text(text)
    done = local.run("launch", "-f", str(path), *words, "--yes")
    assert (done.returncode, done.stdout) == (code, "")
    assert sentence.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr
    assert processes_of(local.home) == []
    assert local.json("runs") == []


@pytest.mark.parametrize("verb", [("slots",), ("runs",), ("launch", "--yes", "-f")])
def test_a_state_folder_that_cannot_be_made_is_a_sentence(local, spec, verb):
    (local.home / "file").write_text("in the way")
    words = (*verb, spec) if verb[0] == "launch" else verb
    done = local.run(*words, XDG_STATE_HOME=str(local.home / "file"))
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert str(local.home / "file") in done.stderr
    else:
        assert verb[0] != "launch"
    assert processes_of(local.home) == []


def test_a_run_that_fails_at_once_is_told_and_left_to_look_at(local):
    path = local.home / "spec.yaml"
    path.write_text("kind: job\nname: t\njob: {command: [sh, -c, 'echo broken; exit 3']}\n")
    done = local.run("launch", "-f", str(path), "--yes", "--wait")
    if done.returncode:  # otherwise it was seen running before it ended
        assert (done.returncode, done.stdout) == (1, "")
        assert "t-job-0" in done.stderr
        assert "exit 3" in done.stderr
    eventually(lambda: local.json("runs")[0]["failing"], "a failed pod")
    (pod,) = local.json("pods")
    assert (pod["phase"], pod["exit_code"], pod["level"]) == ("Failed", 3, "bad")
    assert local.run("logs", "t").stdout == "broken\n"


def test_launches_at_once_share_out_the_slots_unless_a_person_confirmed_the_places(local):
    local.env |= {"L2RTUI_SLOTS_PER_CORE": "3", "L2RTUI_MAX_CPU_SLOTS": "3"}
    path = local.home / "spec.yaml"
    path.write_text("kind: job\nname: t\njob: {command: [sleep, '600'], slots: 1}\n")
    asked = local.terminal("launch", "-f", str(path), "--name", "asked")
    asked.read_until("Launch 1 run")
    at_once = [local.start("launch", "-f", str(path), "--name", f"t{number}", "--yes") for number in range(2)]
    for launch in at_once:
        _, err = launch.communicate(timeout=60)
        assert launch.returncode == 0, err
    assert len({pod["slots"][0] for pod in local.json("pods")}) == 2
    asked.type("y\n")
    assert asked.finish() == 3
    assert re.search(r"/0\.0 is held by t[01]-job-0, so asked-job-0 cannot sit there\. Plan again\.", asked.text)


def test_a_job_that_has_finished_is_completed(local):
    path = local.home / "spec.yaml"
    path.write_text('kind: job\nname: t\njob: {command: ["true"]}\n')
    local.json("launch", "-f", str(path), "--yes", "--wait")
    (run,) = local.json("runs")
    assert (run["pods"], run["ready"], run["finished"]) == (1, 0, 1)
    assert local.run("runs").stdout.splitlines()[1].split()[3] == "Completed"


def test_ctrl_c_during_a_launch_takes_everything_back(local, spec):
    launching = local.terminal("launch", "-f", spec, "--yes", "--wait")
    launching.read_until("[1/4] create Run t")
    os.killpg(launching.process.pid, signal.SIGINT)  # the effect of Ctrl-C in a terminal
    assert launching.finish() == 130
    assert "The launch was rolled back; nothing is left." in launching.text
    assert processes_of(local.home) == []
    assert local.json("runs") == []


def test_the_next_command_adopts_a_run_whose_supervisor_was_killed(local):
    """A process whose output is not read would block after 1 MiB."""
    count = local.home / "count"
    loop = f"while :; do head -c 20000 /dev/zero | tr '\\\\0' x; echo; echo . >> {count}; sleep 0.02; done"
    path = local.home / "spec.yaml"
    path.write_text(f'kind: job\nname: t\njob: {{command: [sh, -c, "{loop}"]}}\n')
    (pod,) = local.json("launch", "-f", str(path), "--yes", "--wait")["pods"]
    kill_supervisor(psutil.Process(pod["pid"]).parent())
    eventually(
        lambda: psutil.Process(pod["pid"]).status() != psutil.STATUS_RUNNING and not grows(count), "it blocks"
    )
    before = count.stat().st_size
    waiting = local.start("wait", "t", "--for=done", "--timeout", "30s")
    eventually(lambda: count.stat().st_size > before + 10, "it goes on")
    assert "t had lost its supervisor and has a new one." in interrupt(waiting)[2]
    assert local.json("pods")[0]["pid"] == pod["pid"]


def grows(file):
    before = file.stat().st_size
    time.sleep(0.5)  # ten times the pause between two lines
    return file.stat().st_size > before


def test_a_second_ctrl_c_ends_a_command_that_waits_for_its_spec(local):
    fifo = local.home / "spec.yaml"
    os.mkfifo(fifo)
    with local.start("plan", "-f", str(fifo)) as planning, fifo.open("w"):  # open blocks until a reader exists
        planning.send_signal(signal.SIGINT)
        time.sleep(1.2)  # any sooner, the second one is told to wait
        planning.send_signal(signal.SIGINT)
        assert planning.wait(60) == 130


def test_a_second_ctrl_c_is_told_to_wait(local):
    path = local.home / "spec.yaml"
    path.write_text(f"{STUBBORN}, replicas: 150}}\n")
    launching = local.start("launch", "-f", str(path), "--yes", "--debug")
    stop_in_the_middle(launching)
    # One pod that ignores SIGTERM keeps the cleanup busy for its whole grace period, however fast the others end.
    eventually(lambda: "ready" in local.run("logs", "t").stdout, "the trap")
    launching.send_signal(signal.SIGINT)
    said = read_until(launching, "Interrupted")
    launching.send_signal(signal.SIGINT)
    with launching:
        said += launching.stderr.read()
        out = launching.stdout.read()
    assert (launching.returncode, out) == (130, "")
    assert "Still clearing up, one moment." in said
    assert "The launch was rolled back; nothing is left." in said
    assert processes_of(local.home) == []
    assert local.json("runs") == []


def read_until(process, word):
    """Read stderr up to a line that starts with the word; the stream keeps data that it has read ahead."""
    said = ""
    for line in process.stderr:
        said += line
        if line.startswith(word):
            return said
    raise AssertionError(f"{word!r} never appeared in {said!r}")


def stop_in_the_middle(launching):
    """Hold a launch of many pods between two steps: it logs a line for each into a pipe that is not read."""
    fcntl.fcntl(launching.stderr, fcntl.F_SETPIPE_SZ, 4096)

    def is_full():
        assert launching.poll() is None
        waiting = array.array("i", [0])
        fcntl.ioctl(launching.stderr, termios.FIONREAD, waiting)
        return waiting[0] > 4096 - 160  # a line that does not fit is not written partially

    eventually(is_full, "a full pipe")


@pytest.mark.parametrize("delay_seconds", [0.05, 0.2, 0.35, 0.5, 0.65, 0.9])
def test_a_signal_at_any_time_leaves_all_or_nothing(local, spec, delay_seconds):
    number = signal.SIGHUP if delay_seconds in (0.35, 0.9) else signal.SIGTERM
    launching = local.start("launch", "-f", spec, "--yes", "--wait", "-o", "json")
    time.sleep(delay_seconds)  # this moment is the subject of the test, not a wait for a condition
    code, out, err = interrupt(launching, number)
    runs = local.json("runs")
    if code == 0:
        assert [run["run"] for run in runs] == [json.loads(out)["run"]] == ["t"]
    else:
        assert code in (128 + number, -number), err
        assert code == -number or "Interrupted: " in err
        assert runs == []
        assert processes_of(local.home) == []


def test_ctrl_c_during_a_destroy_says_how_to_go_on(local):
    path = local.home / "spec.yaml"
    path.write_text(f"{STUBBORN}}}\n")
    local.json("launch", "-f", str(path), "--yes", "--wait")
    eventually(lambda: "ready" in local.run("logs", "t").stdout, "the trap")
    destroying = local.start("destroy", "t", "--grace", "30", "--yes")
    for line in destroying.stderr:
        if line.startswith("destroying t"):
            break
    code, out, err = interrupt(destroying)
    assert (code, out) == (130, "")
    assert "Interrupted: t may be half gone. `l2rtui destroy t` goes on." in err
    receipt = local.json("destroy", "t", "--grace", "0", "--yes")
    assert receipt["left"] == 0
    assert receipt["seconds"] < 3  # no grace period this time
    assert processes_of(local.home) == []
