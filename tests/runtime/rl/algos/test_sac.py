"""SAC: the update against formulas written out here, exact resume, and learning."""

import math
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from runtime.base.methods import SACConfig
from runtime.rl.algos.actor import LOG_STD_MAX, LOG_STD_MIN, ActorShape, NumpyActor
from runtime.rl.algos.off_policy.sac import SAC
from runtime.rl.buffers.replay import Batch

SMALL = SACConfig(hidden=(32, 24), batch_size=16)
SHAPE = ActorShape(5, 2, SMALL.hidden)


pytestmark = pytest.mark.usefixtures("one_thread")


def make_batch(seed: int, size: int = 16, obs_dim: int = 5, act_dim: int = 2) -> Batch:
    g = torch.Generator().manual_seed(seed)
    return Batch(
        torch.randn(size, obs_dim, generator=g),
        torch.rand(size, act_dim, generator=g) * 2 - 1,
        torch.randn(size, generator=g),
        torch.randn(size, obs_dim, generator=g),
        (torch.rand(size, generator=g) < 0.3).float(),
    )


def networks(sac: SAC, state: dict[str, torch.Tensor], name: str) -> list[torch.nn.Sequential]:
    """The networks of an arena rebuilt from torch.nn, as a second opinion."""
    shape = sac.shape
    copies = 1 if name == "actor" else 2
    first = shape.obs_dim if name == "actor" else shape.obs_dim + shape.act_dim
    widths = [first, *shape.hidden, 2 * shape.act_dim if name == "actor" else 1]
    built = [
        torch.nn.Sequential(
            *[layer for i, o in pairwise(widths) for layer in (torch.nn.Linear(i, o), torch.nn.ReLU())][:-1]
        )
        for _ in range(copies)
    ]
    flat, at = state[name], 0
    for depth, (i, o) in enumerate(pairwise(widths)):
        for copy in built:
            copy[2 * depth].weight.data = flat[at : at + i * o].view(i, o).T.clone()
            at += i * o
        for copy in built:
            copy[2 * depth].bias.data = flat[at : at + o].clone()
            at += o
    assert at == len(flat)
    return built


def policy(sac: SAC, state: dict[str, torch.Tensor], obs: torch.Tensor) -> torch.distributions.Normal:
    (actor,) = networks(sac, state, "actor")
    mean, scale = actor(obs).chunk(2, dim=1)
    log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (scale.tanh() + 1)
    return torch.distributions.Normal(mean, log_std.exp())


def squashed(normal: torch.distributions.Normal, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    law = torch.distributions.TransformedDistribution(
        normal, torch.distributions.transforms.TanhTransform(cache_size=1)
    )
    u = normal.mean + normal.stddev * noise
    action = law.transforms[0](u)
    return action, law.log_prob(action).sum(dim=1)


def reference_gradients(sac: SAC, batch: Batch) -> dict[str, torch.Tensor]:
    """Gradients of the first update, by the paper's equations over torch.nn and torch.distributions."""
    state = sac.state()
    config = sac.config
    generator = torch.Generator()
    generator.set_state(state["noise_generator"])
    size = len(batch.reward)
    next_noise, noise = (torch.randn((size, 2), generator=generator) for _ in range(2))
    alpha = state["log_alpha"].exp()
    with torch.no_grad():
        next_action, next_log_prob = squashed(policy(sac, state, batch.next_obs), next_noise)
        both = torch.cat([batch.next_obs, next_action], dim=1)
        next_q = torch.minimum(*(q(both).squeeze(1) for q in networks(sac, state, "target_critic")))
        y = batch.reward + config.gamma * (1 - batch.terminated) * (next_q - alpha * next_log_prob)
    critics = networks(sac, state, "critic")
    both = torch.cat([batch.obs, batch.action], dim=1)
    loss = sum(0.5 * (q(both).squeeze(1) - y).square().mean() for q in critics)
    loss.backward()
    layers = range(0, 2 * len(config.hidden) + 1, 2)
    critic = [
        part
        for depth in layers
        for part in (
            *(q[depth].weight.grad.T.reshape(-1) for q in critics),
            *(q[depth].bias.grad for q in critics),
        )
    ]
    _, log_prob = squashed(policy(sac, state, batch.obs), noise)
    entropy = -log_prob.detach().mean()
    return {"critic": torch.cat(critic), "log_alpha": (entropy + 2.0).view(1)}


def test_first_update_follows_the_paper():
    """After one step, Adam's mean is 0.1 times the gradient: it shows the gradient that was used."""
    sac = SAC(SHAPE, SMALL, seed=3)
    batch = make_batch(0)
    expected = reference_gradients(sac, batch)
    sac.update(batch)
    state = sac.state()
    for name, gradient in expected.items():
        assert state[f"{name}.mean"].numpy() == pytest.approx(0.1 * gradient.numpy(), abs=1e-6), name


def test_actor_climbs_the_updated_critics_and_its_entropy():
    sac = SAC(SHAPE, SMALL, seed=3)
    batch = make_batch(0)
    before = sac.state()
    sac.update(batch)
    after = sac.state()
    generator = torch.Generator()
    generator.set_state(before["noise_generator"])
    _, noise = (torch.randn((16, 2), generator=generator) for _ in range(2))
    (actor,) = networks(sac, before, "actor")
    mean, scale = actor(batch.obs).chunk(2, dim=1)
    log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (scale.tanh() + 1)
    action, log_prob = squashed(torch.distributions.Normal(mean, log_std.exp()), noise)
    both = torch.cat([batch.obs, action], dim=1)
    q_min = torch.minimum(*(q(both).squeeze(1) for q in networks(sac, after, "critic")))
    (before["log_alpha"].exp() * log_prob - q_min).mean().backward()
    gradient = torch.cat([p for layer in actor[::2] for p in (layer.weight.grad.T.reshape(-1), layer.bias.grad)])
    assert after["actor.mean"].numpy() == pytest.approx(0.1 * gradient.numpy(), abs=1e-6)


def test_target_takes_its_action_in_the_next_state():
    """The current observations of a batch must not reach the target: it bootstraps only from the next ones."""
    sac, other = SAC(SHAPE, SMALL, seed=1), SAC(SHAPE, SMALL, seed=1)
    batch = make_batch(1)
    alpha = torch.tensor([0.1])
    y = sac.soft_bellman_target(batch, batch, alpha)
    shifted = replace(batch, next_obs=batch.next_obs + 1.0)
    moved = other.soft_bellman_target(shifted, shifted, alpha)
    ended = batch.terminated == 1
    assert (y[ended] == batch.reward[ended]).all()
    assert (moved[ended] == y[ended]).all()
    assert (moved[~ended] != y[~ended]).all()
    assert not y.requires_grad


def test_target_critics_follow_by_tau():
    sac = SAC(SHAPE, replace(SMALL, tau=0.25), seed=0)
    start = sac.state()
    assert torch.equal(start["target_critic"], start["critic"])
    sac.update(make_batch(0))
    after = sac.state()
    expected = 0.75 * start["target_critic"] + 0.25 * after["critic"]
    assert after["target_critic"].numpy() == pytest.approx(expected.numpy(), abs=1e-7)


def test_target_critics_stand_still_between_their_steps():
    sac = SAC(SHAPE, replace(SMALL, tau=1.0, target_updates=2), seed=0)
    start = sac.state()["target_critic"].clone()
    sac.update(make_batch(0))
    assert torch.equal(sac.state()["target_critic"], start)
    sac.update(make_batch(1))
    assert torch.equal(sac.state()["target_critic"], sac.state()["critic"])


def test_a_launch_of_several_updates_ends_where_the_target_critics_step_between_them():
    each, third = (SAC(SHAPE, replace(SMALL, target_updates=number), seed=0) for number in (1, 3))
    assert [each.ends_launch(number) for number in range(6)] == [False] * 6
    assert [third.ends_launch(number) for number in range(6)] == [False, False, True] * 2


def test_a_temperature_that_does_not_learn_stays_as_it_began():
    sac = SAC(SHAPE, replace(SMALL, init_alpha=0.01, alpha_lr=0.0), seed=0)
    alphas = [sac.update(make_batch(seed)).floats()["alpha"] for seed in range(3)]
    assert alphas == pytest.approx([0.01] * 3)


def test_all_step_sizes_fall_over_their_updates():
    sac = SAC(SHAPE, replace(SMALL, anneal_updates=4), seed=0)
    names, moves = ("actor", "critic", "log_alpha"), []
    for number in range(6):
        before = {name: sac.tensors()[name].detach().clone() for name in names}
        sac.update(make_batch(number))
        moves.append([(sac.tensors()[name] - before[name]).abs().max().item() for name in names])
    assert all(later < 0.01 * first for first, later in zip(moves[0], moves[5], strict=True))


def test_temperature_falls_while_the_policy_is_more_random_than_asked():
    calm, wild = (SAC(SHAPE, replace(SMALL, target_entropy=h), seed=0) for h in (-20.0, 20.0))
    for sac in (calm, wild):
        for seed in range(20):
            stats = sac.update(make_batch(seed))
    assert calm.state()["log_alpha"] < math.log(SMALL.init_alpha) < wild.state()["log_alpha"]
    assert set(stats.floats()) == {"critic_loss", "actor_loss", "alpha", "entropy", "mean_q"}


@pytest.mark.parametrize("hidden", [(16,), (64, 64), (32, 24, 16)])
def test_numpy_actor_is_the_torch_actor(hidden):
    sac = SAC(ActorShape(7, 3, hidden), replace(SMALL, hidden=hidden), seed=5)
    batch = make_batch(2, obs_dim=7, act_dim=3)
    sac.update(batch)
    actor = NumpyActor(sac.shape)
    arena = sac.actor_arena()
    assert arena.shape == (sac.shape.size,)
    assert arena.dtype == np.float32
    actor.load(arena)
    normal = policy(sac, sac.state(), batch.obs)
    obs = batch.obs.numpy()
    assert actor.act(obs, None) == pytest.approx(normal.mean.tanh().detach().numpy(), abs=1e-6)
    noise = np.random.default_rng(4).standard_normal((16, 3), dtype=np.float32)
    drawn = (normal.mean + normal.stddev * torch.from_numpy(noise)).tanh().detach().numpy()
    action = actor.act(obs, np.random.default_rng(4))
    assert action == pytest.approx(drawn, abs=1e-5)
    assert action.dtype == np.float32


def test_a_published_arena_does_not_change_under_its_reader():
    sac = SAC(SHAPE, SMALL, seed=0)
    arena = sac.actor_arena()
    kept = arena.copy()
    sac.update(make_batch(0))
    assert (arena == kept).all()
    assert (sac.actor_arena() != kept).any()


def test_actor_refuses_other_lengths_and_values_and_keeps_its_weights():
    actor = NumpyActor(ActorShape(5, 2, (8,)))
    actor.load(np.full(actor.shape.size, 0.1, dtype=np.float32))
    obs = np.ones((1, 5), dtype=np.float32)
    before = actor.act(obs, None)
    with pytest.raises(ValueError, match="needs"):
        actor.load(np.zeros(3, dtype=np.float32))
    poisoned = np.zeros(actor.shape.size, dtype=np.float32)
    poisoned[7] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        actor.load(poisoned)
    assert (actor.act(obs, None) == before).all()


@pytest.mark.parametrize("updates_before", [0, 5])
def test_resumed_updates_are_bit_for_bit_those_of_an_unbroken_run(updates_before):
    unbroken = SAC(SHAPE, SMALL, seed=1)
    for seed in range(updates_before):
        unbroken.update(make_batch(seed))
    resumed = SAC(SHAPE, SMALL, seed=77)
    resumed.load_state(load(save(unbroken.state())))
    for seed in range(10, 15):
        assert unbroken.update(make_batch(seed)).floats() == resumed.update(make_batch(seed)).floats()
    a, b = unbroken.state(), resumed.state()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert resumed.updates == updates_before + 5


def test_state_of_another_network_is_refused_and_changes_nothing():
    sac = SAC(SHAPE, SMALL, seed=1)
    before = sac.state()
    with pytest.raises(ValueError, match="resume with the same environment and hidden layers"):
        sac.load_state(SAC(ActorShape(5, 2, (8,)), replace(SMALL, hidden=(8,)), seed=1).state())
    with pytest.raises(ValueError, match="has no 'critic'"):
        sac.load_state({name: value for name, value in before.items() if name != "critic"})
    assert all(torch.equal(before[name], value) for name, value in sac.state().items())


def test_same_seed_same_weights_and_another_seed_others():
    assert (SAC(SHAPE, SMALL, seed=2).actor_arena() == SAC(SHAPE, SMALL, seed=2).actor_arena()).all()
    assert (SAC(SHAPE, SMALL, seed=2).actor_arena() != SAC(SHAPE, SMALL, seed=3).actor_arena()).any()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"gama": 0.9}, "no setting 'gama'; known are hidden"),
        ({"gamma": 1.5}, "gamma is 1.5; it must be above 0 and at most 1"),
        ({"actor_lr": 0}, "actor_lr is 0; it must be above 0"),
        ({"tau": "small"}, "tau is 'small'; it must be a number"),
        ({"batch_size": 2.5}, "batch_size is 2.5; it must be a whole number"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"init_alpha": 10**400}, "init_alpha is too large"),
        ({"hidden": 64}, "hidden is 64; it must be a list"),
        ({"hidden": []}, "needs at least one layer"),
    ],
)
def test_wrong_settings_are_named(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        SACConfig.read(settings)


def test_settings_of_a_spec_become_a_config():
    assert SACConfig.read({"hidden": [64, 32], "gamma": 0.9, "target_entropy": None}) == SACConfig(
        hidden=(64, 32), gamma=0.9
    )


def test_a_whole_number_is_a_number_too():
    config = SACConfig.read({"hidden": list(SMALL.hidden), "init_alpha": 1, "tau": 1, "target_entropy": -2})
    assert [type(value) for value in (config.init_alpha, config.tau, config.target_entropy)] == [float] * 3
    assert SAC(SHAPE, config, seed=1).state()["log_alpha"].item() == 0


@pytest.mark.slow
def test_it_finds_the_best_action_of_a_bandit():
    """Reward -(a - a*)^2 with a* set by the observation, and every step the last: Q has no future to learn."""
    sac = SAC(
        ActorShape(2, 2, SMALL.hidden),
        replace(SMALL, batch_size=64, actor_lr=3e-3, critic_lr=3e-3, init_alpha=0.01),
        seed=0,
    )
    g = torch.Generator().manual_seed(0)
    for _ in range(600):
        obs = torch.rand(64, 2, generator=g) * 1.6 - 0.8
        action = torch.rand(64, 2, generator=g) * 2 - 1
        reward = -(action - obs).square().sum(dim=1)
        sac.update(Batch(obs, action, reward, obs, torch.ones(64)))
    actor = NumpyActor(sac.shape)
    actor.load(sac.actor_arena())
    obs = np.random.default_rng(0).uniform(-0.8, 0.8, (200, 2)).astype(np.float32)
    assert np.abs(actor.act(obs, None) - obs).mean() < 0.12


@pytest.mark.process
def test_acting_alone_imports_no_torch():
    code = "import sys, runtime.rl.algos.actor; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
