"""Settings that a learner would refuse at its start are refused before a launch, without starting a process."""

from __future__ import annotations

import json
import sys

import gymnasium
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from runtime.base.errors import EnvironmentFault, SetupError
from runtime.base.training import parse
from runtime.rl.roles.launch_context import plan_of
from runtime.rl.roles.settings_check import check_settings, try_environment


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"environment_options": {"observation": "view"}, "convolutions": [[16, 4, 2]]},
        {"environment": "CartPole-v1", "algorithm": "ppo"},
        {"environment": "CartPole-v1", "algorithm": "ppo", "environment_options": {"frame_stack": 2}},
        {"environment": "l2r", "environment_options": {"simulator": {"kind": "sidecar"}}},
        {"environment": "Acrobot-v1", "algorithm": "ppo"},
        {"environment": "Acrobot", "algorithm": "ppo"},
        {"environment": "CartPole-v1"},
        {"environment": "no_such_module:Task-v0"},
    ],
)
def test_what_can_be_passes(settings):
    check_settings(parse(json.dumps(settings)))
    assert "no_such_module" not in sys.modules


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"environment": "racin"}, "unknown environment 'racin'. Did you mean racing?"),
        ({"environment": "ALE/Pong-v5"}, "Write MODULE:ID if a package registers it, such as ale_py:ALE/Pong-v5"),
        ({"environment": "Acrobot-v9"}, "unknown environment 'Acrobot-v9': Environment version `v9`"),
        ({"environment_options": {"trak": "harbour"}}, "racing has no option 'trak'"),
        ({"environment_options": {"observation": "view"}}, "an image of 32 x 32 is too small for the convolutions"),
        ({"environment": "l2r", "environment_options": {"laps": "all"}}, "l2r: laps is 'all'; it must be a number"),
        ({"sac": {"gama": 0.9}}, "SAC has no setting 'gama'"),
        ({"algorithm": "ppo", "ppo": {"batch_steps": 100}}, "batch_steps is 100; it must be a multiple"),
    ],
)
def test_what_cannot_be_has_a_sentence(settings, sentence):
    with pytest.raises(SetupError) as raised:
        check_settings(parse(json.dumps(settings)))
    assert sentence in str(raised.value)


def test_a_learner_makes_its_environment_once_and_closes_it(monkeypatch):
    words = []

    class Noted(CartPoleEnv):
        def __init__(self):
            super().__init__()
            words.append("open")

        def close(self):
            words.append("close")

    monkeypatch.setitem(
        gymnasium.registry, "tests/Noted-v0", gymnasium.envs.registration.EnvSpec("tests/Noted-v0", Noted)
    )
    training = parse(json.dumps({"environment": "tests/Noted-v0", "algorithm": "ppo", "num_envs": 4}))
    tried = try_environment(training)
    assert words == ["open", "close"]
    plan = plan_of(training, tried)
    assert words == ["open", "close"]
    assert plan == plan_of(training)
    assert words == ["open", "close"] * 2


@pytest.fixture
def registered(monkeypatch):
    """A function that registers a class and returns the settings of a run in it."""

    def register(kind):
        name = "tests/Own-v0"
        monkeypatch.setitem(gymnasium.registry, name, gymnasium.envs.registration.EnvSpec(name, kind))
        return parse(json.dumps({"environment": name, "algorithm": "ppo"}))

    return register


def test_what_an_environment_sets_for_torch_does_not_reach_the_networks(registered):
    import torch

    class Sets(CartPoleEnv):
        def __init__(self):
            super().__init__()
            torch.set_default_dtype(torch.float64)

        def reset(self, **options):
            torch.set_grad_enabled(False)
            torch.set_num_threads(torch.get_num_threads() + 1)
            return super().reset(**options)

    before = torch.get_num_threads()
    try:
        try_environment(registered(Sets))
        assert torch.get_default_dtype() is torch.float32
        assert torch.is_grad_enabled()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
        torch.set_num_threads(before)


def test_an_environment_that_fails_or_ends_the_process_when_it_is_made_is_named(registered):
    class Fails(CartPoleEnv):
        def __init__(self):
            raise AttributeError("no simulator")

    class Ends(CartPoleEnv):
        def __init__(self):
            sys.exit(0)

    with pytest.raises(
        SetupError, match=r"environment tests/Own-v0 fails when it is made \(AttributeError: no sim"
    ):
        try_environment(registered(Fails))
    with pytest.raises(EnvironmentFault, match=r"ended the process \(tests/Own-v0 raised SystemExit\(0\)\)"):
        try_environment(registered(Ends))
