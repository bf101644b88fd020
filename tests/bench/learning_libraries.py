"""Learning curves on tasks of MuJoCo and Atari, next to Stable-Baselines3 and CleanRL with their own settings.

Ours are learner, worker and evaluator as processes, with the preset of each library. All evaluate episodes without
exploration, and the last policy once more. The games have no lives, so an episode is a whole game everywhere. The
picture has the interquartile mean of the seeds of each task with a 95 % interval. The table adds CPU seconds of all
processes. Each run is in the records when it ends, and is not run again: a command that was interrupted goes on
where it was, and further seeds and tasks add to the page. `--draw` only draws the records.

    python3 -m venv peers && peers/bin/pip install -e . 'gymnasium[mujoco]' ale-py opencv-python stable-baselines3
    peers/bin/pip install matplotlib tyro tensorboard
    git clone https://github.com/vwxyzjn/cleanrl
    peers/bin/python -m tests.bench.learning_libraries --seeds 0-2 --cleanrl cleanrl
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from l2rtui.domain.placement import parse_seeds
from runtime.base.atomic_files import write_atomic
from tests.bench.run_processes import RunProcesses

RECORDS = Path("docs/learning-libraries.jsonl")
REFERENCE = Path(__file__).with_name("learning_reference.py")
CLEANRL = Path(__file__).with_name("learning_cleanrl.py")
PARTIES = {
    "sb3": ("Stable-Baselines3", "0.45", "-"),
    "l2rtui": ("here, preset sb3", "C0", "-"),
    "cleanrl": ("CleanRL", "0.45", "--"),
    "l2rtui-cleanrl": ("here, preset cleanrl", "C0", "--"),
}
"""Label, colour and line of each `Run.by`."""
SCRIPTS = {"ppo": "ppo_continuous_action.py", "sac": "sac_continuous_action.py", "dqn": "dqn.py"}
PRESETS = {"ppo": "cleanrl-continuous", "sac": "cleanrl", "dqn": "cleanrl"}
"""Preset with the settings of each of CleanRL's scripts."""
GAME_OPTIONS = {"wrappers": ["AtariPreprocessing"], "frame_stack": 4}
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
    episodes: int = 10
    """Episodes of an evaluation."""

    @property
    def is_game(self) -> bool:
        """Whether it is a game of Atari, with pictures."""
        return "NoFrameskip" in self.environment

    @property
    def name(self) -> str:
        return f"{self.environment} {self.algorithm}"


TASKS = (
    Task("Hopper-v5", "ppo", 61_440, 6_144, 10.0),
    Task("InvertedDoublePendulum-v5", "ppo", 61_440, 6_144, 10.0),
    Task("Hopper-v5", "sac", 15_000, 1_500, 15.0),
    Task("Walker2d-v5", "ppo", 61_440, 6_144, 10.0),
    Task("HalfCheetah-v5", "sac", 15_000, 1_500, 15.0),
    Task("HalfCheetah-v5", "ppo", 61_440, 6_144, 15.0),
    Task("Swimmer-v5", "ppo", 61_440, 6_144, 10.0),
    Task("CartPole-v1", "dqn", 60_000, 6_000, 3.0),
    Task("Acrobot-v1", "dqn", 60_000, 6_000, 3.0),
    Task("FreewayNoFrameskip-v4", "ppo", 40_960, 10_240, 60.0, 3),
    Task("BoxingNoFrameskip-v4", "ppo", 40_960, 10_240, 60.0, 3),
    Task("PongNoFrameskip-v4", "ppo", 40_960, 10_240, 60.0, 3),
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
    parser.add_argument("--cleanrl", type=Path, metavar="CHECKOUT", help="of CleanRL; without it, it does not run")
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
                if (by == "cleanrl" and options.cleanrl is None) or (by == "l2rtui" and task.is_game):
                    continue
                if any((run.task, run.by, run.seed) == (task.name, by, seed) for run in runs):
                    continue
                runs.append(run := train(task, by, seed, options.cleanrl))
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


def train(task: Task, by: str, seed: int, cleanrl: Path | None) -> Run:
    """Train one seed of a party."""
    if by == "l2rtui":
        return ours(task, by, "sb3", seed)
    if by == "l2rtui-cleanrl":
        return ours(task, by, "cleanrl-atari" if task.is_game else PRESETS[task.algorithm], seed)
    sizes = [str(task.env_steps), str(task.eval_steps), str(task.episodes)]
    if by == "sb3":
        return peer(task, by, seed, [REFERENCE, "defaults", str(seed), task.environment, task.algorithm, *sizes])
    script = "ppo_atari.py" if task.is_game else SCRIPTS[task.algorithm]
    words = ["--seed", str(seed), "--env-id", task.environment, "--total-timesteps", sizes[0]]
    return peer(task, by, seed, [CLEANRL, str(cleanrl), script, *sizes[1:], "--", *words])


def ours(task: Task, by: str, preset: str, seed: int) -> Run:
    """Train with the processes of a run."""
    settings = {
        "environment": f"ale_py:{task.environment}" if task.is_game else task.environment,
        "environment_options": GAME_OPTIONS if task.is_game else {},
        "algorithm": task.algorithm,
        "preset": preset,
        "total_env_steps": task.env_steps,
        "eval_seconds": task.eval_seconds,
        "eval_episodes": task.episodes,
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
        command = [
            sys.executable,
            "-m",
            "runtime",
            "drive",
            f"{folder}/run",
            "--json",
            "--episodes",
            str(task.episodes),
        ]
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
    return Run(task.name, by, seed, steps, returns, round(seconds, 1))


def peer(task: Task, by: str, seed: int, words: Sequence[str | Path]) -> Run:
    """Train with another library: run its program, which prints a JSON record for each evaluation."""
    before = cpu_seconds()
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, check=True)
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    steps, returns = [each["env_steps"] for each in records], [round(each["mean_return"], 2) for each in records]
    return Run(task.name, by, seed, steps, returns, round(cpu_seconds() - before, 1))


def interquartile_mean(values: list[float]) -> float:
    """Return the mean without the lowest and the highest quarter (Agarwal et al. 2021, arXiv:2108.13264)."""
    cut = len(values) // 4
    return fmean(sorted(values)[cut : len(values) - cut])


def interval(values: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the interquartile mean of seeds, by resampling them."""
    draws = random.Random(0)
    means = sorted(interquartile_mean(draws.choices(values, k=len(values))) for _ in range(RESAMPLES))
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
    names = [label for label, _, _ in PARTIES.values()]
    print(f"| task | env steps | seeds | {' | '.join(names)} | CPU s of each |")
    print("| --- " * (len(names) + 4) + "|")
    for task in TASKS:
        of = {by: [run for run in runs if (run.task, run.by) == (task.name, by)] for by in PARTIES}
        if not any(of.values()):
            continue
        seeds = " to ".join(sorted({str(len(each)) for each in of.values() if each}))
        returns = " | ".join(_with_interval(last_returns(each)) for each in of.values())
        cpu = ", ".join(f"{fmean(run.cpu_seconds for run in each):.0f}" if each else "-" for each in of.values())
        print(f"| `{task.environment}`, {task.algorithm} | {task.env_steps:,} | {seeds} | {returns} | {cpu} |")


def _with_interval(values: list[float]) -> str:
    if not values:
        return "-"
    low, high = interval(values)
    return f"{interquartile_mean(values):.0f} ({low:.0f} to {high:.0f})"


def draw(runs: list[Run], picture: Path) -> None:
    """One panel for each task."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "l2rtui"
    from matplotlib import pyplot as plt

    tasks = [task for task in TASKS if any(run.task == task.name for run in runs)]
    if not tasks:
        return
    rows, columns = -(-len(tasks) // PANELS_A_ROW), min(len(tasks), PANELS_A_ROW)
    figure, grid = plt.subplots(
        rows, columns, figsize=(3.3 * columns, 3.2 * rows), layout="constrained", squeeze=False
    )
    for axes in grid.flat[len(tasks) :]:
        axes.set_axis_off()
    for axes, task in zip(grid.flat, tasks, strict=False):
        for by, (label, colour, line) in PARTIES.items():
            seeds = [run for run in runs if (run.task, run.by) == (task.name, by)]
            if not seeds:
                continue
            first, last = max(run.env_steps[0] for run in seeds), min(run.env_steps[-1] for run in seeds)
            steps = [first + (last - first) * part / 40 for part in range(41)]
            values = [[value_at(run, at) for run in seeds] for at in steps]
            limits = [interval(each) for each in values]
            thousands = [at / 1000 for at in steps]
            axes.plot(
                thousands, [interquartile_mean(each) for each in values], color=colour, linestyle=line, label=label
            )
            lows, highs = zip(*limits, strict=True)
            axes.fill_between(thousands, lows, highs, color=colour, alpha=0.15, linewidth=0)
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
