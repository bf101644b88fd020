"""TD3: target, delay and noise in numbers computed by hand, against the paper's algorithm 1; and resume."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from runtime.base.methods import TD3Config
from runtime.base.training import from_mapping
from runtime.rl.algos.actor import ActorShape, NumpyActor
from runtime.rl.algos.off_policy.td3 import TD3
from runtime.rl.algos.plan import build, make_plan
from runtime.rl.buffers.replay import Batch
from runtime.rl.roles.device_collector import PolicySampler
from runtime.rl.spaces import ActionSpace, ObsSpace

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPE = ActorShape(3, 1, (2,), head="deterministic")
HALF = math.atanh(0.5)


def td3(precision: str = "float32", **settings: object) -> TD3:
    return TD3(SHAPE, TD3Config(hidden=(2,), gamma=0.5, **settings), seed=0, precision=precision)


def batch(**columns: torch.Tensor) -> Batch:
    generator = torch.Generator().manual_seed(0)
    obs, next_obs = (torch.randn((2, 3), generator=generator) for _ in range(2))
    whole = {"action": torch.tensor([[0.25], [-0.5]]), "reward": torch.tensor([1.0, -1.0]), "next_obs": next_obs}
    return Batch(obs, **{**whole, "terminated": torch.tensor([0.0, 1.0]), **columns})


def constant(method: TD3) -> None:
    """Let both policies act by a = 1/2, and the critics and targets be 2 relu(a + 1) - 1 and relu(a + 1) + 3."""
    for network in (method.actor, method.target_actor):
        network.arena.flat[:-1] = 0.0
        network.arena.flat[-2] = HALF
    for critic in (method.critic, method.target):
        # Weights (2, 4, 2) and biases (2, 1, 2) of the hidden layer, (2, 2, 1) and (2, 1, 1) of the last: one unit
        # of each critic sees the action, which is the fourth input.
        first = torch.zeros(2, 4, 2)
        first[:, 3, 0] = 1.0
        offset, last = torch.tensor([[1.0, 0.0]] * 2), torch.tensor([[2.0, 0.0], [1.0, 0.0]])
        parts = (first, offset, last, torch.tensor([-1.0, 3.0]))
        critic.arena.flat.copy_(torch.cat([part.flatten() for part in parts]))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_target_is_the_smaller_critic_at_the_target_policys_action(precision):
    method = td3(precision, target_noise=0.0)
    constant(method)
    # At a = 1/2 the critics give 2 and 4.5; the targets are 1 + 0.5 * 2 and, where it ended, -1.
    stats = method.update(batch()).floats()
    # At 1/4 and -1/2 they give (1.5, 4.25) and (0, 3.5); the targets are 2 and -1.
    errors = [1.5 - 2.0, 4.25 - 2.0, 0.0 + 1.0, 3.5 + 1.0]
    # tanh(atanh(1/2)) is 1/2 up to the rounding of its argument.
    assert stats["critic_loss"] == pytest.approx(sum(error**2 for error in errors) / 4, rel=2e-3)
    assert method.next_value(batch().next_obs).tolist() == pytest.approx([2.0, 2.0], rel=2e-3)
    assert stats["mean_q"] == pytest.approx((1.5 + 4.25 + 0.0 + 3.5) / 4)


def test_noise_on_the_targets_action_is_clipped_and_so_is_the_action():
    method = td3(target_noise=1e6, target_noise_clip=0.25)
    constant(method)
    rows = torch.zeros((4_000, 3))
    # a is 0.25 or 0.75, so the smaller critic is 1.5 or 2.5, equally often.
    values = method.next_value(rows)
    assert sorted(set(values.tolist())) == pytest.approx([1.5, 2.5])
    assert values.mean().item() == pytest.approx(2.0, abs=0.05)
    wide = td3(target_noise=1e6, target_noise_clip=5.0)
    constant(wide)
    assert sorted(set(wide.next_value(rows).tolist())) == pytest.approx([-1.0, 3.0])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_networks_begin_with_biases_and_targets_as_copies_of_them(precision):
    method = TD3(SHAPE, TD3Config(hidden=(2,)), seed=0, precision=precision)
    state, rows, actor = method.tensors(), torch.zeros((1, 3)), NumpyActor(SHAPE)
    assert torch.equal(state["target_actor"], state["actor"])
    assert torch.equal(state["target_critic"], state["critic"])
    actor.load(method.actor_arena())
    assert actor.act(rows.numpy(), None) != 0.0
    method.update(batch())
    assert (method.critic(method.critic.features(rows), torch.zeros((1, 1))) != 0.0).all()


def test_policy_and_targets_follow_every_second_update():
    method = td3(policy_delay=2)
    before = {name: tensor.clone() for name, tensor in method.tensors().items()}
    method.update(batch())
    for name in ("actor", "target_actor", "target_critic"):
        assert torch.equal(method.tensors()[name], before[name]), name
    assert not torch.equal(method.tensors()["critic"], before["critic"])
    stats = method.update(batch()).floats()
    assert stats["actor_loss"] != 0.0
    moved = method.tensors()
    expected = before["target_critic"].lerp(moved["critic"], 0.005)
    assert moved["target_critic"].numpy() == pytest.approx(expected.numpy())
    assert moved["target_actor"].numpy() == pytest.approx(
        before["target_actor"].lerp(moved["actor"], 0.005).numpy()
    )


def test_the_policy_climbs_the_first_critic():
    method = td3(policy_delay=1, actor_lr=0.01)
    constant(method)
    loss = method.learn_actor(batch().obs).item()
    assert loss == pytest.approx(-2.0)
    # Q1 = 2 (tanh(b) + 1) - 1 rises with b by 2 (1 - 1/4), and Adam's first step is its step size.
    assert method._optimisers["actor"].mean[-2].item() == pytest.approx(-0.1 * 2 * 0.75)
    assert method.actor.arena.flat[-2].item() == pytest.approx(HALF + 0.01)


def test_workers_add_noise_within_the_range_and_evaluators_none():
    method = td3(exploration_noise=0.1)
    constant(method)
    rows = np.zeros((4_000, 3), np.float32)
    actor, sampler = NumpyActor(SHAPE), PolicySampler(SHAPE, "cpu", torch.Generator().manual_seed(1))
    actor.load(method.actor_arena())
    sampler.load(method.policy_weights())
    with torch.no_grad():
        on_device = sampler.draw(torch.from_numpy(rows))[0].numpy()
    for action in (actor.act(rows, np.random.default_rng(0)), on_device):
        assert action.mean() == pytest.approx(0.5, abs=0.01)
        assert action.std() == pytest.approx(0.1, abs=0.01)
        assert np.abs(action).max() <= 1.0
    assert actor.act(rows[:1], None) == pytest.approx(np.array([[0.5]]))


def test_a_resumed_run_goes_on_to_the_last_bit():
    first, second = td3(), td3()
    for _ in range(3):
        first.update(batch())
    assert second.load_state(first.state()) == []
    for _ in range(2):
        one_more, other = first.update(batch()), second.update(batch())
    assert one_more.floats() == other.floats()
    assert torch.equal(first.policy_weights(), second.policy_weights())


def test_it_is_refused_where_actions_are_choices():
    settings = from_mapping({"algorithm": "td3"})
    with pytest.raises(ValueError, match="racing takes choices and TD3 needs numbers; set algorithm to sac, dqn"):
        make_plan(settings, ObsSpace(3), ActionSpace(1, (2,)))
    assert isinstance(build(make_plan(settings, ObsSpace(3), ActionSpace(2)), 0, "cpu"), TD3)


def test_step_sizes_and_noise_fall_to_their_ends_and_go_on_after_a_resume():
    settings = {"anneal_updates": 4, "exploration_noise": 0.5, "exploration_end": 0.1, "exploration_updates": 2}
    method = td3(policy_delay=1, **settings)
    noise, moves = [], []
    for _ in range(6):
        before = method.critic.arena.flat.detach().clone()
        noise.append(method.policy_weights()[-1].item())
        method.update(batch())
        moves.append((method.critic.arena.flat - before).abs().max().item())
    assert noise == pytest.approx([0.5, 0.3, 0.1, 0.1, 0.1, 0.1])
    # A step of Adam on nearly the same gradient is as long as its step size.
    assert moves[1] < 0.85 * moves[0]
    assert moves[5] < 0.01 * moves[0]
    resumed = td3(policy_delay=1, **settings)
    resumed.load_state(method.state())
    method.update(batch())
    resumed.update(batch())
    assert resumed.policy_weights().equal(method.policy_weights())


def test_an_end_of_the_noise_without_its_updates_is_refused():
    with pytest.raises(ValueError, match="exploration_end and exploration_updates go together"):
        td3(exploration_end=0.05)
