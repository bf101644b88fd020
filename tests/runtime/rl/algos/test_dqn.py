"""DQN: targets and values in numbers computed by hand, each switch separately, exploration, and resume."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from runtime.base.methods import DQNConfig
from runtime.base.training import from_mapping
from runtime.rl.algos.actor import ActorShape, NumpyActor
from runtime.rl.algos.off_policy.dqn import DQN
from runtime.rl.algos.plan import build, make_plan
from runtime.rl.buffers.replay import Batch
from runtime.rl.roles.device_collector import PolicySampler
from runtime.rl.spaces import ActionSpace, ObsSpace

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPE = ActorShape(3, 1, (8,), head="greedy", choices=(3,))


def dqn(precision: str = "float32", **settings: object) -> DQN:
    return DQN(SHAPE, DQNConfig(hidden=(8,), gamma=0.5, **settings), seed=0, precision=precision)


def batch(**columns: torch.Tensor) -> Batch:
    generator = torch.Generator().manual_seed(0)
    obs, next_obs = (torch.randn((2, 3), generator=generator) for _ in range(2))
    action = torch.tensor([[0], [2]], dtype=torch.int32)
    whole = {"action": action, "reward": torch.tensor([1.0, -1.0]), "next_obs": next_obs}
    return Batch(obs, **{**whole, "terminated": torch.tensor([0.0, 1.0]), **columns})


def constant(method: DQN) -> None:
    """Let the network value the choices (1, 2, 0) everywhere, and the target (5, 3, 4)."""
    for network, values in ((method.q, [1.0, 2.0, 0.0]), (method.target, [5.0, 3.0, 4.0])):
        network.arena.flat[:-1] = 0.0
        network.arena.flat[-4:-1] = torch.tensor(values)


def test_double_learning_values_the_choice_of_the_network_by_the_target():
    doubled, single = dqn(double=True), dqn(double=False)
    for method, value in ((doubled, 3.0), (single, 5.0)):
        constant(method)
        assert method.next_value(batch().next_obs).tolist() == [value, value]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_loss_is_hubers_with_weights_and_errors_are_those_of_the_choices_taken(precision):
    method = dqn(precision, prioritised=True)
    constant(method)
    several = batch(steps=torch.tensor([2.0, 1.0]), weight=torch.tensor([1.0, 0.5]))
    # y = 1 + 0.5^2 * 3 = 1.75 against 1, and -1 (it ended) against 0: errors 0.75 and 1, halves of their squares.
    stats = method.update(several).floats()
    assert method.td_error.tolist() == pytest.approx([0.75, 1.0])
    assert stats["loss"] == pytest.approx((0.75**2 / 2 + 0.5 * 0.5) / 2)
    assert stats["mean_q"] == pytest.approx(0.5)


def test_without_hubers_loss_every_error_counts_by_its_square():
    # y = 10 + 0.5 * 3 against 1, and 10 (it ended) against 0.
    losses = []
    for huber in (True, False):
        method = dqn(huber=huber)
        constant(method)
        losses.append(method.update(batch(reward=torch.full((2,), 10.0))).floats()["loss"])
    assert losses == pytest.approx([(10.0 + 9.5) / 2, (10.5**2 + 10.0**2) / 2])


def test_streams_of_value_and_advantage_are_joined_around_their_mean():
    method = dqn(dueling=True)
    flat = method.q.arena.flat
    # Advantages (1, 2, 0) come before the stream of V, whose one output is 10, and the share of exploration.
    flat[:-1] = 0.0
    front = SHAPE.size - 1
    flat[front - 3 : front] = torch.tensor([1.0, 2.0, 0.0])
    flat[-2] = 10.0
    assert method.q(batch().obs)[0].tolist() == [10.0, 11.0, 9.0]
    actor = NumpyActor(SHAPE)
    actor.load(method.actor_arena())
    assert actor.act(batch().obs.numpy(), None).tolist() == [[1], [1]]


def test_the_target_is_copied_after_so_many_updates():
    method = dqn(target_updates=2)
    before = method.target.arena.flat.clone()
    method.update(batch())
    assert torch.equal(method.target.arena.flat, before)
    method.update(batch())
    assert torch.equal(method.target.arena.flat[:-1], method.q.arena.flat[:-1])


def test_exploration_falls_linearly_and_travels_with_the_weights():
    method = dqn(exploration_begin=1.0, exploration_end=0.2, exploration_updates=4)
    shares = [method.actor_arena()[-1]]
    for _ in range(6):
        method.update(batch())
        shares.append(method.actor_arena()[-1])
    assert shares == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])


def test_so_many_actions_are_random_here_and_on_a_device():
    method = dqn(exploration_begin=0.5)
    constant(method)
    rows = np.zeros((6_000, 3), np.float32)
    actor, sampler = NumpyActor(SHAPE), PolicySampler(SHAPE, "cpu", torch.Generator().manual_seed(1))
    actor.load(method.actor_arena())
    sampler.load(method.policy_weights())
    for action in (actor.act(rows, np.random.default_rng(0)), sampler.draw(torch.from_numpy(rows))[0].numpy()):
        assert action.dtype == np.int32
        counts = Counter(action[:, 0].tolist())
        assert [counts[choice] / 6_000 for choice in range(3)] == pytest.approx([1 / 6, 4 / 6, 1 / 6], abs=0.03)
    assert set(actor.act(rows, None)[:, 0].tolist()) == {1}


@pytest.mark.parametrize("dueling", [False, True])
def test_a_resumed_run_goes_on_to_the_last_bit(dueling):
    first, second = dqn(dueling=dueling), dqn(dueling=dueling)
    first.update(batch())
    assert second.load_state(first.state()) == []
    first.update(batch())
    assert math.isfinite(second.update(batch()).floats()["loss"])
    assert torch.equal(first.policy_weights(), second.policy_weights())
    assert len(first.policy_weights()) == SHAPE.size


def test_it_is_refused_where_actions_are_numbers_or_several():
    settings = from_mapping({"algorithm": "dqn", "dqn": {"n_step": 3}})
    with pytest.raises(ValueError, match="racing takes numbers and DQN one of several choices"):
        make_plan(settings, ObsSpace(3), ActionSpace(2))
    with pytest.raises(ValueError, match="racing takes 2 choices at once and DQN one"):
        make_plan(settings, ObsSpace(3), ActionSpace(2, (2, 2)))
    plan = make_plan(settings, ObsSpace(3), ActionSpace(1, (3,)))
    assert plan.n_step == 3
    assert isinstance(build(plan, 0, "cpu"), DQN)


def test_statistics_hold_no_graph_of_gradients():
    """On a GPU such a graph outlives the update, and its nodes belong to the stream that made them."""
    assert not dqn().update(batch()).exploration.requires_grad


def test_step_size_falls_over_its_updates():
    method = dqn(anneal_updates=4)
    moves = []
    for _ in range(6):
        before = method.q.arena.flat[:-1].detach().clone()
        method.update(batch())
        moves.append((method.q.arena.flat[:-1] - before).abs().max().item())
    assert moves[0] == pytest.approx(5e-4, rel=0.01)
    assert moves[1] < 0.85 * moves[0]
    assert moves[5] < 0.01 * moves[0]
