"""Reports of non-finite numbers: they name the loss, the tensors, and the batch if it is the cause."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from runtime.base.methods import SACConfig
from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.off_policy.sac import SAC
from runtime.rl.checkpoints.learner_state import not_finite_report, report
from tests.runtime.rl.algos.test_sac import make_batch

pytestmark = pytest.mark.usefixtures("one_thread")


def broken_by(reward: float, weight: float = 0.0) -> str:
    sac = SAC(ActorShape(5, 2, (8,)), SACConfig(hidden=(8,), batch_size=16), 3)
    batch = make_batch(0)
    sac.update(batch)
    sac.tensors()["critic"][0] += weight
    batch = replace(batch, reward=torch.full_like(batch.reward, reward))
    return not_finite_report(sac, batch, 1204, sac.update(batch))


def test_a_batch_that_is_not_finite_is_named() -> None:
    sentence = broken_by(float("nan"))
    assert sentence.startswith("critic_loss and")
    assert "not finite after update 1,204, nor are actor, critic, " in sentence
    assert "; reward of its batch not finite either: the environment gave such numbers; a restart" in sentence


def test_with_a_finite_batch_the_steps_or_rewards_are_too_large() -> None:
    assert "its batch is finite, no number beyond 1e+30: lower the step sizes" in broken_by(1e30)
    assert "nor are actor, critic, " in broken_by(0.0, float("inf"))


def test_without_a_batch_the_tensors_alone_are_named() -> None:
    sentence = report(7, {}, ["policy", "policy.mean"], None)
    assert sentence == (
        "a weight not finite after update 7, nor are policy, policy.mean of the networks; lower the step sizes or "
        "bound the rewards; a restart continues from the newest checkpoint"
    )
