"""Status: one word, one level, one sentence."""

from __future__ import annotations

import pytest

from l2rtui.domain.status import Level, Phase, Status, exit_text, is_failing, pod_status


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ({"phase": Phase.RUNNING}, Status("Running", Level.OK, "running")),
        ({"phase": Phase.RUNNING, "restarts": 2}, Status("Running", Level.OK, "running, 2 restarts")),
        (
            {"phase": Phase.RUNNING, "restarts": 2, "exit_code": 137},
            Status("Running", Level.OK, "running, 2 restarts, last killed by SIGKILL (exit 137)"),
        ),
        (
            {"phase": Phase.RUNNING, "reason": "Unready", "message": "no answer"},
            Status("Unready", Level.WARN, "running: no answer"),
        ),
        ({"phase": Phase.PENDING}, Status("Pending", Level.WAIT, "waits to start")),
        (
            {"phase": Phase.PENDING, "reason": "Unschedulable", "message": "no node fits"},
            Status("Unschedulable", Level.WARN, "waits to start: no node fits"),
        ),
        (
            {"phase": Phase.PENDING, "reason": "CrashLoopBackOff", "restarts": 4, "exit_code": 1},
            Status("CrashLoopBackOff", Level.BAD, "crash-looping, 4 restarts, last ended with exit 1"),
        ),
        (
            {"phase": Phase.RUNNING, "reason": "CrashLoopBackOff", "restarts": 1, "exit_code": 7},
            Status("CrashLoopBackOff", Level.BAD, "crash-looping, 1 restart, last ended with exit 7"),
        ),
        ({"phase": Phase.SUCCEEDED, "exit_code": 0}, Status("Completed", Level.DONE, "finished")),
        ({"phase": Phase.FAILED, "exit_code": 3}, Status("Failed", Level.BAD, "failed with exit 3")),
        (
            {"phase": Phase.FAILED, "reason": "Evicted"},
            Status("Evicted", Level.BAD, "failed with no exit code"),
        ),
        (
            {"phase": Phase.FAILED, "reason": "OOMKilled", "exit_code": 137, "message": "too much"},
            Status("OOMKilled", Level.BAD, "killed by SIGKILL (exit 137): too much"),
        ),
        ({"phase": Phase.UNKNOWN}, Status("Unknown", Level.WARN, "is in an unknown state")),
        (
            {"phase": Phase.RUNNING, "is_terminating": True, "reason": "CrashLoopBackOff"},
            Status("Terminating", Level.WAIT, "is being stopped"),
        ),
    ],
)
def test_what_people_read(arguments, status):
    assert pod_status(**arguments) == status


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exit 0"),
        (128, "exit 128"),
        (129, "killed by SIGHUP (exit 129)"),
        (143, "killed by SIGTERM (exit 143)"),
        (162, "killed by signal 34 (exit 162)"),
    ],
)
def test_an_exit_code_tells_its_signal(code, text):
    assert exit_text(code) == text


def test_only_succeeded_and_failed_are_over():
    assert [phase for phase in Phase if phase.is_over] == [Phase.SUCCEEDED, Phase.FAILED]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("restarts", [0, 3])
@pytest.mark.parametrize("exit_code", [None, 0, 137])
@pytest.mark.parametrize("reason", ["", "Odd"])
def test_every_state_has_a_word_and_a_sentence(phase, restarts, exit_code, reason):
    status = pod_status(phase, reason, restarts=restarts, exit_code=exit_code)
    assert status.word
    assert status.sentence


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("reason", ["", "CrashLoopBackOff", "OOMKilled"])
@pytest.mark.parametrize("is_terminating", [False, True])
def test_what_the_ledger_asks_is_what_people_read(phase, reason, is_terminating):
    level = pod_status(phase, reason, is_terminating=is_terminating).level
    assert is_failing(phase, reason, is_terminating=is_terminating) == (level is Level.BAD)
