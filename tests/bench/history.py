"""A history of 10,000 runs: size of its file, first rows and all of them, one diff, and the cost of one record.

The records are as large as those of real runs: 256 points of twelve figures that are noise, so that they do not
compress well, forty log lines of each of thirteen pods, and a diff of the source tree for every dozen of seeds.

    python -m tests.bench history
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from l2rtui.domain.history.record import Ending, HistoryEntry, HistoryRecord, LaunchFacts, RunOutcome, SourceState
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.services.history.endings import MAX_LINES, MAX_POINTS
from l2rtui.services.history.launch_facts import spec_text
from l2rtui.services.history.lookup import compared, find_record
from l2rtui.services.history.store import HistoryFilter, HistoryStore, history_path
from tests.bench.ui import spread

RUNS = 10_000
SEEDS = 12
FIGURES = 12
PODS = 13
TIMES = 9
SECONDS_APART = 600.0


def main(argv: list[str] | None = None) -> int:
    """Fill a history in a folder of its own, and measure."""
    parser = argparse.ArgumentParser(prog="history", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"XDG_STATE_HOME": folder, "XDG_CONFIG_HOME": folder, "HOME": folder}
        os.environ.pop("KUBECONFIG", None)
        rng = random.Random(0)
        began = time.perf_counter()
        with HistoryStore() as store:
            for number in range(0, args.runs, SEEDS):
                store.put([a_record(rng, seed) for seed in range(number, min(number + SEEDS, args.runs))])
        filled = time.perf_counter() - began
        size = sum(path.stat().st_size for path in history_path().parent.iterdir())
        print(f"{args.runs:,} runs  {size / 1e6:.0f} MB, {filled / args.runs * 1e3:.2f} ms a record")
        measure_store(args.runs)
        measure_commands(args.runs)
    return 0


def a_record(rng: random.Random, number: int) -> HistoryRecord:
    """Return a record as large as that of a real run; the seeds of an experiment share spec text and diff."""
    experiment = f"racing-{number // SEEDS:04}"
    run = f"{experiment}-s{number % SEEDS}"
    sets = (SetSpec("learner", Role.LEARNER, ("true",)), SetSpec("w", Role.WORKER, ("true",), replicas=PODS - 1))
    spec = RunSpec(Kind.LEARNER_WORKERS, experiment, run, sets, seed=number % SEEDS)
    source = random.Random(number // SEEDS)
    diff = "".join(f"+{source.getrandbits(240):x}\n" for _ in range(400))
    entry = HistoryEntry(
        *(run, f"{number:032x}", experiment, number % SEEDS, RunOutcome.DONE),
        *(1e9 + number * SECONDS_APART, 1e9 + number * SECONDS_APART + 3e4, 1e7, rng.random(), rng.random()),
        *(f"lab/l2r@sha256:{'a' * 64}", f"{number // SEEDS:040x}", True, "ada", "local"),
    )
    placement = tuple((f"{run}-w-{index}", (f"n{index}/0.0",)) for index in range(PODS))
    tree = SourceState("/repo", entry.revision, "main", diff)
    facts = LaunchFacts(spec_text(spec), placement, (("python", "3.11"),), "l2rtui launch -f racing.yaml", tree)
    columns = tuple(
        (f"figure{index}", tuple(float(f"{rng.gauss(0, 1):.6g}") for _ in range(MAX_POINTS)))
        for index in range(FIGURES)
    )
    logs = tuple(
        (
            name,
            tuple(
                f"{rng.random():.6f} step={rng.getrandbits(30)} loss={rng.random():.5f}" for _ in range(MAX_LINES)
            ),
        )
        for name, _ in placement
    )
    return HistoryRecord(entry, facts, Ending(entry.state, 0.0, curve=columns, logs=logs))


def measure_store(runs: int) -> None:
    """Measure the file alone, in this process."""
    rng = random.Random(1)
    first, rows, diff, write = [], [], [], []
    for turn in range(TIMES):
        with timed(first), HistoryStore() as store:
            assert len(store.entries(HistoryFilter(limit=50))) == 50
        with timed(rows), HistoryStore() as store:
            assert len(store.entries()) >= runs
        names = (f"racing-{rng.randrange(runs // SEEDS):04}-s{seed}" for seed in (1, 2))
        with timed(diff), HistoryStore() as store:
            compared(*(find_record(store, name) for name in names))
        record = a_record(rng, runs + turn)
        with timed(write), HistoryStore() as store:
            store.put([record])
    for name, samples in (("first 50 rows", first), ("all rows", rows), ("diff", diff), ("one record", write)):
        print(f"{name:14} {milliseconds(samples)}")


def measure_commands(runs: int) -> None:
    """Measure commands from their start to their first line and to their end, beside one that reads nothing."""
    commands = {
        "help": ["--help"],
        "history": ["history"],
        "history --last": ["history", "--last", "50"],
        "diff": ["diff", "racing-0001-s1", f"racing-{(runs - 1) // SEEDS:04}-s0"],
    }
    for name, words in commands.items():
        first, last, used = [], [], []
        for _ in range(TIMES):
            began = time.perf_counter()
            with subprocess.Popen(
                [sys.executable, "-m", "l2rtui", *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=Path(__file__).parents[2],
            ) as process:
                assert process.stdout is not None
                process.stdout.readline()
                first.append(time.perf_counter() - began)
                process.stdout.read()
                _, _, usage = os.wait4(process.pid, 0)
                process.returncode = 0
            last.append(time.perf_counter() - began)
            # The processor's time beside the clock's: other work on the machine is in the latter alone.
            used.append(usage.ru_utime + usage.ru_stime)
        print(f"l2rtui {name:14} first line {milliseconds(first)}   all {milliseconds(last)}")
        print(f"{'':21} processor  {milliseconds(used)}")


def milliseconds(samples: list[float]) -> str:
    """Return the spread of some times in milliseconds."""
    return f"{spread([sample * 1e3 for sample in samples])} ms"


class timed:  # noqa: N801
    """Adds the seconds of its block to a list."""

    def __init__(self, samples: list[float]) -> None:
        self._samples = samples

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._samples.append(time.perf_counter() - self._began)


if __name__ == "__main__":
    sys.exit(main())
