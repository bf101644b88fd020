"""Env steps a second while learning, end to end: CartPole-v1, networks of 64x64, batches of 1,024 steps.

Ours are a learner and workers as processes over the real exchange, by IMPALA and by PPO. They are compared with
Stable-Baselines3's PPO, in a separate environment and in more than one arrangement of copies and threads. All take
one gradient step per batch (`--epochs` for more); rounds are interleaved, and starting up is not counted. The
learner's idle share (time without data) is taken from its records in the counted stretch. The examples of both
methods (`manifests/cartpole-*.yaml`) run in the same rounds, with all of their workers and the evaluator, and are
compared with ours of the same method and as many passes over each batch.

    python -m tests.bench.learning_speed [--sb3 PYTHON] [--rounds 5] [--seconds 8]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.bench.run_processes import RunProcesses

SB3 = {
    "SB3 PPO, 8 copies, 1 thread": "8 1",
    "SB3 PPO, 64 copies, 1 thread": "64 1",
    "SB3 PPO, 64 copies, 2 threads": "64 2",
}
"""Runs of `learning_speed_sb3.py`: name and first arguments."""
START_SECONDS = 6.0
"""Time for processes to start, in addition to the measured seconds."""
BATCH = 1_024
EXAMPLES = ("cartpole-impala", "cartpole-ppo")
"""Specs in manifests/."""
MANIFESTS = Path(__file__).parents[2] / "manifests"


@dataclass(frozen=True, slots=True)
class Ours:
    """One of our arrangements."""

    name: str
    workers: int
    settings: dict[str, Any]
    has_evaluator: bool = False


@dataclass(frozen=True, slots=True)
class Rate:
    """Result of one run."""

    steps_per_second: float
    idle_share: float | None = None


def ours(epochs: int) -> tuple[Ours, ...]:
    """IMPALA and PPO, both with waiting batches."""
    shape = {"num_envs": 64, "segment_steps": BATCH // 64}
    queue: dict[str, Any] = {"batch_steps": BATCH, "queue_batches": 4}
    impala = {**queue, "clip": 0.2, "epochs": epochs} if epochs > 1 else queue
    ppo = {**queue, "minibatch_size": BATCH, "epochs": epochs, "is_synchronous": False}
    passes = f", {epochs} passes" if epochs > 1 else ""
    return (
        Ours(f"l2rtui IMPALA, 1 worker of 64{passes}", 1, {**shape, "algorithm": "impala", "impala": impala}),
        Ours(f"l2rtui PPO, 1 worker of 64{passes}", 1, {**shape, "algorithm": "ppo", "ppo": ppo}),
    )


def tuned(example: Ours) -> Ours:
    """The arrangement that an example is compared with: the same method with its number of passes."""
    method = example.settings["algorithm"]
    epochs = example.settings[method].get("epochs", 1)
    return next(case for case in ours(epochs) if case.settings["algorithm"] == method)


def examples() -> tuple[Ours, ...]:
    """The examples as written, without their own limits."""
    cases = []
    for name in EXAMPLES:
        spec = yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text("utf-8"))
        settings = {key: value for key, value in spec["train"].items() if key != "total_env_steps"}
        workers = sum(worker_set["replicas"] for worker_set in spec["workers"])
        cases.append(Ours(name, workers, settings, "evaluator" in spec))
    return tuple(cases)


def run_ours(case: Ours, seconds: float) -> Rate:
    """Start learner and workers like a launcher, and read the learner's records."""
    settings = {
        "environment": "CartPole-v1",
        "hidden": [64, 64],
        "max_seconds": seconds + START_SECONDS,
        **case.settings,
    }
    with tempfile.TemporaryDirectory(prefix="l2r-") as name, RunProcesses(Path(name), settings) as run:
        run.start("learner")
        for index in range(case.workers):
            run.start("worker", index)
        if case.has_evaluator:
            run.start("evaluator")
        run.wait()
        records, output = run.records(), run.output("learner")
    # The last one belongs to the end; the first with steps to the start.
    kept = [each for each in records if each["env_steps"]][1:-1]
    if len(kept) < 2:
        raise SystemExit(f"{case.name}: too few records to tell; give it more --seconds\n{output[-2000:]}")
    first, last = kept[0], kept[-1]
    rate = (last["env_steps"] - first["env_steps"]) / (last["time"] - first["time"])
    return Rate(rate, statistics.mean(each["idle_share"] for each in kept[1:]))


def run_sb3(python: str, case: str, epochs: int, seconds: float) -> Rate:
    """Run Stable-Baselines3."""
    script = Path(__file__).with_name("learning_speed_sb3.py")
    command = [python, str(script), *case.split(), *map(str, (epochs, BATCH, seconds))]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"Stable-Baselines3 did not run: {done.stderr[-1000:]}")
    return Rate(float(json.loads(done.stdout.splitlines()[-1])["steps_per_second"]))


def main(arguments: list[str]) -> int:
    """Run the rounds and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sb3", metavar="PYTHON", help="of an environment with stable-baselines3 in it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--epochs", type=int, default=1, help="gradient steps on each batch, for everybody")
    options = parser.parse_args(arguments)
    found: dict[str, list[Rate]] = {}

    def note(name: str, rate: Rate) -> None:
        found.setdefault(name, []).append(rate)
        idle = "" if rate.idle_share is None else f"   idle {rate.idle_share:.1%}"
        print(f"  {name:38} {rate.steps_per_second:9,.0f} env steps/s{idle}", flush=True)

    compared = {example.name: tuned(example) for example in examples()}
    own = {case.name: case for case in (*ours(options.epochs), *compared.values(), *examples())}
    for number in range(options.rounds):
        print(f"round {number + 1}", flush=True)
        for case in own.values():
            note(case.name, run_ours(case, options.seconds))
        for name, case in SB3.items() if options.sb3 else ():
            note(name, run_sb3(options.sb3, case, options.epochs, options.seconds / 2))
    print(f"medians of {options.rounds} rounds")
    medians = {name: statistics.median(each.steps_per_second for each in rates) for name, rates in found.items()}
    peers = [rate for name, rate in medians.items() if name not in own]
    best = max(peers, default=float("nan"))
    for name, rate in medians.items():
        shares = [each.idle_share for each in found[name] if each.idle_share is not None]
        idle = f"   idle {statistics.median(shares):.1%}" if shares else ""
        print(f"  {name:38} {rate:9,.0f} env steps/s   {rate / best:5.2f} x the best peer{idle}")
    for name, case in compared.items():
        print(f"  {name}: {medians[name] / medians[case.name]:.2f} x {case.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
