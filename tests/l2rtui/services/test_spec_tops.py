"""Fields at the top of a spec, seeds and secrets, and several mistakes in one."""

from __future__ import annotations

import json

import pytest

from l2rtui.errors import SpecError
from l2rtui.services.spec import spec_file

HEAD = "kind: learner-workers\nname: a\n"


@pytest.fixture
def load(tmp_path):
    def load(text):
        path = tmp_path / "a.yaml"
        path.write_text(HEAD + text)
        return spec_file.load(str(path))

    return load


@pytest.mark.parametrize(
    ("seeds", "names"),
    [
        ("0-2", ["a-s0", "a-s1", "a-s2"]),
        ("[3, 5]", ["a-s3", "a-s5"]),
        ("7", ["a-s7"]),
        ('"1,4-5"', ["a-s1", "a-s4", "a-s5"]),
    ],
)
def test_a_spec_with_seeds_is_one_run_for_each(load, seeds, names):
    request = load(f"seeds: {seeds}\n")
    assert [run.name for run in request.runs()] == names
    assert {run.experiment for run in request.runs()} == {"a"}
    assert [run.seed for run in request.runs((9,))] == [9], "the command line wins"


def test_a_sweep_takes_the_seeds_of_its_spec(load):
    request = load("seeds: 0-1\nsweep: {train.sac.gamma: [0.9, 0.99]}\n")
    assert sorted(run.seed for run in request.runs()) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seeds: many\n", "a.yaml:3: seeds:"),
        ("seed: 3\nseeds: 0-1\n", "seed and seeds both say it"),
        ("seeds: 0-1\nsweep: {train.sac.gamma: [0.9], seeds: 0-3}\n", "both have seeds"),
    ],
)
def test_seeds_that_cannot_be_have_a_sentence(load, text, sentence):
    with pytest.raises(SpecError, match=sentence):
        load(text)


def test_secrets_at_the_top_are_those_of_every_set(load):
    request = load("secrets: [wandb]\npod: {secrets: [s3]}\nworkers: [{name: w}]\n")
    assert {part.pod.secrets for part in request.spec.sets} == {("wandb", "s3")}


def test_all_mistakes_of_a_spec_are_said_together(load):
    with pytest.raises(SpecError) as raised:
        load("lr: 3\nseed: -1\nworkers: [{name: w, replicas: many, slts: 2}]\nlearner: {gpu: none}\n")
    lines = str(raised.value).splitlines()
    for number, words in ((3, "Did you mean train.sac.actor_lr?"), (4, "seed is -1"), (5, "replicas is 'many'")):
        assert any(f"a.yaml:{number}: " in line and words in line for line in lines), (words, lines)
    assert any("workers[0].slts" in line or "workers.0.slts" in line for line in lines)
    assert len(lines) == len(set(lines)) == 5


def test_log_to_is_the_setting_of_the_learner(load):
    request = load("log_to: wandb\nworkers: [{name: w}]\n")
    assert json.loads(request.spec.train) == {"log_to": "wandb"}
    assert load("train: {log_to: wandb}\nworkers: [{name: w}]\n").spec == request.spec
    with pytest.raises(SpecError, match=r"log_to is wandb, and train\.log_to is mlflow"):
        load("log_to: wandb\ntrain: {log_to: mlflow}\nworkers: [{name: w}]\n")
    with pytest.raises(SpecError, match="log_to is 'comet': write one of wandb, mlflow"):
        load("log_to: comet\nworkers: [{name: w}]\n")


def test_a_wrong_field_of_workdir_is_answered_with_its_fields(load):
    with pytest.raises(SpecError, match=r"no field workdir\.volum.*Did you mean volume"):
        load("workdir: {path: ., volum: data}\n")
