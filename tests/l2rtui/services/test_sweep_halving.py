"""Halving of sweeps: the decisions of Optuna, and cases in which a sweep cannot be halved."""

from __future__ import annotations

import pytest

from l2rtui.backends.fake.backend import FakeBackend
from l2rtui.domain.preflight import refusals
from l2rtui.domain.sweeps import Halving, RungReport
from l2rtui.errors import SpecError
from l2rtui.services import launcher, sweeps
from l2rtui.services.spec import spec_file

SPEC = """\
kind: learner-workers
name: r
sweep:
  train.ppo.lr: [1e-4, 3e-4]
  halving: {min_env_steps: 1000, factor: 2}
"""


@pytest.fixture
def load(tmp_path):
    def _load(text=SPEC):
        path = tmp_path / "spec.yaml"
        path.write_text(text)
        return spec_file.load(str(path))

    return _load


def test_a_trial_that_is_not_among_the_best_of_its_rung_stops_and_stays_stopped():
    halving = Halving(100, 2)
    reports = [RungReport(0, 100, 5.0), RungReport(1, 100, 1.0), RungReport(2, 100, 9.0), RungReport(2, 200, 9.0)]
    assert sweeps.pruned_trials(halving, reports[:1]) == set()
    assert sweeps.pruned_trials(halving, reports) == {1}
    assert sweeps.pruned_trials(halving, [*reports, RungReport(1, 200, 99.0), RungReport(0, 200, 6.0)]) == {
        0,
        1,
    }


def test_a_spec_names_the_first_rung_and_the_factor(load):
    assert {run.trial.halving for run in load().runs()} == {Halving(1000, 2)}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (SPEC.replace("min_env_steps", "min_steps"), "Did you mean min_env_steps?"),
        (SPEC.replace("factor: 2", "factor: 1"), "sweep.halving.factor is 1"),
        (
            "kind: job\nname: j\njob: {command: [ls]}\nsweep: {env.A: [1], halving: {min_env_steps: 1}}\n",
            "has none",
        ),
    ],
)
def test_mistakes_are_sentences(load, text, sentence):
    with pytest.raises(SpecError) as caught:
        load(text)
    assert sentence in str(caught.value)


async def test_a_place_without_a_queue_refuses(load):
    prepared = await launcher.prepare(FakeBackend(), load())
    assert [finding.subject for finding in refusals(prepared.findings)] == ["r"]
    assert "no queue to halve a sweep" in refusals(prepared.findings)[0].sentence


async def test_without_optuna_a_sentence_says_how_to_get_it(load, monkeypatch):
    monkeypatch.setattr(sweeps, "find_spec", lambda _: None)
    prepared = await launcher.prepare(FakeBackend(), load())
    (refusal,) = refusals(prepared.findings)
    assert "needs Optuna" in refusal.sentence
    assert "sweeps" in refusal.hint
