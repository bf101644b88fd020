"""Racing on a learner's device compared with workers: env steps a second, and PPO's progress at equal env steps.

    python -m tests.bench.racing_device [--device cuda] [--seeds 0-4] [--env-steps 400000] [--out FILES] [--draw]

Both learn in one process from batches of one size, and are evaluated by one lap from the start line: rollouts of
the device's copies in tensors, and those of NumPy's copies with the policy in NumPy, like in workers. Writes
docs/learning-device.svg and docs/learning-device.jsonl; a seed that is in the records is not trained again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch

from l2rtui.domain.placement import parse_seeds
from runtime.base.training import Settings, from_mapping
from runtime.rl.algos.actor import NumpyActor
from runtime.rl.algos.plan import Plan, build, make_plan
from runtime.rl.algos.ppo import PPO
from runtime.rl.buffers.rollout_buffer import RolloutBatch
from runtime.rl.envs.registry import make_vector_env
from runtime.rl.roles.device_collector import DeviceCollector
from tests.bench.racing import drive, evaluation_env

PPO_SETTINGS = {"epochs": 4, "minibatch_size": 2_048, "lr": 1e-3, "gamma": 0.98}
BATCHES_PER_POINT = 4
Collect = Callable[[], RolloutBatch]


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation: metres of a lap from the line, and the lap's time if it was a clean one."""

    by: str
    seed: int
    env_steps: int
    seconds: float
    progress_metres: float
    lap_seconds: float | None


def settings_of(num_envs: int, steps: int) -> Settings:
    ppo = {**PPO_SETTINGS, "minibatch_size": min(PPO_SETTINGS["minibatch_size"], num_envs * steps)}
    own = {"collect": "device", "algorithm": "ppo", "num_envs": num_envs, "segment_steps": steps, "ppo": ppo}
    return from_mapping(own)


def plan_of(settings: Settings) -> Plan:
    env = make_vector_env("racing", 1, options={})
    return make_plan(settings, env.obs_space, env.action_space)


def device_rollouts(settings: Settings, plan: Plan, method: PPO, seed: int, device: str) -> Collect:
    """Rollouts of a learner's own copies."""
    collector = DeviceCollector(settings, plan, seed, device, method.policy_weights)
    return lambda: RolloutBatch(**collector.collect())


def numpy_rollouts(settings: Settings, plan: Plan, method: PPO, seed: int, device: str) -> Collect:
    """Rollouts like in workers: NumPy's copies, the policy in NumPy, then tensors."""
    env, actor = make_vector_env("racing", settings.num_envs, options={}), NumpyActor(plan.shape)
    rng = np.random.default_rng(seed)
    obs = env.reset(seed)

    def collect() -> RolloutBatch:
        nonlocal obs
        actor.load(method.actor_arena())
        names = [field.name for field in fields(RolloutBatch) if field.default is MISSING]
        rows: dict[str, list[np.ndarray]] = {name: [] for name in names}
        for _ in range(settings.segment_steps):
            action, log_prob = actor.draw_with_log_prob(actor.outputs(obs), rng)
            result = env.step(action)
            ended = (result.terminated + 2 * result.truncated).astype(np.uint8)
            step = (
                obs,
                action.astype(np.float32),
                log_prob.astype(np.float32),
                result.reward,
                result.final_obs,
                ended,
            )
            for name, value in zip(rows, step, strict=True):
                rows[name].append(value)
            obs = result.obs
        return RolloutBatch(**{name: torch.from_numpy(np.stack(values)) for name, values in rows.items()}).to(
            device
        )

    return collect


def train(by: str, seed: int, env_steps: int, device: str) -> Iterator[Point]:
    """Train PPO with one seed and yield evaluations."""
    settings = settings_of(256, 32)
    plan = plan_of(settings)
    method = build(plan, seed, device)
    assert isinstance(method, PPO)
    make = device_rollouts if by == "device" else numpy_rollouts
    collect = make(settings, plan, method, seed, device)
    track, actor = evaluation_env("harbour"), NumpyActor(plan.shape)
    taken, began, paused = 0, time.process_time(), 0.0
    while taken < env_steps:
        for _ in range(BATCHES_PER_POINT):
            method.update(collect())
            taken += settings.segment_transitions
        paused -= time.process_time()
        actor.load(method.actor_arena())
        episode = drive(track, lambda obs: actor.act(obs, None))
        paused += time.process_time()
        is_clean = episode.laps > 0 and not episode.left_track
        lap = episode.steps * track.step_seconds if is_clean else None
        seconds = time.process_time() - began - paused
        yield Point(by, seed, taken, round(seconds, 2), round(episode.progress_metres, 1), lap)


def rates(device: str, sizes: tuple[int, ...]) -> None:
    """Print env steps a second of rollouts by the policy: on the device, and in NumPy on one core."""
    print(f"env steps/s by a policy of 64 x 64    {device:>12}        NumPy")
    for size in sizes:
        settings = settings_of(size, 16)
        plan = plan_of(settings)
        method = build(plan, 0, device)
        assert isinstance(method, PPO)
        both = []
        for make in (device_rollouts, numpy_rollouts):
            collect, count = make(settings, plan, method, 0, device), 0
            collect().reward.sum().item()
            began = time.perf_counter()
            while (seconds := time.perf_counter() - began) < 2.0:
                collect().reward.sum().item()  # waits for the device
                count += 1
            both.append(count * settings.segment_transitions / seconds)
        print(f"{size:8,} cars {both[0]:37,.0f} {both[1]:12,.0f}  x {both[0] / both[1]:.2f}", flush=True)


def draw(points: list[Point], picture: Path) -> None:
    """Draw progress over env steps, a thin line per seed."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "l2rtui"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for by, colour in (("workers", "0.6"), ("device", "C0")):
        mine = [point for point in points if point.by == by]
        for number, seed in enumerate(sorted({point.seed for point in mine})):
            line = [point for point in mine if point.seed == seed]
            steps = [point.env_steps / 1000 for point in line]
            axes.plot(
                steps,
                [point.progress_metres for point in line],
                color=colour,
                linewidth=1,
                label=None if number else by,
            )
            clean = [point for point in line if point.lap_seconds]
            axes.plot(
                [p.env_steps / 1000 for p in clean],
                [p.progress_metres for p in clean],
                "o",
                color=colour,
                markersize=3,
            )
    axes.set(
        xlabel="thousand env steps", ylabel="progress from the line, m", title="PPO races: dots are clean laps"
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(picture, metadata={"Date": None})
    plt.close(figure)


def report(points: list[Point]) -> None:
    """Print when each seed drove its first clean lap."""
    for by in ("workers", "device"):
        mine = [point for point in points if point.by == by]
        firsts = []
        for seed in sorted({point.seed for point in mine}):
            first = next((point for point in mine if point.seed == seed and point.lap_seconds), None)
            firsts.append(f"{first.env_steps:,} ({first.seconds:.0f} CPU s)" if first else "none")
        print(f"{by:8} env steps until a clean lap: {', '.join(firsts)}")


def main(arguments: list[str]) -> int:
    """Measure rates, train missing seeds, draw and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", default="0-4", help="seeds, such as 0-4")
    parser.add_argument("--env-steps", type=int, default=400_000)
    parser.add_argument("--sizes", default="256,1024,4096", help="cars for the rates; empty measures none")
    parser.add_argument(
        "--out", type=Path, default=Path("docs/learning-device"), help="files to write, without an ending"
    )
    parser.add_argument("--draw", action="store_true", help="only draw the records again")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    records = options.out.with_suffix(".jsonl")
    points = [Point(**json.loads(line)) for line in records.read_text().splitlines()] if records.exists() else []
    if not options.draw and options.sizes:
        rates(options.device, tuple(int(size) for size in options.sizes.split(",")))
    for seed in () if options.draw else parse_seeds(options.seeds):
        for by in ("workers", "device"):
            if not any((point.by, point.seed) == (by, seed) for point in points):
                points += train(by, seed, options.env_steps, options.device)
                records.write_text("".join(json.dumps(asdict(point)) + "\n" for point in points))
                print(f"seed {seed} by {by}: {points[-1]}", flush=True)
    draw(points, options.out.with_suffix(".svg"))
    report(points)
    return 0


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
