"""Stepping rate of the racing environment, and learning speed of SAC on it, in CPU seconds of one core.

    python -m tests.bench.racing [--seeds 3] [--cpu-seconds 120] [--track harbour] [--records FILE]

One process does the work that a run spreads over many: step, store, update, evaluate. Evaluation (one lap from the
start line, without noise) is not counted. Gymnasium's own vector CartPole is stepped in the same run, as a measure
of the machine. ``--records`` saves the curve as JSON lines.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import gymnasium
import numpy as np
import torch

from runtime.base.methods import SACConfig
from runtime.base.presets import RACING
from runtime.rl.algos.actor import ActorShape, NumpyActor
from runtime.rl.algos.off_policy.sac import SAC
from runtime.rl.buffers.replay import Replay, transition_layout
from runtime.rl.buffers.ring_index import TERMINATED, TRUNCATED
from runtime.rl.envs.base import EpisodeSummary, VectorEnv
from runtime.rl.envs.registry import make_vector_env


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings of one curve."""

    track: str
    seed: int
    cpu_seconds: float
    num_envs: int = 64
    updates_per_env_step: float = 1 / 32
    warm_up_steps: int = 5_000
    publish_every: int = 50
    """Updates for which the acting policy is kept, like in workers."""
    capacity: int = 500_000
    evaluate_every: float = 5.0
    """CPU seconds of training."""


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation."""

    seed: int
    cpu_seconds: float
    updates: int
    env_steps: int
    progress_metres: float
    lap_seconds: float | None
    """Time of a clean lap, or None."""
    train_return: float
    left_track_share: float
    """Of the latest 100 training episodes."""


def steps_per_second(step: Callable[[], object], num_envs: int, seconds: float = 1.0) -> float:
    """Environment steps per CPU second of ``step``, which advances ``num_envs`` copies by one."""
    for _ in range(20):
        step()
    calls, start = 0, time.process_time()
    while (spent := time.process_time() - start) < seconds:
        for _ in range(20):
            step()
        calls += 20
    return calls * num_envs / spent


def racing_rate(num_envs: int) -> float:
    env = make_vector_env("racing", num_envs, options={})
    env.reset(0)
    action = env.action_space.at_random(num_envs, np.random.default_rng(0))
    return steps_per_second(lambda: env.step(action), num_envs)


def cartpole_rate(num_envs: int) -> float:
    env = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")
    env.reset(seed=0)
    action = np.random.default_rng(0).integers(0, 2, num_envs)
    rate = steps_per_second(lambda: env.step(action), num_envs)
    env.close()
    return rate


def print_speed() -> None:
    print("env steps/s on one core        batch 16   batch 64")
    rates: dict[str, list[float]] = {"racing": [], "gymnasium vector CartPole": []}
    for num_envs in (16, 64):
        rates["racing"].append(racing_rate(num_envs))
        rates["gymnasium vector CartPole"].append(cartpole_rate(num_envs))
    for name, (small, large) in rates.items():
        print(f"{name:28} {small:10,.0f} {large:10,.0f}")


def drive(env: VectorEnv, act: Callable[[np.ndarray], np.ndarray]) -> EpisodeSummary:
    """One episode of the one copy in ``env``."""
    obs = env.reset(0)
    while True:
        result = env.step(act(obs))
        obs = result.obs
        if result.episodes:
            return result.episodes[0]


def evaluation_env(track: str) -> VectorEnv:
    return make_vector_env("racing", 1, options={"track": track, "start": "line", "laps": 1, "max_seconds": 180.0})


def random_progress(track: str, episodes: int = 20) -> float:
    """Mean metres of the uniformly random policy."""
    rng = np.random.default_rng(0)
    env = evaluation_env(track)

    def act(obs: np.ndarray) -> np.ndarray:
        return env.action_space.at_random(len(obs), rng)

    return float(np.mean([drive(env, act).progress_metres for _ in range(episodes)]))


def curve(trial: Trial, config: SACConfig) -> Iterator[Point]:
    """Train, and yield periodic evaluations."""
    env = make_vector_env("racing", trial.num_envs, options={"track": trial.track})
    judge = evaluation_env(trial.track)
    shape = ActorShape.of(env.obs_space, env.action_space, config.hidden, head="squashed")
    sac = SAC(shape, config, trial.seed)
    replay = Replay(trial.capacity, transition_layout(env.obs_space, env.action_space), trial.seed)
    actor = NumpyActor(sac.shape)
    rng = np.random.default_rng(trial.seed)
    latest: deque[EpisodeSummary] = deque(maxlen=100)
    obs = env.reset(trial.seed)
    actor.load(sac.actor_arena())
    env_steps, published, spent, next_evaluation = 0, 0, 0.0, trial.evaluate_every
    while spent < trial.cpu_seconds:
        start = time.process_time()
        if env_steps < trial.warm_up_steps:
            action = env.action_space.at_random(trial.num_envs, rng)
        else:
            action = actor.act(obs, rng)
        result = env.step(action)
        # Every truncated transition has its final observation after the last one of every copy.
        ended = np.where(result.terminated, TERMINATED, TRUNCATED * result.truncated).astype(np.uint8)
        tail = np.concatenate([result.final_obs, result.final_obs[ended == TRUNCATED]])
        replay.put((obs, action, result.reward, ended, tail))
        obs = result.obs
        latest.extend(result.episodes)
        env_steps += trial.num_envs
        owed = (env_steps - trial.warm_up_steps) * trial.updates_per_env_step
        while sac.updates < owed:
            sac.update(replay.sample(config.batch_size))
        if sac.updates >= published + trial.publish_every:
            actor.load(sac.actor_arena())
            published = sac.updates
        spent += time.process_time() - start
        if spent >= next_evaluation and sac.updates:
            next_evaluation = spent + trial.evaluate_every
            episode = drive(judge, lambda obs: actor.act(obs, None))
            is_clean = episode.laps > 0 and not episode.left_track
            yield Point(
                trial.seed,
                round(spent, 1),
                sac.updates,
                env_steps,
                episode.progress_metres,
                episode.steps * judge.step_seconds if is_clean else None,
                float(np.mean([e.return_ for e in latest])) if latest else 0.0,
                float(np.mean([e.left_track for e in latest])) if latest else 0.0,
            )


def run_trial(trial: Trial, config: SACConfig, baseline: float, records: Path | None) -> str:
    """Print the curve of one seed and return its summary line."""
    beaten: float | None = None
    first: float | None = None
    points = []
    for point in curve(trial, config):
        points.append(point)
        if beaten is None and point.progress_metres > 5 * baseline:
            beaten = point.cpu_seconds
        if first is None and point.lap_seconds is not None:
            first = point.cpu_seconds
        lap = f"lap {point.lap_seconds:5.1f} s" if point.lap_seconds else "          "
        print(
            f"  {point.cpu_seconds:6.1f} s  {point.updates:7,} updates  {point.env_steps:9,} steps  "
            f"{point.progress_metres:6.0f} m  {lap}  return {point.train_return:6.1f}  "
            f"off track {point.left_track_share:4.0%}",
            flush=True,
        )
        if records:
            with records.open("a") as file:
                file.write(json.dumps(asdict(point)) + "\n")
    after = [point.lap_seconds for point in points if first is not None and point.cpu_seconds >= first]
    laps = [seconds for seconds in after if seconds is not None]
    best = f"{min(laps):.1f} s" if laps else "none"
    return (
        f"seed {trial.seed}: 5x random after {beaten} s, first clean lap after {first} s, "
        f"{len(laps)} of {len(after)} evaluations since were clean laps, best {best}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.racing", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--cpu-seconds", type=float, default=120.0)
    parser.add_argument("--track", default="harbour")
    parser.add_argument(
        "--updates-per-env-step", type=float, default=Trial.__dataclass_fields__["updates_per_env_step"].default
    )
    parser.add_argument("--capacity", type=int, default=500_000)
    parser.add_argument("--sac", type=json.loads, default={}, help='JSON of SAC settings, e.g. {"gamma": 0.99}')
    parser.add_argument("--records", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print_speed()
    baseline = random_progress(args.track)
    print(f"{args.track}: the random policy makes {baseline:.1f} m")
    config = SACConfig.read({**RACING["sac"], **args.sac})
    summaries = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        print(f"seed {seed}")
        trial = Trial(
            args.track,
            seed,
            args.cpu_seconds,
            updates_per_env_step=args.updates_per_env_step,
            capacity=args.capacity,
        )
        summaries.append(run_trial(trial, config, baseline, args.records))
    print("\n".join(summaries))


if __name__ == "__main__":
    main()
