"""Env steps a second, and a CPU second, while learning, end to end: CartPole-v1, networks of 64x64.

Ours are a learner and workers as processes over the real exchange, by IMPALA and by PPO. CPU seconds are those of
all processes, so a machine that others use too does not change them much. The limit is PPO in one process over a
vectorised environment, without an exchange. Stable-Baselines3's PPO is in a separate environment, in more than one
arrangement of copies and threads. All take one gradient step per 1,024 steps (`--epochs` for more); rounds are
interleaved, and starting up is not counted. The learner's idle share (time without data) is taken from its records
in the counted stretch. The examples of both methods (`manifests/cartpole-*.yaml`) run in the same rounds, with all
of their workers and the evaluator, and are compared with ours of the same method and as many passes over a batch.
`--costly` takes CartPole with a millisecond of work in each step instead, for PPO alone.

    python -m tests.bench.learning_speed [--sb3 PYTHON] [--rounds 5] [--seconds 8]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
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
BATCH = 1_024
LIMIT = "one process"
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
    steps_per_cpu_second: float
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


def costly() -> tuple[Ours, ...]:
    """PPO with one worker, and with four, on the environment that costs a millisecond; ten passes as is usual."""
    shape = {"environment": "tests.bench.learning_speed_alone:Costly-v0", "num_envs": 8, "segment_steps": 32}
    ppo = {"batch_steps": BATCH, "minibatch_size": 64, "epochs": 10}
    settings = {**shape, "algorithm": "ppo", "ppo": ppo}
    return (Ours("l2rtui PPO, 1 worker of 8", 1, settings), Ours("l2rtui PPO, 4 workers of 8", 4, settings))


def limits(epochs: int, *, is_costly: bool) -> dict[str, str]:
    """First words of `learning_speed_alone.py` for each arrangement in one process."""
    if is_costly:
        return {f"{LIMIT}, 8 copies": f"Costly-v0 8 {BATCH} 64 10"}
    return {
        f"{LIMIT}, 64 copies": f"CartPole-v1 64 {BATCH} {BATCH} {epochs}",
        f"{LIMIT} as cartpole-ppo": "CartPole-v1 128 4096 512 3",
    }


def limit_of(name: str, epochs: int, *, is_costly: bool) -> str:
    """Return the arrangement in one process that passes over its batches as often as a case."""
    first, *others = limits(epochs, is_costly=is_costly)
    return others[0] if others and (name.startswith(EXAMPLES) or "passes" in name or name == others[0]) else first


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
    settings = {"environment": "CartPole-v1", "hidden": [64, 64], **case.settings}
    with tempfile.TemporaryDirectory(prefix="l2r-") as name, RunProcesses(Path(name), settings, cpus=1) as run:
        run.start("learner")
        for index in range(case.workers):
            run.start("worker", index)
        if case.has_evaluator:
            run.start("evaluator")
        first, before = next_record(run, 2)  # the first one with steps belongs to the start
        time.sleep(seconds)
        last, after = next_record(run, len(kept_records(run)) + 1)
        idle = [each["idle_share"] for each in kept_records(run)[2:]]
    steps = last["env_steps"] - first["env_steps"]
    rate = steps / (last["time"] - first["time"])
    return Rate(rate, steps / (after - before), statistics.mean(idle))


def kept_records(run: RunProcesses) -> list[dict[str, Any]]:
    """Return the learner's records with env steps."""
    return [each for each in run.records() if each["env_steps"]]


def next_record(run: RunProcesses, number: int) -> tuple[dict[str, Any], float]:
    """Wait for so many records; return the newest, and the CPU seconds of all processes at that moment."""
    while len(records := kept_records(run)) < number:
        if run.started[0].poll() is not None:
            raise SystemExit(f"the learner ended:\n{run.output('learner')[-2000:]}")
        time.sleep(0.02)
    return records[-1], run.cpu_seconds()


def run_peer(python: str, script: str, words: list[str]) -> Rate:
    """Run a program that prints its rate."""
    command = [python, str(Path(__file__).with_name(script)), *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{script} did not run: {done.stderr[-1000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Rate(found["steps_per_second"], found["steps_per_cpu_second"])


def main(arguments: list[str]) -> int:
    """Run the rounds and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sb3", metavar="PYTHON", help="of an environment with stable-baselines3 in it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--epochs", type=int, default=1, help="gradient steps on each batch, for everybody")
    parser.add_argument("--only", help="cases whose name contains this, and the limits")
    parser.add_argument("--costly", action="store_true", help="an environment of 1 ms a step")
    options = parser.parse_args(arguments)
    found: dict[str, list[Rate]] = {}

    def note(name: str, rate: Rate) -> None:
        found.setdefault(name, []).append(rate)
        print(f"  {name:40} {text(rate)}", flush=True)

    compared = {} if options.costly else {example.name: tuned(example) for example in examples()}
    cases = costly() if options.costly else (*ours(options.epochs), *compared.values(), *examples())
    own = {case.name: case for case in cases if options.only is None or options.only in case.name}
    for number in range(options.rounds):
        print(f"round {number + 1}", flush=True)
        for case in own.values():
            note(case.name, run_ours(case, options.seconds))
        for name, words in limits(options.epochs, is_costly=options.costly).items():
            note(name, run_peer(sys.executable, "learning_speed_alone.py", [*words.split(), str(options.seconds)]))
        for name, case in SB3.items() if options.sb3 and not options.costly else ():
            words = [*case.split(), *map(str, (options.epochs, BATCH, options.seconds / 2))]
            note(name, run_peer(options.sb3, "learning_speed_sb3.py", words))
    print(f"medians of {options.rounds} rounds")
    medians = {name: median(rates) for name, rates in found.items()}
    for name, rate in medians.items():
        limit = medians[limit_of(name, options.epochs, is_costly=options.costly)].steps_per_cpu_second
        print(f"  {name:40} {text(rate)}   {rate.steps_per_cpu_second / limit:5.2f} x one process by CPU")
    for name, case in compared.items():
        if name in medians and case.name in medians:
            ratio = medians[name].steps_per_second / medians[case.name].steps_per_second
            print(f"  {name}: {ratio:.2f} x {case.name}")
    return 0


def median(rates: list[Rate]) -> Rate:
    """Return the median of each figure."""
    shares = [rate.idle_share for rate in rates if rate.idle_share is not None]
    return Rate(
        statistics.median(rate.steps_per_second for rate in rates),
        statistics.median(rate.steps_per_cpu_second for rate in rates),
        statistics.median(shares) if shares else None,
    )


def text(rate: Rate) -> str:
    """Return the figures as text."""
    idle = "" if rate.idle_share is None else f"   idle {rate.idle_share:.1%}"
    return f"{rate.steps_per_second:9,.0f} env steps/s {rate.steps_per_cpu_second:9,.0f} a CPU second{idle}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
