"""A start outside of the clone: a new spec, and the examples that come along."""

from __future__ import annotations

import json

import pytest

from l2rtui.cli.main import main
from l2rtui.errors import UsageError
from l2rtui.services.spec import spec_file, templates
from l2rtui.services.spec.yaml_lines import parse_yaml
from runtime.base.training_rules import mistakes_in


@pytest.mark.parametrize(
    ("environment", "algorithm"),
    [
        ("CartPole-v1", "ppo"),
        ("racing", "sac"),
        ("Pendulum-v1", "td3"),
        ("CartPole-v1", "dqn"),
        ("CartPole-v1", "impala"),
    ],
)
def test_a_new_spec_loads_and_keeps_all_rules_also_with_its_comments_taken_in(tmp_path, environment, algorithm):
    path = tmp_path / "mine.yaml"
    text = templates.starter("mine", environment, algorithm)
    path.write_text(text)
    request = spec_file.load(str(path))
    train = json.loads(request.spec.train)
    assert (train["environment"], train["algorithm"]) == (environment, algorithm)
    assert mistakes_in(train) == []
    bare = "\n".join(line.replace("# ", "", 1) if line.startswith("  # ") else line for line in text.splitlines())
    assert set(parse_yaml(bare.encode(), "mine.yaml")[0]["train"]) == {
        *train,
        "num_envs",
        "segment_steps",
        "hidden",
        algorithm,
    }
    assert mistakes_in(parse_yaml(bare.encode(), "mine.yaml")[0]["train"]) == []


@pytest.mark.parametrize(
    ("name", "environment", "algorithm"),
    [("No Name", "racing", "sac"), ("a", "racin", "sac"), ("a", "racing", "a2c"), ("a", "CartPole-v1", "td3")],
)
def test_what_cannot_be_is_no_spec(name, environment, algorithm):
    with pytest.raises(UsageError):
        templates.starter(name, environment, algorithm)


def test_new_writes_a_file_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "mine", "--env", "Pendulum-v1", "--algorithm", "sac"]) == 0
    assert "l2rtui launch -f mine.yaml" in capsys.readouterr().err
    assert main(["--backend", "demo", "plan", "-f", "mine.yaml", "-o", "name"]) == 0
    before = (tmp_path / "mine.yaml").read_text()
    assert main(["new", "mine"]) != 0
    assert (tmp_path / "mine.yaml").read_text() == before
    assert main(["new", "mine", "--replace"]) == 0
    assert (tmp_path / "mine.yaml").read_text() != before


def test_examples_are_launched_by_name_from_anywhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert {"cartpole-ppo", "racing-sac"} <= set(templates.examples())
    assert "rbac" not in templates.examples()
    assert main(["--backend", "demo", "plan", "-t", "cartpole-ppo", "-o", "name"]) == 0
    assert "cartpole-ppo-learner-0" in capsys.readouterr().out
    assert main(["--backend", "demo", "plan", "-t", "cartpole-pp"]) != 0
    assert "cartpole-ppo" in capsys.readouterr().err
