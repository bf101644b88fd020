"""Learning curves on MuJoCo tasks with `preset: sb3`, beside Stable-Baselines3 with its own defaults.

Ours are learner, worker and evaluator as processes; both evaluate ten episodes without exploration, and the last
policy once more. The picture has the interquartile mean of the seeds of each task with a 95 % interval. The table
adds CPU seconds of all processes, and the interquartile mean over all tasks as a share of Stable-Baselines3's. Each
run is in the records when it ends, and is not run again: a command that was interrupted goes on where it was, and
further seeds and tasks add to the page. `--draw` only draws the records.

    python3 -m venv peers && peers/bin/pip install -e . 'gymnasium[mujoco]' stable-baselines3 matplotlib
    peers/bin/python -m tests.bench.learning_mujoco --seeds 0-2                 # --draw: the page again
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from l2rtui.domain.placement import parse_seeds
from runtime.base.atomic_files import write_atomic
from tests.bench.run_processes import RunProcesses

RECORDS = Path("docs/learning-mujoco.jsonl")
REFERENCE = Path(__file__).with_name("learning_reference.py")
PARTIES = {"sb3": ("Stable-Baselines3", "0.45"), "l2rtui": ("l2rtui", "C0")}
"""Label and colour of each `Run.by`."""
RESAMPLES = 2_000
PANELS_A_ROW = 4


@dataclass(frozen=True, slots=True)
class Task:
    """An environment, a method and a length."""

    environment: str
    algorithm: str
    env_steps: int
    eval_steps: int
    """Env steps between evaluations of the reference; ours evaluates about as often."""
    eval_seconds: float

    @property
    def name(self) -> str:
        return f"{self.environment} {self.algorithm}"


TASKS = (
    Task("Hopper-v5", "ppo", 61_440, 6_144, 10.0),
    Task("HalfCheetah-v5", "sac", 10_000, 1_000, 15.0),
    Task("Walker2d-v5", "ppo", 61_440, 6_144, 10.0),
    Task("HalfCheetah-v5", "ppo", 102_400, 10_240, 15.0),
    Task("Hopper-v5", "sac", 10_000, 1_000, 15.0),
    Task("Swimmer-v5", "ppo", 61_440, 6_144, 10.0),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One seed of one party: env steps and returns of its evaluations, and the CPU seconds of all its processes."""

    task: str
    by: str
    seed: int
    env_steps: list[int]
    returns: list[float]
    cpu_seconds: float


def main(arguments: list[str]) -> int:
    """Train, record, draw, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-2", help="seeds, such as 0-2")
    parser.add_argument("--only", choices=[task.name for task in TASKS], action="append")
    parser.add_argument("--by", choices=list(PARTIES), action="append", help="only these parties")
    parser.add_argument(
        "--records", type=Path, default=RECORDS, help="where the records are; the picture is beside them"
    )
    parser.add_argument("--draw", action="store_true", help="only draw the records again")
    options = parser.parse_args(arguments)
    lines = options.records.read_text().splitlines() if options.records.exists() else []
    runs = [Run(**json.loads(line)) for line in lines]
    for seed in () if options.draw else parse_seeds(options.seeds):
        for task in TASKS:
            if options.only and task.name not in options.only:
                continue
            for by in options.by or PARTIES:
                if any((run.task, run.by, run.seed) == (task.name, by, seed) for run in runs):
                    continue
                train = ours if by == "l2rtui" else reference
                runs.append(run := train(task, seed))
                # Replaced as a whole: a kill within a write would leave half a line.
                lines.append(json.dumps(asdict(run)))
                write_atomic(options.records, "".join(f"{line}\n" for line in lines).encode())
                print(
                    f"{task.name} {by} seed {seed}: {run.returns[-1]:.0f}, {run.cpu_seconds:.0f} CPU s", flush=True
                )
    draw(runs, options.records.with_suffix(".svg"))
    report(runs)
    return 0


def cpu_seconds() -> float:
    """Return the CPU seconds of all ended children."""
    times = os.times()
    return times.children_user + times.children_system


def ours(task: Task, seed: int) -> Run:
    """Train with the processes of a run."""
    settings = {
        "environment": task.environment,
        "algorithm": task.algorithm,
        "preset": "sb3",
        "total_env_steps": task.env_steps,
        "eval_seconds": task.eval_seconds,
        "eval_episodes": 10,
    }
    before = cpu_seconds()
    with (
        tempfile.TemporaryDirectory(prefix="l2r-") as folder,
        RunProcesses(Path(folder), settings, cpus=1, seed=seed) as run,
    ):
        for role in ("learner", "worker", "evaluator"):
            run.start(role)
        run.wait()
        seconds = cpu_seconds() - before
        records, evaluations = run.records(), run.records("evaluator")
        if not records or records[-1]["env_steps"] < task.env_steps:
            sys.exit(f"{task.name} seed {seed} has not ended:\n{run.output('learner')[-2000:]}")
        command = [sys.executable, "-m", "runtime", "drive", f"{folder}/run", "--json", "--episodes", "10"]
        last = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    steps, returns = [], []
    for each in evaluations:
        # The record of the learner that first has this version says after how many env steps it was published.
        at = next(
            (record["env_steps"] for record in records if record["policy_version"] >= each["policy_version"]), None
        )
        if at is not None:
            steps.append(at)
            returns.append(round(each["eval_return"], 2))
    steps.append(records[-1]["env_steps"])
    returns.append(round(last["return"], 2))
    return Run(task.name, "l2rtui", seed, steps, returns, round(seconds, 1))


def reference(task: Task, seed: int) -> Run:
    """Train with Stable-Baselines3's defaults."""
    words = ["defaults", str(seed), task.environment, task.algorithm, str(task.env_steps), str(task.eval_steps)]
    before = cpu_seconds()
    done = subprocess.run([sys.executable, str(REFERENCE), *words], stdout=subprocess.PIPE, text=True, check=True)
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    steps, returns = [each["env_steps"] for each in records], [round(each["mean_return"], 2) for each in records]
    return Run(task.name, "sb3", seed, steps, returns, round(cpu_seconds() - before, 1))


def interquartile_mean(values: list[float]) -> float:
    """Return the mean without the lowest and the highest quarter (Agarwal et al. 2021, arXiv:2108.13264)."""
    cut = len(values) // 4
    return fmean(sorted(values)[cut : len(values) - cut])


def interval(groups: list[list[float]]) -> tuple[float, float]:
    """Return the 95 % interval of the interquartile mean over groups, whose seeds are resampled within each."""
    draws = random.Random(0)
    means = sorted(
        interquartile_mean([value for group in groups for value in draws.choices(group, k=len(group))])
        for _ in range(RESAMPLES)
    )
    return means[RESAMPLES // 40], means[-RESAMPLES // 40]


def value_at(run: Run, env_steps: float) -> float:
    """Return the return at a number of env steps, on a line between the evaluations beside it."""
    before = [pair for pair in zip(run.env_steps, run.returns, strict=True) if pair[0] <= env_steps]
    after = [pair for pair in zip(run.env_steps, run.returns, strict=True) if pair[0] > env_steps]
    if not before or not after:
        return (before[-1:] or after[:1])[0][1]
    (left, low), (right, high) = before[-1], after[0]
    return low + (high - low) * (env_steps - left) / (right - left)


def last_returns(runs: list[Run]) -> list[float]:
    """Return each seed's mean over the evaluations of the last fifth of its env steps."""
    return [
        fmean(value for at, value in zip(run.env_steps, run.returns, strict=True) if at >= 0.8 * run.env_steps[-1])
        for run in runs
    ]


def report(runs: list[Run]) -> None:
    """Print the table."""
    print("| task | env steps | seeds | here | Stable-Baselines3 | CPU s here | CPU s Stable-Baselines3 |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    shares: dict[str, list[list[float]]] = {by: [] for by in PARTIES}
    for task in TASKS:
        of = {by: [run for run in runs if (run.task, run.by) == (task.name, by)] for by in PARTIES}
        if not all(of.values()):
            continue
        last = {by: last_returns(each) for by, each in of.items()}
        for by, values in last.items():
            shares[by].append([value / interquartile_mean(last["sb3"]) for value in values])
        text = {by: _with_interval([values]) for by, values in last.items()}
        cpu = {by: f"{fmean(run.cpu_seconds for run in each):.0f}" for by, each in of.items()}
        seeds = " and ".join(sorted({str(len(each)) for each in of.values()}))
        returns = f"{text['l2rtui']} | {text['sb3']}"
        cost = f"{cpu['l2rtui']} | {cpu['sb3']}"
        print(f"| `{task.environment}`, {task.algorithm} | {task.env_steps:,} | {seeds} | {returns} | {cost} |")
    if shares["sb3"]:
        text = {by: _with_interval(groups, 2) for by, groups in shares.items()}
        print(f"| all, share of Stable-Baselines3's | | | {text['l2rtui']} | {text['sb3']} | | |")


def _with_interval(groups: list[list[float]], digits: int = 0) -> str:
    low, high = interval(groups)
    mean = interquartile_mean([value for group in groups for value in group])
    return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def draw(runs: list[Run], picture: Path) -> None:
    """One panel for each task."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "l2rtui"
    from matplotlib import pyplot as plt

    tasks = [task for task in TASKS if {run.by for run in runs if run.task == task.name} == set(PARTIES)]
    if not tasks:
        return
    rows, columns = -(-len(tasks) // PANELS_A_ROW), min(len(tasks), PANELS_A_ROW)
    figure, grid = plt.subplots(
        rows, columns, figsize=(3.3 * columns, 3.2 * rows), layout="constrained", squeeze=False
    )
    for axes in grid.flat[len(tasks) :]:
        axes.set_axis_off()
    for axes, task in zip(grid.flat, tasks, strict=False):
        for by, (label, colour) in PARTIES.items():
            seeds = [run for run in runs if (run.task, run.by) == (task.name, by)]
            first, last = max(run.env_steps[0] for run in seeds), min(run.env_steps[-1] for run in seeds)
            steps = [first + (last - first) * part / 40 for part in range(41)]
            values = [[value_at(run, at) for run in seeds] for at in steps]
            limits = [interval([each]) for each in values]
            thousands = [at / 1000 for at in steps]
            axes.plot(thousands, [interquartile_mean(each) for each in values], color=colour, label=label)
            lows, highs = zip(*limits, strict=True)
            axes.fill_between(thousands, lows, highs, color=colour, alpha=0.2, linewidth=0)
        axes.set_title(f"{task.environment}, {task.algorithm}", fontsize=10)
        axes.set_xlabel("thousand env steps")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylabel("return of an evaluation")
    figure.savefig(picture, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
