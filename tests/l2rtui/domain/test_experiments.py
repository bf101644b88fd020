"""Experiments over their seeds: counts by state, mean return, its bootstrap interval, best and worst seed."""

from __future__ import annotations

import json
import math
from itertools import product

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from l2rtui.domain.experiments import (
    RESAMPLES,
    ExperimentSummary,
    SeedResult,
    bootstrap_interval,
    seed_result,
    summarize,
)
from l2rtui.domain.history import spec_id
from l2rtui.domain.kinds import Binding
from l2rtui.domain.metrics import RunMetrics
from l2rtui.domain.runstatus import Learning, LearningState
from l2rtui.domain.snapshot import RunView
from l2rtui.domain.status import QUEUED
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec, renamed, with_binding, with_seeds

RETURNS = st.floats(-1e6, 1e6, allow_subnormal=False)


def result_of(seed, latest_return=None, state=Learning.LIVE, experiment="e"):
    return SeedResult(f"{experiment}-s{seed}", experiment, seed, state, latest_return)


def waiting(seed, experiment):
    run = RunView("u", f"{experiment}-s{seed}", experiment, seed=seed, reason=QUEUED)
    return seed_result(run, LearningState(Learning.STARTING, 0.0, "waits for 1 slot"), None)


def test_a_seeds_result_is_its_evaluation_where_there_is_one():
    run, state = RunView("u", "e-s3", "e", seed=3), LearningState(Learning.DONE, 0.0, "has finished")
    metrics = RunMetrics("e-s3", mean_return=4.0, eval_return=9.0)
    assert seed_result(run, state, metrics) == SeedResult("e-s3", "e", 3, Learning.DONE, 9.0)
    assert seed_result(run, state, None).latest_return is None


def test_every_state_counts_where_people_look_for_it():
    states = [*Learning, Learning.LIVE]
    (summary,) = summarize(result_of(seed, state=state) for seed, state in enumerate(states))
    assert (summary.live, summary.stalled, summary.done, summary.failed) == (5, 2, 1, 1)
    assert (summary.runs, summary.queued, summary.unknown) == (len(states), 0, 1)
    assert summary.is_fault


def test_runs_that_wait_count_in_their_experiment_and_make_one_of_their_own():
    results = [waiting(seed, "e") for seed in range(1, 7)] + [waiting(seed, "later") for seed in (0, 1)]
    summaries = summarize([result_of(0, 5.0), *results])
    assert (summaries[0].live, summaries[0].unknown) == (1, 0)
    assert [(each.experiment, each.runs, each.queued) for each in summaries] == [("e", 7, 6), ("later", 2, 2)]
    assert summaries[1] == ExperimentSummary("later", 2, 2)
    assert not summaries[0].is_fault


def test_runs_of_several_specs_or_places_have_no_mean_in_common():
    def result(run, seed, value, spec, place="", started=0.0):
        return SeedResult(run, "e", seed, Learning.LIVE, value, spec_id=spec, place=place, started=started)

    results = [
        result("e", 0, 9.0, "aaaa", started=1.0),
        result("e-s0", 0, 1.0, "bbbb", started=2.0),
        result("e-s1", 1, 3.0, "bbbb", started=2.0),
        result("e-s1", 1, 50.0, "bbbb", "lab/team", started=3.0),
    ]
    assert [(each.title, each.runs, each.mean_return) for each in summarize(results)] == [
        ("e (spec aaaa, on this machine)", 1, 9.0),
        ("e (spec bbbb, on this machine)", 2, 2.0),
        ("e (spec bbbb, on lab/team)", 1, 50.0),
    ]
    assert [each.title for each in summarize(results[1:3])] == ["e"]


def test_of_a_seed_that_appears_twice_the_newest_run_counts_and_the_seed_is_named():
    results = [
        SeedResult("e", "e", 0, Learning.DONE, 100.0, started=1.0),
        SeedResult("e-s0", "e", 0, Learning.LIVE, 2.0, started=2.0),
        SeedResult("e-s1", "e", 1, Learning.LIVE, 4.0, started=2.0),
    ]
    for order in (results, results[::-1]):
        (summary,) = summarize(order)
        assert (summary.runs, summary.mean_return, summary.repeated_seeds) == (3, 3.0, (0,))
        assert (summary.best_seed, summary.worst_seed) == (1, 0)


def test_a_spec_has_one_id_over_seeds_names_and_backends_and_another_for_each_change():
    spec = RunSpec(
        *(Kind.LEARNER_WORKERS, "e", "e"),
        (SetSpec("w", Role.WORKER, ("w",), replicas=2), SetSpec("learner", Role.LEARNER, ("l",))),
        train='{"lr": 0.1}',
    )
    stored = msgspec.json.encode(spec).decode()
    same = [*with_seeds(spec, (0, 7)), renamed(spec, "other"), with_binding(spec, Binding.CPU), stored]
    # As written by a version with one more field.
    same.append(json.dumps(json.loads(stored) | {"new_field": None}))
    assert {spec_id(each) for each in same} == {spec_id(spec)}
    changed = [spec.with_replicas("w", 3), replace(spec, train='{"lr": 0.2}'), replace(spec, image="x@sha256:1")]
    assert len({spec_id(each) for each in (spec, *changed)}) == 4
    assert (spec_id("{}"), spec_id("[1]"), spec_id("no JSON")) == ("", "", "")


def test_one_run_has_a_mean_and_no_interval():
    (summary,) = summarize([result_of(3, 7.5)])
    assert (summary.mean_return, summary.low, summary.high) == (7.5, None, None)
    assert (summary.best_seed, summary.worst_seed) == (3, 3)


def test_a_run_without_a_return_counts_and_changes_no_mean():
    (summary,) = summarize([result_of(0, 1.0), result_of(1), result_of(2, math.nan), result_of(3, 3.0)])
    assert (summary.runs, summary.mean_return) == (4, 2.0)
    assert (summary.best_seed, summary.worst_seed) == (3, 0)
    (silent,) = summarize([result_of(0)])
    assert (silent.mean_return, silent.low, silent.best_seed, silent.worst_seed) == (None, None, None, None)


def test_of_equal_returns_the_lower_seed_is_named_and_the_order_of_runs_changes_nothing():
    results = [result_of(seed, value) for seed, value in ((4, 9.0), (1, 9.0), (2, 1.0), (0, 1.0), (3, 5.0))]
    (summary,) = summarize(results)
    assert (summary.best_seed, summary.worst_seed) == (1, 0)
    assert summarize(reversed(results)) == (summary,)


@given(st.lists(RETURNS, min_size=2, max_size=12))
def test_mean_and_interval_are_those_of_the_values(values):
    (summary,) = summarize(result_of(seed, value) for seed, value in enumerate(values))
    assert summary.mean_return == pytest.approx(np.mean(values), rel=1e-9, abs=1e-9)
    slack = 1e-6 * (1.0 + max(map(abs, values)))
    assert min(values) - slack <= summary.low <= summary.high <= max(values) + slack


def test_the_interval_agrees_with_a_bootstrap_by_numpy():
    values = np.random.default_rng(7).normal(180.0, 30.0, 12)
    resamples = np.random.default_rng(8).choice(values, (20_000, len(values)))
    expected = np.percentile(resamples.mean(axis=1), (2.5, 97.5))
    # Two bootstraps differ by the randomness of their resamples, a few per cent of the interval's length.
    tolerance = 0.1 * (expected[1] - expected[0])
    assert bootstrap_interval(tuple(values)) == pytest.approx(tuple(expected), abs=tolerance)
    assert RESAMPLES >= 1_000


def test_the_interval_of_few_values_counts_every_resample():
    values = (1.0, 4.0, 2.0, 8.0)
    means = sorted(sum(drawn) / 4 for drawn in product(values, repeat=4))
    assert bootstrap_interval(values) == (means[int(0.025 * 256)], means[-1 - int(0.025 * 256)])
    assert bootstrap_interval((3.0, 5.0)) == (3.0, 5.0)


def test_the_same_values_have_the_same_interval_at_every_look():
    values = (1.0, 4.0, 2.0, 8.0)
    first = bootstrap_interval(values)
    bootstrap_interval.cache_clear()
    assert bootstrap_interval(values) == first
