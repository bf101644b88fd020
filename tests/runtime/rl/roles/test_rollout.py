"""A worker's collection over an environment that breaks."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.base.errors import NotFiniteError
from runtime.rl.buffers.replay import transition_layout
from runtime.rl.buffers.rollout_buffer import Rollouts, rollout_layout
from runtime.rl.envs.base import StepResult
from runtime.rl.roles.rollout import Rollout
from runtime.rl.spaces import ActionSpace, ObsSpace

LAYOUT = transition_layout(ObsSpace(1), ActionSpace(1))


class Breaking:
    """Two copies of an environment that counts its steps, and gives `value` for the reward of the third."""

    num_envs, step_seconds = 2, 0.1
    obs_space, action_space = ObsSpace(1), ActionSpace(1)

    def __init__(self, value: float) -> None:
        self.steps = 0
        self.value = value

    def reset(self, seed: int) -> np.ndarray:
        return np.zeros((2, 1), dtype=np.float32)

    def step(self, action: np.ndarray) -> StepResult:
        self.steps += 1
        obs = np.full((2, 1), self.steps, dtype=np.float32)
        reward = np.full(2, self.value if self.steps == 3 else 1.0, dtype=np.float32)
        no = np.zeros(2, dtype=bool)
        return StepResult(obs, reward, no, no, obs, ())


def act(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    return np.zeros((len(obs), 1), dtype=np.float32), None


def test_steps_become_a_segment_in_order() -> None:
    rollout = Rollout(Breaking(7.0), LAYOUT, 4, seed=0)
    *before, finished = [rollout.step(act, version) for version in (3, 3, 4, 5)]
    assert before == [None, None, None]
    segment = finished.segment
    assert (segment.transitions, segment.policy_version_min, segment.policy_version_max) == (8, 3, 5)
    obs, _, reward, next_obs, _ = LAYOUT.columns(finished.memory.view, 8)
    assert obs[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert next_obs[:, 0].tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
    assert reward.tolist() == [1, 1, 1, 1, 7, 7, 1, 1]


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_an_environment_that_gives_no_numbers_ends_the_worker_with_a_sentence(value: float) -> None:
    rollout = Rollout(Breaking(value), LAYOUT, 4, seed=0)
    assert [rollout.step(act, 1) for _ in range(3)] == [None, None, None]
    with pytest.raises(NotFiniteError, match="environment gave observations or rewards that are not finite"):
        rollout.step(act, 1)


class Scripted:
    """One copy whose observation is the number of its step, and whose episodes end where `ends` says how."""

    num_envs, step_seconds = 1, 0.1
    obs_space, action_space = ObsSpace(1), ActionSpace(1)

    def __init__(self, ends: dict[int, str]) -> None:
        self.steps = 0
        self.ends = ends

    def reset(self, seed: int) -> np.ndarray:
        return np.zeros((1, 1), dtype=np.float32)

    def step(self, action: np.ndarray) -> StepResult:
        self.steps += 1
        after = np.full((1, 1), self.steps, dtype=np.float32)
        terminated = np.array([self.ends.get(self.steps) == "terminated"])
        truncated = np.array([self.ends.get(self.steps) == "truncated"])
        next_obs = after + 100 if terminated[0] or truncated[0] else after
        reward = np.array([10.0**self.steps], dtype=np.float32)
        return StepResult(next_obs, reward, terminated, truncated, after, ())


def test_rewards_of_several_steps_are_summed_up_to_the_end_of_the_episode_or_the_segment() -> None:
    layout = transition_layout(ObsSpace(1), ActionSpace(1), n_step=3)
    env = Scripted({4: "terminated", 6: "truncated"})
    rollout = Rollout(env, layout, 8, seed=0, n_step=3, gamma=0.5)
    (finished,) = [segment for _ in range(8) if (segment := rollout.step(act, 1))]
    values = dict(zip(layout.names, layout.columns(finished.memory.view, 8), strict=True))
    assert values["steps"].tolist() == [3, 3, 2, 1, 2, 1, 2, 1]
    assert values["next_obs"][:, 0].tolist() == [3, 4, 4, 4, 6, 6, 8, 8]
    assert values["terminated"].tolist() == [0, 1, 1, 1, 0, 0, 0, 0]
    expected = [10 + 50 + 250, 100 + 500 + 2500, 1000 + 5000, 1e4, 1e5 + 5e5, 1e6, 1e7 + 5e7, 1e8]
    assert values["reward"].tolist() == pytest.approx(expected)


def test_rollouts_keep_steps_in_order_and_ends_apart_and_wait_for_enough() -> None:
    layout = rollout_layout(ObsSpace(1), ActionSpace(1))
    rollout = Rollout(Scripted({2: "truncated", 3: "terminated"}), layout, 4, seed=0)
    store = Rollouts(layout, num_envs=1, segment_transitions=4, batch_steps=8)

    def certain(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return obs, -obs[:, 0]

    for _ in range(4):
        finished = rollout.step(certain, 1)
    store.put(layout.columns(finished.memory.view, 4))
    assert store.take() is None
    for _ in range(4):
        finished = rollout.step(certain, 1)
    store.put(layout.columns(finished.memory.view, 4))
    resumed = Rollouts(layout, num_envs=1, segment_transitions=4, batch_steps=8)
    resumed.load_state(store.state())
    for rollouts in (store, resumed):
        assert len(rollouts) == 8
        batch = rollouts.take()
        assert len(rollouts) == 0
        assert batch.obs[:, :, 0].T.tolist() == [[0, 1, 102, 103], [4, 5, 6, 7]]
        assert batch.next_obs[:, :, 0].T.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
        assert batch.ended.T.tolist() == [[0, 2, 1, 0], [0, 0, 0, 0]]
        assert (batch.log_prob == -batch.action[:, :, 0]).all()


def test_a_batch_that_segments_do_not_fill_is_refused() -> None:
    with pytest.raises(
        ValueError, match="batch_steps is 10; it must be a multiple of num_envs x segment_steps = 4"
    ):
        Rollouts(rollout_layout(ObsSpace(1), ActionSpace(1)), 1, 4, 10)


@pytest.mark.parametrize("steps", [0, 3, 8])
def test_a_rollout_of_another_length_than_a_segment_is_refused(steps):
    layout = rollout_layout(ObsSpace(1), ActionSpace(1))
    store = Rollouts(layout, 1, 4, 8)
    with pytest.raises(ValueError, match="segments of 4"):
        store.put(tuple(np.zeros((steps, *field.shape_tail), field.dtype) for field in layout.fields))
    assert len(store) == 0
