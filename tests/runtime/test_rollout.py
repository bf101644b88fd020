"""A worker's collection over an environment that breaks."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.envs.base import StepResult
from runtime.process import NotFiniteError
from runtime.rollout import Rollout
from runtime.segments import columns


class Breaking:
    """Two copies of an environment that counts its steps, and gives `value` for the reward of the third."""

    num_envs, obs_dim, act_dim, step_seconds = 2, 1, 1, 0.1

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


def act(obs: np.ndarray) -> np.ndarray:
    return np.zeros((2, 1), dtype=np.float32)


def test_steps_become_a_segment_in_order() -> None:
    rollout = Rollout(Breaking(7.0), 4, seed=0)
    *before, finished = [rollout.step(act, version) for version in (3, 3, 4, 5)]
    assert before == [None, None, None]
    segment = finished.segment
    assert (segment.transitions, segment.policy_version_min, segment.policy_version_max) == (8, 3, 5)
    obs, _, reward, next_obs, _ = columns(finished.arena, 8, 1, 1)
    assert obs[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert next_obs[:, 0].tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
    assert reward.tolist() == [1, 1, 1, 1, 7, 7, 1, 1]


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_an_environment_that_gives_no_numbers_ends_the_worker_with_a_sentence(value: float) -> None:
    rollout = Rollout(Breaking(value), 4, seed=0)
    assert [rollout.step(act, 1) for _ in range(3)] == [None, None, None]
    with pytest.raises(NotFiniteError, match="environment gave observations or rewards that are not finite"):
        rollout.step(act, 1)
