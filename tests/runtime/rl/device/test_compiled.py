"""The compiled step of an environment against the plain step: the same draws and episodes, up to rounding."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest
import torch

from runtime.base.training import SettingsError, from_mapping
from runtime.rl.device.compiled import CompiledEnv, Draws, compiled, is_compiled
from runtime.rl.envs.registry import make_device_env
from runtime.rl.roles.device_collector import DeviceCollector, torch_arrays
from tests.runtime.rl.roles.test_device_collector import collector_of, copied, settings_of

# Torch's compiler warns about deprecations in torch itself.
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]


@pytest.mark.process  # torch's compiler starts some, and keeps a thread
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("environment", ["CartPole-v1", "Pendulum-v1"])
def test_a_compiled_rollout_is_the_rollout_to_rounding_and_resumes_exactly(environment):
    changes = {"algorithm": "ppo", "environment": environment, "num_envs": 8, "segment_steps": 120}
    plain, method, plan = collector_of(settings_of(compile=False, **changes))
    said: list[str] = []
    settings = settings_of(compile=True, **changes)
    compiled = DeviceCollector(settings, plan, 0, "cpu", method.policy_weights, said.append)
    assert said == [f"compiling the step of {environment}: half a minute the first time"]
    ours, theirs = compiled.collect(), plain.collect()
    for name, column in theirs.items():
        # Rounding errors accumulate: a policy depends on its observations, and a pendulum near its top falls to
        # either side.
        torch.testing.assert_close(ours[name][:40], column[:40], atol=1e-3, rtol=1e-3)
    assert environment != "CartPole-v1" or (theirs["ended"][:40] > 0).sum() >= 8
    state = compiled.live_state()
    assert torch.equal(state["generator"], plain.live_state()["generator"]), "both drew the same numbers"

    saved = {name: tensor.clone() for name, tensor in state.items()}
    second = DeviceCollector(settings, plan, 99, "cpu", method.policy_weights)
    assert second.load_state(saved) == []
    expected = copied(compiled.collect())
    for name, column in second.collect().items():
        assert torch.equal(column, expected[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"max_seconds": 1.0}, {"observation": "view"}])
def test_racings_step_is_a_single_graph_that_drives_as_before(options, monkeypatch):
    """Traced as usual, but run by torch's kernels: C++ of the whole step takes a minute, and tests/gpu tests it."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    envs = []
    for wraps in (True, False):
        draws = Draws(torch_arrays("cpu", torch.Generator().manual_seed(3)))
        env = make_device_env("racing", 6, options, draws.arrays)
        envs.append(CompiledEnv(env, draws) if wraps else env)
    ours, theirs = envs
    action = torch.rand(25, 6, 2, generator=torch.Generator().manual_seed(1)) * 2 - 1
    ends = 0
    with torch.no_grad():
        for row in action:
            torch.testing.assert_close(ours.observe(), theirs.observe())
            mine, other = ours.step(row), theirs.step(row)
            for name in ("reward", "ended", "final_obs"):
                torch.testing.assert_close(getattr(mine, name), getattr(other, name))
            for a, b in zip(mine.episodes, other.episodes, strict=True):
                assert float(a) == pytest.approx(float(b))
            ends += int((other.ended > 0).sum())
    for name, tensor in theirs.state().items():
        torch.testing.assert_close(ours.state()[name], tensor)
    assert ends >= (12 if "max_seconds" in options else 0), "episodes began anew"


@pytest.mark.slow
def test_a_step_that_cannot_be_compiled_is_said_and_goes_on_as_it_is():
    class Refusing:
        """CartPole whose step cannot be traced by torch."""

        def __init__(self, draws: Draws) -> None:
            self._env = make_device_env("CartPole-v1", 4, {}, draws.arrays)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._env, name)

        def step(self, action: torch.Tensor) -> Any:
            sys._getframe()
            return self._env.step(action)

    said: list[str] = []
    draws = Draws(torch_arrays("cpu", generator := torch.Generator().manual_seed(3)))
    env = Refusing(draws)
    before, drawn = env.state()["state"].clone(), generator.get_state()
    assert compiled(env, draws, "mine", said.append) is env
    assert said[0] == "compiling the step of mine: half a minute the first time"
    assert said[1].startswith("the step of mine could not be compiled (")
    assert said[1].endswith("; the learner continues uncompiled")
    assert "\n" not in said[1]
    assert torch.equal(env.state()["state"], before)
    assert torch.equal(generator.get_state(), drawn), "nothing was drawn meanwhile"
    for _ in range(60):
        env.step(torch.zeros(4, 1, dtype=torch.int32))
    assert not torch.equal(generator.get_state(), drawn), "new episodes are drawn again"


def test_auto_compiles_large_runs_on_a_gpu():
    assert is_compiled("auto", "cuda", 4_096)
    assert is_compiled("auto", "cuda:1", 65_536)
    assert not is_compiled("auto", "cuda", 4_095)
    assert not is_compiled("auto", "cpu", 65_536)
    assert is_compiled(True, "cpu", 1)
    assert not is_compiled(False, "cuda", 65_536)
    assert from_mapping({"collect": "device"}).compile == "auto"
    for value in ("yes", 1, None):
        with pytest.raises(SettingsError, match=r"compile is .*; it must be true, false or auto"):
            from_mapping({"compile": value})
