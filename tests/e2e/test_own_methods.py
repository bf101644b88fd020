"""The method in docs/own-methods.md is trained exactly as shown, and an invalid one is refused.

The same for the environment of manifests/point-mass.yaml, by a learner that keeps it on its device.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from l2rtui.services.spec.spec_file import load

PAGE = Path(__file__).parents[2] / "docs" / "own-methods.md"
RUN = "cartpole-reinforce"


def example(language: str) -> str:
    """The first block of the page in a language."""
    block = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    return block[1]


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "reinforce.py").write_text(example("python"))
    path = tmp_path / "mine.yaml"
    path.write_text(example("yaml"))
    return path


def test_the_example_has_at_most_sixty_lines():
    assert len(example("python").splitlines()) <= 60


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_learner_and_a_worker_train_by_the_example(home, spec):
    small = ["--set", "train.segment_steps=16", "--set", "train.method.batch_steps=128"]
    home.run("launch", "-f", str(spec), *small, "--set", "train.checkpoint_seconds=1", "--yes", "--wait")
    metrics = home.wait(
        "updates by the own method", lambda: (now := home.metrics(RUN)) and now["updates"] >= 5 and now, 120
    )
    assert metrics["policy_version"] >= 5
    assert metrics["env_steps"] >= 5 * 128
    assert home.json("pods")[0]["restarts"] == 0
    log = home.run("logs", f"{RUN}/learner")
    assert '"policy_loss":' in log.replace(" ", "")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_pasted_loss_trains_and_hears_of_each_evaluation(home, tmp_path):
    text = PAGE.read_text().partition("## A loss in plain torch")[2]
    for language, name in (("python", "pasted.py"), ("yaml", "mine.yaml")):
        (tmp_path / name).write_text(text.partition(f"```{language}\n")[2].partition("```")[0])
    small = ["--set", "train.segment_steps=16", "--set", "train.method.batch_steps=128"]
    home.run(
        "launch", "-f", str(tmp_path / "mine.yaml"), *small, "--set", "train.eval_seconds=1", "--yes", "--wait"
    )
    log = home.wait(
        "an evaluation in the log of the learner",
        lambda: "evaluation after" in (log := home.run("logs", "cartpole-pasted/learner")) and log,
        120,
    )
    assert '"value_loss":' in log.replace(" ", "")
    assert home.json("pods")[0]["restarts"] == 0


@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_learner_trains_in_an_environment_of_its_users_own_and_an_evaluator_drives_it(home):
    small = ["--set", "train.num_envs=16", "--set", "train.ppo.minibatch_size=256", "--set", "train.eval_seconds=1"]
    path = str(PAGE.parents[1] / "manifests" / "point-mass.yaml")
    home.run("launch", "-f", path, *small, "--yes", "--wait")
    metrics = home.wait(
        "updates and an evaluation",
        lambda: (now := home.metrics("point-mass")) and now["updates"] >= 5 and now.get("eval_return") and now,
        120,
    )
    assert metrics["env_steps"] >= 5 * 16 * 32
    assert home.json("pods")[0]["restarts"] == 0


@pytest.mark.slow
@pytest.mark.process
def test_an_environment_without_a_method_is_refused_before_anything_starts(home, tmp_path):
    manifests = PAGE.parents[1] / "manifests"
    text = (manifests / "point_mass.py").read_text()
    (tmp_path / "point_mass.py").write_text(text.replace("def observe", "def watch"))
    path = tmp_path / "mine.yaml"
    path.write_text((manifests / "point-mass.yaml").read_text())
    home.run("launch", "-f", str(path), "--yes", code=3)
    assert home.json("runs") == []


@pytest.mark.slow
@pytest.mark.process
def test_a_class_that_is_no_method_is_refused_before_anything_starts(home, spec):
    file = spec.with_name("reinforce.py")
    file.write_text(file.read_text().replace("def tensors", "def tensor"))
    home.run("launch", "-f", str(spec), "--yes", code=3)
    assert home.json("runs") == []


def test_the_file_travels_with_each_set_and_the_spec_is_written_back(spec):
    from l2rtui.services.spec.encode import to_document

    loaded = load(spec).spec
    assert [part.name for part in loaded.sets] == ["learner", "w", "eval"]
    assert {part.command[-2:] for part in loaded.sets} == {("--program", "{program}")}
    assert {part.program.text for part in loaded.sets if part.program} == {example("python")}
    document = to_document(loaded)
    assert document["program"] == "reinforce.py"
    assert "program" not in document["learner"]
