"""The T-maze: Gymnasium's checks, and that only the sign determines the turn."""

from __future__ import annotations

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from runtime.rl.envs.registry import make_vector_env
from runtime.rl.spaces import ObsSpace

NAME = "runtime.rl.envs.t_maze:l2r/TMaze-v0"
NORTH, EAST, SOUTH = 0, 1, 2


def test_gymnasium_checks_it_and_a_wrong_length_is_refused() -> None:
    check_env(gymnasium.make(NAME).unwrapped)
    assert make_vector_env(NAME, 2, options={"length": 4}).obs_space == ObsSpace(3)
    with pytest.raises(ValueError, match="length is 0; it must be a whole number from 1"):
        gymnasium.make(NAME, length=0)


def test_only_the_sign_tells_the_turn() -> None:
    env, seen = gymnasium.make(NAME, length=3), {}
    for seed in range(8):
        sign, _ = env.reset(seed=seed)
        turn = NORTH if tuple(sign) == (0, 1, 1) else SOUTH
        walk = [env.step(EAST) for _ in range(3)]
        assert [reward for _, reward, *_ in walk] == [0, 0, 0]
        seen[turn] = [tuple(obs) for obs, *_ in walk]
        _, reward, terminated, _, _ = env.step(turn if seed % 4 else NORTH + SOUTH - turn)
        assert terminated
        assert reward == (4.0 if seed % 4 else -0.1)
    assert seen[NORTH] == seen[SOUTH] == [(1, 0, 1), (1, 0, 1), (0, 1, 0)]


def test_standing_still_is_punished_and_cut() -> None:
    env = gymnasium.make(NAME, length=3)
    env.reset(seed=0)
    steps = [env.step(NORTH) for _ in range(8)]
    assert [reward for _, reward, *_ in steps] == [-0.1] * 8
    assert [truncated for *_, truncated, _ in steps] == [False] * 7 + [True]
