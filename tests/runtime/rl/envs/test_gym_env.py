"""Environments by Gymnasium ids: the same steps as Gymnasium's own, every kind of space, sentences for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from runtime.rl.envs.registry import make_vector_env
from runtime.rl.spaces import ActionSpace, ObsSpace


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_the_fast_copies_step_as_gymnasium_does(name: str) -> None:
    """Both from the same state with the same actions, over ends: rewards, ends and observations agree."""
    fast = make_vector_env(name, 3, options={})
    peers = [gymnasium.make(name) for _ in range(3)]
    fast.reset(0)
    for number, peer in enumerate(peers):
        peer.reset(seed=number)
        peer.unwrapped.state = fast.state[:, number].copy()
    rng = np.random.default_rng(0)
    ends = {"terminated": 0, "truncated": 0}
    for _ in range(450):
        action = fast.action_space.at_random(3, rng)
        result = fast.step(action)
        for number, peer in enumerate(peers):
            given = int(action[number, 0]) if name == "CartPole-v1" else 2.0 * action[number]
            obs, reward, terminated, truncated, _ = peer.step(given)
            assert result.final_obs[number] == pytest.approx(obs, abs=1e-3)
            assert result.reward[number] == pytest.approx(reward, abs=1e-4)
            assert bool(result.terminated[number]) == terminated
            assert bool(result.truncated[number]) == (truncated and not terminated)
            if terminated or truncated:
                ends["terminated" if terminated else "truncated"] += 1
                peer.reset()
                peer.unwrapped.state = fast.state[:, number].copy()
                summary = next(each for each in result.episodes if each.env == number)
                assert summary.steps > 0
            else:
                assert (result.obs[number] == result.final_obs[number]).all()
    assert ends["terminated" if name == "CartPole-v1" else "truncated"] >= 6


def test_a_full_episode_of_cartpole_is_cut_and_not_terminated() -> None:
    env = make_vector_env("CartPole-v1", 1, options={})
    env.reset(0)
    obs = env.reset(0)
    result = None
    for _ in range(500):
        push = (obs[:, 2] * 3 + obs[:, 3] + 0.1 * obs[:, 0] + 0.3 * obs[:, 1] > 0).astype(np.int32)[:, None]
        result = env.step(push)
        obs = result.obs
    assert result is not None
    assert (bool(result.terminated[0]), bool(result.truncated[0])) == (False, True)
    assert result.episodes[0].return_ == 500


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0"])
def test_the_same_seed_gives_the_same_episodes(name: str) -> None:
    def drive(seed: int) -> list[np.ndarray]:
        env = make_vector_env(name, 2, options={})
        rng = np.random.default_rng(0)
        first = env.reset(seed)
        return [first, *(env.step(env.action_space.at_random(2, rng)).obs for _ in range(60))]

    first, again, other = drive(3), drive(3), drive(4)
    assert all((one == two).all() for one, two in zip(first, again, strict=True))
    assert any((one != two).any() for one, two in zip(first, other, strict=True))


class Everything(gymnasium.Env[Any, Any]):
    """An environment with a Dict of every kind of part, that ends after three steps."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (6, 8, 3), np.uint8),
            "depth": spaces.Box(0, 255, (6, 8), np.uint8),
            "gear": spaces.Discrete(4, start=-1),
            "speed": spaces.Box(-np.inf, np.inf, (), np.float64),
            "wheels": spaces.Tuple((spaces.Box(-1, 1, (2, 2), np.float32), spaces.MultiBinary(3))),
        }
    )

    def __init__(self, action: str = "box") -> None:
        self.action_space = {
            "box": spaces.Box(np.array([0.0, -4.0], np.float32), np.array([1.0, 4.0], np.float32)),
            "choice": spaces.Discrete(3, start=5),
            "choices": spaces.MultiDiscrete([2, 3]),
            "switches": spaces.MultiBinary(2),
            "text": spaces.Text(3),
        }[action]
        self.taken: list[Any] = []
        self.loses_at: int | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.taken = []
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.taken.append(action)
        if self.loses_at == len(self.taken):
            self.loses_at = None
            return self._see(), 0.0, False, True, {"simulator_lost": "the simulator hangs"}
        return self._see(), 1.0, False, len(self.taken) == 3, {"progress_metres": 7.0 * len(self.taken)}

    def _see(self) -> dict[str, Any]:
        step = len(self.taken)
        return {
            "camera": np.full((6, 8, 3), step, np.uint8),
            "depth": np.full((6, 8), 100 + step, np.uint8),
            "gear": step - 1,
            "speed": np.float64(step * 1.5),
            "wheels": (np.full((2, 2), 0.5, np.float32), np.array([1, 0, 1], np.int8)),
        }


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    gymnasium.register("tests/Everything-v0", entry_point=Everything)
    yield
    del gymnasium.registry["tests/Everything-v0"]


def test_every_kind_of_observation_becomes_one_row() -> None:
    env = make_vector_env("tests/Everything-v0", 2, options={})
    assert env.obs_space == ObsSpace(4 + 1 + 4 + 3, ((6, 8, 3), (6, 8, 1)))
    env.reset(0)
    for _ in range(3):
        result = env.step(np.zeros((2, 2), np.float32))
    vector, (camera, depth) = env.obs_space.split(result.final_obs)
    assert vector[0].tolist() == [0, 0, 0, 1, 4.5, 0.5, 0.5, 0.5, 0.5, 1, 0, 1]
    assert (camera == 3).all()
    assert (depth == 103).all()
    assert result.truncated.all()
    assert [each.progress_metres for each in result.episodes] == [21.0, 21.0]
    after, (camera, _) = env.obs_space.split(result.obs)
    assert (after[:, 4] == 0).all()
    assert (camera == 0).all()


@pytest.mark.parametrize(
    ("kind", "space", "given", "expected"),
    [
        ("box", ActionSpace(2), [-1.0, 9.0], [0.0, 4.0]),
        ("box", ActionSpace(2), [0.0, -0.5], [0.5, -2.0]),
        ("choice", ActionSpace(1, (3,)), [2], 7),
        ("choices", ActionSpace(2, (2, 3)), [1, 2], [1, 2]),
        ("switches", ActionSpace(2, (2, 2)), [1, 0], [1, 0]),
    ],
)
def test_every_kind_of_action_reaches_the_environment(
    kind: str, space: ActionSpace, given: list[float], expected: Any
) -> None:
    env = make_vector_env("tests/Everything-v0", 1, options={"action": kind})
    assert env.action_space == space
    env.reset(0)
    env.step(np.array([given], dtype=space.dtype))
    (taken,) = env.envs[0].unwrapped.taken
    assert np.asarray(taken).tolist() == expected


def test_frames_are_stacked_as_channels() -> None:
    env = make_vector_env("tests/Everything-v0", 1, options={"frame_stack": 1})
    assert env.obs_space.images[0] == (6, 8, 3)


def test_a_lost_simulator_is_neither_learned_from_nor_counted() -> None:
    env = make_vector_env("tests/Everything-v0", 2, options={})
    env.envs[0].unwrapped.loses_at = 2
    env.reset(0)
    action = np.zeros((2, 2), np.float32)
    results = [env.step(action) for _ in range(5)]

    assert [result.is_lost for result in results] == [False, True, False, False, False]
    # Copy 0 restarted when it was lost, so its episode of three steps ends two steps after copy 1's.
    ends = [[(episode.env, episode.steps) for episode in result.episodes] for result in results]
    assert ends == [[], [], [(1, 3)], [], [(0, 3)]]


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("chess", {}, "unknown environment 'chess'.*besides Gymnasium's ids there are .*racing"),
        ("Acrobot-v1", {"gravity": 3}, "Acrobot-v1 cannot be made with the options"),
        ("tests/Everything-v0", {"action": "text"}, "actions of Text.* are not supported"),
        ("Acrobot-v1", {"frame_stack": 0}, "frame_stack is 0; it must be a whole number from 1"),
    ],
)
def test_what_cannot_be_made_is_a_sentence(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_vector_env(name, 1, options=options)
