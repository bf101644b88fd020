"""Charts of twelve seeds of 24 hours, read back from their metrics files: time until drawn, memory, keys.

Each seed has a record a second, 86,400 in total, in the learner's file, which keeps older ones in levels of half as
many. It continues to write while the app is open, whose log begins with its newest records. A week of three runs:

    python -m tests.bench charts --seeds 3 --hours 168
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from runtime.base.metrics import RecordFile
from tests.bench.startup import Terminal
from tests.bench.ui import BARE_LIST, keys, memory, spread

SEEDS = 12
LOG_LINES = 60_000
"""More than a log pane keeps."""
KEYS = (b"h", b"\x1b[C")
"""Keys that move the cursor left and right."""
APP = """
import asyncio, itertools, json, os, sys, time
from pathlib import Path

from l2rtui.ui.bootstrap import make_ready

make_ready()
from l2rtui.config import Settings
from l2rtui.domain.log import LogLine
from l2rtui.domain.workload import Role
from l2rtui.ui.app import L2RApp

folder, writer, seeds, records, kept, lines = Path(sys.argv[1]), *map(int, sys.argv[2:])

def tell(*words):
    os.write(writer, (" ".join(map(str, words)) + "\\n").encode())

def make():
    from tests.fakes.load_generator import PER_RUN, LoadBackend

    class Seeds(LoadBackend):
        async def _results(self, run):
            return folder / run

        results = property(lambda self: self._results)

        async def logs(self, pod, query):
            if pod.role is not Role.LEARNER:
                await asyncio.Event().wait()
            number = records
            with (folder / pod.run / "metrics.jsonl").open() as file:
                past = itertools.islice(itertools.cycle(file.read().splitlines()), lines // seeds)
            for line in past:
                yield LogLine(json.loads(line)["time"], pod.name, line)
            while True:
                record = json.loads((folder / "last.json").read_text())
                number += 1
                record |= {"time": time.time(), "env_steps": 1900 * number, "updates": 11 * number}
                yield LogLine(time.time(), pod.name, json.dumps(record, separators=(",", ":")))
                await asyncio.sleep(1.0)

    return Seeds(PER_RUN * seeds)

class Probed(L2RApp):
    def on_mount(self):
        self.probe = asyncio.create_task(self.look())

    async def look(self):
        left = [("sampled", 1000), ("complete", kept)]
        while left:
            await asyncio.sleep(0.005)
            charts = getattr(self.cluster.panes, "charts", None)
            curves = [seed.curve.num_records for group in charts.groups for seed in group.seeds]
            if len(curves) == seeds and min(curves) >= left[0][1]:
                tell(left.pop(0)[0], time.monotonic())

Probed(Settings(backend="demo", notify=False), make).run()
"""


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0, help="length of each run")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long keys are measured")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="number of runs (%(default)s)")
    options = parser.parse_args(arguments)
    records = round(3600 * options.hours)
    with tempfile.TemporaryDirectory() as home:
        print(f"load of this machine {os.getloadavg()[0] / (os.cpu_count() or 1):.1f} a core")
        kept = write(Path(home), options.seeds, records)
        env = {**os.environ, "XDG_STATE_HOME": home, "XDG_CONFIG_HOME": home, "TERM": "xterm-256color"}
        bare(env, options.seconds)
        measure(env, Path(home), (options.seeds, records, kept), options.seconds)
        bare(env, options.seconds)
    return 0


def write(folder: Path, seeds: int, records: int) -> int:
    """Write the files of all seeds; the last record also separately, as a pattern for later ones.

    Returns:
        Number of records that a file keeps.
    """
    began, rng, sizes = time.time() - records, random.Random(7), []
    for seed in range(seeds):
        path = folder / f"crowd-{seed}" / "metrics.jsonl"
        path.parent.mkdir()
        file = RecordFile(path)
        for number in range(records):
            line = json.dumps(record(began, number, seed, rng), separators=(",", ":"))
            file.append(line)
        file.close()
        parts = list(path.parent.iterdir())
        sizes.append(sum(part.stat().st_size for part in parts))
        kept = sum(part.read_bytes().count(b"\n") for part in parts)
    print(f"files of {records:,} records: {max(sizes) / 1e6:.1f} MB, {kept:,} records kept")
    (folder / "last.json").write_text(line, "utf-8")
    return kept


def record(began: float, number: int, seed: int, rng: random.Random) -> dict[str, object]:
    """Return a learner's record with the fields of an SAC run."""
    return {
        "l2r": "learner",
        "time": round(began + number, 3),
        "env_steps": 1900 * number,
        "updates": 11 * number,
        "policy_version": number,
        "policy_lag": [0, round(1.4 + 0.3 * rng.random(), 2), 4],
        "env_steps_per_second": round(1900 + 60 * rng.random(), 1),
        "updates_per_second": round(11 + rng.random(), 2),
        "mean_return": round(45 * (1 - math.exp(-number / 9000)) + 3 * rng.random() + seed, 2),
        "eval_return": None,
        "eval_progress": 1.02,
        "workers": 48,
        "idle_share": round(0.2 * rng.random(), 3),
        "critic_loss": round(rng.random(), 4),
        "actor_loss": round(-rng.random(), 4),
        "alpha": 0.2,
        "entropy": round(rng.random(), 3),
        "mean_q": 12.5,
        "device": "cuda:0 NVIDIA A100-SXM4-80GB",
        "gpu_percent": 38,
        "gpu_memory_bytes": 9 << 30,
        "gpu_reserved_bytes": 7 << 30,
        "lost_updates": 0,
    }


def bare(env: dict[str, str], seconds: float) -> None:
    """Keys in a list of forty rows, in the same minute on the same machine."""
    terminal = Terminal(["-c", BARE_LIST], env)
    terminal.read(60.0, until=b"crowd-1")
    terminal.read(1.0)
    print(f"bare list of 40 rows in Textual: key to first byte {spread(keys(terminal, seconds))} ms")
    terminal.close()


def measure(env: dict[str, str], folder: Path, numbers: tuple[int, int, int], seconds: float) -> None:
    """Open the charts of all seeds, and use them while they are read back and afterwards."""
    seeds, records, _ = numbers
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    terminal = Terminal(["-c", APP, str(folder), *map(str, (writer, *numbers, LOG_LINES))], env)
    os.close(writer)
    terminal.read(60.0, until=b"crowd-1")
    terminal.read(5.0)
    os.write(terminal.leader, b"*")
    terminal.read(2.0)
    before = memory(terminal)
    began, cpu = time.monotonic(), terminal.cpu()
    os.write(terminal.leader, b"8")
    times, opening = {}, 0.0
    os.set_blocking(reader, False)
    waits: list[float] = []
    while len(times) < 2 and time.monotonic() - began < 300:
        if times:
            waits += keys(terminal, 1.0, KEYS)
        else:
            terminal.read(0.01)
        for line in _lines(reader):
            word, at = line.split()
            times[word] = float(at) - began
            opening = opening or terminal.cpu() - cpu
    print(f"{seeds} seeds of {records:,} records: drawn from a sample after {times['sampled']:.2f} s", end="")
    print(f" ({opening:.2f} s CPU), ", end="")
    print(f"every record after {times['complete']:.1f} s")
    print(f"  key to first byte while they are read back: {spread(waits)} ms")
    terminal.read(2.0)
    print(f"  memory of the curves and charts: {memory(terminal) - before:.0f} MiB ({memory(terminal):.0f} in all)")
    for name, pressed in (
        ("each run a line", b""),
        ("mean of the seeds", b"b"),
        ("and smoothed, over time", b"fx"),
    ):
        os.write(terminal.leader, pressed)
        terminal.read(2.0)
        cpu, at = terminal.cpu(), time.monotonic()
        waits = keys(terminal, seconds, KEYS)
        share = (terminal.cpu() - cpu) / (time.monotonic() - at)
        print(f"  {name}: key to first byte {spread(waits)} ms, {share:.0%} of a core")
    terminal.close()
    os.close(reader)


def _lines(reader: int) -> list[str]:
    try:
        return os.read(reader, 1 << 16).decode().split("\n")[:-1]
    except BlockingIOError:
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
