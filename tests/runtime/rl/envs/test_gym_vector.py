"""Environments with their own vectorised step equal copies stepped one after the other; the rest is a sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from runtime.rl.envs.base import HoldsProcesses, StepResult, VectorEnv
from runtime.rl.envs.gym import GymVectorEnv
from runtime.rl.envs.gym_vector import CopiesEnv
from runtime.rl.envs.registry import make_vector_env
from tests.packages import needed

IDS = {mode: f"tests/{mode.name.title().replace('_', '')}-v0" for mode in AutoresetMode}


class Pole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that returns a dictionary, and is truncated after 30 steps."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1", max_episode_steps=30))
        inner = self.env.observation_space
        self.observation_space = gymnasium.spaces.Dict({"pole": inner, "sign": gymnasium.spaces.Discrete(3)})

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**given)
        return {"pole": obs, "sign": 1}, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, *others = self.env.step(action)
        return {"pole": obs, "sign": 2}, *others


@pytest.fixture(scope="module", autouse=True)
def ids() -> Iterator[None]:
    """Ids with a vector entry point for each mode, and an id of single copies."""

    def vector(mode: AutoresetMode) -> Any:
        return lambda num_envs: SyncVectorEnv([Pole] * num_envs, autoreset_mode=mode)

    for mode, name in IDS.items():
        gymnasium.register(name, vector_entry_point=vector(mode))
    gymnasium.register("tests/Pole-v0", entry_point=Pole)
    gymnasium.register("tests/Both-v0", entry_point=Pole, vector_entry_point=vector(AutoresetMode.NEXT_STEP))
    yield
    for name in (*IDS.values(), "tests/Pole-v0", "tests/Both-v0"):
        del gymnasium.registry[name]


def same(env: VectorEnv, peer: VectorEnv, steps: int) -> int:
    """Compare both over `steps` random steps, and return how many episodes ended."""
    assert (env.obs_space, env.action_space) == (peer.obs_space, peer.action_space)
    assert np.array_equal(env.reset(5), peer.reset(5))
    rng, ended = np.random.default_rng(0), 0
    for _ in range(steps):
        action = env.action_space.at_random(env.num_envs, rng)
        mine, theirs = env.step(action), peer.step(action)
        for name in StepResult.__slots__:
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name
        ended += len(mine.episodes)
    return ended


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_a_vector_entry_point_is_used_and_steps_as_single_copies_do(mode: AutoresetMode) -> None:
    env = make_vector_env(IDS[mode], 3, options={})
    assert isinstance(env, CopiesEnv)
    assert same(env, make_vector_env("tests/Pole-v0", 3, options={}), 90) > 6
    env.close()


def test_a_vectorisation_that_loses_a_step_is_not_used() -> None:
    assert isinstance(make_vector_env("tests/Both-v0", 2, options={}), GymVectorEnv)
    with pytest.raises(ValueError, match="must do so in the same step, or on demand"):
        make_vector_env(IDS[AutoresetMode.NEXT_STEP], 2, options={})


@pytest.mark.process
def test_copies_in_processes_step_as_those_in_one_and_end() -> None:
    options = {"max_episode_steps": 60}
    env = make_vector_env("Pendulum-v1", 2, options={**options, "env_processes": True})
    assert isinstance(env, HoldsProcesses)
    assert same(env, make_vector_env("Pendulum-v1", 2, options=options), 130) == 4
    processes = env._copies._env.processes
    env.close()
    assert not any(process.is_alive() for process in processes)


def test_envpool_that_is_missing_and_wrong_options_are_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="env_processes is 3; it must be true or false"):
        make_vector_env("Pendulum-v1", 2, options={"env_processes": 3})
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ValueError, match="not installed; pip install envpool"):
        make_vector_env("envpool:CartPole-v1", 2, options={})


@pytest.mark.packages
@pytest.mark.filterwarnings("ignore:.*precision lowered")  # EnvPool's bounds are doubles
def test_envpool_steps_whole_episodes() -> None:
    needed("envpool")
    env = make_vector_env("envpool:CartPole-v1", 8, options={"max_episode_steps": 30})
    first = env.reset(3)
    assert np.array_equal(env.reset(3), first)
    ended = []
    for _ in range(100):
        result = env.step(np.random.default_rng(0).integers(0, 2, (8, 1), dtype=np.int32))
        ended += result.episodes
        done = result.terminated | result.truncated
        assert (result.reward == 1.0).all(), "no step is lost to a reset"
        assert np.array_equal(result.obs[~done], result.final_obs[~done])
        assert (np.abs(result.obs[done]) <= 0.05).all(), "what is seen next is a start"
    assert ended
    assert all(episode.return_ == episode.steps <= 30 for episode in ended)
    with pytest.raises(ValueError, match="cannot be made with the options"):
        make_vector_env("envpool:Nope-v1", 2, options={})
