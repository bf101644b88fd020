"""Presets: what other libraries set by default, below what a spec says itself."""

from __future__ import annotations

import pytest

from runtime.base import presets
from runtime.base.methods import METHODS
from runtime.base.training import from_mapping, read
from runtime.base.training_rules import config_of, mistakes_in


def config(**settings):
    return config_of(from_mapping(settings), METHODS)


EACH = [(preset, algorithm) for preset, methods in presets.PRESETS.items() for algorithm in methods]


@pytest.mark.parametrize("total", [None, 1_000_000])
@pytest.mark.parametrize(("preset", "algorithm"), EACH)
def test_each_preset_is_a_run_that_every_rule_allows(preset, algorithm, total):
    environment = {"dqn": "CartPole-v1", "sac": "Pendulum-v1", "td3": "Pendulum-v1"}.get(algorithm, "CartPole-v1")
    settings = {"preset": preset, "algorithm": algorithm, "environment": environment, "total_env_steps": total}
    assert mistakes_in(settings) == []


def test_what_a_spec_says_itself_stands_and_the_rest_is_the_preset_s():
    mine = {"gamma": 0.9}
    ppo = config(preset="cleanrl", algorithm="ppo", environment="CartPole-v1", ppo=mine, total_env_steps=512_000)
    assert (ppo.gamma, ppo.lr, ppo.adam_eps, ppo.joint_clipping) == (0.9, 2.5e-4, 1e-5, True)
    assert ppo.anneal_updates == 1_000
    settings = from_mapping({"preset": "cleanrl", "algorithm": "ppo", "num_envs": 8, "segment_steps": 64})
    assert (settings.num_envs, settings.segment_steps) == (8, 64)


@pytest.mark.parametrize("preset", ["sb3", "cleanrl"])
@pytest.mark.parametrize("algorithm", ["sac", "td3", "dqn"])
def test_collection_stays_close_to_learning_as_in_those_libraries(preset, algorithm):
    # A run of 10,000 env steps would otherwise be collected before it is learned from.
    settings = from_mapping({"preset": preset, "algorithm": algorithm})
    assert (settings.segment_steps, settings.publish_every, settings.band_steps) == (8, 4, 16)
    copies = from_mapping({"preset": preset, "algorithm": algorithm, "num_envs": 4})
    assert copies.band_steps == 64
    assert from_mapping({"preset": preset, "algorithm": algorithm, "band_steps": 500}).band_steps == 500


def test_dqn_explores_for_the_same_share_of_the_env_steps_as_in_those_libraries():
    # Stable-Baselines3: a tenth, an update for 4. CleanRL: until half of all, an update for 10 from 10,000 on.
    for preset, updates in (("sb3", 1_500), ("cleanrl", 2_000)):
        dqn = config(preset=preset, algorithm="dqn", environment="CartPole-v1", total_env_steps=60_000)
        assert dqn.exploration_updates == updates


@pytest.mark.parametrize("where", [{"hidden": [32]}, {"sac": {"hidden": [32]}}])
def test_widths_of_a_spec_stand_wherever_it_has_them(where):
    assert config(preset="sb3", algorithm="sac", environment="Pendulum-v1", **where).hidden == (32,)
    assert config(algorithm="sac", environment="racing", **where).hidden == (32,)


def test_sac_has_the_paper_s_defaults_but_on_the_track_those_that_were_tuned_there():
    elsewhere = config(algorithm="sac", environment="Pendulum-v1")
    assert (elsewhere.gamma, elsewhere.tau, elsewhere.init_alpha) == (0.99, 0.005, 1.0)
    assert (elsewhere.hidden, elsewhere.actor_lr) == ((256, 256), 3e-4)
    racing = config()
    assert racing == config(environment="l2r")
    assert (racing.gamma, racing.tau, racing.init_alpha) == (0.98, 0.01, 0.1)
    assert (racing.hidden, racing.actor_lr) == ((128, 128), 5e-4)
    assert config(preset="sb3", environment="racing").gamma == 0.99


def test_a_cloned_policy_has_the_widths_of_the_method_that_goes_on_with_it():
    for environment in ("racing", "Pendulum-v1"):
        cloned = config(algorithm="bc", environment=environment, dataset="/data", bc={"for_method": "sac"})
        assert cloned.hidden == config(algorithm="sac", environment=environment).hidden


def test_a_preset_that_does_not_know_the_method_names_those_that_it_knows():
    _, mistakes = read({"preset": "cleanrl-atari", "algorithm": "sac"})
    assert mistakes == [
        "preset: cleanrl-atari has no settings for sac, but for ppo; leave preset out, or change algorithm"
    ]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"algorithm": "ppo", "ppo": {"minibatch_size": 5_000}}, "it must be at most batch_steps = 2048"),
        ({"algorithm": "sac", "segment_steps": 4, "sac": {"n_step": 3}}, "segment_steps must be at least 6"),
        (
            {"algorithm": "impala", "impala": {"shared_layers": True, "sends_gradients": True}},
            "shared_layers cannot be combined with sends_gradients",
        ),
    ],
)
def test_settings_that_would_not_do_what_they_say_are_refused(settings, sentence):
    (mistake,) = mistakes_in(settings)
    assert sentence in mistake


def test_a_small_batch_is_one_minibatch_unless_the_spec_says_how_large():
    small = config(algorithm="ppo", num_envs=4, segment_steps=16, ppo={"batch_steps": 64})
    assert small.minibatch_size == 64
