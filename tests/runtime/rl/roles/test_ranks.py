"""A learner of several ranks: shares of a batch, states that fit any number of ranks, and ranks that are lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch

from runtime.base import contract
from runtime.base.errors import SetupError
from runtime.rl.algos.configs import PPOConfig
from runtime.rl.roles.launch_context import plan_of
from runtime.rl.roles.ranks import part, share_of, whole
from runtime.rl.settings import from_mapping
from tests.runtime.conftest import RunUnderTest, Started

OWN: dict[str, Any] = {
    "environment": "CartPole-v1",
    "algorithm": "ppo",
    "collect": "device",
    "num_envs": 16,
    "segment_steps": 8,
    "hidden": [16],
    "device": "cpu",
}


def copies(count: int) -> dict[str, torch.Tensor]:
    state = {
        "env.position": torch.arange(count * 2.0).view(count, 2),
        "state": torch.arange(4.0 * count).view(4, count),
    }
    state["episodes"] = torch.arange(5.0)
    generator = torch.Generator().manual_seed(3)
    return {**state, "generator": generator.get_state(), "generator.device": torch.tensor(list(b"cpu"))}


def test_a_rank_has_an_equal_share_of_copies_batch_and_minibatches() -> None:
    settings = from_mapping({**OWN, "ppo": {"minibatch_size": 32}})
    plan, own = share_of(plan_of(settings), settings, 4)
    assert isinstance(plan.config, PPOConfig)
    assert (own.num_envs, own.devices) == (4, 1)
    assert (plan.config.batch_steps, plan.config.minibatch_size) == (32, 8)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_envs": 15}, "devices is 2 and num_envs 15, which has not so many equal parts"),
        ({"ppo": {"minibatch_size": 33}}, "devices is 2 and minibatch_size 33"),
    ],
)
def test_what_has_no_equal_shares_is_refused(changes: dict[str, Any], complaint: str) -> None:
    settings = from_mapping({**OWN, **changes})
    with pytest.raises(SetupError, match=complaint):
        share_of(plan_of(settings), settings, 2)


def test_a_state_of_four_ranks_is_that_of_one_and_fits_two() -> None:
    parts = [part(copies(8), rank, 4, copies(2)) for rank in range(4)]
    assert [len(state["env.position"]) for state in parts] == [2, 2, 2, 2]
    generators = [state["generator"] for state in parts]
    assert not torch.equal(generators[0], generators[1]), "two ranks draw different numbers"
    joined = whole(parts, 2)
    for name in ("env.position", "state", "episodes", "generator"):
        assert torch.equal(joined[name], copies(8)[name])
    again = [part(joined, rank, 4, copies(2)) for rank in range(4)]
    assert all(torch.equal(state["generator"], before) for state, before in zip(again, generators, strict=True))
    halves = [part(joined, rank, 2, copies(4)) for rank in range(2)]
    assert torch.equal(torch.cat([state["env.position"] for state in halves]), joined["env.position"])
    assert sum(state["episodes"].sum() for state in halves) == joined["episodes"].sum()


def ranks_of(learner: Started) -> dict[str, psutil.Process]:
    children = psutil.Process(learner.process.pid).children()
    return {child.environ()["RANK"]: child for child in children if "RANK" in child.environ()}


def assert_exact(learner: Started) -> None:
    record = learner.last("learner")
    assert record["accepted"] == record["sent"]
    assert record["accepted"] * OWN["num_envs"] * OWN["segment_steps"] == record["learned_env_steps"]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("victim", ["0", "1"])
def test_training_goes_on_when_a_rank_is_killed(
    run: RunUnderTest, wait_until: Callable[..., Any], victim: str
) -> None:
    run.settings = {**OWN, "devices": 2, "checkpoint_seconds": 1.0}
    learner = run.start("learner")
    wait_until(lambda: learner.text().count("checkpoint ckpt-") >= 2, "a checkpoint", seconds=120.0, log=learner)
    for kill in (1, 2):
        ranks_of(learner)[victim].kill()
        wait_until(
            lambda kill=kill: learner.text().count("resumed ckpt-") == kill, "a resume", seconds=120.0, log=learner
        )
        known = learner.text().count("checkpoint ckpt-")
        wait_until(
            lambda known=known: learner.text().count("checkpoint ckpt-") > known,
            "a checkpoint",
            seconds=120.0,
            log=learner,
        )
    assert "all 2 ranks start again from the newest checkpoint" in learner.text()
    learner.process.terminate()
    assert learner.process.wait(60) == contract.EXIT_DONE
    assert "learner ends on SIGTERM" in learner.text()
    assert_exact(learner)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_a_run_resumes_on_another_number_of_ranks(run: RunUnderTest, algorithm: str) -> None:
    for updates, devices in ((3, 1), (6, 4), (9, 2)):
        run.settings = {**OWN, "algorithm": algorithm, "devices": devices, "total_updates": updates}
        learner = run.start("learner")
        assert learner.process.wait(120) == contract.EXIT_DONE, learner.text()
        record = learner.last("learner")
        assert (record["updates"], record["lost_updates"]) == (updates, 0)
        assert_exact(learner)
        assert "restart" not in learner.text(), "all copies go on"
