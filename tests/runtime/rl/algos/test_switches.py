"""Switches of a method: each changes the update, and in the way described by the paper.

Other tests compare two runs of the same code (captured and eager, resumed and unbroken); a step missing in both
passes there.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from runtime.base.methods import ImpalaConfig, PPOConfig, SACConfig
from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.impala import Impala
from runtime.rl.algos.off_policy.sac import SAC, random_shift
from runtime.rl.algos.ppo import PPO, clipped_stats, value_error
from runtime.rl.buffers.replay import Batch
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.runtime.rl.algos.test_onpolicy import GAUSSIAN, acted
from tests.runtime.rl.algos.test_sac import SHAPE, SMALL, make_batch

PICTURE = ActorShape.of(
    ObsSpace(2, ((8, 8, 3),)), ActionSpace(2), (16,), head="squashed", convolutions=((4, 3, 1),)
)

pytestmark = pytest.mark.usefixtures("one_thread")


def of_camera(seed: int, *, is_plain: bool = False) -> Batch:
    """Rows of a batch with images: noise, or one colour, which no shift changes."""
    g = torch.Generator().manual_seed(seed)
    batch = make_batch(seed)
    rows = []
    for _ in range(2):
        picture = torch.full((16, 192), 90, dtype=torch.uint8)
        if not is_plain:
            picture = torch.randint(0, 256, (16, 192), generator=g, dtype=torch.uint8)
        vector = torch.randn(16, 2, generator=g)
        rows.append(torch.cat([vector.view(torch.uint8).view(16, 8), picture], dim=1))
    return replace(batch, obs=rows[0], next_obs=rows[1])


def sac_of_camera(pixels: int) -> SAC:
    return SAC(PICTURE, replace(SMALL, hidden=(16,), random_shift=pixels), seed=0)


def test_sac_learns_from_pictures_that_are_shifted():
    shifting, still = sac_of_camera(2), sac_of_camera(0)
    batch = of_camera(1)
    # The same draws, made by hand before an update without the switch.
    noise = still.generators()["noise_generator"]
    obs, next_obs = (random_shift(PICTURE, rows, 2, noise) for rows in (batch.obs, batch.next_obs))
    shifting.update(batch)
    still.update(replace(batch, obs=obs, next_obs=next_obs))
    assert not torch.equal(obs, batch.obs)
    for name, tensor in shifting.tensors().items():
        assert torch.equal(tensor, still.tensors()[name]), name
    assert not torch.equal(shifting.tensors()["critic"], after_update(sac_of_camera(0), batch)["critic"])


def test_the_policy_of_sac_begins_with_the_kernels_of_its_critics():
    sac = sac_of_camera(0)
    assert sac.actor.kernels
    for own, of_critics in zip(sac.actor.kernels, sac.critic.kernels, strict=True):
        assert torch.equal(own, of_critics)


def after_update(method: SAC, batch: Batch) -> dict[str, torch.Tensor]:
    method.update(batch)
    return method.tensors()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_policy_of_sac_learns_from_the_critics_of_after_their_step(precision):
    # The critics' step is so large that their values before it have another size.
    sac = SAC(
        SHAPE, replace(SMALL, critic_lr=0.3, actor_lr=1e-9, alpha_lr=0.0, init_alpha=1e-6), 0, precision=precision
    )
    stats = sac.update(make_batch(1)).floats()
    after = sac.critic
    with torch.no_grad():
        after.arena.refresh()
        features = after.features(make_batch(1).obs)
        loss, _ = sac.policy_loss(features, features, torch.tensor(1e-6))
    assert abs(stats["actor_loss"]) > 10 * abs(stats["mean_q"])
    assert stats["actor_loss"] == pytest.approx(loss.item(), rel=0.3)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_update_of_sac_reads_the_weights_of_its_moment(precision):
    sac = SAC(SHAPE, replace(SMALL, gamma=0.5, init_alpha=1e-9), 0, precision=precision)
    batch = replace(make_batch(1), reward=torch.ones(16), terminated=torch.zeros(16))
    # Networks of weights 0 are their last biases: critics of 4 and 3 whose targets are 10 and 8, and a mean of 0.
    for name, biases in (("actor", [0.0] * 4), ("critic", [4.0, 3.0]), ("target_critic", [10.0, 8.0])):
        flat = sac.tensors()[name]
        flat.zero_()
        sac.tensors()[name][flat.numel() - len(biases) :] = torch.tensor(biases)
    stats = sac.update(batch).floats()
    # y = 1 + 0.5 * 8 = 5.
    assert stats["mean_q"] == pytest.approx(3.5, rel=1e-2)
    assert stats["critic_loss"] == pytest.approx((1.0 + 4.0) / 2, rel=1e-2)


@pytest.mark.parametrize(
    ("make", "networks"),
    [
        (lambda updates: PPO(GAUSSIAN, PPOConfig(hidden=(16,), minibatch_size=16, anneal_updates=updates), 0),
         ("policy", "value")),
        (lambda updates: Impala(GAUSSIAN, ImpalaConfig(hidden=(16,), anneal_updates=updates), 0),
         ("policy", "value")),
    ],
    ids=["ppo", "impala"],
)  # fmt: skip
@pytest.mark.parametrize("updates", [4, None])
def test_step_sizes_fall_over_their_updates_where_that_is_asked(make, networks, updates):
    method, moves = make(updates), []
    for number in range(6):
        before = {name: method.tensors()[name].detach().clone() for name in networks}
        method.update(acted(method, 8, 4, number))
        moves.append([(method.tensors()[name] - before[name]).abs().max().item() for name in networks])
    assert method.updates == len(moves)
    shares = [last / first for first, last in zip(moves[0], moves[-1], strict=True)]
    assert all(share < 0.01 if updates else share > 0.1 for share in shares), moves


def test_the_divergence_is_that_of_the_policy_of_before_from_that_of_after():
    log_ratio = torch.tensor([0.5, -1.0, 0.0])
    ratio = log_ratio.exp()
    one = torch.ones(3)
    _, kl, _ = clipped_stats(log_ratio, ratio, ratio.clamp(0.8, 1.2), one, one)
    # Schulman 2020: k3 = (r - 1) - log r, never negative.
    assert kl.item() == pytest.approx(((0.6487213 - 0.5) + (-0.6321206 + 1.0) + 0.0) / 3)


def test_ppo_stops_its_epochs_at_the_divergence_that_was_asked_for():
    config = PPOConfig(hidden=(16,), minibatch_size=32, epochs=6, lr=0.05)
    free, bound = (PPO(GAUSSIAN, replace(config, target_kl=most), 0) for most in (None, 1e-6))
    once = PPO(GAUSSIAN, replace(config, epochs=2), 0)
    for method in (free, bound, once):
        method.update(acted(method, 8, 4, 1))
    # One minibatch an epoch: the first has no divergence, so the second is the last.
    assert torch.equal(bound.tensors()["policy"], once.tensors()["policy"])
    assert not torch.equal(bound.tensors()["policy"], free.tensors()["policy"])


def test_the_ratio_of_probabilities_counts_within_the_clip_on_both_sides():
    losses = []
    for shift in (1.0, -1.0):
        method = PPO(GAUSSIAN, PPOConfig(hidden=(16,), minibatch_size=32, epochs=1, clip=0.2), 0)
        batch = acted(method, 8, 4, 1)
        stats = method.update(replace(batch, log_prob=batch.log_prob - shift)).floats()
        losses.append(stats["policy_loss"])
        assert stats["clipped"] == 1.0
    # Advantages have a mean of zero, so those above and below it weigh the same: all ratios are e or 1/e.
    e = 2.7182818
    assert losses[0] > 0 < losses[1]
    assert losses[0] / losses[1] == pytest.approx((e - 1.2) / (0.8 - 1 / e), rel=1e-3)


def test_the_clipped_error_of_a_value_is_the_larger_of_two():
    value, before, target = torch.tensor([2.0, 0.0, 0.1]), torch.zeros(3), torch.tensor([2.0, -1.0, 0.0])
    assert value_error(value, before, target, None).item() == pytest.approx((0.0 + 1.0 + 0.01) / 3)
    assert value_error(value, before, target, 0.5).item() == pytest.approx((2.25 + 1.0 + 0.01) / 3)
    assert value_error(-value, before, -target, 0.5).item() == pytest.approx((2.25 + 1.0 + 0.01) / 3)


def test_the_figures_of_an_update_are_means_over_its_minibatches():
    config = PPOConfig(hidden=(16,), epochs=2, lr=1e-9)
    several, one = (PPO(GAUSSIAN, replace(config, minibatch_size=size), 0) for size in (8, 32))
    means = [method.update(acted(method, 8, 4, 1)).floats() for method in (several, one)]
    for name in ("value_loss", "entropy"):
        assert means[0][name] == pytest.approx(means[1][name], rel=1e-4)


ON_POLICY = {
    "ppo": (PPO, PPOConfig(hidden=(16,), minibatch_size=32, epochs=1)),
    "impala": (Impala, ImpalaConfig(hidden=(16,))),
}


@pytest.mark.parametrize("name", ON_POLICY)
def test_a_large_eps_makes_the_first_step_of_adam_smaller_by_its_own_formula(name):
    kind, config = ON_POLICY[name]
    usual, damped = (kind(GAUSSIAN, replace(config, adam_eps=eps), 0) for eps in (1e-8, 1e3))
    first = {part: usual.tensors()[part].clone() for part in ("policy", "value")}
    for method in (usual, damped):
        method.update(acted(method, 8, 4, 1))
    for part, before in first.items():
        # After one step the moments are g and g^2, so a step is lr g / (|g| + eps).
        moved = (damped.tensors()[part] - before).abs()
        mean = damped.tensors()[f"{part}.mean"].abs() / 0.1
        assert torch.allclose(moved, config.lr * mean / (mean + 1e3), atol=1e-7), part
        assert (usual.tensors()[part] - before).abs().max() > 0.5 * config.lr


@pytest.mark.parametrize("name", ON_POLICY)
def test_joint_clipping_shortens_both_gradients_by_the_same_factor(name):
    kind, config = ON_POLICY[name]
    # A value loss so heavy that its gradient fills the bound: the policy then steps by next to nothing of its own.
    config = replace(config, value_cost=1e6, max_grad_norm=0.5)
    moments = {}
    for jointly in (False, True):
        method = kind(GAUSSIAN, replace(config, joint_clipping=jointly), 0)
        method.update(acted(method, 8, 4, 1))
        moments[jointly] = [method.tensors()[f"{part}.mean"].norm().item() / 0.1 for part in ("policy", "value")]
    policy, value = moments[False]
    assert value == pytest.approx(0.5, rel=1e-3)
    joint_policy, joint_value = moments[True]
    assert joint_policy**2 + joint_value**2 == pytest.approx(0.25, rel=1e-3)
    assert joint_policy < 1e-2 * policy


@pytest.mark.parametrize("name", ON_POLICY)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_shared_layers_are_trained_by_the_value_too_and_hold_one_trunk(name, precision):
    kind, config = ON_POLICY[name]
    apart = kind(GAUSSIAN, config, 0)
    heavy, light = (
        kind(GAUSSIAN, replace(config, shared_layers=True, value_cost=cost), 0, precision=precision)
        for cost in (10.0, 1e-6)
    )
    # One layer of 16 weights and a bias is all that the value has of its own.
    assert heavy.tensors()["value"].numel() == 17 < apart.tensors()["value"].numel()
    assert torch.equal(heavy.policy_weights(), light.policy_weights())
    for method in (heavy, light):
        method.update(acted(method, 8, 4, 1))
    assert not torch.equal(heavy.policy_weights(), light.policy_weights())


def test_the_temperature_falls_by_equal_factors_to_its_end_and_is_not_learned():
    config = replace(SMALL, init_alpha=1.0, alpha_lr=0.0, alpha_end=0.01, alpha_updates=4)
    sac = SAC(SHAPE, config, 0)
    alphas = [sac.update(make_batch(number)).floats()["alpha"] for number in range(6)]
    assert alphas == pytest.approx([1.0, 10**-0.5, 0.1, 10**-1.5, 0.01, 0.01], rel=1e-4)
    assert sac.anneals


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"alpha_end": 0.1}, "alpha_end and alpha_updates go together"),
        ({"alpha_end": 0.1, "alpha_updates": 5}, "alpha_lr is 0.0003; with alpha_end"),
    ],
)
def test_a_schedule_of_the_temperature_is_whole_or_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        SACConfig.read(settings)


def test_without_entropy_in_the_target_the_critics_value_returns_alone():
    batch = make_batch(1)

    def target(alpha: float, *, is_paid: bool) -> torch.Tensor:
        sac = SAC(SHAPE, replace(SMALL, entropy_in_target=is_paid), 0)
        return sac.soft_bellman_target(batch, batch, torch.tensor([alpha]))

    assert torch.equal(target(5.0, is_paid=False), target(0.0, is_paid=True))
    assert not torch.allclose(target(5.0, is_paid=False), target(5.0, is_paid=True))


def test_each_picture_of_an_observation_is_shifted_in_its_own_place():
    shape = ActorShape.of(
        ObsSpace(2, ((8, 8, 3), (8, 8, 1))), ActionSpace(2), (16,), head="squashed", convolutions=((4, 3, 1),)
    )
    # Of one colour each, which no shift changes.
    parts = [torch.randint(0, 256, (5, 8), dtype=torch.uint8), torch.full((5, 192), 90), torch.full((5, 64), 30)]
    rows = torch.cat([part.to(torch.uint8) for part in parts], dim=1)
    assert torch.equal(random_shift(shape, rows, 2, torch.Generator().manual_seed(0)), rows)
