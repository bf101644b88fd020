"""Ends of runs: bounded curves whose means stay exact, and outcomes derived from the pods."""

from __future__ import annotations

import math
import time

import pytest

from l2rtui.backends.fake.backend import FakeBackend
from l2rtui.domain.curves.chart import RETURN
from l2rtui.domain.curves.run_curve import CurveRecord, RunCurve
from l2rtui.domain.history import RunOutcome
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView, SetView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role
from l2rtui.services.history.endings import MAX_POINTS, best_return, curve_columns, gather_ending, outcome_of


def curve_of(returns):
    curve = RunCurve()
    for number, value in enumerate(returns, 1):
        curve.add(CurveRecord(float(number), 10.0 * number, number, {} if value is None else {RETURN: value}))
    return curve


def test_a_long_curve_is_merged_and_its_mean_stays():
    returns = [math.sin(number) for number in range(5_000)]
    columns = dict(curve_columns(curve_of(returns)))
    lengths = {len(values) for values in columns.values()}
    assert len(lengths) == 1
    assert lengths.pop() <= MAX_POINTS
    assert columns["env_steps"][-1] == 50_000
    assert all(
        first < second for first, second in zip(columns["env_steps"], columns["env_steps"][1:], strict=False)
    )
    assert abs(best_return(curve_of(returns)) - max(returns)) < 1e-6


def test_a_curve_without_records_or_values_has_none():
    assert curve_columns(RunCurve()) == ()
    assert best_return(RunCurve()) is None
    columns = dict(curve_columns(curve_of([None, 3.0])))
    assert columns[RETURN] == (None, 3.0)


RUN = RunView(
    "u", "r", "r", kind="learner-workers", sets=(SetView("learner", Role.LEARNER, 1), SetView("w", Role.WORKER, 1))
)


def pod(name, role, phase, **fields):
    return PodView(name, name, run="r", set_name=name, role=role, phase=phase, **fields)


def test_a_run_has_ended_when_its_learner_has():
    worker = pod("w", Role.WORKER, Phase.RUNNING)
    assert outcome_of(RUN, [pod("learner", Role.LEARNER, Phase.RUNNING), worker]) is None
    assert outcome_of(RUN, [pod("learner", Role.LEARNER, Phase.SUCCEEDED), worker]) is RunOutcome.DONE
    failed = pod("learner", Role.LEARNER, Phase.FAILED, exit_code=1)
    assert outcome_of(RUN, [failed, worker]) is RunOutcome.FAILED
    assert outcome_of(RUN, []) is None


@pytest.mark.parametrize(
    ("phase", "outcome", "other"),
    [(Phase.SUCCEEDED, RunOutcome.DONE, Phase.FAILED), (Phase.FAILED, RunOutcome.FAILED, Phase.SUCCEEDED)],
)
async def test_a_run_ended_when_its_last_pod_of_that_outcome_ended_however_late_it_is_recorded(
    phase, outcome, other
):
    pods = [
        pod("learner", Role.LEARNER, phase, ended=1000.0),
        pod("w", Role.WORKER, phase, ended=1200.0),
        pod("v", Role.WORKER, other, ended=1300.0),
    ]
    snapshot = ClusterSnapshot(pods={item.uid: item for item in pods})
    ending = await gather_ending(FakeBackend(), snapshot, RUN, outcome)
    assert ending.ended == 1200.0


async def test_a_run_that_somebody_ends_ends_now():
    done = pod("learner", Role.LEARNER, Phase.SUCCEEDED, ended=1000.0)
    snapshot = ClusterSnapshot(pods={done.uid: done})
    before = time.time()
    ending = await gather_ending(FakeBackend(), snapshot, RUN, RunOutcome.DESTROYED)
    assert ending.ended >= before
