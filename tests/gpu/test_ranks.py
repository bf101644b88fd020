"""A learner of two ranks, each on its own GPU, learns and goes on; skipped if there is one GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.runtime.conftest import RunUnderTest
from tests.runtime.rl.roles.test_ranks import SHARED, learn_and_go_on

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.process,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs"),
]


@pytest.mark.parametrize("changes", SHARED.values(), ids=SHARED)
def test_a_learner_with_two_gpus_learns_and_goes_on(run: RunUnderTest, changes: dict[str, Any]) -> None:
    learn_and_go_on(run, {**changes, "device": "cuda"})
