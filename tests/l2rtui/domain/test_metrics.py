"""Metrics of runs and pods: the reported return, and pods whose log is worth a stream."""

from __future__ import annotations

import pytest

from l2rtui.domain.metrics import PodMetrics, RunMetrics, is_old


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
