"""Metrics of runs and pods: the return that is reported, and pods whose log is worth a stream."""

from __future__ import annotations

import pytest

from l2rtui.domain.metrics import PodMetrics, RunMetrics


def test_the_evaluation_return_comes_before_that_of_training():
    assert RunMetrics("r").reported_return is None
    assert RunMetrics("r", mean_return=-3.0).reported_return == -3.0
    assert RunMetrics("r", mean_return=-3.0, eval_return=0.0).reported_return == 0.0


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
