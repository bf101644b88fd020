"""Learning curves of the examples with several seeds each, and of other libraries for comparison.

Ours use the program's own commands: `l2rtui launch`, the learner's records from `l2rtui logs`, `l2rtui destroy`.
The reference is Stable-Baselines3 in a separate environment (it is not a dependency of this project), with the same
settings as far as it has them. Writes a picture, and every record's env steps and returns as JSON lines; a run that
is already in the records is not run again.

    python -m tests.bench.learning --seeds 0-4 [--reference PYTHON] [--only cartpole-ppo]

    python3 -m venv sb3 && sb3/bin/pip install stable-baselines3                      # PYTHON is sb3/bin/python
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from l2rtui.domain.placement import parse_seeds

PROGRAM = [sys.executable, "-m", "l2rtui"]
HERE = ["--backend", "local"]
DOCS = Path("docs")
RECORDS = DOCS / "learning-methods.jsonl"
PICTURE = DOCS / "learning-methods.svg"
REFERENCE = Path(__file__).with_name("learning_reference.py")
MOST_SECONDS = 1_800
RECORD_STEPS = 1_000
LATE_SHARE = 0.2
"""Last part of the env steps over which a seed's records are averaged: one evaluation of a method that swings is
not representative.
"""


@dataclass(frozen=True, slots=True)
class Example:
    """A spec, the required returns, and the reference for it."""

    name: str
    threshold: float
    measure: str = "mean_return"
    """Field of a learner's record: of the latest 100 training episodes, or `eval_return` of the evaluator's latest,
    without exploration, if a run has hardly 100 episodes. The reference measures the same.
    """
    reference: str | None = None
    spec: str = ""
    """Manifest to launch, if it has another name."""
    sets: tuple[str, ...] = ()
    """Overrides of the spec."""


CONTINUOUS_PPO = (
    *("train.total_env_steps=200704", "train.ppo.batch_steps=2048", "train.segment_steps=512"),
    *("train.ppo.lr=0.0003", "train.ppo.anneal_updates=98", "train.ppo.gamma=0.99"),
)
"""Settings of CleanRL's ppo_continuous_action.py with four copies of the environment, whose returns are in the
records.
"""
LUNAR_LANDER = (
    *("train.environment=LunarLander-v3", "train.hidden=[256, 256]", "train.total_env_steps=100000"),
    *("train.num_envs=4", "train.updates_per_step=1", "train.replay_capacity=50000"),
)
"""For methods with a replay, after rl-baselines3-zoo's DQN."""
EXAMPLES = (
    Example("cartpole-ppo", 475.0, reference="PPO"),
    Example("cartpole-impala", 475.0),
    Example("cartpole-sac", 475.0, "eval_return"),
    Example("cartpole-dqn", 475.0, "eval_return", "DQN"),
    Example("pendulum-sac", -200.0, "eval_return", "SAC"),
    Example("pendulum-td3", -200.0, "eval_return", "TD3"),
    Example("pendulum-ppo", -200.0, reference="PPO"),
    Example(
        "lunar-lander-ppo",
        0.0,
        reference="PPO",
        spec="pendulum-ppo",
        sets=("train.environment=LunarLander-v3", "train.environment_options={continuous: true}", *CONTINUOUS_PPO),
    ),
    Example(
        "half-cheetah-ppo",
        500.0,
        reference="PPO",
        spec="pendulum-ppo",
        sets=("train.environment=HalfCheetah-v5", *CONTINUOUS_PPO),
    ),
    Example(
        "lunar-lander-dqn",
        0.0,
        "eval_return",
        reference="DQN",
        spec="cartpole-dqn",
        sets=(*LUNAR_LANDER, "train.dqn.target_updates=250", "train.dqn.exploration_updates=12000"),
    ),
    Example("lunar-lander-sac", 0.0, "eval_return", spec="cartpole-sac", sets=LUNAR_LANDER),
)
PANELS_A_ROW = 3
PARTIES = {
    "reference": ("Stable-Baselines3", "0.55"),
    "cleanrl": ("CleanRL", "C1"),
    "l2rtui": ("l2rtui", "C0"),
}
"""Label and colour of each `Point.by`."""


@dataclass(frozen=True, slots=True)
class Point:
    """One record; `mean_return` is the example's measure."""

    example: str
    by: str
    seed: int
    env_steps: int
    seconds: float
    mean_return: float


def main(arguments: list[str]) -> int:
    """Train, record, draw, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-4", help="seeds, such as 0-4")
    parser.add_argument("--reference", metavar="PYTHON", help="Python with Stable-Baselines3 in it")
    parser.add_argument("--steps", type=int, help="end each run after so many env steps, before its spec does")
    parser.add_argument("--only", choices=[each.name for each in EXAMPLES], action="append")
    parser.add_argument("--records", type=Path, default=RECORDS, help="where the records are kept")
    parser.add_argument("--picture", type=Path, help=f"the curves, by default {PICTURE} for its own records")
    parser.add_argument("--draw", action="store_true", help="only draw the records again")
    options = parser.parse_args(arguments)
    points = read(options.records)
    for example in EXAMPLES:
        if options.draw or (options.only and example.name not in options.only):
            continue
        for seed in parse_seeds(options.seeds):
            runs = {"l2rtui": ours(example, seed, options.steps)}
            if options.reference and example.reference:
                runs["reference"] = reference(options.reference, example, seed)
            for by, run in runs.items():
                if not any((each.example, each.by, each.seed) == (example.name, by, seed) for each in points):
                    found = list(run)
                    points += found
                    options.records.write_text("".join(json.dumps(asdict(each)) + "\n" for each in points))
                    say(example, by, seed, found)
    if picture := options.picture or (PICTURE if options.records == RECORDS else None):
        draw(points, picture)
    report(points)
    return 0


def read(path: Path) -> list[Point]:
    """Return the earlier records."""
    return [Point(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def ours(example: Example, seed: int, env_steps: int | None) -> Iterator[Point]:
    """Launch the example and yield its records until it reaches its end."""
    name = f"curve-{example.name}-{seed}"
    sets = [
        *example.sets,
        *([f"train.total_env_steps={env_steps}"] if env_steps else []),
        f"seed={seed}",
        "train.eval_seconds=1",
    ]  # examples evaluate rarely, and are done within half a minute
    options = [part for each in sets for part in ("--set", each)]
    launch = ["launch", "-f", f"manifests/{example.spec or example.name}.yaml", "--name", name, *options, "--yes"]
    began = time.time()
    l2rtui(*launch)
    logs = ["logs", f"{name}/learner"]
    with subprocess.Popen([*PROGRAM, *logs, "-f", *HERE], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if "the run is done" in line or time.time() - began > MOST_SECONDS:
                process.terminate()
                break
    due = 0
    for line in l2rtui(*logs, "--tail", "100000").splitlines():
        if not line.startswith('{"l2r":"learner"'):
            continue
        record = json.loads(line)
        if record[example.measure] is not None and record["env_steps"] >= due:
            due = record["env_steps"] + RECORD_STEPS
            yield point(
                example, "l2rtui", seed, record | {"mean_return": record[example.measure]}, record["time"] - began
            )
    l2rtui("destroy", name, "--yes", "--purge")


def l2rtui(*words: str) -> str:
    """Run a command on this machine and return its output; exit with its message if it is refused."""
    done = subprocess.run([*PROGRAM, *words, *HERE], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"l2rtui {words[0]} ended with code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def reference(python: str, example: Example, seed: int) -> Iterator[Point]:
    """Train the reference and yield its records."""
    with subprocess.Popen(
        [python, str(REFERENCE), example.name, str(seed)], stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout or ():
            record = json.loads(line)
            yield point(example, "reference", seed, record, record["seconds"])


def point(example: Example, by: str, seed: int, record: dict[str, Any], seconds: float) -> Point:
    """Convert a record to the drawn values."""
    mean = round(record["mean_return"], 2)
    return Point(example.name, by, seed, record["env_steps"], round(seconds, 1), mean)


def reached(points: list[Point], threshold: float) -> Point | None:
    """Return the first record at or above the threshold."""
    return next((each for each in points if each.mean_return >= threshold), None)


def say(example: Example, by: str, seed: int, points: list[Point]) -> None:
    """Print one run."""
    first = reached(points, example.threshold)
    when = f"after {first.env_steps:,} env steps, {first.seconds:.0f} s" if first else "not"
    best = max((each.mean_return for each in points), default=float("nan"))
    print(f"{example.name} {by} seed {seed}: {example.threshold:g} reached {when}; best {best:.1f}", flush=True)


def lines(points: list[Point], example: Example) -> dict[str, list[list[Point]]]:
    """Return the records of each seed, by library."""
    found: dict[str, dict[int, list[Point]]] = {by: {} for by in PARTIES}
    for each in points:
        if each.example == example.name:
            found[each.by].setdefault(each.seed, []).append(each)
    return {by: list(seeds.values()) for by, seeds in found.items() if seeds}


def value_at(line: list[Point], env_steps: float) -> float:
    """Return a seed's value at a number of env steps: its latest record there, or its first one."""
    return next((each.mean_return for each in reversed(line) if each.env_steps <= env_steps), line[0].mean_return)


def late_mean(line: list[Point], env_steps: float) -> float:
    """Return the mean of a seed's records in the last part of a number of env steps."""
    first = (1 - LATE_SHARE) * env_steps
    returns = [each.mean_return for each in line if first <= each.env_steps <= env_steps]
    return fmean(returns) if returns else value_at(line, env_steps)


def spread(values: list[float]) -> str:
    """Return mean, minimum and maximum as text."""
    return f"{fmean(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def report(points: list[Point]) -> None:
    """Print how many seeds reached the threshold and when, and the returns of all at equal env steps."""
    for example in EXAMPLES:
        seeds_by = lines(points, example)
        last = min((line[-1].env_steps for seeds in seeds_by.values() for line in seeds), default=0)
        for by, seeds in seeds_by.items():
            firsts = [reached(line, example.threshold) for line in seeds]
            solved = [each for each in firsts if each is not None]
            steps = f"{median(each.env_steps for each in solved):,.0f} env steps" if solved else "-"
            seconds = f"{median(each.seconds for each in solved):.0f} s" if solved else "-"
            print(f"{example.name:16} {by:10} {len(solved)} of {len(seeds)} seeds; median {steps}, {seconds}")
            print(
                f"{'':16} {'':10} at {last:,} env steps {spread([value_at(line, last) for line in seeds])}; "
                f"over the last {LATE_SHARE:.0%} of them {spread([late_mean(line, last) for line in seeds])}"
            )


def draw(points: list[Point], picture: Path) -> None:
    """One panel for each example that was run: a thin line per seed, a thick one for their mean."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "l2rtui"
    from matplotlib import pyplot as plt

    panels = [(example, seeds_by) for example in EXAMPLES if (seeds_by := lines(points, example))]
    columns = min(PANELS_A_ROW, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = plt.subplots(rows, columns, figsize=(11, 3.4 * rows), layout="constrained", squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (example, seeds_by) in zip(grid.flat, panels, strict=False):
        for by, seeds in seeds_by.items():
            label, colour = PARTIES[by]
            for line in seeds:
                thousands = [each.env_steps / 1000 for each in line]
                axes.plot(thousands, [each.mean_return for each in line], color=colour, linewidth=0.6, alpha=0.4)
            first, last = max(line[0].env_steps for line in seeds), min(line[-1].env_steps for line in seeds)
            steps = [first + (last - first) * part / 100 for part in range(101)]
            means = [fmean(value_at(line, at) for line in seeds) for at in steps]
            axes.plot([at / 1000 for at in steps], means, color=colour, linewidth=1.8, label=label)
        axes.axhline(example.threshold, color="C3", linewidth=0.8, linestyle=":")
        axes.set_title(example.name, fontsize=10)
        axes.set_xlabel("thousand env steps")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylabel("mean return")
    figure.savefig(picture, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
