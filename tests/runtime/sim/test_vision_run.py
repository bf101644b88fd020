"""Training from a simulator's camera: the manifest's settings with real programs, records and accounts."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from runtime.base import contract
from tests.runtime.conftest import RunUnderTest

ROOT = Path(__file__).parents[3]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_vision_manifest_trains_over_reference_simulators(run: RunUnderTest) -> None:
    train = yaml.safe_load((ROOT / "manifests" / "l2r-vision.yaml").read_text())["train"]
    run.settings = {**train, "hidden": [16], "warmup_steps": 128, "sac": {"random_shift": 2, "batch_size": 32}}
    run.settings |= {"total_updates": 40, "replay_capacity": 4_000, "publish_every": 5, "max_seconds": 240}
    learning, collecting = run.start("learner"), run.start("worker")
    assert learning.process.wait(280) == contract.EXIT_DONE, learning.text()
    assert collecting.process.wait(60) == contract.EXIT_DONE, collecting.text()
    last, worker = learning.last("learner"), collecting.last("worker")
    assert last["updates"] >= 40
    assert last["env_steps"] == 32 * last["accepted"] >= 128
    assert (last["lost"], last["refused"]) == (0, 0)
    assert worker["simulator_state"] == "ready"
    assert worker["simulator_fps"] > 0
