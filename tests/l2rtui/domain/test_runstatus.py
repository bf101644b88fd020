"""Status of a run, in one word and one sentence."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from l2rtui.domain.runstatus import NO_REPORTS, Learning, learning_state, lost_pod, replicas_of_run, run_status
from l2rtui.domain.snapshot import SCALED, PodView, RunView, SetView
from l2rtui.domain.status import CRASH_LOOP, QUEUED, Level, Phase, Status
from l2rtui.domain.workload import Role

RUN = RunView("u", "r", "r", sets=(SetView("w", Role.WORKER, 2),))
SCALED_RUN = replace(RUN, reason=SCALED, message="r-w was set to 1")
UP = PodView("a", "r-w-0", "n", run="r", role=Role.WORKER, phase=Phase.RUNNING, ready=True)
DOWN = replace(UP, uid="b", name="r-w-1", phase=Phase.FAILED, ready=False, exit_code=1)
OVER = replace(DOWN, phase=Phase.SUCCEEDED, exit_code=0)
WAITS = replace(UP, uid="c", name="r-w-1", phase=Phase.PENDING, ready=False)
STUCK = replace(WAITS, reason="ImagePullBackOff", message="v12: not found")


@pytest.mark.parametrize(
    ("run", "pods", "word", "level", "sentence"),
    [
        (RUN, (), "Starting", Level.WAIT, "0 of 2 pods ready"),
        (RUN, (UP, WAITS), "Starting", Level.WAIT, "1 of 2 pods ready"),
        (
            RUN,
            (UP, STUCK),
            "Starting",
            Level.WARN,
            "1 of 2 pods ready; r-w-1 waits: ImagePullBackOff: v12: not found",
        ),
        (
            RUN,
            (replace(STUCK, message=""),),
            "Starting",
            Level.WARN,
            "0 of 2 pods ready; r-w-1 waits: ImagePullBackOff",
        ),
        (RUN, (UP, replace(UP, uid="b")), "Running", Level.OK, "2/2 running"),
        (RUN, (UP, OVER), "Running", Level.OK, "1 pod running, 1 has finished"),
        (RUN, (OVER, replace(OVER, uid="a")), "Completed", Level.DONE, "has finished"),
        (RUN, (UP, DOWN), "Degraded", Level.BAD, "r-w-1 failed with exit 1"),
        (RUN, (DOWN, replace(DOWN, uid="a")), "Degraded", Level.BAD, "r-w-1 failed with exit 1, and 1 more"),
        (replace(RUN, is_terminating=True), (UP,), "Terminating", Level.WAIT, "stopping, 1 pod left"),
        (replace(RUN, reason="Unsupervised", message="nobody"), (UP,), "Unsupervised", Level.WARN, "nobody"),
        (replace(RUN, reason=QUEUED, message="waits for 3 slots"), (), QUEUED, Level.WAIT, "waits for 3 slots"),
        (replace(RUN, reason="Unsupervised"), (UP,), "Unsupervised", Level.WARN, "Unsupervised"),
        (SCALED_RUN, (UP,), SCALED, Level.WARN, "r-w was set to 1; 1 pod running"),
        (SCALED_RUN, (DOWN,), "Degraded", Level.BAD, "r-w-1 failed with exit 1"),
        (SCALED_RUN, (OVER,), "Completed", Level.DONE, "has finished"),
    ],
)
def test_one_word_one_level_and_one_sentence(run, pods, word, level, sentence):
    found = run_status(run, pods)
    assert (found.word, found.level, found.sentence) == (word, level, sentence)


def test_all_sets_want_their_replicas():
    assert replicas_of_run(replace(RUN, sets=(*RUN.sets, SetView("e", Role.EVALUATOR, 3)))) == 5


LEARNER = replace(UP, uid="l", name="r-learner-0", set_name="learner", role=Role.LEARNER)
DEAD = replace(LEARNER, phase=Phase.FAILED, ready=False, exit_code=1)
CRASHING = replace(LEARNER, ready=False, reason=CRASH_LOOP, restarts=3)


@pytest.mark.parametrize(
    ("kind", "pods", "name"),
    [
        ("learner-workers", (LEARNER, DOWN), ""),
        ("learner-workers", (DEAD, UP), "r-learner-0"),
        ("learner-workers", (CRASHING, UP), "r-learner-0"),
        ("learner-workers", (replace(CRASHING, restarts=2), UP), ""),
        ("learner-workers", (DEAD, replace(LEARNER, uid="m")), ""),
        ("elastic", (UP, DOWN), ""),
        ("elastic", (replace(UP, index=1), replace(DOWN, index=0)), ""),
        ("elastic", (DOWN, replace(DOWN, uid="d", index=1)), "r-w-1"),
        ("job", (UP, replace(DOWN, index=1)), "r-w-1"),
        ("job", (), ""),
    ],
)
def test_a_run_is_lost_with_a_pod_that_learns_and_has_no_successor(kind, pods, name):
    lost = lost_pod(replace(RUN, kind=kind), pods)
    assert (lost.name if lost else "") == name


def test_an_evicted_pod_that_was_replaced_does_not_degrade_its_run():
    run = RunView("u", "r", "r", sets=(SetView("w", Role.WORKER, 1),))
    evicted = PodView("a", "a", run="r", set_name="w", role=Role.WORKER, phase=Phase.FAILED, reason="Evicted")
    successor = PodView("b", "b", run="r", set_name="w", role=Role.WORKER, phase=Phase.RUNNING, ready=True)
    assert run_status(run, [evicted]).word == "Degraded"
    assert run_status(run, [evicted, successor]).word == "Running"


def test_a_run_with_pods_of_which_nothing_is_known_is_unknown():
    run = RunView("u", "r", "r", sets=(SetView("w", Role.WORKER, 2),))
    pods = [PodView(str(n), f"p{n}", run="r", set_name="w", index=n, phase=Phase.UNKNOWN) for n in range(2)]
    status = run_status(run, pods)
    assert (status.word, status.level) == ("Unknown", Level.WARN)
    assert status.sentence == "p0 is in an unknown state, and 1 more"


def test_a_run_that_was_taken_apart_is_lost():
    run = RunView("u", "r", "r", sets=(SetView("w", Role.WORKER, 2),), reason="Lost", message="its Job is gone")
    assert run_status(run, []) == Status("Lost", Level.BAD, "its Job is gone")
    assert learning_state(run, [], NO_REPORTS, 1.0).state is Learning.FAILED
