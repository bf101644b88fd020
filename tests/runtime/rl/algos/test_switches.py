"""Switches of a method: each changes the update, and in the way described by the paper.

Other tests compare two runs of the same code (captured and eager, resumed and unbroken); a step missing in both
passes there.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.augmentation import random_shift
from runtime.rl.algos.configs import ImpalaConfig, PPOConfig
from runtime.rl.algos.impala import Impala
from runtime.rl.algos.off_policy.sac import SAC
from runtime.rl.algos.ppo import PPO, clipped_stats
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
    after = sac._critic
    with torch.no_grad():
        after.arena.refresh()
        features = after.features(make_batch(1).obs)
        loss, _ = sac._actor_loss(features, features, torch.tensor(1e-6))
    assert abs(stats["actor_loss"]) > 10 * abs(stats["mean_q"])
    assert stats["actor_loss"] == pytest.approx(loss.item(), rel=0.3)


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
