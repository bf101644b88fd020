"""Sweeps: grids and random draws, trials, and their results over seeds."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2rtui.domain.experiments import TrialRun, bootstrap_interval, trial_results
from l2rtui.domain.sweeps import (
    Halving,
    RungReport,
    SweepWatch,
    Trial,
    ValueRange,
    drawn,
    grid,
    grid_size,
    next_reports,
    registered,
    trial_document,
    trial_of,
    values_text,
)
from l2rtui.domain.workload import Kind, RunSpec, renamed


def test_a_grid_has_every_combination_and_the_last_path_changes_first():
    choices = {"lr": (0.1, 0.2), "batch": ValueRange(64, 256, is_log=True, count=3)}
    combinations = [(item["lr"], item["batch"]) for item in grid(choices)]
    assert combinations == list(itertools.product((0.1, 0.2), (64, 128, 256)))
    assert grid_size(choices) == len(combinations)


@pytest.mark.parametrize(
    ("values", "points"),
    [
        (ValueRange(0.0, 1.0, count=3), (0.0, 0.5, 1.0)),
        (ValueRange(1e-5, 1e-3, is_log=True, count=3), (1e-5, 1e-4, 1e-3)),
        (ValueRange(1, 3, count=5), (1, 2, 3)),
        (ValueRange(0.0, 1.0, count=1), (0.0,)),
    ],
)
def test_points_of_a_range(values, points):
    assert values.points() == points
    assert all(isinstance(point, type(values.low)) for point in values.points())


@pytest.mark.parametrize(
    ("values", "phrase"),
    [
        (ValueRange(2.0, 1.0), "less than high"),
        (ValueRange(0.0, math.inf), "must be numbers"),
        (ValueRange(0.0, 1.0, is_log=True), "above 0"),
        (ValueRange(0.0, 1.0), ""),
    ],
)
def test_what_is_wrong_with_a_range(values, phrase):
    assert phrase in values.problem()
    assert bool(values.problem()) is bool(phrase)


@given(st.integers(0, 99), st.integers(1, 12))
def test_draws_are_the_same_for_a_seed_and_within_their_range(seed, number):
    choices = {"lr": ValueRange(1e-5, 1e-2, is_log=True), "layers": (1, 2, 3)}
    trials = list(drawn(choices, number, seed))
    assert trials == list(drawn(choices, number, seed))
    assert len(trials) == number
    assert all(1e-5 <= trial["lr"] <= 1e-2 and trial["layers"] in (1, 2, 3) for trial in trials)


def test_no_combination_is_drawn_twice_and_few_are_exhausted():
    trials = list(drawn({"a": (1, 2), "b": ("x", "y")}, 9, 0))
    assert sorted((trial["a"], trial["b"]) for trial in trials) == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]


def test_a_trial_carries_values_of_any_kind_and_names_its_run():
    trial = trial_of(3, {"train.hidden": [64, 64], "image": "a:1"})
    assert trial.settings() == {"train.hidden": [64, 64], "image": "a:1"}
    assert trial_document(trial) == {"number": 3, "values": trial.settings()}
    assert trial_document(None) is None
    with pytest.raises(ValueError, match="JSON"):
        trial_of(0, {"lr": math.nan})
    run = RunSpec(Kind.JOB, "a", "a", ())
    assert renamed(run, "b") == RunSpec(Kind.JOB, "b", "b", ())
    assert renamed(RunSpec(Kind.JOB, "a", "a-t3", (), trial=trial), "b").name == "b-t3"


FIRST, SECOND, THIRD = (Trial(number) for number in range(3))


def test_results_are_over_seeds_and_the_best_mean_comes_first():
    runs = [
        TrialRun("e-t0-s1", FIRST, 1, "done", 30.0, 90.0, 100.0),
        TrialRun("e-t0-s0", FIRST, 0, "running", 10.0, 40.0, 50.0),
        TrialRun("e-t1-s0", SECOND, 0, "failed", 25.0, 25.0, 10.0),
        TrialRun("e-t2-s0", THIRD, 0, "queued"),
    ]
    best, second, waiting = trial_results(runs)
    assert (best.trial, best.mean_return, best.runs) == (SECOND, 25.0, 1)
    assert (second.mean_return, second.best_return, second.env_steps) == (20.0, 90.0, 150.0)
    assert (second.low, second.high) == bootstrap_interval((10.0, 30.0))
    assert second.states == (("done", 1), ("running", 1))
    assert (waiting.mean_return, waiting.low, waiting.best_return, waiting.env_steps) == (None, None, None, 0.0)


def test_returns_that_are_no_numbers_change_no_mean_and_equal_means_are_by_number():
    runs = [TrialRun("b", SECOND, 0, "done", 5.0), TrialRun("a", FIRST, 0, "done", 5.0)]
    runs.append(TrialRun("c", FIRST, 1, "done", math.nan, math.inf))
    assert [result.trial for result in trial_results(runs)] == [FIRST, SECOND]
    assert trial_results(runs)[0].best_return is None


# --- halving ---------------------------------------------------------------------------------------------------
HALVING = Halving(100, 2)


def watch_of(*runs, **fields):
    return SweepWatch("e", HALVING, runs, **fields)


def test_a_trial_arrives_at_each_rung_with_its_first_return_from_there_on():
    points = {"a": [(90, 1.0), (120, 2.0), (450, 9.0)], "b": [(99, 5.0)]}
    reports = next_reports(watch_of(("a", 0), ("b", 1)), points, ())
    assert reports == (RungReport(0, 100, 2.0), RungReport(0, 200, 9.0), RungReport(0, 400, 9.0))
    assert next_reports(watch_of(("a", 0), reports=reports[:2]), points, ()) == reports[2:]


def test_lower_rungs_are_reported_first_and_stopped_trials_no_more():
    points = {"a": [(250, 1.0)], "b": [(250, 2.0)], "c": [(250, 3.0)]}
    reports = next_reports(watch_of(("a", 0), ("b", 1), ("c", 2), stopped=(1,)), points, ())
    assert [(report.trial, report.env_steps) for report in reports] == [(0, 100), (2, 100), (0, 200), (2, 200)]


def test_a_trial_of_several_seeds_arrives_with_the_last_and_those_that_ended_before_do_not_count():
    watch = watch_of(("a", 0), ("b", 0))
    assert next_reports(watch, {"a": [(100, 1.0)]}, ()) == ()
    assert next_reports(watch, {"a": [(100, 1.0)], "b": [(110, 3.0)]}, ()) == (RungReport(0, 100, 2.0),)
    assert next_reports(watch, {"a": [(100, 1.0)], "b": [(50, 9.0)]}, ("b",)) == (RungReport(0, 100, 1.0),)
    assert next_reports(watch, {}, ("a", "b")) == ()


def test_runs_of_another_launch_join_their_sweep_and_another_rule_begins_anew():
    first, other = watch_of(("a", 0), stopped=(0,)), SweepWatch("f", HALVING)
    joined = registered((first, other), watch_of(("b", 1)))
    assert joined == (other, watch_of(("a", 0), ("b", 1), stopped=(0,)))
    anew = SweepWatch("e", Halving(7), (("c", 0),))
    assert registered(joined, anew) == (other, anew)
    assert joined[1].runs_of((1,)) == ("b",)


def test_the_values_of_a_trial_are_one_line_of_short_names():
    trial = trial_of(3, {"train.sac.actor_lr": 3e-4, "train.sizes": [64, 64], "seedless": True, "method": "sac"})
    assert values_text(trial) == "actor_lr 0.0003, sizes [64, 64], seedless True, method sac"
