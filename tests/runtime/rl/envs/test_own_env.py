"""User-defined environments on tensors: stepped, restarted, stored, trained; or refused with a sentence."""

from __future__ import annotations

import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runtime.base.errors import SetupError
from runtime.rl.envs.registry import make_device_env, make_vector_env
from runtime.rl.roles.device_collector import DeviceCollector, torch_arrays
from runtime.rl.roles.settings_check import check_settings
from tests.runtime.rl.device.test_capturable import CaptureRules
from tests.runtime.rl.roles.test_device_collector import collector_of, copied, settings_of

pytestmark = pytest.mark.usefixtures("one_thread")
MASS = "point_mass:PointMass"
OWN: dict[str, Any] = {"environment": MASS, "algorithm": "ppo"}


@pytest.fixture(autouse=True)
def _example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[4] / "manifests"))


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A function that writes a class and returns its name; lines of `CLOCK` can be replaced."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(*changes: tuple[str, str]) -> str:
        text = CLOCK
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        name = f"clock_{len(list(tmp_path.glob('clock_*.py')))}_{tmp_path.name.replace('-', '_')}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return f"{name}:Clock"

    return write


CLOCK = """
import torch
from runtime.rl.spaces import ActionSpace, ObsSpace


class Clock:
    obs_space, action_space = ObsSpace(2), ActionSpace(1, (3,))
    start_draws, step_draws = 1, 2

    def __init__(self, num_envs, device, length=5):
        self.length = torch.full((num_envs,), length, device=device)

    def start(self, draws):
        return {"hour": (3 * draws[:, 0]).long(), "noise": draws.new_zeros(len(draws), 2)}

    def observe(self, state):
        return torch.stack([state["hour"].float(), state["noise"][:, 0]], dim=1)

    def step(self, state, action, draws):
        hour = state["hour"] + 1
        return {"hour": hour, "noise": draws}, action[:, 0].float(), hour > 9, hour >= self.length
"""


def made(name: str, count: int = 4, seed: int = 0, **options: Any) -> tuple[Any, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    return make_device_env(name, count, options, torch_arrays("cpu", generator)), generator


def test_copies_begin_anew_where_they_end_and_episodes_are_summed(written):
    env, _ = made(written(), 64, length=4)
    start = env.state()["env.hour"]
    assert set(start.tolist()) == {0, 1, 2}
    lengths, returns, ends = torch.zeros(64), torch.zeros(64), 0
    for t in range(8):
        before = env.state()["env.hour"]
        action = torch.full((64, 1), t % 3, dtype=torch.int32)
        step = env.step(action)
        over = before + 1 >= 4
        assert torch.equal(step.ended, torch.where(over, 2, 0).to(torch.uint8)), "truncated"
        assert torch.equal(step.final_obs[:, 0], before + 1.0), "the observation before the reset"
        assert torch.equal(env.observe()[~over, 0], before[~over] + 1.0)
        assert (env.observe()[over, 0] < 3).all()
        assert (env.observe()[~over, 1] > 0).all(), "noise of the step"
        lengths, returns = lengths + 1, returns + t % 3
        sums = [float(value) for value in step.episodes]
        assert sums == [int(over.sum()), float(returns[over].sum()), float(lengths[over].sum()), 0.0, 0.0]
        lengths[over], returns[over], ends = 0.0, 0.0, ends + int(over.sum())
    assert ends >= 128


def test_a_state_goes_on_exactly_and_both_ends_at_once_are_a_termination(written):
    name = written(("hour >= self.length", "hour > 9"))
    (first, drawn), (second, redrawn) = made(name, 16), made(name, 16, seed=9)
    action = torch.zeros(16, 1, dtype=torch.int32)
    codes = {code for _ in range(11) for code in first.step(action).ended.tolist()}
    assert codes == {0, 1}
    second.use_state({name: tensor.clone() for name, tensor in first.state().items()})
    redrawn.set_state(drawn.get_state())
    for _ in range(12):
        ours, theirs = first.step(action), second.step(action)
        assert torch.equal(ours.final_obs, theirs.final_obs)
        assert torch.equal(first.observe(), second.observe())


def test_workers_step_the_same_class(written):
    env = make_vector_env(written(), 8, options={"length": 6})
    obs = env.reset(3)
    np.testing.assert_array_equal(obs, env.reset(3))
    episodes = 0
    for _ in range(12):
        hour = obs[:, 0].copy()
        result = env.step(np.full((8, 1), 2, np.int32))
        np.testing.assert_array_equal(result.truncated, hour + 1 >= 6)
        assert not result.terminated.any()
        np.testing.assert_array_equal(result.final_obs[:, 0], hour + 1)
        for episode in result.episodes:
            assert episode.return_ == 2.0 * episode.steps
            assert result.truncated[episode.env]
            assert result.obs[episode.env, 0] < 3
        obs, episodes = result.obs, episodes + len(result.episodes)
    assert episodes >= 16


@pytest.mark.parametrize("algorithm", ["ppo", "impala", "sac"])
def test_the_example_is_collected_and_resumed_by_every_method(algorithm):
    settings = settings_of(environment=MASS, algorithm=algorithm)
    collector, method, plan = collector_of(settings)
    for _ in range(2):
        columns = copied(collector.collect())
    assert columns["next_obs"].shape == (8, 16, 4)
    second = DeviceCollector(settings, plan, 7, "cpu", method.policy_weights)
    assert second.load_state(dict(collector.live_state())) == []
    ours, theirs = copied(collector.collect()), second.collect()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    with CaptureRules() as rules:
        collector.collect()
    assert rules.operations > 100


def test_the_example_has_at_most_fifty_lines_and_its_settings_are_checked():
    text = (Path(__file__).parents[4] / "manifests" / "point_mass.py").read_text()
    assert len(text.splitlines()) <= 50
    check_settings(settings_of(**OWN))
    with pytest.raises(SetupError, match=r"PointMass.__init__ raised TypeError: .*'mass'"):
        check_settings(settings_of(**OWN, environment_options={"mass": 3}))
    with pytest.raises(SetupError, match=r"nowhere cannot be imported .* is its file the run's program"):
        check_settings(settings_of(environment="nowhere:Mass", algorithm="ppo"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("def observe", "def watch"), "has no method observe"),
        (("obs_space, action_space = ObsSpace(2)", "obs_space, action_space = 2"), "obs_space is int; expected"),
        (("obs_space, action_space =", "obs, action_space ="), "obs_space is missing; expected ObsSpace of"),
        (("ActionSpace(1, (3,))", "ActionSpace(0)"), "action_space has the size 0; expected at least one number"),
        (("step_draws = 1, 2", "step_draws = 1, -2"), "step_draws is -2; expected a whole number from 0"),
        (('return {"hour": (3', 'return [] and {"hour": (3'), r"start returns list as the state; expected a dict"),
        (("new_zeros(len(draws), 2)", "new_zeros(2)"), r"'noise' has the shape \(2,\); expected \(4, ...\)"),
        (("new_zeros(len(draws), 2)", "tolist()"), "start: state 'noise' is list; expected a tensor"),
        (('state["hour"].float()', 'state["hour"].double()'), "its result is of torch.float64; expected torch.f"),
        (("], dim=1)", "], dim=0)"), r"observe: its result has the shape \(2, 4\); expected \(4, 2\)"),
        (('return {"hour": hour, "noise": draws}, ', "return "), "step returns 3 values; expected state, reward"),
        (('"noise": draws}, action', '"sound": draws}, action'), "state of hour, sound; start returns hour, noise"),
        (("action[:, 0].float()", "action.float()"), r"step: reward has the shape \(4, 1\); expected \(4,\)"),
        (("action[:, 0].float()", "action[:, 0]"), "step: reward is of torch.int32; expected torch.float32 or"),
        (("hour > 9", "(hour > 9).float()"), "step: terminated is of torch.float32; expected torch.bool"),
        (('{"hour": hour,', '{"hour": hour.float(),'), "state 'hour' is of torch.float32; expected torch.int"),
        (("hour > 9,", 'hour.to("meta") > 9,'), "step: terminated is on meta; expected cpu"),
        (("hour > 9,", "hour > hour.max().item(),"), r"Clock.step waits for the device \(_local_scalar_dense\)"),
        (("hour > 9,", "hour[hour > 2] > 9,"), r"Clock.step waits for the device \(index\)"),
        (("hour > 9,", "hour > torch.tensor([9]),"), r"Clock.step copies from the host \(lift_fresh\)"),
        (("hour > 9,", "hour > seven,"), "Clock.step raised NameError: name 'seven' is not defined"),
        (("torch.full((", "torch.fill(("), "Clock.__init__ raised"),
    ],
)  # fmt: skip
def test_a_class_that_is_not_as_it_should_be_is_refused_at_the_start(written, change, sentence):
    name = written(change)
    with pytest.raises(ValueError, match=sentence) as raised:
        made(name)
    assert name in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match=sentence):
        make_vector_env(name, 4, options={})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about deprecations in torch itself
def test_its_step_is_traced_whole_and_gets_the_same_random_numbers(written, monkeypatch):
    """Run by torch's own kernels: C++ for it would take longer than the rest of the file."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    own = {"environment": written(), "algorithm": "ppo", "num_envs": 8}
    plain, method, plan = collector_of(settings_of(compile=False, **own))
    said: list[str] = []
    traced = DeviceCollector(settings_of(compile=True, **own), plan, 0, "cpu", method.policy_weights, said.append)
    assert len(said) == 1, said
    for _ in range(3):
        ours, theirs = traced.collect(), plain.collect()
        for name, column in theirs.items():
            torch.testing.assert_close(ours[name], column)
    assert (theirs["ended"] > 0).any()
    assert torch.equal(traced.live_state()["generator"], plain.live_state()["generator"])


def test_another_librarys_arrays_are_lent_by_dlpack(written):
    step = """hour = torch.from_dlpack(np.add(np.from_dlpack(state["hour"]), 1))"""
    name = written(('hour = state["hour"] + 1', step), ("import torch\n", "import numpy as np\nimport torch\n"))
    plain = {"algorithm": "ppo", "num_envs": 8}
    ours, _, _ = collector_of(settings_of(environment=name, **plain))
    theirs, _, _ = collector_of(settings_of(environment=written(), **plain))
    for _ in range(3):
        columns, others = ours.collect(), theirs.collect()
        assert all(torch.equal(columns[key], others[key]) for key in others)
    assert (columns["ended"] > 0).any()


def test_a_name_that_is_no_class_on_tensors_is_still_gymnasiums(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "registers_task.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Task(CartPoleEnv): ...\n"
        "gymnasium.register('Task', Task)\n"
        "gymnasium.register('Other', Task)\n"
    )
    for name in ("registers_task:Task", "registers_task:Other"):
        assert make_vector_env(name, 2, options={}).obs_space.vector == 4
        with pytest.raises(ValueError, match=f"environment {name} has no device form"):
            made(name)
    assert "registers_task" in sys.modules


@pytest.mark.slow
def test_ppo_learns_by_the_example():
    sizes = {"num_envs": 256, "segment_steps": 32, "hidden": [64, 64]}
    ppo = {"epochs": 4, "minibatch_size": 2048, "lr": 1e-3, "gamma": 0.98}
    collector, method, plan = collector_of(settings_of(**OWN, **sizes, ppo=ppo))
    from runtime.rl.buffers.rollout_buffer import DeviceRollouts

    store = DeviceRollouts(plan.layout)
    for _ in range(20):
        store.offer(collector.collect())
        method.update(store.take())
    assert collector.metric_fields()["mean_return"] is not None
    for _ in range(8):
        store.offer(collector.collect())
        method.update(store.take())
    assert collector.metric_fields()["mean_return"] > 10, "at random -5, at best 20"
