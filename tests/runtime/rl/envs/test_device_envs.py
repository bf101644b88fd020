"""Environments on a device: torch against NumPy, masked resets against row-wise ones, and the contents of a
state.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.rl.envs.device import DeviceArrays
from runtime.rl.envs.racing import DeviceRacing, RacingVectorEnv
from runtime.rl.envs.racing_rules import RacingOptions
from runtime.rl.envs.registry import DEVICE_ENVS, make_device_env, make_vector_env
from runtime.rl.roles.device_collector import torch_arrays
from runtime.tracks.track import COURSES

TURN = [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]
"""Continuous values of an observation; curvature ahead changes from sample to sample of the course."""


def numpy_arrays(seed: int = 0) -> DeviceArrays:
    rng = np.random.default_rng(seed)
    return DeviceArrays(np, np.asarray, lambda shape: rng.random(shape, dtype=np.float32).astype(np.float64))


def torch_arrays_with_numpy_draws(seed: int = 0) -> DeviceArrays:
    """Torch, with the draws of `numpy_arrays`: so both start the same episodes."""
    rng = np.random.default_rng(seed)
    arrays = torch_arrays("cpu", torch.Generator())
    return DeviceArrays(torch, arrays.convert, lambda shape: torch.from_numpy(rng.random(shape, dtype=np.float32)))


def driver(obs: np.ndarray, speed: float, rng: np.random.Generator) -> np.ndarray:
    """Actions that keep cars on the road for a while and lose some of them: every kind of end occurs."""
    noise = rng.normal(0.0, 0.25, (len(obs), 2))
    steering = 2.0 * obs[:, 12] * 0.3 - 1.5 * obs[:, 1] - 0.5 * obs[:, 0]
    pedal = 0.5 * (speed - 20.0 * obs[:, 3])
    pedal[: len(obs) // 8] = -1.0  # some stop, and are truncated
    return np.clip(np.column_stack([steering, pedal]) + noise, -1.2, 1.2).astype(np.float32)


def match(ours: torch.Tensor, theirs: Any, tolerance: float = 1e-4) -> None:
    np.testing.assert_allclose(ours.numpy(), np.asarray(theirs), atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("track", "start"),
    [
        pytest.param(track, start, marks=[pytest.mark.slow] if number else [])
        for number, (track, start) in enumerate(product(sorted(COURSES), ("random", "line")))
    ],
)
def test_torch_drives_as_numpy_does(track, start):
    """240 steps with resets. Each step starts from NumPy's state: rounding must not accumulate over chaotic
    spins.
    """
    options = RacingOptions(track=track, start=start, max_seconds=15.0, laps=1)
    ours = DeviceRacing(64, options, torch_arrays_with_numpy_draws())
    theirs = DeviceRacing(64, options, numpy_arrays())
    rng, ends = np.random.default_rng(7), np.zeros(3, dtype=int)
    for _ in range(240):
        ours.use_state({name: torch.as_tensor(np.asarray(v)) for name, v in single(theirs.state()).items()})
        obs = theirs.observe()
        match(ours.observe(), obs)
        action = driver(obs, 30.0, rng)
        mine, other = ours.step(torch.from_numpy(action)), theirs.step(action)
        np.testing.assert_array_equal(mine.ended.numpy(), other.ended)
        match(mine.reward, other.reward)
        match(mine.final_obs[:, TURN], other.final_obs[:, TURN])
        # Halfway between two samples, rounding decides which is the nearest, and so where "ahead" starts.
        apart = np.abs(mine.final_obs.numpy() - other.final_obs).max(axis=1)
        assert (apart > 1e-4).mean() <= 2 / 64
        assert apart.max() < 0.2
        for a, b in zip(mine.episodes, other.episodes, strict=True):
            assert float(a) == pytest.approx(float(b), abs=2e-2, rel=1e-4)
        ends += np.bincount(other.ended, minlength=3)
    assert (ends[1:] > 3).all(), "terminated and truncated episodes were met"


def single(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value.astype(np.float32) if value.dtype.kind == "f" else value for name, value in state.items()}


@pytest.mark.slow
def test_without_corrections_both_stay_together():
    """40 steps from one state: only rounding makes a difference."""
    options = RacingOptions(max_seconds=30.0)
    ours = DeviceRacing(256, options, torch_arrays_with_numpy_draws())
    theirs = DeviceRacing(256, options, numpy_arrays())
    rng = np.random.default_rng(1)
    for _ in range(40):
        action = driver(theirs.observe(), 18.0, rng)
        mine, other = ours.step(torch.from_numpy(action)), theirs.step(action)
        np.testing.assert_array_equal(mine.ended.numpy(), other.ended)
        match(mine.reward, other.reward, 1e-3)
        match(ours.observe()[:, TURN], theirs.observe()[:, TURN], 1e-3)


def test_masked_resets_are_those_by_rows():
    """Starts at the line draw nothing, so the workers' environment drives the very same episodes."""
    options = RacingOptions(start="line", max_seconds=12.0)
    masked, by_rows = DeviceRacing(48, options, numpy_arrays()), RacingVectorEnv(48, options)
    obs = by_rows.reset(0)
    rng, ended = np.random.default_rng(3), 0
    for _ in range(300):
        np.testing.assert_allclose(masked.observe(), obs, atol=1e-4)
        action = driver(obs, 25.0, rng)
        step, result = masked.step(action), by_rows.step(action)
        np.testing.assert_array_equal(step.ended, result.terminated + 2 * result.truncated)
        np.testing.assert_allclose(step.reward, result.reward, atol=1e-5)
        np.testing.assert_allclose(step.final_obs, result.final_obs, atol=1e-4)
        episodes = result.episodes
        sums = (
            len(episodes),
            sum(each.return_ for each in episodes),
            sum(each.steps for each in episodes),
            sum(each.progress_metres for each in episodes),
            sum(each.laps for each in episodes),
        )
        assert [float(value) for value in step.episodes] == pytest.approx(list(sums), abs=1e-4)
        obs, ended = result.obs, ended + len(episodes)
    assert ended > 48


@pytest.mark.slow
@given(st.sampled_from(sorted(COURSES)), st.integers(0, 2**31), st.floats(0.0, 40.0))
@settings(max_examples=12, deadline=None)
def test_random_starts_lie_on_the_road_and_roll(track, seed, speed):
    env = DeviceRacing(64, RacingOptions(track=track), torch_arrays("cpu", torch.Generator().manual_seed(seed)))
    obs = env.observe().numpy()
    assert (np.abs(obs[:, 0]) <= 0.6 + 1e-4).all()
    assert (obs[:, 2] > 0.98).all()
    assert (obs[:, 3] >= 0).all()
    assert (obs[:, 3] <= 25.0 / 20.0 + 1e-6).all()
    rng = np.random.default_rng(seed)
    for _ in range(20):
        step = env.step(torch.from_numpy(driver(env.observe().numpy(), speed, rng)))
        assert torch.isfinite(step.final_obs).all()
        assert (step.final_obs.abs() <= 10.0).all()
        # The search window around the last place found the same place as a search of the full course.
        state = {name: value.double().numpy() for name, value in env.state().items()}
        near = RacingVectorEnv(1, RacingOptions(track=track)).track.locate(state["state.x"], state["state.y"])
        course = len(RacingVectorEnv(1, RacingOptions(track=track)).track.curvature)
        apart = np.abs(near - state["projection.index"])
        assert (np.minimum(apart, course - apart) <= 1).all()


def test_views_are_equal_where_the_cars_are():
    options = RacingOptions(observation="view", max_seconds=10.0)
    ours = DeviceRacing(16, options, torch_arrays_with_numpy_draws())
    theirs = DeviceRacing(16, options, numpy_arrays())
    assert ours.obs_space == make_vector_env("racing", 1, options={"observation": "view"}).obs_space
    rng = np.random.default_rng(2)
    for _ in range(60):
        ours.use_state({name: torch.as_tensor(np.asarray(v)) for name, v in single(theirs.state()).items()})
        felt, pictures = ours.obs_space.split(ours.observe().numpy())
        other_felt, other_pictures = ours.obs_space.split(theirs.observe())
        np.testing.assert_allclose(felt, other_felt, atol=1e-4)
        # A pixel on the border of a cell of the map may fall to either side of it in float32.
        assert (pictures[0] != other_pictures[0]).mean() < 2e-3
        action = rng.uniform(-0.3, 1.0, (16, 2)).astype(np.float32)
        mine, other = ours.step(torch.from_numpy(action)), theirs.step(action)
        np.testing.assert_array_equal(mine.ended.numpy(), other.ended)
        assert mine.final_obs.dtype == torch.uint8


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_classic_environments_step_as_those_of_workers(name):
    ours = make_device_env(name, 32, {}, torch_arrays("cpu", torch.Generator().manual_seed(1)))
    theirs = make_vector_env(name, 32, options={})
    theirs.reset(0)
    rng, going = np.random.default_rng(0), np.ones(32, dtype=bool)
    for _ in range(230):
        theirs.state = ours.state()["state"].double().numpy().copy()  # so that rounding does not accumulate
        action = theirs.action_space.at_random(32, rng)
        mine, other = ours.step(torch.from_numpy(action)), theirs.step(action)
        match(mine.final_obs[going], other.final_obs[going])
        match(mine.reward[going], other.reward[going])
        np.testing.assert_array_equal(mine.ended.numpy()[going], (other.terminated + 2 * other.truncated)[going])
        going &= mine.ended.numpy() == 0  # new episodes are drawn by separate generators
    assert not going.any()
    assert (ours.state()["steps"] < 230).any()


def test_a_state_goes_on_exactly():
    def env() -> tuple[Any, torch.Generator]:
        generator = torch.Generator().manual_seed(5)
        return make_device_env("racing", 32, {"max_seconds": 2.0}, torch_arrays("cpu", generator)), generator

    (first, drawn), (second, redrawn) = env(), env()
    action = torch.rand(60, 32, 2) * 2 - 1
    for row in action[:30]:
        first.step(row)
    second.use_state({name: value.clone() for name, value in first.state().items()})
    redrawn.set_state(drawn.get_state())
    for row in action[30:]:
        ours, theirs = first.step(row), second.step(row)
        assert torch.equal(ours.final_obs, theirs.final_obs)
        assert torch.equal(first.observe(), second.observe())
        assert torch.equal(ours.ended, theirs.ended)


def test_what_has_no_device_form_is_refused_with_a_sentence():
    arrays = torch_arrays("cpu", torch.Generator())
    with pytest.raises(ValueError, match=r"environment l2r has no device form.*take workers"):
        make_device_env("l2r", 4, {}, arrays)
    with pytest.raises(ValueError, match="racing has no option 'trak'"):
        make_device_env("racing", 4, {"trak": "ridge"}, arrays)
    with pytest.raises(ValueError, match="CartPole-v1 has no option 'x'"):
        make_device_env("CartPole-v1", 4, {"x": 1}, arrays)
    assert set(DEVICE_ENVS) == {"racing", "CartPole-v1", "Pendulum-v1"}
