"""Metrics of runs and pods: the reported return, pods whose log is worth a stream, and what bounds a run."""

from __future__ import annotations

import pytest

from l2rtui.domain.metrics import PodMetrics, RunBound, RunMetrics, is_old


def test_the_evaluation_return_comes_before_that_of_training():
    assert RunMetrics("r").reported_return is None
    assert RunMetrics("r", mean_return=-3.0).reported_return == -3.0
    assert RunMetrics("r", mean_return=-3.0, eval_return=0.0).reported_return == 0.0


@pytest.mark.parametrize(
    ("age_seconds", "interval_seconds", "is_so"),
    [(15.0, 0.0, False), (15.1, 0.0, True), (15.1, 2.0, True), (80.0, 30.0, False), (91.0, 30.0, True)],
)
def test_a_record_is_old_after_fifteen_seconds_or_three_intervals_of_a_slow_writer(
    age_seconds, interval_seconds, is_so
):
    assert is_old(age_seconds, interval_seconds) is is_so


@pytest.mark.parametrize(
    ("fields", "is_worth_following"),
    [
        ({}, False),
        ({"rate": 12.0}, False),
        ({"simulator": "ready"}, True),
        ({"step": "fetch running"}, True),
        ({"rank": 0}, True),
        ({"gpu_percent": 0.0}, True),
    ],
)
def test_a_log_is_worth_a_stream_when_a_screen_shows_its_records(fields, is_worth_following):
    assert PodMetrics("worker", **fields).is_worth_following is is_worth_following


def worker(environment: float | None, waiting: float | None) -> PodMetrics:
    return PodMetrics("worker", environment_share=environment, waiting_share=waiting)


WAITS = RunMetrics("r", bound_by="workers", bound_share=0.8)


@pytest.mark.parametrize(
    ("learner", "pods", "bound"),
    [
        (None, [worker(0.9, 0.0)], None),
        (RunMetrics("r"), [worker(0.9, 0.0)], None),  # a record of an earlier version
        (RunMetrics("r", bound_by="update", bound_share=0.7), [worker(0.1, 0.8)], RunBound("update", 0.7)),
        (WAITS, [], RunBound("workers", 0.8)),
        (WAITS, [worker(None, None), PodMetrics("evaluator")], RunBound("workers", 0.8)),
        (WAITS, [worker(0.5, 0.25), worker(1.0, 0.0)], RunBound("environment", 0.75)),
        (WAITS, [worker(0.125, 0.75), worker(0.125, 0.75)], RunBound("link", 0.75)),
        (WAITS, [worker(0.25, 0.25)], RunBound("workers", 0.5)),
    ],
)
def test_what_bounds_a_run_follows_from_the_records_of_learner_and_workers(learner, pods, bound):
    assert RunBound.of(learner, pods) == bound


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("update", "update, 60% of the learner's time: "),
        ("network thread", "network thread, 60% of a core: "),
        ("environment", "environment, 60% of the time: more workers"),
        ("link", "link, workers wait 60% of their time: "),
        ("workers", "workers, 60% of the time: more of them"),
    ],
)
def test_each_bound_says_what_would_make_the_run_faster(part, words):
    assert RunBound(part, 0.6).sentence.startswith(words)
