"""Racing on a GPU: against NumPy, captured against eager, and a learner that collects and learns there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

VIEWS = [{}, {"observation": "view"}]
VIEW = {"environment_options": VIEWS[1], "convolutions": [[16, 5, 2], [32, 3, 2], [32, 3, 2]]}


def arrays_with_numpy_draws(seed: int = 0) -> Any:
    """Arrays on the GPU that start the same episodes as NumPy's."""
    from runtime.rl.envs.device import DeviceArrays
    from runtime.rl.roles.device_collector import torch_arrays

    rng = np.random.default_rng(seed)
    arrays = torch_arrays("cuda", torch.Generator("cuda"))
    return DeviceArrays(
        torch, arrays.convert, lambda shape: torch.from_numpy(rng.random(shape, dtype=np.float32)).to("cuda")
    )


def numpy_arrays(seed: int = 0) -> Any:
    from runtime.rl.envs.device import DeviceArrays

    rng = np.random.default_rng(seed)
    return DeviceArrays(np, np.asarray, lambda shape: rng.random(shape, dtype=np.float32).astype(np.float64))


def on_gpu(state: dict[str, np.ndarray]) -> dict[str, Any]:
    return {
        name: torch.as_tensor(np.asarray(value, np.float32 if value.dtype.kind == "f" else None), device="cuda")
        for name, value in state.items()
    }


def settings_of(**changes: Any) -> Any:
    from runtime.base.training import from_mapping

    own = {"collect": "device", "algorithm": "ppo", "num_envs": 256, "segment_steps": 16, "device": "cuda"}
    return from_mapping({**own, **changes})


def collector_of(settings: Any) -> tuple[Any, Any]:
    from runtime.rl.algos.plan import build, make_plan
    from runtime.rl.envs.registry import make_vector_env
    from runtime.rl.roles.device_collector import DeviceCollector

    env = make_vector_env(settings.environment, 1, options=settings.environment_options)
    plan = make_plan(settings, env.obs_space, env.action_space)
    method = build(plan, 0, "cuda")
    return DeviceCollector(settings, plan, 0, "cuda", method.policy_weights), method


@pytest.mark.timeout(900)  # with pictures and beside other tests, a simulated card takes minutes
@pytest.mark.parametrize("options", VIEWS)
def test_cars_drive_as_in_numpy(options):
    """240 steps with resets, each from NumPy's state; every third is seen, too."""
    from runtime.rl.envs.racing import DeviceRacing
    from runtime.rl.envs.racing_rules import RacingOptions

    task = RacingOptions.from_mapping({"max_seconds": 15.0, "laps": 1, **options})
    ours, theirs = DeviceRacing(64, task, arrays_with_numpy_draws()), DeviceRacing(64, task, numpy_arrays())
    rng, ends = np.random.default_rng(7), np.zeros(3, dtype=int)
    for number in range(240):
        ours.use_state(on_gpu(theirs.state()))
        if not number % 3:
            felt, pictures = ours.obs_space.split(ours.observe().cpu().numpy())
            other_felt, other_pictures = ours.obs_space.split(theirs.observe())
            # Halfway between two samples of the course, rounding decides from which of them "ahead" starts.
            assert (np.abs(felt - other_felt).max(axis=1) > 1e-4).mean() <= 2 / 64
            for picture, other in zip(pictures, other_pictures, strict=True):
                assert (picture != other).mean() < 2e-3
        action = rng.uniform(-0.4, 1.0, (64, 2)).astype(np.float32)
        action[:8, 1] = -1.0
        step, result = ours.step(torch.from_numpy(action).to("cuda")), theirs.step(action)
        np.testing.assert_array_equal(step.ended.cpu().numpy(), result.ended)
        np.testing.assert_allclose(step.reward.cpu().numpy(), result.reward, atol=1e-4)
        ends += np.bincount(result.ended, minlength=3)
    assert (ends[1:] > 3).all()


@pytest.mark.parametrize(
    "changes",
    [{}, VIEW, {"environment": "CartPole-v1"}, {"algorithm": "sac"}],
)
def test_a_captured_rollout_is_the_eager_one(changes):
    eager, _ = collector_of(settings_of(cuda_graphs=False, **changes))
    captured, _ = collector_of(settings_of(cuda_graphs=True, **changes))
    for _ in range(3):
        ours = {name: column.clone() for name, column in captured.collect().items()}
        theirs = eager.collect()
        for name, column in ours.items():
            torch.testing.assert_close(column, theirs[name], atol=1e-5, rtol=1e-5)
    ours, theirs = captured.metric_fields(), eager.metric_fields()
    assert ours["episodes"] == theirs["episodes"]


@pytest.mark.process  # torch's compiler starts some, and keeps a thread
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about deprecations in torch itself
def test_a_compiled_rollout_is_the_eager_one_to_rounding():
    pytest.importorskip("triton", reason="torch compiles nothing for a card without Triton")
    eager, method = collector_of(settings_of(cuda_graphs=False, compile=False))
    compiled, _ = collector_of(settings_of(compile=True))
    assert type(compiled._env).__name__ == "CompiledEnv"
    ours = {name: column.clone() for name, column in compiled.collect().items()}
    theirs = eager.collect()
    # Only the first steps: rounding accumulates over spins, and decides which sample of the course is the nearest.
    for name, column in ours.items():
        rows, others = column[:4].flatten(1).double(), theirs[name][:4].flatten(1).double()
        assert ((rows - others).abs() > 1e-3).double().mean() < 0.01, name
    first, second = compiled.live_state(), eager.live_state()
    assert torch.equal(first["generator"], second["generator"]), "both drew the same numbers"
    again, _ = collector_of(settings_of(compile=True))
    assert again.load_state({name: tensor.to("cpu", copy=True) for name, tensor in first.items()}) == []
    ours = {name: column.clone() for name, column in compiled.collect().items()}
    assert all(torch.equal(column, ours[name]) for name, column in again.collect().items())
    assert method.policy_weights().is_cuda


def test_an_environment_of_ones_own_is_captured(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "manifests"))
    own = {"environment": "point_mass:PointMass"}
    eager, _ = collector_of(settings_of(cuda_graphs=False, **own))
    captured, _ = collector_of(settings_of(cuda_graphs=True, **own))
    for _ in range(3):
        ours = {name: column.clone() for name, column in captured.collect().items()}
        theirs = eager.collect()
        for name, column in ours.items():
            torch.testing.assert_close(column, theirs[name], atol=1e-5, rtol=1e-5)


def test_a_captured_rollout_goes_on_from_a_checkpoint():
    first, method = collector_of(settings_of())
    for _ in range(3):
        first.collect()
    saved = {name: tensor.to("cpu", copy=True) for name, tensor in first.live_state().items()}
    second, _ = collector_of(settings_of())
    second.collect()  # captured already: a state must reach the graph's own tensors and generator
    assert second.load_state(saved) == []
    ours = {name: column.clone() for name, column in first.collect().items()}
    theirs = second.collect()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert method.policy_weights().is_cuda


def test_copies_of_a_gpu_go_on_on_a_cpu_and_back():
    from runtime.rl.algos.plan import build, make_plan
    from runtime.rl.envs.registry import make_vector_env
    from runtime.rl.roles.device_collector import DeviceCollector

    settings = settings_of()
    on_card, _ = collector_of(settings)
    on_card.collect()
    env = make_vector_env("racing", 1, options={})
    plan = make_plan(settings, env.obs_space, env.action_space)
    on_host = DeviceCollector(settings, plan, 0, "cpu", build(plan, 0, "cpu").policy_weights)
    saved = {name: tensor.to("cpu", copy=True) for name, tensor in on_card.live_state().items()}
    (note,) = on_host.load_state(saved)
    assert "draws other numbers on cpu" in note
    first = on_host.collect()["obs"][0]
    torch.testing.assert_close(first, on_card.collect()["obs"][0].cpu(), atol=1e-4, rtol=1e-4)
    (note,) = on_card.load_state(on_host.live_state())
    assert "draws other numbers on cuda" in note


def test_ppo_learns_to_race_on_the_card():
    from runtime.rl.buffers.rollout_buffer import RolloutBatch

    ppo = {"epochs": 4, "minibatch_size": 4_096, "lr": 1e-3, "gamma": 0.98}
    collector, method = collector_of(settings_of(num_envs=1_024, segment_steps=16, ppo=ppo))
    for _ in range(60):
        method.update(RolloutBatch(**collector.collect()))
        fields = collector.metric_fields()
    assert fields["mean_progress"] > 150.0, fields
