"""The racing environment through Gymnasium's own interfaces."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from runtime.rl.envs.racing_gym import RACING_ID


@pytest.mark.parametrize("observation", ["place", "view"])
def test_gymnasium_makes_and_checks_it(observation):
    env = gymnasium.make(f"runtime.rl.envs.racing_gym:{RACING_ID}", track="ridge", observation=observation)
    check_env(env.unwrapped)
    env.close()


def test_an_episode_ends_with_its_summary_in_info():
    env = gymnasium.make(RACING_ID, start="line")
    _, info = env.reset(seed=0)
    assert info == {"progress_metres": 0.0}
    terminated = truncated = False
    while not (terminated or truncated):
        obs, reward, terminated, truncated, info = env.step(np.array([0.3, 1.0], dtype=np.float32))
    assert terminated
    assert abs(obs[0]) > 1.0, "the last observation is the one off the track, not the next start"
    assert reward < 0
    assert info["left_track"]
    assert info["laps"] == 0
    env.close()


def test_resets_without_a_seed_differ_and_with_one_repeat():
    env = gymnasium.make(RACING_ID)
    first, _ = env.reset(seed=4)
    second, _ = env.reset()
    again, _ = env.reset(seed=4)
    assert (first == again).all()
    assert not (first == second).all()
    env.close()


def test_wrong_option_is_refused():
    with pytest.raises(ValueError, match="no option 'colour'"):
        gymnasium.make(RACING_ID, colour="red")
