"""The reference of spec files: schema, explained fields, the page of settings, and hints for wrong names."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from l2rtui.cli.main import main
from l2rtui.errors import UsageError
from l2rtui.services.spec import reference, spec_file
from runtime.base.methods import METHODS
from runtime.base.setting import types_of
from runtime.base.training import Settings
from runtime.base.training_rules import mistakes_in

ROOT = Path(__file__).parents[3]
EXAMPLES = [path for path in sorted((ROOT / "manifests").glob("*.yaml")) if "$schema=" in path.read_text()]


def fields(document):
    for name, definition in document["$defs"].items():
        for field, value in definition.get("properties", {}).items():
            yield f"{name}.{field}", value


def test_every_field_of_the_schema_has_a_description_and_an_example():
    found = dict(fields(reference.schema()))
    assert len(found) > 300
    for name, field in found.items():
        assert field.get("description"), name
        assert field.get("examples") or field.get("enum"), name


def test_examples_of_settings_are_values_that_the_runtime_takes():
    for name, field in reference.schema()["$defs"]["Settings"]["properties"].items():
        if name not in METHODS and name not in ("algorithm", "dataset", "collect"):
            wrong = mistakes_in({name: field["examples"][0]})
            assert not [sentence for sentence in wrong if sentence.startswith(f"{name} is")], name


def test_every_field_is_explained():
    paths = list(reference.every_path())
    assert {"train.sac.actor_lr", "workers.replicas", "pod.mounts.path", "steps.nodes.max"} <= set(paths)
    for path in paths:
        for field in reference.explained(path):
            assert dict(reference.described(field))["MEANING"], path


def test_every_setting_says_when_to_change_it_or_what_it_names():
    for kind in METHODS.values():
        properties = reference.schema()["$defs"][kind.__name__]["properties"]
        assert set(properties) == set(types_of(kind))
        assert all(field.get("x-when") for field in properties.values()), kind


@pytest.mark.slow
def test_train_is_typed_where_the_learner_is_ours():
    schema = reference.schema()
    assert schema["$id"]
    spec = {"kind": "learner-workers", "name": "a"}
    jsonschema.validate({**spec, "train": {"algorithm": "ppo", "ppo": {"lr": 1e-3}}}, schema)
    jsonschema.validate({**spec, "learner": {"command": ["mine"]}, "train": {"lr": 1}}, schema)
    jsonschema.validate({**spec, "kind": "job", "job": {"command": ["ls"]}, "train": {"lr": 1}}, schema)
    for wrong in ({"lr": 1}, {"algorithm": "a2c"}, {"sac": {"lr": 1}}, {"num_envs": 0}, {"sac": {"tau": 2}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**spec, "train": wrong}, schema)


def test_the_page_and_the_schema_beside_the_examples_are_current():
    assert (ROOT / "docs/settings.md").read_text() == reference.page()
    assert json.loads((ROOT / "manifests/spec.schema.json").read_text()) == json.loads(
        json.dumps(reference.schema())
    )
    assert len(EXAMPLES) > 20


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_settings_of_the_examples_keep_all_rules(path):
    document = yaml.safe_load(path.read_text())
    if document["kind"] == "learner-workers" and "command" not in document.get("learner", {}):
        assert mistakes_in(json.loads(spec_file.load(str(path)).spec.train or "{}")) == []


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("lr", "train.sac.actor_lr"),
        ("train.lr", "train.sac.actor_lr"),
        ("train.ppo.gama", "train.ppo.gamma"),
        ("train.total_timesteps", "train.total_env_steps"),
        ("worker.replicas", "workers.replicas"),
    ],
)
def test_a_wrong_name_leads_to_the_right_one(path, hint):
    with pytest.raises(UsageError) as raised:
        reference.explained(path)
    assert hint in (raised.value.hint or "")


def test_explain_prints_a_field_and_those_below_it(capsys):
    assert main(["explain", "train.sac.actor_lr"]) == 0
    text = capsys.readouterr().out
    assert "TYPE       number, above 0" in text
    assert "DEFAULT    0.0003" in text
    assert "CHANGE IT  Racing takes 5e-4" in text
    assert main(["explain", "pod.mounts", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["path"] == "pod.mounts"


def test_set_is_completed_with_fields(capsys):
    assert main(["__complete", "--", "plan", "--set", "train.sac.actor"]) == 0
    assert capsys.readouterr().out == "train.sac.actor_lr=\n"


def test_a_set_of_a_wrong_name_leads_to_the_setting(capsys, tmp_path):
    spec = tmp_path / "a.yaml"
    spec.write_text("kind: learner-workers\nname: a\ntrain: {algorithm: ppo}\n")
    assert main(["--backend", "demo", "plan", "-f", str(spec), "--set", "lr=3"]) == 2
    assert "Did you mean train.ppo.lr?" in capsys.readouterr().err


def test_the_defaults_are_those_of_the_declaration():
    assert set(reference.schema()["$defs"]["Settings"]["properties"]) == set(types_of(Settings))
