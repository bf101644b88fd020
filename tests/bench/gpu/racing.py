"""Racing on the device: only cars, and cars, policy and PPO together.

A user-defined environment, manifests/point-mass.yaml, is learned there too.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runtime.base.metrics import Console
from runtime.base.signals import Stop
from runtime.base.training import from_mapping
from runtime.rl.algos.plan import assemble
from runtime.rl.buffers.rollout_buffer import DeviceRollouts
from runtime.rl.device.captured import Captured
from runtime.rl.device.compiled import CompiledEnv, Draws
from runtime.rl.envs.registry import make_device_env
from runtime.rl.roles import ranks
from runtime.rl.roles.device_collector import DeviceCollector, torch_arrays
from runtime.rl.roles.launch_context import environment_plan, make_environment
from tests.bench.gpu.measuring import Bench, await_device, call_seconds, show

VIEW = {"observation": "view"}
WAYS = ("eager", "captured", "compiled")


def measure(bench: Bench) -> None:
    torch.set_num_threads(1)
    sizes = ((65_536, {}), (32_768, VIEW))
    for cars, options in ((256, {}), (64, VIEW)) if bench.is_tiny else sizes:
        if bench.has_time(4.0, title := f"{bench.device}, {cars:,} cars{view(options)}, env steps/s"):
            # A size takes half a minute to compile; longer on a CPU, where the learner compiles nothing.
            ways = WAYS if cars == 65_536 and bench.has_time(34.0, title) else WAYS[:2]
            show(title, {way: device_rate(bench, cars, options, way) for way in ways})
    for cars, is_compiled in ((256, False),) if bench.is_tiny else ((65_536, True), (65_536, False)):
        title = f"{bench.device}, {cars:,} cars, {'compiled, ' if is_compiled else ''}policy and PPO"
        if bench.has_time(36.0 if is_compiled else 9.0, title):
            show(title, learn(bench, "racing", cars, is_compiled, 8.0))
    ranked(bench)
    sys.path.append(str(Path(__file__).parents[3] / "manifests"))
    for copies in (256,) if bench.is_tiny else (65_536, 262_144):
        if bench.has_time(15.0, title := f"{bench.device}, own environment, {copies:,} copies, policy and PPO"):
            show(title, learn(bench, "point_mass:PointMass", copies, "auto", 4.0))


def ranked(bench: Bench) -> None:
    """Print racing and PPO with the gradients of every step summed over a group of one rank, and without."""
    cars, seconds = (64, 3.0) if bench.is_tiny else (4_096, 4.0)
    if not bench.has_time(20.0, title := f"{bench.device}, {cars:,} cars, policy and PPO, one rank"):
        return
    with tempfile.TemporaryDirectory(prefix="l2r-ranks-") as folder:
        numbers = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        own = {ranks.STORE_VARIABLE: f"{folder}/store", **numbers}
        os.environ |= own
        try:
            with ranks.joined("cuda" if bench.is_gpu else "cpu", Stop(), Console()) as group:
                rates = {
                    name: learn(bench, "racing", cars, False, seconds, member)["updates/s"]
                    for name, member in (
                        ("updates/s without", None),
                        ("with NCCL" if bench.is_gpu else "gloo", group),
                    )
                }
        finally:
            for name in own:
                del os.environ[name]
    show(title, rates)


def view(options: dict[str, Any]) -> str:
    return " with a view" if options else ""


def device_rate(bench: Bench, cars: int, options: dict[str, Any], way: str) -> float:
    """Return env steps a second of cars that are stepped and observed, without a policy."""
    generator = torch.Generator(bench.device).manual_seed(0)
    draws = Draws(torch_arrays(bench.device, generator))
    env = make_device_env("racing", cars, options, draws.arrays)
    if way == "compiled":
        env = CompiledEnv(env, draws)
    state = {name: tensor.clone() for name, tensor in env.state().items()}

    @torch.no_grad()
    def step(action: torch.Tensor) -> torch.Tensor:
        env.use_state(state)
        env.step(action)
        obs: torch.Tensor = env.observe()
        # In place: a graph starts each time from the values it left in these tensors.
        for name, tensor in env.state().items():
            state[name].copy_(tensor)
        return obs

    action = (torch.rand(cars, 2, device=bench.device) - 0.3) * 0.3
    captured = Captured(step, action, generators=[generator], state=list(state.values()), enabled=way != "eager")
    return cars / call_seconds(lambda: captured(captured.inputs[0]), bench.device, 0.4)


def learn(
    bench: Bench,
    environment: str,
    cars: int,
    compiles: bool | str,
    seconds: float = 12.0,
    group: ranks.RankGroup | None = None,
) -> dict[str, Any]:
    """Collect and update in turns like a learner; rewards are a step's mean, early, at an equal number of
    updates, and at the end.
    """
    settings = from_mapping(
        {
            "environment": environment,
            "collect": "device",
            "compile": compiles,
            "algorithm": "ppo",
            "num_envs": cars,
            "segment_steps": 16,
            "hidden": [128, 128],
            "ppo": {"epochs": 1, "minibatch_size": cars * 4, "lr": 1e-3, "gamma": 0.98, "entropy_cost": 0.0},
            "precision": "tf32" if bench.is_gpu else "float32",
        }
    )
    plan = environment_plan(settings, make_environment(settings, 1, {}))
    learner = assemble(plan, settings, 0, bench.device)
    began = time.monotonic()
    collector = DeviceCollector(settings, plan, 0, bench.device, learner.policy_weights, print)
    made_seconds = time.monotonic() - began
    if group is not None:
        group.align(learner, collector)
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
            await_device(bench.device)  # launched work must not run ahead of the clock
    await_device(bench.device)
    passed = time.monotonic() - began
    curve = torch.stack(rewards).tolist()
    share = max(1, len(curve) // 10)
    return {
        "env steps/s": turns * collector.transitions / passed,
        "updates/s": turns / passed,
        "made in s": made_seconds,
        "reward, first tenth": float(np.mean(curve[:share])),
        "around update 200": float(np.mean(curve[180:220])) if len(curve) >= 220 else None,
        "last": float(np.mean(curve[-share:])),
    }
