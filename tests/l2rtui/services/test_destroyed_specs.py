"""Destroyed runs can be launched again: by run, by experiment, or the last one."""

from __future__ import annotations

import os

import pytest

from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.errors import NotFoundError
from l2rtui.services import destroyed_specs


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "l2rtui" / "last-runs"


def spec(name, experiment="", seed=0):
    return RunSpec(Kind.JOB, experiment or name, name, (SetSpec("w", Role.JOB, ("true",)),), seed=seed)


def keep(state, *specs):
    for number, one in enumerate(specs):
        destroyed_specs.keep(one)
        os.utime(state / f"{one.name}.json", (number, number))


def test_the_last_one_is_found_without_a_name(state):
    keep(state, spec("a"), spec("b"))
    assert destroyed_specs.find() == (spec("b"),)
    assert destroyed_specs.find("a") == (spec("a"),)


def test_an_experiment_stands_for_its_runs_in_the_order_of_seeds(state):
    keep(state, spec("e-s2", "e", 2), spec("e-s1", "e", 1), spec("other"))
    assert [one.seed for one in destroyed_specs.find("e")] == [1, 2]


def test_what_is_not_kept_is_said_with_what_is(state):
    with pytest.raises(NotFoundError, match=r"There is no destroyed run\. None has been destroyed from here"):
        destroyed_specs.find()
    keep(state, spec("a"))
    with pytest.raises(NotFoundError, match=r"No destroyed run is named b\. Those that are kept: a"):
        destroyed_specs.find("b")


def test_only_so_many_are_kept_and_damage_is_passed_over(state, monkeypatch):
    monkeypatch.setattr(destroyed_specs, "MAX_SPECS", 2)
    keep(state, spec("a"), spec("b"), spec("c"))
    assert sorted(path.name for path in state.glob("*.json")) == ["b.json", "c.json"]
    (state / "c.json").write_text("{")
    assert destroyed_specs.find() == (spec("b"),)


def test_a_folder_that_cannot_be_written_is_no_failure(state):
    state.parent.mkdir(parents=True)
    state.write_text("a file")
    destroyed_specs.keep(spec("a"))
    destroyed_specs.keep(spec("../evil"))
    assert state.read_text() == "a file"
