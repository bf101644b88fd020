"""Driving of saved policies: the evaluator's return, measures, films, and sentences for unusable policies."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.base import contract
from runtime.cli import main
from runtime.rl.algos.actor import CopyStates, NumpyActor
from runtime.rl.envs.registry import make_vector_env
from runtime.rl.roles.evaluator import drive_episodes, evaluation_seeds
from tests.runtime.conftest import RunUnderTest, eventually
from tests.runtime.rl.policies.saved import save_policy

CARTPOLE = {
    "environment": "CartPole-v1",
    "algorithm": "ppo",
    "hidden": [16],
    "num_envs": 8,
    "segment_steps": 32,
    "ppo": {"batch_steps": 512},
    "eval_episodes": 4,
}
RACING = {"hidden": [16], "eval_options": {"start": "line", "max_seconds": 3}, "eval_episodes": 2}

ROLLING = {"eval_options": {"start": "random", "max_seconds": 3}}  # an untrained policy would stay on the line


@pytest.fixture(autouse=True)
def _no_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(contract.ENV_CONFIG, raising=False)


def driven(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["drive", "--json", *map(str, words)]) == contract.EXIT_DONE
    fields: dict[str, Any] = json.loads(capsys.readouterr().out)
    return fields


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["drive", *map(str, words)]) == contract.EXIT_USAGE
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("algorithm", "memory"), [("ppo", None), ("ppo", "gru"), ("ppo", {"kind": "lstm", "size": 8}), ("sac", "gru")]
)
def test_a_checkpoint_drives_as_an_evaluator_of_its_run_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: str, memory: Any
) -> None:
    plan, weights = save_policy(tmp_path, {**CARTPOLE, "algorithm": algorithm, "memory": memory})
    actor, env = NumpyActor(plan.shape), make_vector_env("CartPole-v1", 4, options={})
    actor.load(weights)
    seed = evaluation_seeds(3, 0)[0]
    states = CopyStates(actor, 4)
    episodes = drive_episodes(env, lambda obs: states.act(obs, None), seed, lambda _: False, states)
    assert episodes is not None
    fields = driven(capsys, tmp_path)
    assert (fields["episodes"], fields["seed"]) == (4, 3)
    returns = [episode.return_ for episode in episodes]
    assert fields["return"] == np.mean(returns)
    assert fields["return_std"] == pytest.approx(np.std(returns), rel=1e-5)
    assert (fields["return_min"], fields["return_max"]) == (min(returns), max(returns))


def test_episodes_beyond_the_copies_start_elsewhere_and_a_seed_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_policy(tmp_path, {**RACING, **ROLLING})
    file = next(tmp_path.glob("*.safetensors"))
    first, again, other = (driven(capsys, file, "--episodes", 5, "--seed", seed) for seed in (1, 1, 2))
    assert first["episodes"] == 5
    assert first["return_min"] < first["return_max"]
    assert {**first, "time": 0} == {**again, "time": 0}
    assert first["return"] != other["return"]


def test_racing_is_measured_as_learn_to_race_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_policy(tmp_path, {**RACING, **ROLLING})
    fields = driven(capsys, tmp_path, "--episodes", 1)
    metrics = fields["metrics"]
    assert metrics["total_time"] == pytest.approx(0.1 * fields["steps"])
    assert metrics["total_distance"] >= abs(fields["progress_metres"]) - 1.0
    assert metrics["pct_complete"] == pytest.approx(100 * max(0.0, fields["progress_metres"]) / 860, abs=0.2)
    assert {"trajectory_admissibility", "movement_smoothness", "num_infractions", "success_rate"} <= metrics.keys()
    assert main(["drive", str(tmp_path)]) == 0
    assert "average_speed_kph" in capsys.readouterr().out


def test_the_variable_goes_over_the_settings_of_the_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_policy(tmp_path, RACING)
    monkeypatch.setenv(contract.ENV_CONFIG, '{"eval_options": {"start": "line", "max_seconds": 0.5}}')
    assert driven(capsys, tmp_path)["steps"] == 5
    monkeypatch.setenv(contract.ENV_CONFIG, '{"hidden": [32]}')
    assert "does not fit the settings" in refusal(capsys, tmp_path)


OWN = """
from runtime.base.methods import SACConfig
from runtime.rl.algos.off_policy.sac import SAC

class Calm(SAC):
    class Config(SACConfig): ...
"""


def test_a_method_of_ones_own_is_driven_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "calm_method.py"
    program.write_text(OWN)
    with monkeypatch.context() as importable:
        importable.syspath_prepend(str(tmp_path))
        save_policy(tmp_path, {**RACING, "hidden": None, "algorithm": "calm_method:Calm"})
    monkeypatch.delitem(sys.modules, "calm_method")
    monkeypatch.setattr(sys, "path", list(sys.path))  # restored at the end of the test
    assert "calm_method" in refusal(capsys, tmp_path)
    assert "there is no file" in refusal(capsys, tmp_path, "--program", tmp_path / "none.py")
    assert driven(capsys, tmp_path, "--program", program)["episodes"] == 2


@pytest.mark.parametrize("observation", ["place", "view"])
def test_the_first_episode_is_filmed(tmp_path: Path, capsys: pytest.CaptureFixture[str], observation: str) -> None:
    pillow = pytest.importorskip("PIL.Image")
    save_policy(
        tmp_path,
        {**RACING, **ROLLING, "convolutions": [[8, 4, 2]], "environment_options": {"observation": observation}},
    )
    film = tmp_path / "lap.gif"
    fields = driven(capsys, tmp_path, "--video", film, "--episodes", 1)
    assert fields["video"] == str(film)
    with pillow.open(film) as picture:
        assert picture.info["duration"] == 100, "tenths of a second"
        assert min(picture.size) >= 256
        assert picture.n_frames > 1


def test_what_cannot_be_driven_or_filmed_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_policy(tmp_path / "silent", CARTPOLE, settings=None)
    save_policy(tmp_path / "good", CARTPOLE)
    (tmp_path / "empty").mkdir()
    assert "does not contain the settings" in refusal(capsys, tmp_path / "silent")
    assert "no complete checkpoint" in refusal(capsys, tmp_path / "empty")
    assert "there is no checkpoint" in refusal(capsys, tmp_path / "ckpt-1.json")
    assert "is not a checkpoint" in refusal(capsys, tmp_path / "policy.pt")
    good = tmp_path / "good"
    assert "--episodes must be" in refusal(capsys, good, "--episodes", 0)
    assert "must end in .gif or .mp4" in refusal(capsys, good, "--video", "lap.avi")
    assert "there is no folder" in refusal(capsys, good, "--video", tmp_path / "no" / "lap.gif")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "needs ffmpeg" in refusal(capsys, good, "--video", tmp_path / "lap.mp4")
    next(good.glob("*.safetensors")).write_bytes(b"half")
    assert "is damaged" in refusal(capsys, next(good.glob("*.json")))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_trained_checkpoint_drives_to_the_evaluators_return(
    run: RunUnderTest, capsys: pytest.CaptureFixture[str]
) -> None:
    run.settings = {**CARTPOLE, "ppo": {"batch_steps": 512, "lr": 3e-3}, "eval_seconds": 0.5}
    run.settings["total_env_steps"] = 10_240
    learning, _ = run.start("learner"), run.start("worker")
    assert learning.process.wait(280) == contract.EXIT_DONE, learning.text()
    # Again without a worker: the evaluator gets exactly the policy of the last checkpoint.
    del run.settings["total_env_steps"]
    learning, evaluating = run.start("learner"), run.start("evaluator")
    eventually(lambda: evaluating.records("evaluator"), "an evaluation", 120, evaluating)
    for started in (learning, evaluating):
        assert started.end() == contract.EXIT_DONE, started.text()
    fields = driven(capsys, run.folder / "run")
    assert fields["return"] == pytest.approx(evaluating.last("evaluator")["eval_return"])
    assert fields["return"] > 30, "a random policy balances for 22 steps"
