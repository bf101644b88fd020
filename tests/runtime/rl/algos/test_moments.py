"""Normalised observations and returns: moments against NumPy's, on both sides of the exchange, and over a
resume.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.base.methods import ImpalaConfig, PPOConfig, SACConfig
from runtime.base.training import from_mapping
from runtime.rl.algos.actor import ActorShape, NumpyActor
from runtime.rl.algos.device_actor import DeviceActor
from runtime.rl.algos.impala import Impala
from runtime.rl.algos.networks import REWARD_BOUND, Mean, RunningMoments
from runtime.rl.algos.off_policy.sac import SAC
from runtime.rl.algos.plan import make_plan
from runtime.rl.algos.ppo import PPO
from runtime.rl.buffers.rollout_buffer import DISCOUNTED, RolloutBatch, rollout_layout
from runtime.rl.envs.base import StepResult
from runtime.rl.roles.rollout import Rollout
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.runtime.rl.algos.test_onpolicy import DISCRETE, GAUSSIAN, acted
from tests.runtime.rl.algos.test_sac import make_batch
from tests.runtime.rl.algos.test_shared_batches import gloo_means

pytestmark = pytest.mark.usefixtures("one_thread")

NORMALISED = dataclasses.replace(GAUSSIAN, is_normalised=True)
SCALE = torch.tensor([1.0, 50.0, 1e-3])
OFFSET = torch.tensor([0.0, 300.0, -2.0])


def scaled(method: PPO | Impala, seed: int) -> RolloutBatch:
    """Rollouts whose observations have very different sizes."""
    batch = acted(method, 8, 4, seed)
    moved = [part * SCALE + OFFSET for part in (batch.obs, batch.next_obs)]
    reward = 1_000.0 * batch.reward
    return dataclasses.replace(
        batch, obs=moved[0], next_obs=moved[1], reward=reward, discounted=reward.cumsum(dim=0)
    )


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_moments_of_batches_are_those_of_all_rows_together(sizes: list[int], seed: int) -> None:
    rows = np.random.default_rng(seed).normal(5.0, 30.0, (sum(sizes), 3)).astype(np.float32)
    moments = RunningMoments(3, "cpu")
    for part in np.split(rows, np.cumsum(sizes)[:-1]):
        moments.update(torch.from_numpy(part), lambda value: value)
    assert moments.mean.numpy() == pytest.approx(rows.mean(axis=0), rel=1e-3, abs=1e-3)
    assert moments.variance.numpy() == pytest.approx(rows.var(axis=0), rel=1e-3, abs=1e-3)
    assert moments.state[0] == len(rows)


def test_moments_of_the_shares_of_ranks_are_those_of_the_batch() -> None:
    rows = torch.from_numpy(np.random.default_rng(2).normal(size=(64, 3)).astype(np.float32)) * SCALE + OFFSET

    def merged(share: torch.Tensor, mean: Mean) -> RunningMoments:
        moments = RunningMoments(3, "cpu")
        moments.update(share, mean, 2)
        return moments

    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(merged, rows.chunk(2), gloo_means(2, threads)))
    expected = rows.double()
    for moments in both:
        assert moments.state[0] == len(rows), "one rank may go on with them"
        assert moments.mean.numpy() == pytest.approx(expected.mean(dim=0).numpy(), rel=1e-3, abs=1e-3)
        assert moments.variance.numpy() == pytest.approx(expected.var(dim=0, correction=0).numpy(), rel=1e-2)


@pytest.mark.parametrize("make", [PPO, Impala])
def test_worker_and_learner_see_the_same_normalised_numbers(make: Any) -> None:
    config = PPOConfig(hidden=(16,)) if make is PPO else ImpalaConfig(hidden=(16,))
    method = make(NORMALISED, config, 3)
    seen = torch.cat([scaled(method, seed).obs.flatten(0, 1) for seed in range(3)])
    for seed in range(3):
        method.update(scaled(method, seed))
    actor = NumpyActor(NORMALISED)
    actor.load(method.actor_arena())

    inside = actor.features(seen.numpy())
    assert inside.mean(axis=0) == pytest.approx(np.zeros(3), abs=1e-2)
    assert inside.std(axis=0) == pytest.approx(np.ones(3), rel=1e-2)
    with torch.no_grad():
        expected = method.policy(seen).numpy()
    assert actor.outputs(seen.numpy())[:, :2] == pytest.approx(expected, abs=1e-4)
    remote = DeviceActor(NORMALISED, "cpu", (len(seen),))
    remote.weights[:] = method.actor_arena()
    remote.refresh()
    remote.buffers[0][:] = seen.numpy()
    remote.begin(0, len(seen))
    assert remote.finish(0) == pytest.approx(actor.outputs(seen.numpy()), abs=1e-4)


def test_what_is_far_out_is_bounded() -> None:
    method = PPO(NORMALISED, PPOConfig(hidden=(16,)), 3)
    method.update(scaled(method, 0))
    actor = NumpyActor(NORMALISED)
    actor.load(method.actor_arena())
    far = np.array([[1e9, -1e9, 0.0]], dtype=np.float32)
    assert actor.features(far)[0, :2].tolist() == [10.0, -10.0]


def test_ratios_begin_at_one_although_the_moments_move() -> None:
    """A batch is evaluated with the moments used by its policy; its own moments count from the next batch."""
    method = PPO(NORMALISED, PPOConfig(hidden=(16,), epochs=1, minibatch_size=32), 3)
    for seed in range(4):
        batch = scaled(method, seed)
        actor = NumpyActor(NORMALISED)
        actor.load(method.actor_arena())
        rows = batch.obs.flatten(0, 1).numpy()
        action, log_prob = actor.draw_with_log_prob(actor.outputs(rows), np.random.default_rng(seed))
        batch = dataclasses.replace(
            batch,
            action=torch.from_numpy(action).view(batch.action.shape),
            log_prob=torch.from_numpy(log_prob).float().view(batch.log_prob.shape),
        )
        assert method.update(batch).floats()["kl"] == pytest.approx(0.0, abs=1e-5)


def test_sac_normalises_what_its_three_networks_see() -> None:
    shape = ActorShape(5, 2, (32, 24), is_normalised=True)
    sac = SAC(shape, SACConfig(hidden=(32, 24), batch_size=16), 3)
    batches = [make_batch(seed) for seed in range(4)]
    for batch in batches:
        sac.update(dataclasses.replace(batch, obs=100.0 * batch.obs + 7.0, next_obs=100.0 * batch.next_obs + 7.0))
    rows = torch.cat([100.0 * batch.obs + 7.0 for batch in batches])
    for network in (sac.actor, sac.critic, sac.target):
        shift, factor = (part.detach() for part in network.moments)
        assert shift.numpy() == pytest.approx(rows.mean(dim=0).numpy(), rel=1e-3, abs=1e-2)
        assert (1 / factor).numpy() == pytest.approx(rows.std(dim=0, correction=0).numpy(), rel=1e-3)


@pytest.mark.parametrize("make", [PPO, Impala])
def test_a_reward_is_in_units_of_the_returns_deviation(make: Any) -> None:
    config = PPOConfig(hidden=(16,)) if make is PPO else ImpalaConfig(hidden=(16,))
    method = make(GAUSSIAN, dataclasses.replace(config, normalise_returns=True), 3)
    batch = scaled(method, 0)
    method.update(batch)
    assert method.return_moments is not None
    assert method.return_moments.variance.item() == pytest.approx(
        batch.discounted.var(correction=0).item(), rel=1e-4
    )

    twice = method.normalised_reward(batch)  # counts the same returns again, which does not change moments
    deviation = batch.discounted.std(correction=0).item()
    assert twice.numpy() == pytest.approx((batch.reward / deviation).numpy(), rel=1e-3)
    huge = dataclasses.replace(batch, reward=batch.reward * 1e6)
    assert method.normalised_reward(huge).abs().max() == REWARD_BOUND


class Rewarding:
    """One copy whose reward is the step number and whose ends are set; its simulator is lost at one step."""

    num_envs, step_seconds = 1, 0.1
    obs_space, action_space = ObsSpace(1), ActionSpace(1)

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, seed: int) -> np.ndarray:
        return np.zeros((1, 1), dtype=np.float32)

    def step(self, action: np.ndarray) -> StepResult:
        self.steps += 1
        obs, reward = np.zeros((1, 1), np.float32), np.array([self.steps], np.float32)
        terminated, truncated = np.array([self.steps == 3]), np.array([self.steps == 5])
        return StepResult(obs, reward, terminated, truncated, obs, (), is_lost=self.steps == 7)


def test_workers_send_the_discounted_return_of_each_episode_so_far() -> None:
    layout = rollout_layout(ObsSpace(1), ActionSpace(1), has_returns=True)
    rollout = Rollout(Rewarding(), layout, 4, seed=0, gamma=0.5)

    def act(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((1, 1), np.float32), np.zeros(1, np.float32)

    finished = [part for _ in range(9) if (part := rollout.step(act, 1))]
    sent = [
        dict(zip((*layout.names, "tail"), layout.columns(part.memory.view, 4, part.segment.tail), strict=True))
        for part in finished
    ]
    # Steps 1 to 3, which end, 4 and 5, which is cut, 6; the lost step 7 is not sent, and 8 starts again.
    assert [part[DISCOUNTED].tolist() for part in sent] == [[1.0, 2.5, 4.25, 4.0], [7.0, 6.0, 8.0, 13.0]]


@pytest.mark.parametrize("method", ["ppo", "impala"])
def test_a_resumed_method_goes_on_with_its_moments(method: str) -> None:
    make = PPO if method == "ppo" else Impala
    config: Any = PPOConfig(hidden=(16,)) if method == "ppo" else ImpalaConfig(hidden=(16,))
    first, second = (make(NORMALISED, dataclasses.replace(config, normalise_returns=True), seed) for seed in (3, 4))
    for seed in range(2):
        first.update(scaled(first, seed))
    second.load_state(first.state())
    batch = scaled(first, 5)
    assert first.update(batch).floats() == second.update(batch).floats()
    assert all(torch.equal(part, second.state()[name]) for name, part in first.state().items())


def plan(**settings: Any) -> Any:
    values = {"num_envs": 4, "segment_steps": 8, "normalise_observations": True, **settings}
    obs = values.pop("obs", ObsSpace(3))
    return make_plan(from_mapping(values), obs, ActionSpace(2))


def test_the_setting_reaches_shape_and_layout() -> None:
    made = plan(algorithm="ppo", ppo={"batch_steps": 64, "normalise_returns": True})
    assert made.shape.is_normalised
    plain = plan(algorithm="ppo", ppo={"batch_steps": 64}, normalise_observations=False)
    assert made.shape.size == plain.shape.size + 6
    assert DISCOUNTED in made.layout.names
    assert plan(algorithm="sac").shape.is_normalised
    assert not plan(algorithm="random").shape.is_normalised


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"algorithm": "ppo", "obs": ObsSpace(0, ((84, 84, 1),))}, "only image observations"),
        (
            {"algorithm": "impala", "impala": {"sends_gradients": True, "batch_steps": 64}},
            "leave out normalise_observations and normalise_returns, or sends_gradients",
        ),
        ({"algorithm": "sac", "sac": {"normalise_returns": True}}, "SAC has no setting 'normalise_returns'"),
    ],
)
def test_what_cannot_be_normalised_is_refused_with_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        plan(**changes)


def test_a_discrete_policy_learns_behind_a_badly_scaled_observation() -> None:
    """CartPole's angle in units of 10,000 around 5: a network without normalisation sees a constant."""
    shape = dataclasses.replace(DISCRETE, obs_dim=2, is_normalised=True)
    method = PPO(shape, PPOConfig(hidden=(16,), epochs=4, minibatch_size=64, lr=3e-3), 3)
    rng = np.random.default_rng(0)
    for _ in range(30):
        signal = rng.integers(0, 4, 128)
        obs = np.stack([5.0 + 1e-4 * signal, rng.normal(size=128)], axis=1).astype(np.float32)
        actor = NumpyActor(shape)
        actor.load(method.actor_arena())
        action, log_prob = actor.draw_with_log_prob(actor.outputs(obs), rng)
        reward = (action[:, 0] == signal).astype(np.float32)
        columns = [torch.from_numpy(part) for part in (obs, action, log_prob.astype(np.float32), reward)]
        ended = torch.ones(1, 128, dtype=torch.uint8)
        obs_t, action_t, log_t, reward_t = (column[None] for column in columns)
        method.update(RolloutBatch(obs_t, action_t, log_t, reward_t, obs_t, ended))
    assert reward.mean() > 0.6, "a guess is right one time in four"


def test_gymnasiums_own_wrapper_has_the_same_moments() -> None:
    """NormalizeObservation over the same observations; it starts from a count of 1e-4."""
    rows = np.random.default_rng(1).normal(3.0, 2.0, (500, 3)).astype(np.float32)
    theirs = gymnasium.wrappers.utils.RunningMeanStd(shape=(3,))
    ours = RunningMoments(3, "cpu")
    for part in np.split(rows, 10):
        theirs.update(part)
        ours.update(torch.from_numpy(part), lambda value: value)
    assert ours.mean.numpy() == pytest.approx(theirs.mean, rel=1e-4)
    assert ours.variance.numpy() == pytest.approx(theirs.var, rel=1e-4)
