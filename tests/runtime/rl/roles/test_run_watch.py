"""Watch of a learner by a virtual clock: limits over restarts, and alerts that are sent once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime.base import contract
from runtime.base.alert_rules import AFTER_SECONDS, AlertLedger, AlertRule, rules_text
from runtime.base.errors import NotFiniteError, SetupError
from runtime.base.launch_context import LaunchContext
from runtime.base.limits import Limits
from runtime.rl.roles import alert, run_watch
from runtime.rl.roles.run_watch import DIED, STATE_FILE, RunWatch
from tests.fakes.webhook import Webhook

NO_LIMITS = Limits()
ALL = ("stalled", "diverged", "failed", "done", "learned=100", "limit")


class Run:
    """Learner processes of one run, one after the other, with a clock that the test moves."""

    def __init__(self, folder: Path, hook: Webhook) -> None:
        self.folder, self.hook = folder, hook
        self.time = 0.0
        self.said: list[str] = []
        self.run_id = "u-1"
        self.exits: list[int] = []

    def start(self, limits: Limits = NO_LIMITS, gpus: int = 0, when: tuple[str, ...] = ()) -> RunWatch:
        environ = self.environ(limits, gpus, when)
        context = LaunchContext.from_environment(environ, "learner")
        return RunWatch(context, environ, self.folder, self.said.append, lambda: self.time, self.exits.append)

    def environ(self, limits: Limits, gpus: int, when: tuple[str, ...]) -> dict[str, str]:
        return {
            contract.ENV_ENDPOINT: "ipc:///tmp/x",
            contract.ENV_RUN: "r",
            contract.ENV_RUN_ID: self.run_id,
            contract.ENV_LIMITS: limits.text(gpus),
            contract.ENV_ALERTS: rules_text([AlertRule(when, "webhook", url_from="HOOK")] if when else []),
            contract.ENV_DIR: str(self.folder),
            "HOOK": f"{self.hook.url}/ok",
        }

    def after(self, watch: RunWatch, seconds: float, steps: int = 0, updates: int = 0, value: float | None = None):
        self.time += seconds
        watch.update(steps, updates, value)
        return watch.ended


@pytest.fixture
def run(tmp_path, monkeypatch) -> Iterator[Run]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Webhook() as hook:
        yield Run(tmp_path, hook)


def test_without_limits_and_alerts_nothing_is_written(run):
    watch = run.start()
    assert run.after(watch, 1e9) is None
    watch.close()
    assert list(run.folder.iterdir()) == []


def test_wall_counts_over_restarts_and_begins_anew_with_the_next_launch(run):
    limits = Limits(wall=100)
    watch = run.start(limits)
    assert run.after(watch, 60, 1, 1) is None
    watch.close()
    run.time += 1000  # no learner is running
    watch = run.start(limits)
    assert run.after(watch, 31, 2, 2) is None
    assert watch.record_fields() == {"limit": "limit near: 91 % of limit wall 1 min 40 s"}
    assert run.after(watch, 9, 3, 3) == "limit wall 1 min 40 s"
    assert run.said == ["limit near: 91 % of limit wall 1 min 40 s", "ended by limit wall 1 min 40 s"]
    record = json.loads(watch.finish("limit wall 1 min 40 s", {"env_steps": 3}))
    assert record["reason"] == "ended by limit wall 1 min 40 s"
    assert record == json.loads((run.folder / contract.END_FILE).read_text())
    watch.close()
    run.run_id = "u-2"
    assert run.after(run.start(limits), 60, 1, 1) is None


def test_idle_counts_while_no_data_come_and_no_progress_while_no_return_is_the_best(run):
    watch = run.start(Limits(idle=10, no_progress=100))
    for step in range(12):
        assert run.after(watch, 8, step + 1, step, value=50.0 - step) is None
    assert run.after(watch, 1, 13, 12, value=51.0) is None
    assert run.after(watch, 9, 13, 13, value=40.0) is None
    assert run.after(watch, 2, 13, 14, value=40.0) == "limit idle 10 s"

    run.run_id = "u-2"
    watch = run.start(Limits(no_progress=100))
    assert run.after(watch, 60, 1, 1, value=5.0) is None
    assert run.after(watch, 60, 2, 2, value=float("nan")) is None
    assert run.after(watch, 41, 3, 3, value=5.0) == "limit no_progress 1 min 40 s"


@pytest.mark.parametrize(
    ("limits", "label"),
    [
        (Limits(wall=1000), "limit wall 16 min 40 s"),
        (Limits(idle=660), "limit idle 11 min"),
        (Limits(no_progress=600), "limit no_progress 10 min"),
        (Limits(gpu_hours=0.25), "limit 0.25 GPU-hours"),
    ],
)
def test_a_loop_that_hangs_while_a_limit_passes_is_killed_and_the_next_ends_in_order(run, limits, label):
    watch = run.start(limits, gpus=1, when=("limit", "failed", "done"))
    run.after(watch, 100, 1, 1, value=1.0)
    run.time += 500  # no call of update: it hangs
    watch.look()
    assert (run.exits, watch.ended) == ([], None)
    run.time += 500
    watch.look()
    assert run.exits == [contract.EXIT_FAILED]
    assert f"ended by {label}; its loop has not moved for 16 min 40 s, so it is killed" in run.said
    environ = run.environ(limits, 1, ("limit", "failed", "done"))
    assert alert.report_death(environ, "exit 1") == contract.EXIT_DONE
    again = run.start(limits, gpus=1, when=("limit", "failed", "done"))
    assert run.after(again, 1, 1, 1) == label
    again.finish(label, {})
    again.close()
    assert run.hook.texts == [f"r: ended by {label}"]


def test_a_loop_that_is_slow_or_ends_by_itself_is_not_killed(run):
    watch = run.start(Limits(wall=1000))
    run.after(watch, 970, 1, 1)
    run.time += run_watch.HANG_SECONDS - 1
    watch.look()
    assert run.after(watch, 0, 2, 2) == "limit wall 16 min 40 s"
    run.time += 1000  # its last checkpoint goes to a slow store
    watch.look()
    assert run.exits == []


def test_gpu_hours_are_those_of_all_its_gpus(run):
    watch = run.start(Limits(gpu_hours=2), gpus=4)
    assert run.after(watch, 1799) is None
    assert run.after(watch, 1) == "limit 2 GPU-hours"


def test_each_state_is_sent_once_over_restarts_of_the_learner(run):
    watch = run.start(Limits(wall=10_000), when=ALL)
    run.after(watch, 1, 1, 1, value=120.0)
    run.after(watch, AFTER_SECONDS + 1, 2, 1)
    run.after(watch, 1, 3, 2)
    run.after(watch, AFTER_SECONDS + 1, 3, 2)
    with pytest.raises(NotFiniteError), watch.reporting():
        raise NotFiniteError("actor_loss is nan")
    watch.close()
    again = run.start(Limits(wall=10_000), when=ALL)
    run.after(again, 1, 4, 3, value=130.0)
    again.finish("1000 env steps", {})
    again.close()
    assert run.hook.texts == [
        "r: learned: return 120",
        "r: stalled: no update for 5 min 1 s",
        "r: diverged: actor_loss is nan",
        "r: failed: actor_loss is nan",
        "r: done: 1000 env steps",
    ]


def test_a_return_that_stays_far_below_its_best_is_divergence(run):
    watch = run.start(when=("diverged",))
    for step in range(200):
        run.after(watch, 5, step, step, value=100.0 + step if step < 50 else -100.0)
    watch.close()
    assert len(run.hook.texts) == 1
    assert run.hook.texts[0].startswith("r: diverged: its return fell from 13")


def test_a_learner_that_was_killed_is_told_by_its_successor(run):
    watch = run.start(when=("failed",))
    run.after(watch, 1, 1, 1)
    state = (run.folder / STATE_FILE).read_text()
    watch.close()
    (run.folder / STATE_FILE).write_text(state)  # as after SIGKILL
    successor = run.start(when=("failed",))
    successor.close()
    assert run.hook.texts == [f"r: failed: {DIED}"]
    run.start(when=("failed",)).close()
    assert len(run.hook.texts) == 1


def test_a_watch_that_fails_says_so_once_and_looks_on(run, monkeypatch, wait_until):
    failures = iter(range(4))

    def clock() -> float:
        if threading.current_thread() is not threading.main_thread() and next(failures, None) is not None:
            raise RuntimeError("no time\nat all")
        return run.time

    monkeypatch.setattr(run_watch, "TICK_SECONDS", 0.01)
    environ = run.environ(Limits(wall=1000), 0, ())
    context = LaunchContext.from_environment(environ, "learner")
    watch = RunWatch(context, environ, run.folder, run.said.append, clock, run.exits.append)
    run.time += 2000  # its loop hangs
    wait_until(lambda: run.exits, "its end")
    watch.close()
    assert run.exits == [contract.EXIT_FAILED]
    assert [sentence for sentence in run.said if "no time" in sentence] == [run.said[0]]
    assert run.said[0].startswith(
        "the watch of this run could not see whether its loop hangs (RuntimeError: no time, test_run_watch.py line "
    )
    assert run.said[0].endswith("); it tries again every 5 s")


def test_a_loop_that_hangs_is_killed_though_no_alert_can_be_sent(run, monkeypatch):
    watch = run.start(Limits(wall=1000), when=("limit", "failed"))
    run.time += 2000
    with monkeypatch.context() as patch:
        patch.setattr(AlertLedger, "due", lambda *_: {}["rule"])
        watch.look()
    assert run.exits == [contract.EXIT_FAILED]
    begins = [sentence.partition(" (")[0] for sentence in run.said]
    killed = "ended by limit wall 16 min 40 s; its loop has not moved for 33 min 20 s, so it is killed"
    problem = "the watch of this run could not send its"
    assert begins == [f"{problem} alerts", killed, f"{problem} last alerts"]
    again = run.start(Limits(wall=1000), when=("limit", "failed"))
    assert run.after(again, 1, 1, 1) == "limit wall 16 min 40 s"
    again.close()
    assert run.hook.texts == ["r: ended by limit wall 16 min 40 s"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run_id":"u-1"}', '{"run_id":"u-1","used":{"wal":1}}'])
def test_a_state_file_that_cannot_be_read_begins_anew(run, text):
    (run.folder / STATE_FILE).write_text(text)
    assert run.after(run.start(Limits(wall=100)), 99, 1, 1) is None


def test_the_reason_stands_where_kubernetes_reads_it(run, monkeypatch, tmp_path):
    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setattr(run_watch, "TERMINATION_LOG", log)
    watch = run.start(Limits(wall=1))
    watch.finish(str(run.after(watch, 2)), {})
    assert log.read_text() == "ended by limit wall 1 s"


@pytest.mark.parametrize(("name", "text"), [(contract.ENV_LIMITS, "{"), (contract.ENV_ALERTS, '[{"when":[]}]')])
def test_a_wrong_variable_is_named(tmp_path, name, text):
    environ = {contract.ENV_ENDPOINT: "ipc:///tmp/x", name: text}
    context = LaunchContext.from_environment(environ, "learner")
    say: Callable[[str], None] = print
    with pytest.raises(SetupError, match=name):
        RunWatch(context, environ, tmp_path, say)
