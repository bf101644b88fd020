"""A batch shared among ranks gives the same learning as on one; products in bfloat16 learn, too."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore, ProcessGroupGloo

from runtime.base.methods import DQNConfig, ImpalaConfig, PPOConfig, SACConfig
from runtime.base.training import from_mapping
from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.algorithm import Algorithm, Stats
from runtime.rl.algos.impala import Impala
from runtime.rl.algos.off_policy.dqn import DQN
from runtime.rl.algos.off_policy.sac import SAC
from runtime.rl.algos.plan import assemble, make_plan
from runtime.rl.algos.ppo import PPO
from runtime.rl.algos.recurrent import RecurrentPPO
from runtime.rl.buffers.replay import Batch
from runtime.rl.buffers.rollout_buffer import RolloutBatch
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.runtime.rl.algos.test_memory import rollouts, shape_of
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


Learn = Callable[[list[Algorithm], Batch | RolloutBatch], list[Stats]]


def gloo_means(count: int, threads: ThreadPoolExecutor) -> list[Callable[[Tensor], Tensor]]:
    """Return the means of ranks by gloo, of which each may be called in one thread."""
    store, most = HashStore(), timedelta(seconds=30)
    groups = list(threads.map(lambda rank: ProcessGroupGloo(store, rank, count, most), range(count)))

    def mean(group: ProcessGroupGloo, value: Tensor) -> Tensor:
        total = value.clone()
        group.allreduce([total]).wait()
        return total.div_(group.size())

    return [partial(mean, group) for group in groups]


@pytest.fixture
def learn() -> Iterator[Learn]:
    """Update members with a share each of a batch, in a thread each."""
    with ThreadPoolExecutor(3) as threads:

        def all_update(members: list[Algorithm], batch: Batch | RolloutBatch) -> list[Stats]:
            if "mean" not in means:
                means["mean"] = gloo_means(len(members), threads)
            for member, mean in zip(members, means["mean"], strict=True):
                member.mean, member.ranks = mean, len(members)
            shares = batch.shares(len(members))
            return list(threads.map(lambda member, share: member.update(share), members, shares))

        means: dict[str, list[Callable[[Tensor], Tensor]]] = {}
        yield all_update
        means.clear()
        gc.collect()  # methods, and the groups that they refer to, are in cycles


@pytest.mark.parametrize("name", MAKE)
def test_ranks_that_begin_alike_stay_alike_to_the_last_bit(name: str, learn: Learn) -> None:
    members = [MAKE[name]() for _ in range(3)]
    begin = members[0].policy_weights().clone()
    for seed in range(4):
        stats = learn(members, replace_size(batch_for(members[0], seed)))
        assert all(map(math.isfinite, stats[0].floats().values()))
    assert not torch.equal(members[0].policy_weights(), begin)
    assert alike(members[0], members[1])
    assert alike(members[0], members[2])
    assert [each.updates for each in members] == [4, 4, 4]


def replace_size(batch: Batch | RolloutBatch) -> Batch | RolloutBatch:
    """A number of rows that is divisible by three."""
    if isinstance(batch, RolloutBatch):
        return batch
    return Batch(batch.obs[:15], batch.action[:15], batch.reward[:15], batch.next_obs[:15], batch.terminated[:15])


NORMALISED = replace(SHAPE, is_normalised=True)
VALUES = replace(NORMALISED, head="greedy", activation="relu")
ROWS = 48
WHOLE: dict[str, Callable[[int], Algorithm]] = {
    "impala": lambda _: Impala(SHAPE, ImpalaConfig(hidden=(16,)), 3),
    "clipped impala": lambda _: Impala(NORMALISED, ImpalaConfig(hidden=(16,), clip=0.2, epochs=2), 3),
    "ppo": lambda rows: PPO(SHAPE, PPOConfig(hidden=(16,), minibatch_size=rows, epochs=3), 3),
    "normalised ppo": lambda rows: PPO(
        NORMALISED, PPOConfig(hidden=(16,), minibatch_size=rows, epochs=3, normalise_returns=True), 3
    ),
    "ppo of a shared trunk": lambda rows: PPO(
        SHAPE, PPOConfig(hidden=(16,), minibatch_size=rows, epochs=2, shared_layers=True, joint_clipping=True), 3
    ),
    "ppo with memory": lambda rows: RecurrentPPO(
        shape_of("gru"), PPOConfig(hidden=(7,), minibatch_size=rows, epochs=2), 3
    ),
    "dqn": lambda rows: DQN(VALUES, DQNConfig(hidden=(16,), batch_size=rows), 3),
}
"""Methods that learn from so many rows at once, and draw nothing: minibatches are whole batches."""


def uneven(method: Algorithm, seed: int) -> Batch | RolloutBatch:
    """48 rows whose two halves have other means and deviations than the whole."""
    scale = torch.tensor([0.1, 0.2, 0.5, 1.0, 3.0, 9.0])
    if isinstance(method, DQN):
        rows = make_batch(seed, ROWS, 3, 1)
        action = torch.randint(0, 4, (ROWS, 1), generator=torch.Generator().manual_seed(seed))
        far = scale.repeat_interleave(ROWS // len(scale))
        return replace(rows, action=action, reward=rows.reward * far, obs=rows.obs * far.unsqueeze(1) + 1.0)
    assert isinstance(method, PPO | Impala)
    size = {"steps": ROWS // len(scale), "copies": len(scale)}
    batch = rollouts(method, seed, **size) if isinstance(method, RecurrentPPO) else acted(method, seed=seed, **size)
    reward = (batch.reward + 1.0) * scale
    return replace(batch, reward=reward, discounted=reward.cumsum(dim=0))


@pytest.mark.parametrize("name", WHOLE)
def test_two_halves_are_one_whole(name: str, learn: Learn) -> None:
    alone, members = WHOLE[name](ROWS), [WHOLE[name](ROWS // 2) for _ in range(2)]
    for seed in range(5):
        batch = uneven(alone, seed)
        alone.update(batch)
        learn(members, batch)
    begin = WHOLE[name](ROWS).tensors()
    for part, tensor in alone.tensors().items():
        moved = (tensor - begin[part]).abs().max()
        assert moved > 0, part
        assert (tensor - members[0].tensors()[part]).abs().max() < 2e-3 * moved, part


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
    method = assemble(plan, from_mapping(settings), 0, "cpu")
    rows = torch.randint(0, 255, (4, obs.width), dtype=torch.uint8)
    rows[:, :8] = torch.zeros(4, 2).view(torch.uint8)
    batch = replace(make_batch(0, 4, 5, 1), obs=rows, next_obs=rows)
    before = method.policy_weights().clone()
    assert all(map(math.isfinite, method.update(batch).floats().values()))
    assert not torch.equal(before, method.policy_weights())
