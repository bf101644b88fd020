"""Racing on the device: cars alone, and cars, policy and PPO together; NumPy on one core beside it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from runtime.rl.algos.data_parallel import assemble
from runtime.rl.buffers.device_rollouts import DeviceRollouts
from runtime.rl.device.arrays import torch_arrays
from runtime.rl.device.captured import Captured
from runtime.rl.envs.registry import make_device_env, make_vector_env
from runtime.rl.roles.device_collector import DeviceCollector
from runtime.rl.roles.launch_context import environment_plan, make_environment
from runtime.rl.settings import from_mapping
from tests.bench.gpu.measuring import Bench, await_device, call_seconds, show

VIEW = {"observation": "view"}


def measure(bench: Bench) -> None:
    torch.set_num_threads(1)
    for cars, options in ((16, {}), (64, {}), (1_024, {}), (64, VIEW)):
        if bench.has_time(1.0, title := f"NumPy, one core, {cars:,} cars{view(options)}"):
            show(title, {"env steps/s": numpy_rate(cars, options)})
    sizes = ((4_096, {}), (65_536, {}), (4_096, VIEW), (32_768, VIEW))
    for cars, options in ((256, {}), (64, VIEW)) if bench.is_tiny else sizes:
        if bench.has_time(4.0, title := f"{bench.device}, {cars:,} cars{view(options)}, env steps/s"):
            figures = {
                name: device_rate(bench, cars, options, captures=name == "captured")
                for name in ("eager", "captured")
            }
            show(title, figures)
    for cars in (256,) if bench.is_tiny else (4_096, 16_384, 65_536):
        if bench.has_time(14.0, title := f"{bench.device}, {cars:,} cars, policy and PPO"):
            show(title, learn(bench, cars))


def view(options: dict[str, Any]) -> str:
    return " with a view" if options else ""


def numpy_rate(cars: int, options: dict[str, Any]) -> float:
    env = make_vector_env("racing", cars, options=options)
    env.reset(0)
    action = env.action_space.at_random(cars, np.random.default_rng(0)) * np.float32(0.2)
    return cars / call_seconds(lambda: env.step(action), "cpu", 0.4)


def device_rate(bench: Bench, cars: int, options: dict[str, Any], *, captures: bool) -> float:
    """Return env steps a second of cars that are stepped and observed, without a policy."""
    generator = torch.Generator(bench.device).manual_seed(0)
    env = make_device_env("racing", cars, options, torch_arrays(bench.device, generator))
    state = {name: tensor.clone() for name, tensor in env.state().items()}

    @torch.no_grad()
    def step(action: torch.Tensor) -> torch.Tensor:
        env.use_state(state)
        env.step(action)
        obs: torch.Tensor = env.observe()
        # In place: a graph begins each time with what it left in these tensors.
        for name, tensor in env.state().items():
            state[name].copy_(tensor)
        return obs

    action = (torch.rand(cars, 2, device=bench.device) - 0.3) * 0.3
    captured = Captured(step, action, generators=[generator], state=list(state.values()), enabled=captures)
    return cars / call_seconds(lambda: captured(captured.inputs[0]), bench.device, 0.4)


def learn(bench: Bench, cars: int, seconds: float = 12.0) -> dict[str, Any]:
    """Collect and update by turns as a learner does; rewards are a step's mean, early and at the end."""
    settings = from_mapping(
        {
            "environment": "racing",
            "collect": "device",
            "algorithm": "ppo",
            "num_envs": cars,
            "segment_steps": 16,
            "hidden": [128, 128],
            "ppo": {"epochs": 1, "minibatch_size": cars * 4, "lr": 1e-3, "gamma": 0.98, "entropy_cost": 0.0},
            "precision": "tf32" if bench.is_gpu else "float32",
        }
    )
    plan = environment_plan(settings, make_environment(settings, 1, {}))
    learner = assemble(plan, settings, 0, [bench.device])
    collector = DeviceCollector(settings, plan, 0, bench.device, learner.members[0].policy_weights)
    store = DeviceRollouts(plan.layout)
    rewards: list[torch.Tensor] = []

    def turn() -> None:
        store.offer(collector.collect())
        batch = store.take()
        assert batch is not None
        learner.update(batch)
        rewards.append(batch.reward.mean())

    for _ in range(3):
        turn()  # captures
    await_device(bench.device)
    rewards.clear()
    began = time.monotonic()
    turns = 0
    while time.monotonic() - began < (3.0 if bench.is_tiny else seconds):
        turn()
        turns += 1
        if turns % 50 == 0:
            await_device(bench.device)  # what is launched must not run ahead of the clock
    await_device(bench.device)
    passed = time.monotonic() - began
    curve = torch.stack(rewards).tolist()
    share = max(1, len(curve) // 10)
    return {
        "env steps/s": turns * collector.transitions / passed,
        "updates/s": turns / passed,
        "reward, first tenth": float(np.mean(curve[:share])),
        "last": float(np.mean(curve[-share:])),
    }
