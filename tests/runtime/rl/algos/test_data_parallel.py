"""A batch shared among devices gives the same learning as on one; products in bfloat16 learn, too."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.algorithm import Algorithm
from runtime.rl.algos.configs import ImpalaConfig, PPOConfig, SACConfig
from runtime.rl.algos.data_parallel import DataParallel, assemble
from runtime.rl.algos.impala import Impala
from runtime.rl.algos.off_policy.sac import SAC
from runtime.rl.algos.plan import make_plan
from runtime.rl.algos.ppo import PPO
from runtime.rl.buffers.replay import Batch
from runtime.rl.buffers.rollout_buffer import RolloutBatch
from runtime.rl.settings import from_mapping
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.runtime.conftest import RunUnderTest
from tests.runtime.rl.algos.test_onpolicy import acted
from tests.runtime.rl.algos.test_sac import make_batch

SHAPE = ActorShape(3, 1, (16,), head="categorical", choices=(4,), activation="tanh")
PENDULUM = ActorShape(5, 2, (32, 24))
MAKE: dict[str, Any] = {
    "sac": partial(SAC, PENDULUM, SACConfig(hidden=(32, 24), batch_size=16), 3),
    "ppo": partial(PPO, SHAPE, PPOConfig(hidden=(16,), minibatch_size=32, epochs=2, target_kl=0.5), 3),
    "impala": partial(Impala, SHAPE, ImpalaConfig(hidden=(16,)), 3),
}


pytestmark = pytest.mark.usefixtures("one_thread")


def batch_for(method: Algorithm, seed: int) -> Batch | RolloutBatch:
    return make_batch(seed) if isinstance(method, SAC) else acted(method, 8, 6, seed)


def alike(one: Algorithm, other: Algorithm) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.tensors().values(), other.tensors().values(), strict=True))


@pytest.mark.parametrize("name", MAKE)
def test_one_device_alone_does_what_the_method_does(name: str) -> None:
    alone, member = MAKE[name](), MAKE[name]()
    team = DataParallel([member], ["cpu"])
    for seed in range(3):
        batch = batch_for(alone, seed)
        assert team.update(batch).floats() == alone.update(batch).floats()
    assert alike(alone, member)


@pytest.mark.parametrize("name", MAKE)
def test_replicas_that_begin_alike_stay_alike_to_the_last_bit(name: str) -> None:
    members = [MAKE[name]() for _ in range(3)]
    begin = members[0].policy_weights().clone()
    team = DataParallel(members, ["cpu"] * 3)
    for seed in range(4):
        batch = replace_size(batch_for(members[0], seed))
        assert all(map(math.isfinite, team.update(batch).floats().values()))
    team.close()
    assert not torch.equal(members[0].policy_weights(), begin)
    assert alike(members[0], members[1])
    assert alike(members[0], members[2])
    assert [each.updates for each in members] == [4, 4, 4]


def replace_size(batch: Batch | RolloutBatch) -> Batch | RolloutBatch:
    """A number of rows that is divisible by three."""
    if isinstance(batch, RolloutBatch):
        return batch
    return Batch(batch.obs[:15], batch.action[:15], batch.reward[:15], batch.next_obs[:15], batch.terminated[:15])


def test_two_halves_are_one_whole() -> None:
    """IMPALA draws and normalises nothing, so the mean of the gradients is the gradient of the whole batch."""
    alone, members = MAKE["impala"](), [MAKE["impala"]() for _ in range(2)]
    team = DataParallel(members, ["cpu"] * 2)
    for seed in range(5):
        batch = acted(alone, 8, 6, seed)
        alone.update(batch)
        team.update(batch)
    team.close()
    moved = (alone.policy_weights() - MAKE["impala"]().policy_weights()).abs().max()
    apart = (alone.policy_weights() - members[0].policy_weights()).abs().max()
    assert apart < 1e-3 * moved


def test_replicas_draw_noise_of_their_own_also_after_a_checkpoint() -> None:
    members = [SAC(PENDULUM, SACConfig(hidden=(32, 24), batch_size=16), 2**53) for _ in range(2)]
    team = DataParallel(members, ["cpu"] * 2)
    team.update(make_batch(0))
    saved = members[0].state()
    team.update(make_batch(1))
    members[0].load_state(saved)
    team.align()
    assert alike(*members)
    assert members[1].updates == 1
    states = [each.generators()["noise_generator"].get_state() for each in members]
    assert not torch.equal(*states)
    team.close()


@pytest.mark.parametrize("place", [0, 1])
def test_what_one_of_them_dies_of_is_what_is_raised(place: int) -> None:
    members = [MAKE["impala"]() for _ in range(2)]

    def broken(_: object) -> None:
        raise FloatingPointError("out of range")

    members[place].update = broken
    team = DataParallel(members, ["cpu"] * 2)
    with pytest.raises(FloatingPointError, match="out of range"):
        team.update(acted(MAKE["impala"](), 8, 6, 0))
    team.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("device")]


@pytest.mark.parametrize("name", MAKE)
def test_bfloat16_rounds_products_and_nothing_that_is_kept(name: str) -> None:
    exact, rounded = MAKE[name](), MAKE[name](precision="bfloat16")
    batch = batch_for(exact, 0)
    expected, actual = exact.update(batch).floats(), rounded.update(batch).floats()
    assert actual != expected, "products were rounded"
    for key, value in expected.items():
        assert actual[key] == pytest.approx(value, rel=0.05, abs=0.02), key
    assert {each.dtype for each in rounded.tensors().values()} <= {torch.float32, torch.int64}


def test_bfloat16_goes_through_convolutions_as_well() -> None:
    image = (20, 20, 3)
    obs = ObsSpace(2, (image,))
    settings = {"algorithm": "sac", "convolutions": [[4, 8, 4]], "hidden": [16], "precision": "bfloat16"}
    settings |= {"sac": {"batch_size": 4}}
    plan = make_plan(from_mapping(settings), obs, ActionSpace(1))
    team = assemble(plan, from_mapping(settings), 0, ["cpu"])
    rows = torch.randint(0, 255, (4, obs.width), dtype=torch.uint8)
    rows[:, :8] = torch.zeros(4, 2).view(torch.uint8)
    batch = replace(make_batch(0, 4, 5, 1), obs=rows, next_obs=rows)
    before = team.members[0].policy_weights().clone()
    assert all(map(math.isfinite, team.update(batch).floats().values()))
    assert not torch.equal(before, team.members[0].policy_weights())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"algorithm": "sac", "sac": {"batch_size": 255}}, "devices is 2 and batch_size 255"),
        ({"algorithm": "ppo", "ppo": {"batch_steps": 1_024, "minibatch_size": 33}}, "minibatch_size 33"),
        ({"algorithm": "impala", "impala": {"sends_gradients": True, "batch_steps": 256}}, "on one device"),
        (
            {"algorithm": "impala", "num_envs": 1, "segment_steps": 64, "impala": {"batch_steps": 192}},
            "batch_steps / segment_steps 3",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused(settings: dict[str, Any], complaint: str) -> None:
    action = ActionSpace(1) if settings["algorithm"] == "sac" else ActionSpace(1, (2,))
    given = from_mapping(settings)
    with pytest.raises(ValueError, match=complaint):
        assemble(make_plan(given, ObsSpace(4), action), given, 0, ["cpu", "cpu"])


def learn_on_two_devices(run: RunUnderTest, algorithm: str, device: str) -> None:
    """Let a learner with two devices reach a limit, and another one continue from there."""
    run.settings = {
        "environment": "CartPole-v1",
        "algorithm": algorithm,
        "num_envs": 4,
        "segment_steps": 16,
        "hidden": [16],
        algorithm: {"batch_steps": 128},
        "device": device,
        "devices": 2,
        "precision": "bfloat16",
        "total_updates": 5,
    }
    for updates in (5, 8):
        run.settings["total_updates"] = updates
        started = [run.start("learner"), run.start("worker")]
        assert [each.process.wait(120) for each in started] == [0, 0], started[0].text
        assert started[0].last("learner")["updates"] >= updates


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_a_learner_with_two_devices_in_bfloat16_learns_and_goes_on(run: RunUnderTest, algorithm: str) -> None:
    learn_on_two_devices(run, algorithm, "cpu")
