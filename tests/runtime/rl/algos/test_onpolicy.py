"""PPO and IMPALA: advantages and targets against sums written out here, gradients against the papers', learning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from runtime.base.methods import ImpalaConfig, PPOConfig
from runtime.base.training import from_mapping
from runtime.rl.algos.actor import ActorShape, NumpyActor
from runtime.rl.algos.actor_critic import present_rows
from runtime.rl.algos.impala import Impala, v_trace
from runtime.rl.algos.networks import tanh_
from runtime.rl.algos.plan import make_plan
from runtime.rl.algos.ppo import PPO, generalised_advantage
from runtime.rl.buffers.rollout_buffer import RolloutBatch
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.fakes.padding import padded

DISCRETE = ActorShape(3, 1, (16,), head="categorical", choices=(4,), activation="tanh")
SEVERAL = ActorShape(3, 2, (16,), head="categorical", choices=(2, 3), activation="tanh")
GAUSSIAN = ActorShape(3, 2, (16,), head="gaussian", activation="tanh")
SHAPES = [DISCRETE, SEVERAL, GAUSSIAN]


pytestmark = pytest.mark.usefixtures("one_thread")


def acted(method: PPO | Impala, steps: int, copies: int, seed: int) -> RolloutBatch:
    """Rollouts of random observations, with actions of the method's own policy as in a worker."""
    rng = np.random.default_rng(seed)
    actor = NumpyActor(method.shape)
    actor.load(method.actor_arena())
    obs = rng.standard_normal((steps * copies, method.shape.obs_dim), dtype=np.float32)
    action, log_prob = actor.draw_with_log_prob(actor.outputs(obs), rng)
    shape = (steps, copies)
    return RolloutBatch(
        obs=torch.from_numpy(obs).view(*shape, -1),
        action=torch.from_numpy(action).view(*shape, -1),
        log_prob=torch.from_numpy(log_prob.astype(np.float32)).view(shape),
        reward=torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)),
        next_obs=torch.from_numpy(rng.standard_normal((*shape, method.shape.obs_dim), dtype=np.float32)),
        ended=torch.from_numpy(rng.choice(np.array([0, 0, 0, 1, 2], dtype=np.uint8), shape)),
    )


@pytest.mark.parametrize("rows", [4, 1_024])
def test_the_hidden_layers_have_the_tangent_and_its_derivative_whatever_their_size(rows):
    x = torch.linspace(-20, 20, 64 * rows).view(rows, 64).requires_grad_()
    y = tanh_(x * 1.0)
    (slope,) = torch.autograd.grad(y, [x], torch.ones_like(y))
    exact = x.detach().double().tanh()
    assert y.detach().numpy() == pytest.approx(exact.numpy(), abs=3e-7)
    assert slope.numpy() == pytest.approx((1 - exact.square()).numpy(), abs=5e-7)


@pytest.mark.parametrize("shape", SHAPES)
def test_probabilities_of_the_worker_are_those_of_the_learner(shape):
    method = PPO(shape, PPOConfig(hidden=(16,)), seed=3)
    for seed in range(3):
        batch = acted(method, 8, 4, seed)
        log_prob, entropy = method.policy.evaluate(batch.obs.flatten(0, 1), batch.action.flatten(0, 1))
        assert log_prob.detach().numpy() == pytest.approx(batch.log_prob.flatten().numpy(), abs=1e-5)
        assert entropy.shape == (32,)
        method.update(batch)


def test_entropy_is_that_of_the_distributions():
    method = PPO(SEVERAL, PPOConfig(hidden=(16,)), seed=0)
    obs = torch.randn(5, 3)
    logits = method.policy(obs)
    _, entropy = method.policy.evaluate(obs, torch.zeros(5, 2, dtype=torch.int32))
    parts = (torch.distributions.Categorical(logits=each).entropy() for each in logits.split([2, 3], dim=1))
    assert torch.allclose(entropy, sum(parts), atol=1e-6)
    gaussian = PPO(GAUSSIAN, PPOConfig(hidden=(16,)), seed=0)
    _, entropy = gaussian.policy.evaluate(obs, torch.zeros(5, 2))
    assert torch.allclose(entropy, torch.distributions.Normal(0.0, 1.0).entropy() * 2, atol=1e-6)


def test_an_actor_draws_each_choice_as_often_as_its_probability():
    actor = NumpyActor(ActorShape(1, 1, (4,), head="categorical", choices=(3,)))
    arena = np.zeros(actor.shape.size, dtype=np.float32)
    arena[-3:] = np.log([0.2, 0.5, 0.3])
    actor.load(arena)
    action, log_prob = actor.draw_with_log_prob(
        actor.outputs(np.zeros((30_000, 1), dtype=np.float32)), np.random.default_rng(0)
    )
    counts = np.bincount(action[:, 0], minlength=3) / 30_000
    assert counts == pytest.approx([0.2, 0.5, 0.3], abs=0.01)
    assert np.exp(log_prob) == pytest.approx(np.array([0.2, 0.5, 0.3])[action[:, 0]], abs=1e-6)
    assert (actor.act(np.zeros((4, 1), dtype=np.float32), None) == 1).all()


def test_advantages_are_discounted_sums_that_stop_at_ends():
    g = torch.Generator().manual_seed(0)
    reward, value, next_value = (torch.randn(6, 2, generator=g) for _ in range(3))
    ended = torch.tensor([[0, 0], [0, 1], [2, 0], [0, 0], [0, 0], [0, 2]], dtype=torch.uint8)
    found = generalised_advantage(reward, value, next_value, ended, gamma=0.9, gae_lambda=0.8)
    for n in range(2):
        for t in range(6):
            total = 0.0
            for ahead in range(t, 6):
                follows = 0.0 if ended[ahead, n] == 1 else float(next_value[ahead, n])
                delta = float(reward[ahead, n]) + 0.9 * follows - float(value[ahead, n])
                total += (0.9 * 0.8) ** (ahead - t) * delta
                if ended[ahead, n]:
                    break
            assert float(found[t, n]) == pytest.approx(total, abs=1e-5)


def test_v_trace_is_the_sum_of_the_paper():
    """Equation (1), summed as written, with the trace cut at ends."""
    g = torch.Generator().manual_seed(1)
    reward, value = (torch.randn(7, 2, generator=g) for _ in range(2))
    ended = torch.tensor([[0, 0], [0, 1], [2, 0], [0, 0], [0, 0], [0, 2], [0, 0]], dtype=torch.uint8)
    next_value = torch.randn(7, 2, generator=g)
    runs_on = ended[:-1] == 0
    next_value[:-1][runs_on] = value[1:][runs_on]  # within an episode the next row follows
    ratio = torch.rand(7, 2, generator=g) * 2
    vs, advantage = v_trace(reward, value, next_value, ended, ratio, gamma=0.9, rho_bar=1.2, c_bar=1.0)
    for n in range(2):
        for t in range(7):
            total, trace = float(value[t, n]), 1.0
            for ahead in range(t, 7):
                rho = min(float(ratio[ahead, n]), 1.2)
                follows = 0.0 if ended[ahead, n] == 1 else float(next_value[ahead, n])
                delta = rho * (float(reward[ahead, n]) + 0.9 * follows - float(value[ahead, n]))
                total += 0.9 ** (ahead - t) * trace * delta
                trace *= min(float(ratio[ahead, n]), 1.0)
                if ended[ahead, n]:
                    break
            assert float(vs[t, n]) == pytest.approx(total, abs=1e-5)
    on_policy, _ = v_trace(reward, value, next_value, ended, torch.ones(7, 2), gamma=0.9, rho_bar=1.0, c_bar=1.0)
    returns = value + generalised_advantage(reward, value, next_value, ended, 0.9, 1.0)
    assert torch.allclose(on_policy, returns, atol=1e-5)
    assert advantage.shape == (7, 2)


def test_first_step_of_ppo_follows_the_policy_gradient():
    """With a ratio of 1 nothing is clipped: the slope equals that of the mean log probability times advantage."""
    config = PPOConfig(hidden=(16,), epochs=1, minibatch_size=64, max_grad_norm=1e9)
    method = PPO(DISCRETE, config, seed=5)
    batch = acted(method, 16, 4, 0)
    policy, value = method.policy, method.value
    with torch.no_grad():
        values = value(batch.obs.flatten(0, 1)).view(16, 4)
        following = value(batch.next_obs.flatten(0, 1)).view(16, 4)
        inner = batch.ended[:-1] == 0
        following[:-1][inner] = values[1:][inner]
    advantage = generalised_advantage(batch.reward, values, following, batch.ended, 0.99, 0.95).flatten()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    logits = policy(batch.obs.flatten(0, 1))
    chosen = torch.distributions.Categorical(logits=logits).log_prob(batch.action.flatten())
    gradient = policy.arena.gradient(-(chosen * advantage).mean())
    stats = method.update(batch)
    assert method.state()["policy.mean"].numpy() == pytest.approx(0.1 * gradient.numpy(), abs=1e-5)
    assert stats.floats()["kl"] == pytest.approx(0.0, abs=1e-6)
    assert set(stats.floats()) == {"policy_loss", "value_loss", "entropy", "kl", "clipped"}


@pytest.mark.parametrize(
    "method",
    [
        PPO(GAUSSIAN, PPOConfig(hidden=(16,), minibatch_size=16, epochs=2, anneal_updates=100), seed=1),
        Impala(SEVERAL, ImpalaConfig(hidden=(16,)), seed=1),
        Impala(SEVERAL, ImpalaConfig(hidden=(16,), clip=0.2, epochs=3), seed=1),
    ],
)
def test_resumed_updates_are_bit_for_bit_those_of_an_unbroken_run(method):
    for seed in range(3):
        method.update(acted(method, 8, 4, seed))
    resumed = type(method)(method.shape, method.config, seed=77)
    resumed.load_state(load(save(method.state())))
    for seed in range(10, 13):
        batch = acted(method, 8, 4, seed)
        assert method.update(batch).floats() == resumed.update(batch).floats()
    a, b = method.state(), resumed.state()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_padding_is_replaced_by_other_rows_at_even_distances():
    absent = torch.tensor([[True, False, False], [True, True, False], [False, True, False]])
    rows = present_rows(absent)
    assert rows[~absent.flatten()].tolist() == [1, 2, 5, 6, 8]
    assert rows[absent.flatten()].tolist() == [1, 2, 5, 6]
    assert present_rows(torch.zeros(2, 3, dtype=torch.bool)).tolist() == [0, 1, 2, 3, 4, 5]
    assert max(present_rows(torch.ones(2, 3, dtype=torch.bool)).tolist()) < 6


@pytest.mark.parametrize("capture", [None, True])
@pytest.mark.parametrize(
    ("kind", "shape", "config"),
    [
        (PPO, DISCRETE, PPOConfig(hidden=(16,), minibatch_size=16, epochs=2)),
        (PPO, replace(GAUSSIAN, is_normalised=True), PPOConfig(hidden=(16,), normalise_returns=True)),
        (Impala, SEVERAL, ImpalaConfig(hidden=(16,))),
        (Impala, replace(GAUSSIAN, is_normalised=True), ImpalaConfig(hidden=(16,), clip=0.2, epochs=3)),
    ],
)
def test_nothing_is_learned_from_padding_whatever_it_holds(kind, shape, config, capture):
    states = []
    for value in (0, 1):
        method = kind(shape, config, seed=1, capture=capture)
        for seed in range(2):
            batch = acted(method, 8, 4, seed)
            method.update(padded(replace(batch, discounted=batch.reward.clone()), value))
        states.append(method.state())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    unpadded = kind(shape, config, seed=1, capture=capture)
    for seed in range(2):
        batch = acted(unpadded, 8, 4, seed)
        unpadded.update(replace(padded(replace(batch, discounted=batch.reward.clone()), 1), absent=None))
    assert not torch.equal(unpadded.state()["policy"], states[0]["policy"])


def bandit(method: PPO | Impala, updates: int) -> float:
    """Share of right choices after learning that the right one is the largest of the observation's numbers."""
    rng = np.random.default_rng(0)
    actor = NumpyActor(method.shape)
    for _ in range(updates):
        actor.load(method.actor_arena())
        obs = rng.standard_normal((256, 3), dtype=np.float32)
        action, log_prob = actor.draw_with_log_prob(actor.outputs(obs), rng)
        reward = (action[:, 0] == obs.argmax(axis=1)).astype(np.float32)
        shape = (4, 64)
        method.update(
            RolloutBatch(
                torch.from_numpy(obs).view(*shape, 3),
                torch.from_numpy(action).view(*shape, 1),
                torch.from_numpy(log_prob.astype(np.float32)).view(shape),
                torch.from_numpy(reward).view(shape),
                torch.from_numpy(obs).view(*shape, 3),
                torch.ones(shape, dtype=torch.uint8),
            )
        )
    actor.load(method.actor_arena())
    obs = rng.standard_normal((1000, 3), dtype=np.float32)
    return float((actor.act(obs, None)[:, 0] == obs.argmax(axis=1)).mean())


BANDIT = replace(DISCRETE, choices=(3,), hidden=(32,))


@pytest.mark.parametrize(
    ("method", "updates"),
    [
        (PPO(BANDIT, PPOConfig(hidden=(32,), lr=3e-3, minibatch_size=64, epochs=4), seed=0), 30),
        (Impala(BANDIT, ImpalaConfig(hidden=(32,), lr=1e-2), seed=0), 150),
        (Impala(BANDIT, ImpalaConfig(hidden=(32,), lr=5e-3, clip=0.2, epochs=4), seed=0), 40),
    ],
)
def test_it_learns_which_choice_is_right(method, updates):
    assert bandit(method, updates) > 0.9


def test_more_than_one_pass_of_impala_needs_a_clip():
    with pytest.raises(ValueError, match="epochs is 2; more than one needs clip"):
        ImpalaConfig(epochs=2)


@pytest.mark.parametrize(
    ("config", "band_steps", "max_policy_lag"),
    [
        ({}, 0, 0),
        ({"queue_batches": 3}, 0, 0),
        ({"is_synchronous": False}, 512, 4),
        ({"is_synchronous": False, "queue_batches": 3}, 1_536, 8),
    ],
)
def test_ppo_collects_ahead_by_as_many_batches_as_may_wait(config, band_steps, max_policy_lag) -> None:
    settings = {"num_envs": 8, "segment_steps": 16, "ppo": {"batch_steps": 512, **config}, "algorithm": "ppo"}
    balance = make_plan(from_mapping(settings), ObsSpace(4), ActionSpace(1, (2,))).balance
    assert (balance.band_steps, balance.max_policy_lag) == (band_steps, max_policy_lag)
