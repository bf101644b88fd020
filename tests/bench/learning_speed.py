"""Env steps a second while learning, end to end: CartPole-v1, networks of 64x64, batches of 1,024 steps.

Ours are a learner and workers as processes over the real exchange, by IMPALA and by PPO; beside them
Stable-Baselines3's PPO in an environment of its own, with 8 copies and with 64, one thread and two. Everybody takes
one gradient step a batch (`--epochs` for more); rounds are interleaved, starting up is not counted. The learner's
idle share (time without data) is that of its records in the counted stretch.

    python -m tests.bench.learning_speed --reference /path/to/venv/bin/python [--rounds 5] [--seconds 8]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime import contract

REFERENCE = Path(__file__).with_name("learning_speed_reference.py")
START_SECONDS = 6.0
"""Given to processes to start, over the seconds that are measured."""
BATCH = 1_024


@dataclass(frozen=True, slots=True)
class Ours:
    """One way in which we run it."""

    name: str
    workers: int
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rate:
    """What one run gave."""

    steps_per_second: float
    idle_share: float | None = None


def ours(epochs: int) -> tuple[Ours, ...]:
    """IMPALA with workers that never wait, and PPO in turns."""
    shape = {"num_envs": 64, "segment_steps": BATCH // 64}
    impala: dict[str, Any] = {"batch_steps": BATCH, "queue_batches": 4}
    if epochs > 1:
        impala |= {"clip": 0.2, "epochs": epochs}
    ppo = {"batch_steps": BATCH, "minibatch_size": BATCH, "epochs": epochs, "is_synchronous": False}
    return (
        Ours("l2rtui IMPALA, 1 worker of 64", 1, {**shape, "algorithm": "impala", "impala": impala}),
        Ours("l2rtui PPO, 1 worker of 64", 1, {**shape, "algorithm": "ppo", "ppo": ppo}),
    )


def run_ours(case: Ours, seconds: float) -> Rate:
    """Start learner and workers as a launcher does, and read the learner's records."""
    settings = {
        "environment": "CartPole-v1",
        "hidden": [64, 64],
        "max_seconds": seconds + START_SECONDS,
        **case.settings,
    }
    with tempfile.TemporaryDirectory(prefix="l2r-") as name:
        folder = Path(name)
        started = []
        for role, index in [("learner", 0), *(("worker", index) for index in range(case.workers))]:
            environ = {
                **{name: value for name, value in os.environ.items() if not name.startswith("L2R_")},
                contract.ENV_RUN: "speed",
                contract.ENV_RUN_ID: "speed-1",
                contract.ENV_POD: f"{role[0]}-{index}",
                contract.ENV_ROLE: role,
                contract.ENV_INDEX: str(index),
                contract.ENV_ENDPOINT: f"ipc://{folder}",
                contract.ENV_DIR: str(folder / "run"),
                contract.ENV_CONFIG: json.dumps(settings),
            }
            with (folder / f"{role}-{index}.log").open("wb") as output:
                command = [sys.executable, "-m", "runtime", role]
                started.append(subprocess.Popen(command, env=environ, stdout=output, stderr=subprocess.STDOUT))
        for each in started:
            each.wait()
        said = (folder / "learner-0.log").read_text()
    records = [json.loads(line) for line in said.splitlines() if line.startswith('{"l2r":"learner"')]
    # The last one is of the end; the first with steps is of the start.
    kept = [each for each in records if each["env_steps"]][1:-1]
    if len(kept) < 2:
        raise SystemExit(f"{case.name}: too few records to tell; give it more --seconds\n{said[-2000:]}")
    first, last = kept[0], kept[-1]
    rate = (last["env_steps"] - first["env_steps"]) / (last["time"] - first["time"])
    return Rate(rate, statistics.mean(each["idle_share"] for each in kept[1:]))


def run_reference(python: str, copies: int, threads: int, epochs: int, seconds: float) -> Rate:
    """Run Stable-Baselines3."""
    command = [python, str(REFERENCE), *map(str, (copies, threads, epochs, BATCH, seconds))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Rate(float(json.loads(done.stdout)["steps_per_second"]))


def main(arguments: list[str]) -> int:
    """Run the rounds and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", required=True, help="Python with Stable-Baselines3 in it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--epochs", type=int, default=1, help="gradient steps on each batch, for everybody")
    options = parser.parse_args(arguments)
    found: dict[str, list[Rate]] = {}

    def note(name: str, rate: Rate) -> None:
        found.setdefault(name, []).append(rate)
        idle = "" if rate.idle_share is None else f"   idle {rate.idle_share:.1%}"
        print(f"  {name:34} {rate.steps_per_second:9,.0f} env steps/s{idle}", flush=True)

    for number in range(options.rounds):
        print(f"round {number + 1}", flush=True)
        for case in ours(options.epochs):
            note(case.name, run_ours(case, options.seconds))
        for copies, threads in ((8, 1), (64, 1), (64, 2)):
            name = f"SB3 PPO, {copies} copies, {threads} thread{'s' * (threads > 1)}"
            note(name, run_reference(options.reference, copies, threads, options.epochs, options.seconds / 2))
    print(f"medians of {options.rounds} rounds")
    medians = {name: statistics.median(each.steps_per_second for each in rates) for name, rates in found.items()}
    best = max(rate for name, rate in medians.items() if name.startswith("SB3"))
    for name, rate in medians.items():
        shares = [each.idle_share for each in found[name] if each.idle_share is not None]
        idle = f"   idle {statistics.median(shares):.1%}" if shares else ""
        print(f"  {name:34} {rate:9,.0f} env steps/s   {rate / best:5.2f} x the best peer{idle}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
