"""Discrete SAC: the equations of Christodoulou 2019 in numbers computed by hand, and resume."""

from __future__ import annotations

import math

import pytest
import torch

from runtime.base.methods import SACConfig
from runtime.base.training import from_mapping
from runtime.rl.algos.actor import ActorShape, NumpyActor
from runtime.rl.algos.off_policy.sac import DiscreteSAC
from runtime.rl.algos.plan import build, make_plan
from runtime.rl.buffers.replay import Batch
from runtime.rl.spaces import ActionSpace, ObsSpace

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = SACConfig(hidden=(8,), batch_size=2, gamma=0.5)
SHAPE = ActorShape(3, 1, (8,), head="categorical", choices=(2,))
LOG3, LOG4 = math.log(3.0), math.log(4.0)


def batch(**columns: torch.Tensor) -> Batch:
    generator = torch.Generator().manual_seed(0)
    obs, next_obs = (torch.randn((2, 3), generator=generator) for _ in range(2))
    whole = {
        "action": torch.tensor([[0], [1]], dtype=torch.int32),
        "reward": torch.tensor([1.0, -1.0]),
        "next_obs": next_obs,
        "terminated": torch.tensor([0.0, 1.0]),
    }
    return Batch(obs, **{**whole, **columns})


def constant(sac: DiscreteSAC) -> None:
    """Let the policy be (3/4, 1/4) everywhere, the critics' and targets' values (1, 2) and (3, 0)."""
    for network in (sac.actor, sac.critic, sac.target):
        network.arena.flat.zero_()
    sac.actor.arena.flat[-2:].copy_(torch.tensor([LOG3, 0.0]))
    for network in (sac.critic, sac.target):
        network.arena.flat[-4:].copy_(torch.tensor([1.0, 2.0, 3.0, 0.0]))


def test_target_is_the_expectation_of_the_soft_value():
    sac = DiscreteSAC(SHAPE, CONFIG, seed=0)
    constant(sac)
    # Least values are (1, 0); pi^T [Q - alpha log pi] = 3/4 (1 + 0.2 log 4/3) + 1/4 (0 + 0.2 log 4).
    value = 0.75 * (1.0 + 0.2 * (LOG4 - LOG3)) + 0.25 * 0.2 * LOG4
    y = sac.soft_bellman_target(batch(), batch(), torch.tensor([0.2]))
    assert y.tolist() == pytest.approx([1.0 + 0.5 * value, -1.0])
    several = batch(steps=torch.tensor([3.0, 1.0]))
    assert sac.soft_bellman_target(several, several, torch.tensor([0.2]))[0].item() == pytest.approx(
        1.0 + 0.5**3 * value
    )


def test_policy_loss_is_an_expectation_too():
    sac = DiscreteSAC(SHAPE, CONFIG, seed=0)
    constant(sac)
    features = sac.critic.features(batch().obs)
    loss, entropy = sac.policy_loss(features, features, torch.tensor([0.2]))
    assert entropy.item() == pytest.approx(0.75 * (LOG4 - LOG3) + 0.25 * LOG4)
    assert loss.item() == pytest.approx(-0.2 * entropy.item() - 0.75 * 1.0)
    # d/d logit_0 of pi^T [alpha log pi - Q] is pi_0 (f_0 - sum pi f), with f = alpha log pi - Q.
    f = [0.2 * (LOG3 - LOG4) - 1.0, -0.2 * LOG4]
    mean = 0.75 * f[0] + 0.25 * f[1]
    gradient = sac.actor.arena.gradient(loss)[-2:]
    assert gradient.tolist() == pytest.approx([0.75 * (f[0] - mean), 0.25 * (f[1] - mean)], abs=1e-6)


def test_critics_learn_the_choice_that_was_taken_alone():
    sac = DiscreteSAC(SHAPE, CONFIG, seed=0)
    constant(sac)
    assert sac._q(sac.critic.features(batch().obs), batch().action).tolist() == [[1.0, 2.0], [3.0, 0.0]]


def test_the_target_entropy_is_that_of_the_paper():
    assert DiscreteSAC(SHAPE, CONFIG, seed=0).target_entropy == pytest.approx(0.98 * math.log(2.0))


def test_a_resumed_run_goes_on_to_the_last_bit_and_workers_read_the_weights():
    first, second = DiscreteSAC(SHAPE, CONFIG, seed=1), DiscreteSAC(SHAPE, CONFIG, seed=2)
    first.update(batch())
    assert second.load_state(first.state()) == []
    first.update(batch())
    stats = second.update(batch())
    assert torch.equal(first.policy_weights(), second.policy_weights())
    assert math.isfinite(stats.floats()["actor_loss"])
    actor = NumpyActor(SHAPE)
    actor.load(second.actor_arena())
    logits = second.actor(batch().obs).detach().numpy()
    assert actor.outputs(batch().obs.numpy()) == pytest.approx(logits, abs=1e-6)


@pytest.mark.parametrize(("action", "form"), [(ActionSpace(1, (3,)), "DiscreteSAC"), (ActionSpace(2), "SAC")])
def test_the_action_space_decides_the_form(action, form):
    plan = make_plan(from_mapping({}), ObsSpace(4), action)
    assert type(build(plan, 0, "cpu")).__name__ == form


def test_several_choices_at_once_are_refused():
    with pytest.raises(
        ValueError, match="racing takes 2 choices at once and SAC one; set algorithm to ppo or impala"
    ):
        make_plan(from_mapping({}), ObsSpace(4), ActionSpace(2, (3, 2)))
