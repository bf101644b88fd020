"""A learner of two ranks, each on its own GPU, learns and goes on; skipped if there is one GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from runtime.base import contract
from tests.runtime.conftest import RunUnderTest
from tests.runtime.rl.roles.test_ranks import OWN, SHARED, learn_and_go_on

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.process,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs"),
]


@pytest.mark.skipif(not dist.is_nccl_available(), reason="this torch has no NCCL")
@pytest.mark.parametrize("changes", SHARED.values(), ids=SHARED)
def test_a_learner_with_two_gpus_learns_and_goes_on(run: RunUnderTest, changes: dict[str, Any]) -> None:
    learn_and_go_on(run, {**changes, "device": "cuda"})


@pytest.mark.skipif(dist.is_nccl_available(), reason="this torch has NCCL")
def test_without_nccl_several_gpus_are_refused_with_a_sentence(run: RunUnderTest) -> None:
    run.settings = {**OWN, "device": "cuda", "devices": 2}
    learner = run.start("learner")
    assert learner.process.wait(120) == contract.EXIT_USAGE
    assert "has no NCCL" in learner.text()
