"""Ten minutes of abuse of a learner's port: memory, and whether segments keep arriving."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import psutil

from tests.fakes.abuse import abuse
from tests.fakes.faults import Siege


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="l2r-abuse-") as folder:
        siege = Siege(Path(folder), 2, 1)
        try:
            siege.moves()
            began, trap = time.monotonic(), Path(folder) / "executed"
            while time.monotonic() - began < options.seconds:
                done = abuse(siege.back, min(30.0, options.seconds), str(trap))
                resident = psutil.Process(siege.learner.pid).memory_info().rss / 2**20
                print(f"{time.monotonic() - began:4.0f} s: {done}, learner {resident:.0f} MiB", flush=True)
                siege.moves()
                assert not trap.exists()
            print(siege.finish())
        finally:
            siege.close()
