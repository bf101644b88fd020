"""Every verb against the in-memory cluster: its output in each form, and its exit code.

``test_local`` shows the effects of the verbs, with real processes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from l2rtui.cli import main as entry
from l2rtui.errors import EXIT_REFUSED

pytestmark = pytest.mark.process

RACING = str(Path(__file__).parents[3] / "manifests/racing-sac.yaml")
SPEC = "kind: job\nname: mine\njob: {command: [sleep, '60'], replicas: 2, slots: 1}\n"


@pytest.fixture
def spec(cli):
    path = cli.home / "spec.yaml"
    path.write_text(SPEC)
    return str(path)


SLOT = {
    "id", "node", "gpu", "device", "slot", "state", "owner", "run", "set", "pod", "gpu_use_percent",
    "gpu_memory_used_bytes", "kind", "pods", "mismatches", "gpu_model", "gpu_memory_bytes", "gpu_free",
    "reserved_by", "reserved_until", "reserved_note",
}  # fmt: skip
NODE = {
    "node", "ready", "schedulable", "use_known", "slots", "free", "cpu_cores", "cpu_used", "memory_bytes",
    "memory_used_bytes", "gpus", "taints", "labels", "message", "cpu_slots", "cpu_free", "ip",
    "pods", "created", "resources",
}  # fmt: skip
POD = {
    "namespace",
    "pod", "uid", "node", "owner", "run", "set", "role", "index", "seed", "slots", "phase", "status", "level",
    "sentence", "reason", "message", "ready", "terminating", "restarts", "exit_code", "pid", "created", "started",
    "ip", "labels", "mismatches", "gpu_shares",
}  # fmt: skip
RUN = {
    "silent_since", "labels", "namespace",
    "run", "uid", "experiment", "owner", "seed", "trial", "kind", "sets", "pods", "ready", "failing", "finished",
    "terminating", "reason", "message", "created", "state", "level", "sentence", "complete",
    "learning", "learning_since", "learning_reason", "learning_level",
}  # fmt: skip
METRICS = {
    "exchange",
    "run", "env_steps", "updates", "policy_version", "policy_lag", "policy_lag_max", "mean_return", "eval_return",
    "eval_progress", "env_steps_per_second", "updates_per_second", "workers", "time", "device",
    "age_seconds", "is_live", "return", "gpu_percent", "gpu_memory_bytes", "gpu_reserved_bytes",
}  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "fields", "count"), [("nodes", NODE, 3), ("slots", SLOT, 96), ("pods", POD, 24), ("runs", RUN, 3)]
)
def test_lists_are_json_with_the_documented_fields(cli, verb, fields, count):
    done = cli.demo(verb, "-o", "json")
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr, len(found)) == (0, "", count)
    assert all(set(one) == fields for one in found)
    names = cli.demo(verb, "-o", "name").stdout.split()
    assert len(names) == count
    assert len(cli.demo(verb).stdout.splitlines()) == count + 1


def test_every_field_is_documented(cli):
    page = Path(__file__).parents[3] / "docs" / "json.md"
    sections = dict(part.split("\n", 1) for part in page.read_text("utf-8").split("\n## ")[1:])
    for section, fields in (("slots", SLOT), ("nodes", NODE), ("pods", POD), ("runs", RUN), ("metrics", METRICS)):
        assert {name for name in fields if f"`{name}`" not in sections[section]} == set()


def test_slots_tell_state_and_holder(cli):
    slots = {one["id"]: one for one in json.loads(cli.demo("slots", "-o", "json").stdout)}
    held, free, off, failed = (slots[name] for name in ("phortx1/0.0", "phortx1/7.0", "phortx3/5.0", "phortx1/2.2"))
    assert (held["state"], held["run"], held["set"]) == ("busy", "racing-sac-s0", "learner")
    assert (held["gpu"], held["device"], held["slot"]) == (0, "GPU0", 0)
    assert (free["state"], free["owner"], free["pod"]) == ("free", None, None)
    assert (off["state"], failed["state"], failed["pod"]) == ("off", "failed", "racing-sac-s1-w-3")


def test_json_and_yaml_hold_the_same(cli):
    as_yaml = yaml.safe_load(cli.demo("nodes", "-o", "yaml").stdout)
    as_json = json.loads(cli.demo("nodes", "-o", "json").stdout)
    for node in (*as_yaml, *as_json):
        assert node.pop("created")  # each process has a new cluster
    assert as_yaml == as_json


def test_times_are_rfc_3339(cli):
    (first, *_) = json.loads(cli.demo("runs", "-o", "json").stdout)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["created"])


def test_plan_prints_and_creates_nothing(cli, spec):
    done = cli.demo("plan", "-f", spec, "--on", "phortx2/7.0-1", "--set", "job.replicas=2", "-o", "json")
    plan = json.loads(done.stdout)
    assert done.returncode == 0
    assert plan["refused"] is False
    assert [pod["slots"] for pod in plan["runs"][0]["pods"]] == [["phortx2/7.0"], ["phortx2/7.1"]]
    assert plan["runs"][0]["pods"][0]["command"] == ["sleep", "60"]
    assert "GPU-" in plan["runs"][0]["pods"][0]["env"]["CUDA_VISIBLE_DEVICES"]


def test_a_plan_that_is_refused_is_printed_and_ends_with_3(cli, spec):
    done = cli.demo("plan", "-f", spec, "--name", "racing-sac-s0")
    assert done.returncode == 3
    assert "racing-sac-s0-job-0" in done.stdout
    assert "refused: racing-sac-s0: a run named racing-sac-s0 exists." in done.stderr


def test_launch_gives_an_object_and_with_seeds_a_list(cli, spec):
    one = cli.demo("launch", "-f", spec, "--yes", "-o", "json")
    assert (one.returncode, json.loads(one.stdout)["run"]) == (0, "mine")
    assert one.stderr.endswith("launching mine: 3 objects\nlaunched mine: 2 pods\n")
    many = cli.demo("launch", "-f", spec, "--yes", "--seeds", "4,9", "--policy", "spread", "-o", "json")
    assert [(run["run"], run["seed"]) for run in json.loads(many.stdout)] == [("mine-s4", 4), ("mine-s9", 9)]
    assert many.stderr.splitlines()[-2:] == ["launched mine-s4: 2 pods", "launched mine-s9: 2 pods"]
    single = cli.demo("launch", "-f", spec, "--yes", "--seeds", "4", "-o", "json")
    assert [run["run"] for run in json.loads(single.stdout)] == ["mine-s4"]


def test_launch_waits_until_every_worker_runs(cli, spec):
    done = cli.demo("launch", "-f", spec, "--yes", "--wait", "-o", "json")
    assert {pod["phase"] for pod in json.loads(done.stdout)["pods"]} == {"Running"}


def test_a_wait_that_is_too_short_says_who_is_missing(cli, spec):
    done = cli.demo("launch", "-f", spec, "--yes", "--wait", "--timeout", "0.05", "-o", "json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "mine-job-0 waits to start" in done.stderr


def test_destroy_gives_an_object_for_one_run_and_a_list_for_several(cli):
    one = json.loads(cli.demo("destroy", "lidar-ppo", "--admin", "--yes", "-o", "json").stdout)
    assert {key: one[key] for key in ("run", "objects", "left", "leftovers", "kept")} == {
        "run": "lidar-ppo", "objects": 10, "left": 0, "leftovers": [], "kept": None,
    }  # fmt: skip
    assert one["seconds"] > 0
    refused = cli.demo("destroy", "racing-sac", "lidar-ppo", "--admin", "--yes")
    assert refused.returncode == EXIT_REFUSED
    assert "racing-sac names 2 runs: racing-sac-s0, racing-sac-s1. Add --all-matching" in refused.stderr
    done = cli.demo("destroy", "racing-sac", "lidar-ppo", "--admin", "--yes", "--all-matching", "-o", "json")
    assert [receipt["run"] for receipt in json.loads(done.stdout)] == [
        "racing-sac-s0",
        "racing-sac-s1",
        "lidar-ppo",
    ]
    assert "nothing left of racing-sac-s1 (7 objects, 0 leaks," in done.stderr


def test_of_an_experiment_one_seed_or_one_set_is_destroyed_with_a_receipt_of_its_own(cli):
    row = json.loads(cli.demo("destroy", "racing-sac", "--seed", "1", "--yes", "-o", "json").stdout)
    assert (row["run"], row["left"]) == ("racing-sac-s1", 0)
    column = cli.demo("destroy", "experiment/racing-sac/w", "--yes", "--all-matching", "-o", "json")
    found = {one["run"]: (one["objects"], one["left"]) for one in json.loads(column.stdout)}
    assert found == {"racing-sac-s0/w": (4, 0), "racing-sac-s1/w": (4, 0)}
    assert "nothing left of racing-sac-s0/w (4 objects, 0 leaks," in column.stderr


def test_all_mine_leaves_others_alone_and_gives_a_list(cli):
    done = cli.demo("destroy", "--all-mine", "--yes", "-o", "json")
    assert [receipt["run"] for receipt in json.loads(done.stdout)] == ["racing-sac-s0", "racing-sac-s1"]


def test_scale_and_kill_say_what_they_have_asked_for(cli):
    scaled = json.loads(cli.demo("scale", "racing-sac-s0/w", "2", "-o", "json").stdout)
    assert scaled == {
        "run": "racing-sac-s0", "set": "w", "replicas": 2, "added": [],
        "removed": ["racing-sac-s0-w-3", "racing-sac-s0-w-2"],
    }  # fmt: skip
    done = cli.demo("kill", "racing-sac-s0/w/1", "racing-sac-s0-eval-0", "--yes", "-o", "name")
    assert done.stdout.split() == ["racing-sac-s0-w-1", "racing-sac-s0-eval-0"]


def test_metrics_once_and_record_by_record(cli):
    found = json.loads(cli.demo("metrics", "lidar-ppo", "-o", "json").stdout)
    assert found["run"] == "lidar-ppo"
    assert min(found["env_steps"], found["updates"], found["policy_version"]) > 0
    assert set(found) == METRICS
    watch = cli.start("metrics", "lidar-ppo", "-w", "-o", "json", "--backend", "demo")
    first = json.loads(watch.stdout.readline())
    watch.terminate()
    watch.communicate()
    assert first["run"] == "lidar-ppo"
    assert watch.returncode == 128 + 15


def test_logs_are_merged_prefixed_and_filtered(cli):
    done = cli.demo("logs", "racing-sac-s0/w", "--tail", "8", "--timestamps")
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    assert {re.match(r"\S+Z (\S+) \| ", line)[1] for line in lines} == {f"racing-sac-s0-w-{n}" for n in range(4)}
    assert lines == sorted(lines, key=lambda line: line.split()[0])
    alone = cli.demo("logs", "racing-sac-s0/learner", "--tail", "1").stdout
    assert alone.startswith('{"l2r":"learner"')
    assert (
        cli.demo("logs", "racing-sac-s0", "--since", "10m", "--grep", "evaluation", "--exclude", "progress").stdout
        == ""
    )
    marked = cli.demo("logs", "racing-sac-s1/w/3", "-o", "json").stdout.splitlines()
    assert json.loads(marked[0]) | {"time": ""} == {
        "time": "", "pod": "racing-sac-s1-w-3", "container": "",
        "text": "restart 5, exit 137 CrashLoopBackOff", "mark": True,
    }  # fmt: skip
    assert "out of memory" in cli.demo("logs", "racing-sac-s1-w-3", "--previous").stdout


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (
            ("destroy", "rcing-sac-s0", "--yes"),
            1,
            "Nothing is named 'rcing-sac-s0': the runs are lidar-ppo, racing",
        ),
        (("destroy", "racing-sac", "--seed", "7", "--yes"), 1, "racing-sac has no run with seed 7."),
        (("destroy", "racing-sac/x", "--yes"), 1, "racing-sac-s0 has no set x: it has "),
        (("destroy", "racing-sac-s0/learner", "--yes"), 3, "a learner set has exactly one replica"),
        (("destroy", "racing-sac/w", "--purge", "--yes"), 2, "--purge and --force are for whole runs."),
        (("destroy", "--yes"), 2, "destroy needs the names of runs, or else --all-mine."),
        (("destroy", "x", "--all-mine", "--yes"), 2, "destroy needs the names of runs, or else --all-mine."),
        (
            ("kill", "racing-sac-s0/nothing", "--yes"),
            1,
            "racing-sac-s0 has no pod nothing: its sets are learner, w, eval",
        ),
        (("logs", "nothing"), 1, "Nothing is named 'nothing'"),
        (("logs", "lidar-ppo", "--grep", "("), 2, "--grep '(' is not a regular expression"),
        (("logs", "lidar-ppo", "--since", "soon"), 2, "--since 'soon' is no time."),
        (("metrics", "nothing"), 1, "There is no run 'nothing': the runs are lidar-ppo"),
        (("metrics", "nothing", "-w"), 1, "There is no run 'nothing'"),
        (("pods", "racing-sac-s2"), 1, "There is no pod 'racing-sac-s2': the pods are"),
        (("runs", "racing-sac-s2"), 1, "There is no run 'racing-sac-s2': the runs are"),
        (("slots", "phortx9"), 1, "There is no slot 'phortx9'"),
        (("nodes", "phortx9"), 1, "There is no node 'phortx9': the nodes are phortx1, phortx2, phortx3. Did you"),
        (("wait", "nothing", "--for=done"), 1, "There is no run 'nothing'"),
        (("wait", "x*", "--for=done"), 1, "No run matches x*."),
        (("logs", "lidar-ppo", "-c", "main"), 2, "Pods of the demo backend have one container each."),
        (("scale", "racing-sac-s0", "2"), 2, "'racing-sac-s0' is no set. Write RUN/SET"),
        (("scale", "nothing/w", "2"), 1, "There is no run nothing."),
        (("scale", "racing-sac-s0/x", "2"), 1, "racing-sac-s0 has no set x: it has learner, w, eval."),
        (("scale", "racing-sac-s0/w", "500"), 3, "not fit"),
        (("exec", "lidar-ppo"), 2, "exec needs a command. Write `l2rtui exec TARGET -- CMD`."),
        (("exec", "lidar-ppo", "--", "ls"), 2, "lidar-ppo names 9 pods: lidar-ppo-learner-0,"),
        (("exec", "lidar-ppo/w/0", "--", "ls"), 1, "ls cannot run in lidar-ppo-w-0"),
        (("launch", "-f", "nowhere.yaml", "--yes"), 2, "nowhere.yaml"),
        (("launch", "-f", "nowhere.yaml"), 2, "nowhere.yaml"),
        (("launch", "-f", RACING), 2, "launch asks for confirmation, which needs a terminal."),
        (("launch", "-f", RACING, "--set", "foo=1"), 2, "foo"),
        (("kill", "racing-sac-s0"), 2, "kill asks for confirmation"),
        (("kill", "RUN9"), 1, "Nothing is named 'RUN9'"),
        (("destroy", "racing-*"), 1, "Patterns are for lists: `l2rtui runs 'racing-*' -o name` prints the names."),
        (("destroy", "RUN9"), 1, "Nothing is named 'RUN9': the runs are"),
        (
            ("kill", "lidar-ppo", "--yes"),
            3,
            "do not belong to you, so kill leaves everything as it is. Ask the owner",
        ),
        (("destroy", "lidar-ppo", "--yes"), 3, "lidar-ppo (u17) does not belong to you"),
        (("scale", "lidar-ppo/w", "1"), 3, "lidar-ppo (u17) does not belong to you"),
        (("describe", "nothing"), 1, "Nothing is named 'nothing'"),
        (("port-forward", "lidar-ppo/w/0"), 2, "port-forward takes a pod and LOCAL:REMOTE"),
        (("port-forward", "lidar-ppo/w/0", "x"), 2, "'x' is not LOCAL:REMOTE"),
        (("port-forward", "lidar-ppo/w/0", "80:99999"), 2, "they end at 65535"),
        (("port-forward", "lidar-ppo/w/0", "6006:6006"), 1, "the demo cluster has no processes"),
        (("destroy", "racing-sac-s0"), 2, "destroy asks for confirmation"),
        (
            ("destroy", "lidar-ppo", "--yes", "--readonly"),
            3,
            "destroy changes something, and l2rtui is read-only here.",
        ),
    ],
)
def test_failures_are_one_sentence_and_a_code(words, code, sentence, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("L2RTUI_BACKEND", "demo")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert entry.main(words) == code
    written = capsys.readouterr()
    assert written.out == ""
    assert sentence in written.err
    assert written.err.startswith("l2rtui: ")
    assert written.err.count("\n") == 1


def test_check_and_leaks_on_a_healthy_cluster(cli):
    assert (cli.demo("check").returncode, cli.demo("leaks", "-o", "json").stdout) == (0, "[]\n")
    found = json.loads(cli.demo("check", "-o", "json", TERM="dumb").stdout)
    assert {
        "weight": "warning",
        "subject": "terminal",
        "sentence": "TERM is 'dumb': the app cannot draw",
        "hint": "Set TERM.",
    } in found


def test_check_names_files_that_were_set_aside(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    asides = [tmp_path / "l2rtui" / name for name in ("history/runs.db.damaged-12", "queue/local/q.json.corrupt-3")]
    for aside in asides:
        aside.parent.mkdir(parents=True)
        aside.touch()
        aside.with_suffix(".other-1").touch()
    entry.main(["--backend", "demo", "check", "-o", "json"])
    found = [finding for finding in json.loads(capsys.readouterr().out) if finding["subject"] == "state"]
    assert [finding["sentence"].split()[7].rstrip(":") for finding in found] == list(map(str, asides))


def test_the_schema_is_a_schema(cli):
    schema = json.loads(cli.run("schema").stdout)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert yaml.safe_load(cli.run("schema", "-o", "yaml").stdout) == schema


def test_a_reader_that_has_seen_enough_is_no_error(cli):
    words = " ".join(cli.argv("logs", "lidar-ppo", "--backend", "demo"))
    shell = ["bash", "-c", f"{words} | head -1 >/dev/null; echo ${{PIPESTATUS[0]}}"]
    done = subprocess.run(shell, env=cli.env, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_a_full_disk_is_a_sentence(cli):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            cli.argv("pods", "--backend", "demo"),
            env=cli.env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "l2rtui: The output cannot be written: No space left on device.\n")


def test_streams_that_are_closed_are_no_error(cli):
    words = " ".join(cli.argv("destroy", "lidar-ppo", "--admin", "--yes", "--backend", "demo"))
    for streams in ("2>&-", ">&- 2>&- <&-", "2>&1 >/dev/null | head -c 1"):
        shell = ["bash", "-o", "pipefail", "-c", f"{words} {streams}"]
        done = subprocess.run(shell, env=cli.env, capture_output=True, text=True, check=False)
        assert (streams, done.returncode) == (streams, 0), done.stderr
        assert "Traceback" not in done.stderr


def test_a_terminal_without_unicode_is_no_error(cli):
    done = cli.demo("logs", "racing-sac-s1/w/3", "--tail", "2000", "--grep", "restart", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "\\u2500 restart 5" in done.stdout


def test_no_escape_reaches_a_pipe(cli):
    done = cli.demo("pods", "-o", "wide", FORCE_COLOR="1")
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("env", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_a_terminal_gets_colours_unless_it_asked_for_none(cli, env, is_coloured):
    terminal = cli.terminal("pods", "--backend", "demo", **env)
    assert terminal.finish() == 0
    assert ("\x1b[31m" in terminal.text) is is_coloured


@pytest.mark.parametrize("answer", ["n\r", "\r", "\x04", "perhaps\r"])
def test_anything_but_yes_is_no(cli, answer):
    terminal = cli.terminal("destroy", "lidar-ppo", "--admin", "--backend", "demo")
    assert "lidar-ppo: 9 pods, frees 9 slots, owned by u17" in terminal.read_until("[y/N]")
    terminal.type(answer)
    assert terminal.finish() == 1
    assert "Nothing was done." in terminal.text


def test_yes_goes_ahead_with_a_live_line(cli):
    terminal = cli.terminal("destroy", "lidar-ppo", "--admin", "--backend", "demo")
    terminal.read_until("Destroy lidar-ppo (9 pods) on the demo cluster? [y/N]")
    terminal.type("y\r")
    assert terminal.finish() == 0
    assert "destroying lidar-ppo (10 left)\r\x1b[K" in terminal.text
    assert "nothing left of lidar-ppo" in terminal.text


def test_force_wants_its_word_in_full(cli):
    for typed, code in (("y\r", 1), ("force\r", 0)):
        terminal = cli.terminal("destroy", "lidar-ppo", "--admin", "--force", "--backend", "demo")
        assert "without waiting for their processes" in terminal.read_until("[type force to go ahead]")
        terminal.type(typed)
        assert terminal.finish() == code


@pytest.mark.parametrize(
    "words", [("destroy", "lidar-ppo", "--admin"), ("kill", "lidar-ppo", "--admin"), ("launch", "-f", "{spec}")]
)
def test_ctrl_c_at_the_question_is_an_interruption(cli, spec, words):
    terminal = cli.terminal(*(word.format(spec=spec) for word in words), "--backend", "demo")
    terminal.read_until("[y/N]")
    os.killpg(terminal.process.pid, 2)  # the effect of Ctrl-C in a terminal
    assert terminal.finish() == 130
    assert "Traceback" not in terminal.text


DEAF = """
import signal, sys, threading
# The kernel gives SIGINT to a thread that does not block it, so no read of the main thread is interrupted.
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
from l2rtui.cli.main import main
sys.exit(main())
"""


def test_a_ctrl_c_that_does_not_interrupt_the_read_is_noticed_all_the_same(cli, monkeypatch):
    monkeypatch.setattr(cli, "argv", lambda *words: [sys.executable, "-c", DEAF, *words])
    terminal = cli.terminal("destroy", "lidar-ppo", "--admin", "--backend", "demo")
    terminal.read_until("[y/N]")
    os.killpg(terminal.process.pid, signal.SIGINT)
    assert terminal.finish() == 130


def test_the_app_needs_a_terminal(cli):
    done = cli.demo()
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "l2rtui: The app needs a terminal. Use a verb, such as `l2rtui runs`; `l2rtui --help` lists them.\n"
    )


@pytest.mark.parametrize("term", ["dumb", ""])
def test_the_app_needs_a_terminal_that_can_draw(cli, term):
    terminal = cli.terminal("--backend", "demo", TERM=term)
    assert terminal.finish() == 2
    assert "l2rtui: The app cannot draw on a terminal of kind" in terminal.text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("describe", "lidar-ppo"), "run lidar-ppo"),
        (("describe", "lidar-ppo"), "Topology: lidar-ppo-learner-0"),
        (("describe", "phortx1"), "node phortx1"),
        (("events", "racing-sac-s1"), "CrashLoopBackOff"),
        (("port-forward",), "FORWARD"),
    ],
)
def test_what_happened_and_what_is_forwarded_is_shown(words, text, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert entry.main(("--backend", "demo", *words)) == 0
    assert text in capsys.readouterr().out
