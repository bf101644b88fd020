"""Ranks of a learner compared with one: returns at equal batches, updates for a CPU second, kills of ranks.

    python -m tests.bench.ranks curves [--ranks 1 2 4] [--seeds 0-4] [--draw]
    python -m tests.bench.ranks updates [--ranks 1 2 4] [--rounds 3]
    python -m tests.bench.ranks kills [--count 20] [--ranks 2] [--workers 0] [--nodes 1] [--how rank]

All start the learner's own command on CPUs. `curves` writes docs/learning-ranks.svg and docs/learning-ranks.jsonl;
a run that is in the records is not trained again. `updates` trains networks of a million parameters and counts the
CPU time of all processes of a learner. `kills` ends a random rank or node again and again; each time the run has
to go on, and its counts of segments have to agree.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from l2rtui.domain.placement import parse_seeds
from runtime.base import contract
from tests.bench.run_processes import RunProcesses

OWN: Final[dict[str, Any]] = {
    "environment": "CartPole-v1",
    "algorithm": "ppo",
    "collect": "device",
    "num_envs": 16,
    "segment_steps": 32,
    "hidden": [64, 64],
    "device": "cpu",
    "ppo": {"minibatch_size": 128, "epochs": 3},
}
LARGE: Final[dict[str, Any]] = OWN | {
    "num_envs": 256,
    "hidden": [700, 700],
    "ppo": {"minibatch_size": 4096, "epochs": 1},
}
"""Policy and value of 495,600 weights each; one gradient step an update is 8,192 rows."""
LONGEST_SECONDS: Final = 900.0
RECOVERY_SECONDS: Final = 30.0
RESUMED: Final = "resumed ckpt-"
COLOURS: Final = ("0.5", "C0", "C1", "C2")


@dataclass(frozen=True, slots=True)
class Point:
    """A record of a learner."""

    ranks: int
    seed: int
    env_steps: int
    mean_return: float


def until(what: str, condition: Callable[[], Any], seconds: float = LONGEST_SECONDS) -> Any:
    """Return the first true value of a condition. Exits if it takes longer."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            sys.exit(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)
    return value


# --- curves ----------------------------------------------------------------------------------------------------
def train(ranks: int, seed: int, env_steps: int) -> list[Point]:
    """Train one seed and return its records."""
    settings = OWN | {"devices": ranks, "total_env_steps": env_steps, "checkpoint_seconds": 600}
    with (
        tempfile.TemporaryDirectory(prefix="l2r-") as folder,
        RunProcesses(Path(folder), settings, seed=seed) as run,
    ):
        learner = run.start("learner")
        if learner.wait(LONGEST_SECONDS):
            sys.exit(f"{ranks} ranks, seed {seed}: {run.output('learner')[-2000:]}")
        records = [record for record in run.records() if record.get("mean_return") is not None]
    return [Point(ranks, seed, record["env_steps"], round(record["mean_return"], 1)) for record in records]


def curves(options: argparse.Namespace) -> None:
    """Train the missing seeds, draw and report."""
    records = options.out.with_suffix(".jsonl")
    points = [Point(**json.loads(line)) for line in records.read_text().splitlines()] if records.exists() else []
    for seed in () if options.draw else parse_seeds(options.seeds):
        for ranks in options.ranks:
            if not any((point.ranks, point.seed) == (ranks, seed) for point in points):
                points += train(ranks, seed, options.env_steps)
                records.write_text("".join(json.dumps(asdict(point)) + "\n" for point in points))
                print(f"{ranks} ranks, seed {seed}: {points[-1].mean_return}", flush=True)
    draw(points, options.out.with_suffix(".svg"))
    for ranks in sorted({point.ranks for point in points}):
        lines = lines_of(points, ranks)
        last, all_of_it = ([mean_of(line, begin) for line in lines] for begin in (0.8, 0.0))
        print(
            f"{ranks} ranks: mean return over the last fifth {statistics.fmean(last):.0f} "
            f"({min(last):.0f} to {max(last):.0f}), over the whole run {statistics.fmean(all_of_it):.0f} "
            f"({min(all_of_it):.0f} to {max(all_of_it):.0f})"
        )


def lines_of(points: list[Point], ranks: int) -> list[list[Point]]:
    """Return the records of each seed."""
    mine = [point for point in points if point.ranks == ranks]
    return [[point for point in mine if point.seed == seed] for seed in sorted({point.seed for point in mine})]


def value_at(line: list[Point], env_steps: float) -> float:
    """Return the return of a seed at a number of env steps, between its records."""
    before = next((point for point in reversed(line) if point.env_steps <= env_steps), line[0])
    after = next((point for point in line if point.env_steps >= env_steps), line[-1])
    span = after.env_steps - before.env_steps
    share = (env_steps - before.env_steps) / span if span else 0.0
    return before.mean_return + share * (after.mean_return - before.mean_return)


def mean_of(line: list[Point], begin: float) -> float:
    """Return the mean of a curve from a share of its env steps on."""
    last = line[-1].env_steps
    return statistics.fmean(value_at(line, last * (begin + (1 - begin) * part / 50)) for part in range(51))


def draw(points: list[Point], picture: Path) -> None:
    """Draw the return over env steps: a thin line per seed, a thick one for their mean."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "l2rtui"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for ranks, colour in zip(sorted({point.ranks for point in points}), COLOURS, strict=False):
        lines = lines_of(points, ranks)
        for line in lines:
            axes.plot(
                [point.env_steps / 1000 for point in line],
                [point.mean_return for point in line],
                color=colour,
                linewidth=0.6,
                alpha=0.5,
            )
        last = min(line[-1].env_steps for line in lines)
        steps = [last * part / 100 for part in range(101)]
        means = [statistics.fmean(value_at(line, step) for line in lines) for step in steps]
        label = f"{ranks} rank{'s' if ranks > 1 else ''}"
        axes.plot([step / 1000 for step in steps], means, color=colour, linewidth=2, label=label)
    axes.set(xlabel="thousand env steps", ylabel="mean return", title="PPO on CartPole at equal batches")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(picture, metadata={"Date": None})
    plt.close(figure)


# --- updates for a CPU second ----------------------------------------------------------------------------------
def processes_of(learner: psutil.Process) -> list[psutil.Process]:
    """Return a learner's process and its ranks."""
    return [learner, *learner.children(recursive=True)]


def cpu_seconds(learner: psutil.Process) -> float:
    """Return the CPU time so far of a learner and its ranks."""
    return sum(sum(process.cpu_times()[:2]) for process in processes_of(learner))


def updates_per_cpu_second(ranks: int, seconds: float) -> float:
    """Return the updates per CPU second of all processes of a learner, after its start."""
    settings = LARGE | {"devices": ranks, "checkpoint_seconds": 3600}
    with tempfile.TemporaryDirectory(prefix="l2r-") as folder, RunProcesses(Path(folder), settings, cpus=1) as run:
        learner = psutil.Process(run.start("learner").pid)
        used: list[tuple[int, float]] = []

        def updates() -> int:
            # Read together: a record is noticed within a poll of its update.
            records = run.records()
            return records[-1]["updates"] if records else 0

        first = until("first updates", lambda: (count := updates()) > 1 and count)
        used.append((first, cpu_seconds(learner)))
        time.sleep(seconds)
        known = updates()
        last = until("more updates", lambda: (count := updates()) > known and count)
        used.append((last, cpu_seconds(learner)))
    (begin, before), (end, after) = used
    return (end - begin) / (after - before)


def updates(options: argparse.Namespace) -> None:
    """Print the updates for a CPU second of each number of ranks, and their ratio to one."""
    rates: dict[int, list[float]] = {ranks: [] for ranks in options.ranks}
    for _ in range(options.rounds):
        for ranks in options.ranks:
            rates[ranks].append(updates_per_cpu_second(ranks, options.seconds))
            print(".", end="", file=sys.stderr, flush=True)
    print(f"\n{options.rounds} rounds; ratios to {options.ranks[0]} rank in the same round")
    for ranks, values in rates.items():
        ratios = [value / one for value, one in zip(values, rates[options.ranks[0]], strict=True)]
        print(
            f"  {ranks} ranks {statistics.median(values):6.2f} updates for a CPU second, "
            f"x {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


# --- kills -----------------------------------------------------------------------------------------------------
def check(record: Mapping[str, Any], transitions: int) -> None:
    """Exit unless the counts of a record agree with each other."""
    parts = sum(record[name] for name in ("accepted", "refused", "lost", "missing"))
    if record["sent"] != parts or record["accepted"] * transitions != record["learned_env_steps"]:
        sys.exit(f"these counts do not agree: {record}")


def kills(options: argparse.Namespace) -> None:
    """Let a random rank or node be lost again and again, and measure how long the run takes to go on."""
    choose = random.Random(options.seed)
    settings = OWN | {"devices": options.ranks, "checkpoint_seconds": 2.0}
    if options.workers:
        settings |= {"collect": "workers", "ppo": settings["ppo"] | {"batch_steps": 2048}}
    transitions = settings["num_envs"] * settings["segment_steps"]
    pauses, checked = [], 0
    with tempfile.TemporaryDirectory(prefix="l2r-") as folder, RunProcesses(Path(folder), settings) as run:
        peers = json.dumps({"learner": [f"ipc://{folder}/node-{index}" for index in range(options.nodes)]})

        def start(index: int) -> psutil.Process:
            variables = {contract.ENV_PEERS: peers, contract.ENV_SET: "learner"} if options.nodes > 1 else {}
            return psutil.Process(run.start("learner", index, **variables).pid)

        nodes = [start(index) for index in range(options.nodes)]
        for index in range(options.workers):
            run.start("worker", index)

        def ranks() -> list[psutil.Process]:
            children = (child for node in nodes for child in node.children(recursive=True))
            return [child for child in children if child.name().startswith("l2r rank ")]

        def lose() -> None:
            if options.how == "node":  # its launcher starts it again
                index = choose.randrange(len(nodes))
                nodes[index].kill()
                nodes[index] = start(index)
            elif options.how == "stop":
                choose.choice(until("ranks", ranks)).suspend()
            else:
                choose.choice(until("ranks", ranks)).kill()

        for kill in range(1, options.count + 1):
            known = run.output("learner").count("checkpoint ckpt-")
            until("a checkpoint", lambda known=known: run.output("learner").count("checkpoint ckpt-") > known)
            began = time.time()
            lose()
            until("a resume", lambda kill=kill: run.output("learner").count(RESUMED) == kill)

            def has_gone_on() -> bool:
                """Return True once a record has more env steps than the checkpoint from which the run resumed."""
                checkpoint, *lines = run.output("learner").rpartition(RESUMED)[2].splitlines()[:-1] or [""]
                records = [json.loads(line) for line in lines if line.startswith('{"l2r":"learner"')]
                resumed = int(checkpoint.partition(":")[0].rpartition("-")[2] or -1)
                return any(record["learned_env_steps"] > resumed for record in records)

            until("a record of new updates", has_gone_on)
            pauses.append(time.time() - began)
            records = run.records()
            for record in records[checked:]:
                check(record, transitions)
            checked = len(records)
            print(f"loss {kill}: goes on after {pauses[-1]:.1f} s", flush=True)
        for node in reversed(nodes):
            node.terminate()
        if nodes[0].wait(60) != 0:
            sys.exit(run.output("learner")[-2000:])
        check(run.records()[-1], transitions)
    late = sum(pause > RECOVERY_SECONDS for pause in pauses)
    print(
        f"{len(pauses)} losses: on after {statistics.median(pauses):.1f} s (longest {max(pauses):.1f}), "
        f"{late} after more than {RECOVERY_SECONDS:.0f} s; {checked} records with exact counts"
    )


def main(arguments: list[str]) -> None:
    """Run one of the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    part = parts.add_parser("curves")
    part.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    part.add_argument("--seeds", default="0-4", help="seeds, such as 0-4")
    part.add_argument("--env-steps", type=int, default=200_000)
    part.add_argument("--out", type=Path, default=Path("docs/learning-ranks"), help="files, without an ending")
    part.add_argument("--draw", action="store_true", help="only draw the records again")
    part.set_defaults(run=curves)
    part = parts.add_parser("updates")
    part.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    part.add_argument("--rounds", type=int, default=3)
    part.add_argument("--seconds", type=float, default=8.0)
    part.set_defaults(run=updates)
    part = parts.add_parser("kills")
    part.add_argument("--count", type=int, default=20)
    part.add_argument("--ranks", type=int, default=2)
    part.add_argument("--workers", type=int, default=0, help="0: the learner collects")
    part.add_argument("--nodes", type=int, default=1, help="of the learner, all on this machine")
    part.add_argument(
        "--how", choices=("rank", "stop", "node"), default="rank", help="kill a rank, stop one, or kill a node"
    )
    part.add_argument("--seed", type=int, default=1, help="of the choice of ranks")
    part.set_defaults(run=kills)
    options = parser.parse_args(arguments)
    options.run(options)


if __name__ == "__main__":
    main(sys.argv[1:])
