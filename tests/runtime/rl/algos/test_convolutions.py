"""Networks for images: NumPy and torch agree on convolutions, and learning through them works."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from runtime.base.methods import PPOConfig, SACConfig
from runtime.rl.algos.actor import ActorShape, NumpyActor
from runtime.rl.algos.networks import encode
from runtime.rl.algos.off_policy.sac import SAC
from runtime.rl.algos.ppo import PPO
from runtime.rl.buffers.replay import Batch
from runtime.rl.spaces import ActionSpace, ObsSpace

SPACE = ObsSpace(2, ((12, 16, 3), (9, 9, 1)))
KERNELS = ((4, 4, 2), (8, 3, 1))


pytestmark = pytest.mark.usefixtures("one_thread")


def rows(count: int, seed: int, space: ObsSpace = SPACE) -> np.ndarray:
    rng = np.random.default_rng(seed)
    vector = rng.standard_normal((count, space.vector), dtype=np.float32)
    return space.pack(vector, [rng.integers(0, 256, (count, *image), dtype=np.uint8) for image in space.images])


def test_rows_hold_vectors_and_pictures():
    vector = np.array([[1.5, -2.5], [3.0, 4.0]], dtype=np.float32)
    images = [np.full((2, 12, 16, 3), 7, dtype=np.uint8), np.full((2, 9, 9, 1), 200, dtype=np.uint8)]
    packed = SPACE.pack(vector, images)
    assert packed.dtype == np.uint8
    assert packed.shape == (2, SPACE.width) == (2, 8 + 576 + 81)
    back, seen = SPACE.split(packed)
    assert (back == vector).all()
    assert all((one == other).all() for one, other in zip(seen, images, strict=True))
    assert ObsSpace(3).pack(vector, []) is vector


@pytest.mark.parametrize("head", ["squashed", "gaussian", "categorical"])
def test_what_a_worker_sees_is_what_the_learner_sees(head):
    action = ActionSpace(1, (5,)) if head == "categorical" else ActionSpace(2)
    shape = ActorShape.of(SPACE, action, (16,), head=head, convolutions=KERNELS)
    assert shape.obs_space == SPACE
    method = (
        SAC(shape, SACConfig(hidden=(16,)), 0) if head == "squashed" else PPO(shape, PPOConfig(hidden=(16,)), 0)
    )
    actor = NumpyActor(shape)
    actor.load(method.actor_arena())
    seen = rows(6, 0)
    network = method.actor if head == "squashed" else method.policy
    with torch.no_grad():
        expected = network(torch.from_numpy(seen)).numpy()
    assert actor.outputs(seen)[:, : actor.shape.outputs] == pytest.approx(expected, abs=1e-4)
    features = encode(shape, network.kernels, torch.from_numpy(seen))
    assert features.shape == (6, shape.features)
    assert actor.features(seen) == pytest.approx(features.detach().numpy(), abs=1e-4)


def test_a_picture_smaller_than_its_kernels_is_refused():
    with pytest.raises(ValueError, match="an image of 9 x 9 is too small for the convolutions"):
        ActorShape.of(ObsSpace(0, ((9, 9, 3),)), ActionSpace(1), (8,), head="squashed", convolutions=((8, 10, 2),))


def test_the_actor_looks_through_the_critics_kernels_and_does_not_move_them():
    space = ObsSpace(0, ((8, 8, 1),))
    shape = ActorShape.of(space, ActionSpace(1), (16,), head="squashed", convolutions=((4, 4, 2),))
    config = SACConfig(hidden=(16,), batch_size=8)
    sac = SAC(shape, config, 0)
    batch = Batch(
        torch.from_numpy(rows(8, 1, space)),
        torch.zeros(8, 1),
        torch.randn(8),
        torch.from_numpy(rows(8, 2, space)),
        torch.zeros(8),
    )
    size = sum(kernel.numel() for kernel in sac.critic.kernels)
    before = sac.state()
    sac.update(batch)
    after = sac.state()
    assert not torch.equal(before["critic"][:size], after["critic"][:size])
    assert torch.equal(after["critic"][:size], after["actor"][:size])
    assert (after["actor.mean"][:size] == 0).all()
    assert (after["actor.mean"][size:] != 0).any()


@pytest.mark.slow
def test_sac_learns_to_point_at_what_it_sees():
    """The action should be the position of the bright column; every step is the last."""
    space = ObsSpace(0, ((8, 8, 1),))
    shape = ActorShape.of(space, ActionSpace(1), (32,), head="squashed", convolutions=((8, 4, 2),))
    config = replace(SACConfig(), hidden=(32,), batch_size=64, actor_lr=3e-3, critic_lr=3e-3, init_alpha=0.01)
    sac = SAC(shape, config, 0)
    rng = np.random.default_rng(0)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        column = rng.integers(0, 8, count)
        picture = np.zeros((count, 8, 8, 1), dtype=np.uint8)
        picture[np.arange(count), :, column] = 255
        return space.pack(np.zeros((count, 0), np.float32), [picture]), (column / 3.5 - 1.0).astype(
            np.float32
        ) * 0.8

    for _ in range(500):
        obs, aim = draw(64)
        action = rng.uniform(-1, 1, (64, 1)).astype(np.float32)
        reward = -np.square(action[:, 0] - aim)
        seen = torch.from_numpy(obs)
        sac.update(Batch(seen, torch.from_numpy(action), torch.from_numpy(reward), seen, torch.ones(64)))
    actor = NumpyActor(shape)
    actor.load(sac.actor_arena())
    obs, aim = draw(200)
    assert np.abs(actor.act(obs, None)[:, 0] - aim).mean() < 0.2
