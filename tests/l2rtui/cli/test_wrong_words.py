"""What newcomers type that is not right: each leads to its next step, and none to a verb that destroys."""

from __future__ import annotations

import re

import pytest

from l2rtui.cli import main as entry
from l2rtui.cli.parser import CHANGING
from l2rtui.ui.keys.palette import COMMANDS, hint_for

ELASTIC = """\
apiVersion: elastic.pytorch.org/v1alpha1
kind: ElasticJob
metadata: {name: digits}
spec:
  minReplicas: 1
  maxReplicas: 3
  replicaSpecs:
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: w, image: x, command: [python3, train.py]}]}}
"""

# Words, and the next step that stands in the answer.
WRONG = (
    # the review's
    ("init", "l2rtui new NAME --env ID"),
    ("new", "l2rtui new NAME --env ID"),
    ("examples", "l2rtui launch -t cartpole-ppo"),
    ("pause racing-sac-s0", "l2rtui scale racing-sac-s0/SET 0"),
    ("runs --json", "-o json"),
    ("runs --no-color", "NO_COLOR=1"),
    ("runs --yes", "needs no --yes"),
    ("plan -t racing-sac --set lr=1", "train.sac.actor_lr"),
    ("launch -t racing-sac --gpus 2", "workers.0.gpus=1"),
    ("plan -t racing-sac --set resources.gpu=1", "learner.resources or workers.0.resources"),
    ("delete pod racing-sac-s0-w-0", "l2rtui kill racing-sac-s0-w-0"),
    ("launch -t racing-sac --dry-run", "l2rtui plan"),
    ("rollout restart racing-sac-s0-w-0", "l2rtui kill racing-sac-s0-w-0"),
    ("launch racing-sac.yaml", "l2rtui launch -f racing-sac.yaml"),
    ("launch -t racing-sac --seeds four", "0-11 or 1,5,7"),
    ("pods -A", "-n NS1,NS2"),
    ("launch -t racing-sac --on phortx1:0", "n1/0-3"),
    ("plan -t racing-sac --set train.total_timesteps=1e6", "total_env_steps"),
    ("plan -t racing-sac --set environment=CartPole-v1", "train.environment"),
    # of the same kinds
    ("quickstart", "l2rtui new NAME"),
    ("resume racing-sac-s0", "l2rtui relaunch racing-sac-s0"),
    ("tensorboard racing-sac-s0", "l2rtui metrics racing-sac-s0 --tensorboard"),
    ("tail racing-sac-s0", "l2rtui logs racing-sac-s0 -w"),
    ("clean", "l2rtui leaks"),
    ("prune", "l2rtui results"),
    ("deploy -f racing-sac.yaml", "l2rtui launch -f racing-sac.yaml"),
    ("graph racing-sac-s0", "l2rtui metrics racing-sac-s0"),
    ("browser", "l2rtui serve"),
    ("push lab/node", "l2rtui image"),
    ("models racing-sac-s0", "l2rtui artifacts ls racing-sac-s0"),
    ("envs", "l2rtui explain train.environment"),
    ("yaml racing-sac-s0", "l2rtui history show"),
    ("kubectl apply -f racing-sac.yaml", "l2rtui launch -f racing-sac.yaml"),
    ("sky launch racing-sac.yaml", "l2rtui launch -f racing-sac.yaml"),
    ("plan -t racing-sac --set replicas=4", "workers.0.replicas"),
    ("plan -t racing-sac --set train.learning_rate=1", "lr"),
    ("pods --sort-by age", "-o json"),
    ("runs --limit 5", "| head"),
    ("slots --gpus free>1", "--gpu"),
    ("python", "from l2rtui import api"),
    ("--verson", "--version"),
)  # fmt: skip
LIKE = ("skill", "fill", "kind", "demon", "demolish", "dest", "desktop", "tory", "bill", "unch", "cale", "still")
"""Words that look like a verb that changes something."""


def answer_to(words, capsys, tmp_path, monkeypatch):
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("L2RTUI_BACKEND", "demo")
    monkeypatch.chdir(tmp_path)
    assert entry.main(words) != 0
    written = capsys.readouterr()
    assert "Traceback" not in written.err
    return written.err


def proposed(text):
    """Words that an answer asks about: suggestions by likeness."""
    return {
        word for part in re.findall(r"[Dd]id you mean ([^?]*)\?", text) for word in re.findall(r"[\w.-]+", part)
    }


@pytest.mark.parametrize(("line", "step"), WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_line_leads_to_its_next_step(line, step, capsys, tmp_path, monkeypatch):
    answer = answer_to(line.split(), capsys, tmp_path, monkeypatch)
    assert step in answer
    assert CHANGING.isdisjoint(proposed(answer))


def test_a_manifest_of_an_operator_is_launched_as_it_is(capsys, tmp_path, monkeypatch):
    (tmp_path / "job.yaml").write_text(ELASTIC)
    answer = answer_to(
        ["plan", "-f", str(tmp_path / "job.yaml"), "--set", "image.x=1"], capsys, tmp_path, monkeypatch
    )
    assert "kubectl" not in answer


@pytest.mark.parametrize("word", LIKE)
def test_a_likeness_proposes_no_verb_and_no_command_that_changes_something(word, capsys, tmp_path, monkeypatch):
    assert CHANGING.isdisjoint(proposed(answer_to([word], capsys, tmp_path, monkeypatch)))
    assert {command.name for command in COMMANDS if command.changes}.isdisjoint(proposed(hint_for(word)))


@pytest.mark.parametrize(("word", "name"), [("destory", "destroy"), ("lanuch", "launch"), ("describ", "describe")])
def test_a_slip_behind_the_first_letter_names_the_command(word, name):
    assert hint_for(word) == f"Did you mean {name}?"


def test_a_word_of_a_verb_leads_to_the_key_or_the_command_of_the_app():
    assert hint_for("scale") == "The key + does that."
    assert hint_for("metrics") == "Did you mean charts?"
