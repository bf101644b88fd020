"""State of learning from the records that an app has, by this machine's clock."""

from __future__ import annotations

from msgspec.structs import replace

from l2rtui.domain.metrics import PodMetrics, RunMetrics
from l2rtui.domain.workload import Role
from l2rtui.ui.state.learning_states import LearningStates, RecordAges
from tests.l2rtui.domain.test_learning import NOW, PODS, RUN, STEADY, UP, W0, W1, WAITS

EVALUATOR = replace(W0, uid="e", name="r-eval-0", set_name="eval", role=Role.EVALUATOR)


def look(looked, records=None, progress=WAITS):
    """State after a minute without another record of the pods, while the learner goes on to report."""
    ages = RecordAges()
    records = dict.fromkeys((W0.uid, W1.uid), replace(UP, time=NOW - 60)) if records is None else records
    ages.take(records, NOW - 60)
    metrics = RunMetrics("r", env_steps=1200, time=NOW, progress=progress)
    ages.take({RUN.uid: metrics}, NOW)
    states = LearningStates(ages)
    states.looked = frozenset(looked)
    return states.of(RUN, (*PODS, EVALUATOR), metrics, records, NOW)


def test_a_record_of_a_log_that_nobody_follows_says_nothing_of_the_present():
    assert look(()).reason == "learns; waits for data 83% of its time: more workers would speed it up"


def test_a_log_that_is_followed_names_the_workers_that_went_silent():
    assert "1 of 2 workers sends nothing (r-w-1 has had no output for 1m" in look({W1.uid}).reason


def test_a_log_that_is_followed_and_has_no_record_names_a_worker_that_never_printed():
    assert "1 of 2 workers sends nothing (r-w-0 has no output yet)" in look({W0.uid}, {}).reason


def test_a_silent_evaluator_is_named_where_its_log_is_followed():
    record = {EVALUATOR.uid: PodMetrics("evaluator", time=NOW - 60, interval_seconds=10.0)}
    assert look((), record, STEADY).reason == "learns"
    assert look({EVALUATOR.uid}, record, STEADY).reason.startswith(
        "learns, but its evaluator r-eval-0 has had no output for 1m"
    )
