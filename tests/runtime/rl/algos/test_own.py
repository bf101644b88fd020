"""User-defined classes by name: used unchanged, or refused with a sentence about the missing member."""

from __future__ import annotations

import itertools

import pytest

from runtime.base.errors import SetupError
from runtime.base.training import SettingsError, from_mapping
from runtime.rl.algos import plan as own
from runtime.rl.algos.method_config import ReplayConfig
from runtime.rl.algos.off_policy.sac import SAC
from runtime.rl.algos.plan import build, make_plan
from runtime.rl.spaces import ActionSpace, ObsSpace

NUMBERS = itertools.count()
CALM = """
from dataclasses import dataclass
from runtime.base.methods import SACConfig
from runtime.rl.algos.off_policy.sac import SAC

class Calm(SAC):
    @dataclass(frozen=True, slots=True)
    class Config(SACConfig):
        calm: float = 1.0

class Double(Calm):
    def policy_weights(self):
        return super().policy_weights().double()

class Short(Calm):
    def policy_weights(self):
        return super().policy_weights()[:-1]

class Nothing: ...

class Idle(SAC):
    Config = dict
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Name of a module with the classes above that Python has not imported before."""
    name = f"calm_{next(NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(CALM)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def plan_of(algorithm, **method):
    settings = from_mapping({"algorithm": algorithm, "method": {"hidden": [8], **method}})
    return make_plan(settings, ObsSpace(3), ActionSpace(2))


def test_a_class_of_ones_own_is_built_with_its_own_settings(module):
    plan = plan_of(f"{module}:Calm", calm=0.5, n_step=3)
    assert isinstance(plan.config, ReplayConfig)
    assert (plan.config.calm, plan.n_step, plan.is_on_policy) == (0.5, 3, False)
    method = build(plan, 0, "cpu")
    assert isinstance(method, SAC)
    assert type(method).__name__ == "Calm"


@pytest.mark.parametrize(("name", "form"), [("Double", "torch.float64"), ("Short", r"torch.float32 \(\d+,\)")])
def test_weights_that_no_worker_can_read_are_refused(module, name, form):
    with pytest.raises(SetupError, match=rf"{name}: policy_weights returns {form}.*; expected torch.float32"):
        build(plan_of(f"{module}:{name}"), 0, "cpu")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no_such_lab:Calm", "no_such_lab cannot be imported (ModuleNotFoundError"),
        ("{module}:Calmer", "has no class Calmer"),
        ("{module}:Nothing", "does not derive from runtime.rl.algos.algorithm.Algorithm"),
        ("{module}:Idle", "has no Config that derives from ReplayConfig or RolloutConfig"),
        ("runtime.rl.algos.algorithm:Algorithm", "has no method update"),
    ],
)
def test_what_is_no_method_has_a_sentence(module, name, sentence):
    with pytest.raises(ValueError, match=r".") as refused:
        own.method_config(name.format(module=module))
    assert sentence in str(refused.value)


def test_settings_of_ones_own_are_checked_like_the_others(module):
    with pytest.raises(ValueError, match="no setting 'clam'; known are hidden"):
        plan_of(f"{module}:Calm", clam=1.0)
    with pytest.raises(ValueError, match="calm is 'very'; it must be a number"):
        plan_of(f"{module}:Calm", calm="very")
    with pytest.raises(SettingsError, match="must be one of sac"):
        from_mapping({"algorithm": "mine"})
