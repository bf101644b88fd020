"""State of learning from the records that an app has, by this machine's clock."""

from __future__ import annotations

from dataclasses import replace

from l2rtui.domain.metrics import RunMetrics
from l2rtui.ui.state.learning_states import LearningStates
from l2rtui.ui.state.record_ages import RecordAges
from tests.l2rtui.domain.test_learning import NOW, PODS, RUN, UP, W0, W1, WAITS


def look(record):
    """State after a minute without another record of the workers, while the learner goes on to report."""
    ages = RecordAges()
    records = dict.fromkeys((W0.uid, W1.uid), replace(record, time=NOW - 60))
    ages.take(records, NOW - 60)
    metrics = RunMetrics("r", env_steps=1200, time=NOW, progress=WAITS)
    ages.take({RUN.uid: metrics}, NOW)
    return LearningStates(ages).of(RUN, PODS, metrics, records, NOW)


def test_a_record_of_a_log_that_nobody_follows_says_nothing_of_the_present():
    assert look(UP).reason == "learns; waits for data 83 % of its time: more workers would speed it up"


def test_a_log_that_is_followed_names_the_workers_that_went_silent():
    assert (
        "2 of 2 workers send nothing (r-w-0 has printed nothing for "
        in look(replace(UP, simulator="running")).reason
    )
