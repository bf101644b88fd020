"""Cost of the checks at the border to foreign environments, as a share of the time of a worker's steps.

Each part is timed alone, in many short turns of which the quickest counts: the checks cost less than the noise of a
machine that others use. A step is that of a worker's rollout: it acts by its network and steps the copies.

    python -m tests.bench.env_checks --seconds 20
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from runtime.base.training import from_mapping
from runtime.rl.algos.actor import NumpyActor
from runtime.rl.envs.gym import GymVectorEnv
from runtime.rl.envs.gym_spaces import FIRST_STEPS, SAMPLED, step_values
from runtime.rl.roles.launch_context import environment_plan
from runtime.rl.roles.rollout import Rollout

STEPS = 64
CASES = (("CartPole-v1", 1), ("CartPole-v1", 16), ("Acrobot-v1", 8), ("Pendulum-v1", 8))


def main(arguments: list[str]) -> int:
    """Measure every case and print its ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each case")
    options = parser.parse_args(arguments)
    print(f"{'environment':14} {'copies':>6} {'step, us':>10} {'checks, us':>11} {'share':>8}")
    for name, copies in CASES:
        step, checks = measure(name, copies, options.seconds)
        print(f"{name:14} {copies:6} {1e6 * step:10.1f} {1e6 * checks:11.2f} {100 * checks / step:6.2f} %")
    return 0


def measure(name: str, copies: int, seconds: float) -> tuple[float, float]:
    """Return the seconds of a step of all copies, and those of its checks."""
    env = GymVectorEnv(name, copies, {"check_bounds": True})
    training = from_mapping({"environment": name, "algorithm": "sac", "num_envs": copies, "segment_steps": STEPS})
    plan = environment_plan(training, env)
    actor, rng = NumpyActor(plan.shape), np.random.default_rng(0)
    rollout = Rollout(env, plan.layout, STEPS, 0)

    def act(obs: Any) -> tuple[Any, None]:
        return actor.draw(actor.outputs(obs), rng), None

    def segment() -> None:
        while rollout.step(act, 1) is None:
            pass

    step = quickest(segment, seconds / 2)
    first = env.envs[0]
    first.reset()
    result = first.step(env._act(env.action_space.at_random(1, rng)[0]))
    observations, rows = [result[0]] * copies, env._rows
    (part,) = rows._parts
    for _ in range(FIRST_STEPS):
        rows.read(observations)
    parts: tuple[tuple[Callable[[], Any], Callable[[], Any], int], ...] = (
        (lambda: rows.read(observations), lambda: part.convert(part.gathered(observations)), 1),
        (lambda: step_values(result, name, "copy 0"), lambda: tuple(result), copies),
    )
    assert STEPS % SAMPLED == 0, "a turn has its share of full comparisons"
    checks = 0.0
    for checked, bare, count in parts:
        with_checks, without = (
            quickest(lambda work=work: [work() for _ in range(STEPS)], seconds / 8) for work in (checked, bare)
        )
        checks += count * (with_checks - without)
    env.close()
    return step, checks


def quickest(turn: Callable[[], Any], seconds: float) -> float:
    """Return the CPU seconds of a step in the quickest turn."""
    turns, deadline = [], time.monotonic() + seconds
    while not turns or time.monotonic() < deadline:
        began = time.thread_time()
        turn()
        turns.append(time.thread_time() - began)
    return min(turns) / STEPS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
