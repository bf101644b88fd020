"""Learning curves of the examples with several seeds each, and of a reference implementation beside them.

Ours go through the program's own door: `l2rtui launch`, the learner's records from `l2rtui logs`, `l2rtui destroy`.
The reference is Stable-Baselines3 in an environment of its own (it is no dependency of this project), with the same
settings as far as it has them. Writes docs/learning-methods.svg and docs/learning-methods.jsonl (every record's env
steps and returns); a run that is already in the records is not run again.

    python -m tests.bench.learning --seeds 0-4 [--reference /path/to/venv/bin/python] [--only cartpole-ppo]
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
from statistics import median
from typing import Any

from l2rtui.domain.placement import parse_seeds

PROGRAM = [sys.executable, "-m", "l2rtui"]
HERE = ["--backend", "local"]
DOCS = Path("docs")
RECORDS = DOCS / "learning-methods.jsonl"
REFERENCE = Path(__file__).with_name("learning_reference.py")
MOST_SECONDS = 1_800


@dataclass(frozen=True, slots=True)
class Example:
    """A spec, what its returns must reach, and the reference for it."""

    name: str
    threshold: float
    measure: str = "mean_return"
    """Field of a learner's record: of the latest 100 training episodes, or `eval_return` of the evaluator's latest,
    without exploration, where a run has hardly 100 episodes. The reference measures the same."""
    reference: str | None = None


EXAMPLES = (
    Example("cartpole-ppo", 475.0, reference="PPO"),
    Example("cartpole-impala", 475.0),
    Example("cartpole-sac", 475.0, "eval_return"),
    Example("cartpole-dqn", 475.0, "eval_return", "DQN"),
    Example("pendulum-sac", -200.0, "eval_return", "SAC"),
    Example("pendulum-td3", -200.0, "eval_return", "TD3"),
    Example("pendulum-ppo", -200.0, reference="PPO"),
)
PANELS_A_ROW = 3


@dataclass(frozen=True, slots=True)
class Point:
    """One record; `mean_return` is what the example measures."""

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
    parser.add_argument("--reference", help="Python with Stable-Baselines3 in it")
    parser.add_argument("--only", choices=[each.name for each in EXAMPLES], action="append")
    parser.add_argument("--records", type=Path, default=RECORDS, help="where the records are kept")
    parser.add_argument("--draw", action="store_true", help="only draw the records again")
    options = parser.parse_args(arguments)
    points = read(options.records)
    for example in EXAMPLES:
        if options.draw or (options.only and example.name not in options.only):
            continue
        for seed in parse_seeds(options.seeds):
            runs = {"l2rtui": ours(example, seed)}
            if options.reference and example.reference:
                runs["reference"] = reference(options.reference, example, seed)
            for by, run in runs.items():
                if not any((each.example, each.by, each.seed) == (example.name, by, seed) for each in points):
                    found = list(run)
                    points += found
                    options.records.write_text("".join(json.dumps(asdict(each)) + "\n" for each in points))
                    say(example, by, seed, found)
    if options.records == RECORDS:
        draw(points)
    report(points)
    return 0


def read(path: Path) -> list[Point]:
    """Return what was recorded before."""
    return [Point(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def ours(example: Example, seed: int) -> Iterator[Point]:
    """Launch the example and yield its records until it has ended by itself."""
    name = f"curve-{example.name}-{seed}"
    launch = ["launch", "-f", f"manifests/{example.name}.yaml", "--name", name, "--set", f"seed={seed}", "--yes"]
    began = time.time()
    l2rtui(*launch)
    logs = ["logs", f"{name}/learner"]
    with subprocess.Popen([*PROGRAM, *logs, "-f", *HERE], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if "the run is done" in line or time.time() - began > MOST_SECONDS:
                process.terminate()
                break
    for line in l2rtui(*logs, "--tail", "100000").splitlines():
        if not line.startswith('{"l2r":"learner"'):
            continue
        record = json.loads(line)
        if record[example.measure] is not None:
            yield point(
                example, "l2rtui", seed, record | {"mean_return": record[example.measure]}, record["time"] - began
            )
    l2rtui("destroy", name, "--yes", "--purge")


def l2rtui(*words: str) -> str:
    """Run a command on this machine and return what it prints; end with its own sentence where it is refused."""
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
    """Keep of a record what is drawn."""
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


def report(points: list[Point]) -> None:
    """Print how many seeds reached the threshold, and the median env steps and seconds."""
    for example in EXAMPLES:
        for by in ("l2rtui", "reference"):
            mine = [each for each in points if (each.example, each.by) == (example.name, by)]
            seeds = sorted({each.seed for each in mine})
            firsts = [reached([each for each in mine if each.seed == seed], example.threshold) for seed in seeds]
            solved = [each for each in firsts if each is not None]
            if seeds:
                steps = f"{median(each.env_steps for each in solved):,.0f} env steps" if solved else "-"
                seconds = f"{median(each.seconds for each in solved):.0f} s" if solved else "-"
                print(f"{example.name:16} {by:10} {len(solved)} of {len(seeds)} seeds; median {steps}, {seconds}")


def draw(points: list[Point]) -> None:
    """One panel for each example that was run: a line a seed, ours in colour, the reference grey."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "l2rtui"
    from matplotlib import pyplot as plt

    examples = [example for example in EXAMPLES if any(each.example == example.name for each in points)]
    rows = -(-len(examples) // PANELS_A_ROW)
    figure, grid = plt.subplots(rows, PANELS_A_ROW, figsize=(11, 3.4 * rows), layout="constrained", squeeze=False)
    for axes in grid.flat[len(examples) :]:
        axes.set_axis_off()
    for axes, example in zip(grid.flat, examples, strict=False):
        for by, colour in (("reference", "0.65"), ("l2rtui", "C0")):
            mine = [each for each in points if (each.example, each.by) == (example.name, by)]
            for number, seed in enumerate(sorted({each.seed for each in mine})):
                line = [each for each in mine if each.seed == seed]
                axes.plot(
                    [each.env_steps / 1000 for each in line],
                    [each.mean_return for each in line],
                    color=colour,
                    linewidth=1,
                    alpha=0.8,
                    label=by if not number else None,
                )
        axes.axhline(example.threshold, color="C3", linewidth=0.8, linestyle=":")
        axes.set_title(example.name, fontsize=10)
        axes.set_xlabel("thousand env steps")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylabel("mean return")
    figure.savefig(DOCS / "learning-methods.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
