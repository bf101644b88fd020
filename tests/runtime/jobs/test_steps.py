"""Steps of a run as real processes: order, skipping, parts, failure, signals."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from runtime.base import contract
from runtime.base.errors import SetupError
from runtime.jobs.steps import StepMarkers, checked_name
from tests.runtime.programs import Programs, wait_for
from tests.tiers import starts_processes

pytestmark = pytest.mark.process


@pytest.fixture
@starts_processes
def programs(tmp_path: Path):
    with Programs(tmp_path) as started:
        yield started


def marks(programs: Programs) -> set[str]:
    folder = programs.folder / "run" / "steps"
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def states(program) -> list[str]:
    return [each["state"] for each in program.records("step")]


def test_a_step_waits_for_those_before_it_and_a_second_launch_skips_what_is_done(programs):
    out = programs.folder / "order"
    last = programs.start("step", "last", "--after", "first, middle", "--", "sh", "-c", f"echo last >> {out}")
    middle = programs.start("step", "middle", "--after", "first", "--", "sh", "-c", f"echo middle >> {out}")
    wait_for(lambda: states(last) == ["waiting"] == states(middle), "both to wait", last, middle)
    first = programs.start("step", "first", "--", "sh", "-c", f"echo first >> {out}")
    assert [each.code() for each in (first, middle, last)] == [0, 0, 0]
    assert out.read_text().split() == ["first", "middle", "last"]
    assert states(last) == ["waiting", "running", "done"]
    assert last.records("step")[0]["detail"] == "for first, middle"
    assert last.records("step")[-1]["exit_code"] == 0
    assert marks(programs) == {"first.done", "middle.done", "last.done"}

    again = programs.run("step", "last", "--after", "first", "--", "sh", "-c", f"echo again >> {out}")
    assert (again.process.returncode, states(again)) == (0, ["skipped"])
    assert "again" not in out.read_text()


def test_a_failure_keeps_its_code_ends_those_behind_it_and_is_forgotten_when_it_runs_again(programs):
    behind = programs.start("step", "b", "--after", "a", "--", "true")
    far_behind = programs.start("step", "c", "--after", "b", "--", "true")
    failed = programs.run("step", "a", "--once", "--", "sh", "-c", "exit 7")
    assert failed.process.returncode == 7
    assert [behind.code(), far_behind.code()] == [contract.EXIT_FAILED] * 2
    assert "step b does not run: step a, which it comes after, has failed" in behind.text()
    assert marks(programs) == {"a.failed", "b.failed", "c.failed"}

    relaunched = {"L2R_RUN_ID": "test-2"}
    behind = programs.start("step", "b", "--after", "a", "--", "true", **relaunched)
    wait_for(lambda: "waiting" in states(behind), "a step that heeds no failure of an earlier launch", behind)
    assert programs.run("step", "a", "--once", "--", "true", **relaunched).process.returncode == 0
    assert behind.code() == 0
    assert marks(programs) == {"a.done", "b.done", "c.failed"}


def test_without_once_a_failure_is_only_an_exit_code_since_somebody_starts_it_again(programs):
    assert programs.run("step", "a", "--", "sh", "-c", "kill -9 $$").process.returncode == 128 + 9
    assert marks(programs) == set()


def test_parts_make_a_step_when_all_of_them_are_done(programs):
    words = ("step", "shard", "--parts", "2", "--", "true")
    first = programs.run(*words, L2R_INDEX="0")
    assert marks(programs) == {"shard/0.done"}
    assert first.records("step")[-1]["detail"] == "part 0 of 2"
    assert programs.run(*words, L2R_INDEX="1").process.returncode == 0
    assert marks(programs) == {"shard/0.done", "shard/1.done", "shard.done"}
    (programs.folder / "run" / "steps" / "shard.done").unlink()
    assert states(programs.run(*words, L2R_INDEX="0")) == ["skipped"]
    assert "shard.done" in marks(programs), "the last part may have ended before it could say so"


def test_a_signal_reaches_the_command_and_what_it_ends_is_not_done(programs):
    polite = 'trap "exit 0" TERM; echo up; while :; do sleep 0.1; done'
    step = programs.start("step", "a", "--", "sh", "-c", polite)
    wait_for(lambda: "up\n" in step.text(), "the command", step)
    assert step.end(signal.SIGTERM) == contract.EXIT_INTERRUPTED
    assert marks(programs) == set()
    assert step.records("step")[-1]["detail"] == "ended by SIGTERM"

    waiting = programs.start("step", "b", "--after", "a", "--", "true")
    wait_for(lambda: states(waiting) == ["waiting"], "it to wait", waiting)
    assert waiting.end(signal.SIGTERM) == contract.EXIT_INTERRUPTED
    assert marks(programs) == set()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("step", "a"), "a step needs a command"),
        (("step", "../a", "--", "true"), "must be 1 to 63 letters"),
        (("step", "a", "--after", "b/c", "--", "true"), "must be 1 to 63 letters"),
        (("step", "a", "--parts", "0", "--", "true"), "--parts is 0"),
        (("learner", "--", "true"), "learner takes no command behind --"),
    ],
)
def test_wrong_use_is_a_sentence(programs, words, sentence):
    program = programs.run(*words)
    assert program.process.returncode == contract.EXIT_USAGE
    assert sentence in program.text()
    assert "Traceback" not in program.text()


def test_a_command_that_does_not_exist_is_a_sentence_and_fails_the_step(programs):
    program = programs.run("step", "a", "--", "/no/such/program")
    assert program.process.returncode == contract.EXIT_FAILED
    assert "step a: /no/such/program cannot be started" in program.text()
    assert states(program)[-1] == "failed"


def test_a_torn_mark_of_failure_is_none_and_a_name_is_checked(tmp_path):
    found = StepMarkers(tmp_path / "steps", "1")
    found.failed("a", 3, 0.5)
    assert found.has_failed("a")
    (tmp_path / "steps" / "a.failed").write_text('{"run_id":')
    assert not found.has_failed("a")
    found.done("a", 0, 1, 1.0)
    found.failed("a", 3, 0.5)
    assert not found.has_failed("a"), "what is done has not failed"
    with pytest.raises(SetupError):
        checked_name(".hidden")
