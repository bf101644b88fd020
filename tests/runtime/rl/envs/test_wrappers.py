"""Wrappers by name around a Gymnasium environment: Gymnasium's and the user's, in order, or a sentence."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.base.environments import data_shape
from runtime.rl.envs.registry import make_vector_env

SELECT = "runtime.rl.envs.wrappers:SelectNumbers"
OWN = """
import gymnasium

class Tenfold(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 10 * reward
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "tenfold_wrapper.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))


def made(*entries):
    return make_vector_env("CartPole-v1", 2, options={"wrappers": list(entries)})


@pytest.mark.usefixtures("own")
def test_wrappers_act_from_the_innermost_to_the_outermost():
    clip, own = {"ClipReward": {"min_reward": -3, "max_reward": 3}}, "tenfold_wrapper:Tenfold"
    for entries, reward in (((own, clip), 3.0), ((clip, own), 10.0), ((), 1.0)):
        env = made(*entries)
        env.reset(0)
        assert env.step(np.zeros((2, 1), np.int32)).reward.tolist() == [reward, reward]


def test_a_wrapper_may_change_what_is_seen_so_its_size_is_unknown_before():
    env = made("TimeAwareObservation")
    assert env.obs_space.vector == 5
    assert data_shape("CartPole-v1", {"wrappers": ["TimeAwareObservation"]}) is None


def test_some_numbers_of_a_vector_are_shown():
    every, part = made(), made({SELECT: {"indices": [2, 0]}})
    assert part.obs_space.vector == 2
    assert part.reset(0) == pytest.approx(every.reset(0)[:, [2, 0]])


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({SELECT: {"indices": [4]}}, "indices are [4]; they must be of 0 to 3"),
        ({SELECT: {"indices": []}}, "indices are []; they must be of 0 to 3"),
        ("NoSuchWrapper", "gymnasium.wrappers has no class NoSuchWrapper"),
        ("no_such_lab:Wrapper", "no_such_lab cannot be imported"),
        ("gymnasium.spaces:Box", "CartPole-v1: gymnasium.spaces:Box is not a wrapper of Gymnasium"),
        ({"ClipReward": {"most": 1}}, "CartPole-v1: ClipReward cannot be put around it with {'most': 1}"),
        ({"ClipReward": {}, "Autoreset": {}}, "write a name, or one name to its options"),
        (3, "write a name, or one name to its options"),
    ],
)
def test_what_is_no_wrapper_has_a_sentence(entry, sentence):
    with pytest.raises(ValueError, match=r".") as refused:
        made(entry)
    assert sentence in str(refused.value)


def test_the_option_is_a_list():
    with pytest.raises(ValueError, match="wrappers is 'ClipReward'; it must be a list"):
        make_vector_env("CartPole-v1", 1, options={"wrappers": "ClipReward"})
