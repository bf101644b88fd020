"""How a run stands, in one word and one sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from l2rtui.domain.runstatus import replicas_of_run, run_status
from l2rtui.domain.snapshot import PodView, RunView, SetView
from l2rtui.domain.status import Level, Phase
from l2rtui.domain.workload import Role

RUN = RunView("u", "r", "r", sets=(SetView("w", Role.WORKER, 2),))
UP = PodView("a", "r-w-0", "n", run="r", role=Role.WORKER, phase=Phase.RUNNING, ready=True)
DOWN = replace(UP, uid="b", name="r-w-1", phase=Phase.FAILED, ready=False, exit_code=1)
OVER = replace(DOWN, phase=Phase.SUCCEEDED, exit_code=0)
WAITS = replace(UP, uid="c", name="r-w-1", phase=Phase.PENDING, ready=False)


@pytest.mark.parametrize(
    ("run", "pods", "word", "level", "sentence"),
    [
        (RUN, (), "Starting", Level.WAIT, "0 of 2 pods ready"),
        (RUN, (UP, WAITS), "Starting", Level.WAIT, "1 of 2 pods ready"),
        (RUN, (UP, replace(UP, uid="b")), "Running", Level.OK, "all 2 pods run"),
        (RUN, (UP, OVER), "Running", Level.OK, "1 pod run, 1 have finished"),
        (RUN, (OVER, replace(OVER, uid="a")), "Completed", Level.DONE, "has finished"),
        (RUN, (UP, DOWN), "Degraded", Level.BAD, "r-w-1 failed with exit 1"),
        (RUN, (DOWN, replace(DOWN, uid="a")), "Degraded", Level.BAD, "r-w-1 failed with exit 1, and 1 more"),
        (replace(RUN, is_terminating=True), (UP,), "Terminating", Level.WAIT, "is being destroyed, 1 pod left"),
        (replace(RUN, reason="Unsupervised", message="nobody"), (UP,), "Unsupervised", Level.WARN, "nobody"),
        (replace(RUN, reason="Unsupervised"), (UP,), "Unsupervised", Level.WARN, "Unsupervised"),
    ],
)
def test_one_word_one_level_and_one_sentence(run, pods, word, level, sentence):
    found = run_status(run, pods)
    assert (found.word, found.level, found.sentence) == (word, level, sentence)


def test_all_sets_want_their_replicas():
    assert replicas_of_run(replace(RUN, sets=(*RUN.sets, SetView("e", Role.EVALUATOR, 3)))) == 5
