"""Thousands of faults: accounts, memory, and the time until segments arrive again."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from tests.fakes.faults import Siege


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="l2r-siege-") as folder:
        siege = Siege(Path(folder), options.workers, options.seed)
        try:
            siege.moves()
            recoveries, memory = [], []
            for number in range(options.count):
                siege.strike(kill_learner=0.005)
                if number % 100 == 99:
                    recoveries.append(siege.moves())
                    memory.append(psutil.Process(siege.learner.pid).memory_info().rss / 2**20)
                    print(
                        f"{number + 1} faults in {time.monotonic() - began:.0f} s, all workers again after "
                        f"{recoveries[-1]:.1f} s, learner {memory[-1]:.0f} MiB",
                        flush=True,
                    )
            found = siege.finish()
        finally:
            siege.close()
    print(found)
    print(f"all workers again: median {statistics.median(recoveries):.1f} s, most {max(recoveries):.1f} s")
    print(f"learner: {memory[0]:.0f} MiB after 100 faults, {memory[-1]:.0f} MiB at the end")
