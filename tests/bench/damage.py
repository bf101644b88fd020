"""Checkpoints under kills and damage: after each of many, the newest complete one must be found.

    python -m tests.bench.damage [--kills 300] [--damages 1000]

A child process writes one checkpoint after the other and is killed at a random moment; then the newest one that it
had reported as written, or a newer one, must load. In the remaining ones, random bits of the newest are flipped or
its end is cut off: it must be set aside, and the previous one used. Kills of a process do not test a power failure.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from runtime.rl.checkpoints.checkpoint_files import Checkpoints
from tests.runtime.rl.checkpoints.test_checkpoints import SAVER, save


def killed(folder: Path, rng: np.random.Generator) -> bool:
    """Kill a writer at a random moment, and return whether the newest complete checkpoint was found."""
    child = [sys.executable, "-c", SAVER, str(folder)]
    with subprocess.Popen(child, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = int(process.stdout.readline())
        time.sleep(rng.random() * 0.05)
        os.kill(process.pid, signal.SIGKILL)
        said = max([said, *(int(line) for line in process.stdout.read().split(b"\n")[:-1])])
    loaded, aside = Checkpoints(folder, keep=2).load()
    return loaded is not None and not aside and loaded.facts["n"] >= said


def damaged(folder: Path, rng: np.random.Generator) -> bool:
    """Damage the newest checkpoint, and return whether no damaged one was accepted."""
    name = save(Checkpoints(folder, keep=3), 3)[-1]
    path = folder / f"{name}{rng.choice(['.json', '.safetensors'])}"
    raw = bytearray(path.read_bytes())
    if rng.random() < 0.5:
        raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
    else:
        del raw[rng.integers(len(raw)) :]
    path.write_bytes(raw)
    loaded, _ = Checkpoints(folder, keep=3).load()
    return loaded is not None and loaded.facts["n"] >= 2 and bool((loaded.tensors["n"] == loaded.facts["n"]).all())


def main() -> None:
    """Kill, damage, count."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.damage", description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--damages", type=int, default=1000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    for what, count, trial in (("kills", options.kills, killed), ("damages", options.damages, damaged)):
        good = 0
        for _ in range(count):
            with tempfile.TemporaryDirectory() as folder:
                good += trial(Path(folder), rng)
        print(f"{what}: the newest whole checkpoint was found {good} of {count} times", flush=True)


if __name__ == "__main__":
    main()
