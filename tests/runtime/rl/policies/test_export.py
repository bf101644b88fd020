"""Exported policies: each form gives the same results as the policy, for every kind of network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.base import contract
from runtime.cli import main
from runtime.rl.algos.actor import ActorShape, NumpyActor
from runtime.rl.policies.export import FORMATS, TOLERANCE, write_policy
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.runtime.rl.policies.saved import save_policy

SHAPES = {
    "squashed": ActorShape.of(ObsSpace(5), ActionSpace(2), (16, 16), head="squashed"),
    "gaussian": ActorShape.of(
        ObsSpace(5), ActionSpace(2), (16,), head="gaussian", activation="tanh", is_normalised=True
    ),
    "choices": ActorShape.of(ObsSpace(5), ActionSpace(2, (3, 2)), (16,), head="categorical", activation="tanh"),
    "greedy": ActorShape.of(ObsSpace(5), ActionSpace(1, (3,)), (16,), head="greedy"),
    "deterministic": ActorShape.of(ObsSpace(5), ActionSpace(2), (16,), head="deterministic", is_normalised=True),
    "pictures alone": ActorShape.of(
        ObsSpace(0, ((12, 10, 1),)), ActionSpace(1, (3,)), (16,), head="categorical", convolutions=((4, 3, 2),)
    ),
    "numbers and pictures": ActorShape.of(
        ObsSpace(3, ((12, 10, 3), (9, 9, 1))), ActionSpace(2), (16,), head="squashed", convolutions=((4, 3, 2),)
    ),
}


def actor_of(shape: ActorShape) -> NumpyActor:
    actor, rng = NumpyActor(shape), np.random.default_rng(1)
    actor.load(rng.uniform(-0.5, 0.5, shape.size).astype(np.float32))
    for moment in actor.moments[1:]:
        moment[:] = rng.uniform(0.5, 2.0, moment.shape)
    return actor


# Just the exporter's imports take seconds.
SLOW = {"onnx": [pytest.mark.slow, pytest.mark.timeout(300)]}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", [pytest.param(form, marks=SLOW.get(form, ())) for form in FORMATS])
def test_a_file_agrees_with_the_policy(tmp_path: Path, form: str, shape: str) -> None:
    if form == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package)
    path = tmp_path / "policy"
    assert write_policy(actor_of(SHAPES[shape]), FORMATS[form](), path) <= TOLERANCE
    assert [file.name for file in tmp_path.iterdir()] == ["policy"], "weights lie within the file"


def test_a_checkpoint_is_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(contract.ENV_CONFIG, raising=False)
    save_policy(tmp_path, {"hidden": [16]})
    file = tmp_path / "policy.pt"
    assert main(["export", str(tmp_path), "--to", "torchscript", str(file)]) == contract.EXIT_DONE
    assert "takes vector [23]; agrees with the policy to" in capsys.readouterr().out
    assert file.stat().st_size > 1_000
    words: list[Any] = ["export", tmp_path, "--to", "torchscript", tmp_path / "no" / "policy.pt"]
    assert main(list(map(str, words))) == contract.EXIT_USAGE
    assert "there is no folder" in capsys.readouterr().err


def test_a_policy_with_memory_is_refused_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(contract.ENV_CONFIG, raising=False)
    save_policy(tmp_path, {"hidden": [16], "algorithm": "ppo", "memory": "lstm"})
    assert (
        main(["export", str(tmp_path), "--to", "torchscript", str(tmp_path / "policy.pt")]) == contract.EXIT_USAGE
    )
    assert "is a policy with memory (lstm), which no form of file has yet" in capsys.readouterr().err


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.rl.policies.export.find_spec", lambda _: None)
    capture = main(["export", str(tmp_path), "--to", "onnx", str(tmp_path / "policy.onnx")])
    assert capture == contract.EXIT_USAGE
