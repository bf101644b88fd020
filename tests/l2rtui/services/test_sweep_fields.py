"""Sweep of a spec file: trials and their runs, and sentences for errors."""

from __future__ import annotations

import json

import pytest

from l2rtui.errors import SpecError
from l2rtui.services.spec import spec_file

SPEC = """\
kind: learner-workers
name: r
train: {algorithm: ppo, ppo: {gamma: 0.9}}
workers: [{name: near}]
sweep:
  train.ppo.lr: [1e-4, 3e-4]
  workers.near.replicas: {low: 1, high: 4, log: true, count: 3}
  seeds: 0-1
"""


@pytest.fixture
def load(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return lambda *overrides, **options: spec_file.load(str(path), overrides, **options)


def test_each_trial_with_each_seed_is_a_run_of_one_experiment(load):
    runs = load().runs()
    assert len(runs) == 2 * 3 * 2
    assert {run.experiment for run in runs} == {"r"}
    assert [run.name for run in runs[:3]] == ["r-t0-s0", "r-t0-s1", "r-t1-s0"]
    third = runs[2]
    assert third.trial.settings() == {"train.ppo.lr": 1e-4, "workers.near.replicas": 2}
    assert third.sets[1].replicas == 2
    assert json.loads(third.train) == {"algorithm": "ppo", "ppo": {"gamma": 0.9, "lr": 1e-4}}


def test_seeds_and_a_name_of_the_launch_come_before_those_of_the_file(load):
    assert [run.name for run in load(name="s").runs((7,))][:2] == ["s-t0-s7", "s-t1-s7"]
    (run, *_) = load("sweep.seeds=[3, 5]").runs()
    assert run.seed == 3
    (run, *_) = load("sweep={train.ppo.lr: [1]}", "seed=9").runs()
    assert (run.name, run.seed) == ("r-t0", 9)


def test_the_spec_itself_has_no_trial_and_a_spec_without_a_sweep_no_trials(load):
    request = load()
    assert (request.spec.name, request.spec.trial) == ("r", None)
    plain = load("sweep=null")
    assert plain.runs() == (plain.spec,)


def test_random_trials(load):
    sweep = "sweep={random: {trials: 5, seed: 1}, train.ppo.lr: {low: 1e-5, high: 1e-3, log: true}}"
    rates = [json.loads(run.train)["ppo"]["lr"] for run in load(sweep).runs()]
    assert len(set(rates)) == 5
    assert all(1e-5 <= rate <= 1e-3 for rate in rates)


@pytest.mark.parametrize(
    ("sweep", "sentence"),
    [
        ("3", "sweep is no mapping"),
        ("{}", "sweep names no field"),
        ("{seeds: 0-3}", "sweep names no field"),
        ("{seeds: x, train.a: [1]}", "sweep.seeds cannot be read: 'x' is not a seed"),
        ("{seed: [1, 2]}", "sweep.seed cannot be swept: write seeds: 0-4"),
        ("{a..b: [1]}", "sweep.a..b is no path"),
        ("{train.a: 3}", "sweep.train.a is neither a list"),
        ("{train.a: []}", "sweep.train.a is neither a list"),
        ("{train.a: [1, 2, 1]}", "sweep.train.a has a value twice"),
        ("{train.a: [.inf]}", "sweep holds .nan or .inf"),
        ("{train.a: {low: 3, high: 1, count: 2}}", "sweep.train.a is no range: low must be less than high"),
        ("{train.a: {low: 1, high: 3}}", "sweep.train.a is a range, of which a grid needs a count"),
        ("{train.a: {lw: 1, high: 3}}", "Did you mean low?"),
        ("{random: {trials: 2}, train.a: {low: 1, high: 3, count: 2}}", "has a count, which only a grid needs"),
        ("{random: {trial: 2}, train.a: [1]}", "Did you mean trials?"),
        ("{random: 2, train.a: [1]}", "sweep.random is 2"),
        ("{train.a: {low: 1, high: 999, count: 900}, train.b: [1, 2]}", "has 1800 combinations"),
        ("{workers.near.replicas: [-1]}", "workers[0].replicas is -1"),
        ("{workers.far.replicas: [1]}", "none is number or name 'far'"),
        ("{replica: [1]}", "there is no field replica"),
    ],
)
def test_mistakes_are_sentences_that_name_the_field(load, sweep, sentence):
    with pytest.raises(SpecError) as caught:
        load(f"sweep={sweep}")
    assert sentence in str(caught.value)


def test_a_value_that_is_wrong_is_reported_at_its_line_in_the_sweep(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.replace("low: 1", "low: -2").replace(", log: true", ""))
    with pytest.raises(SpecError, match=r"spec\.yaml:7: workers\[0\]\.replicas is -2"):
        spec_file.load(str(path))
