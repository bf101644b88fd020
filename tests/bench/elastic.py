"""Nodes that come, go and die while digits are trained: how long each change costs, and what becomes of the loss.

    python -m tests.bench.elastic [--backend c10d|etcd-v2] [--epochs N]

2 -> 4 -> 1 -> 3 nodes of one process each on this machine; at each size one node is killed with all its processes,
and another takes its place. Printed are the seconds from each change until every node trains on in the new round.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from pathlib import Path

from tests.runtime.programs import Program, Programs, wait_for


class Job:
    """An elastic job whose nodes are processes of this machine."""

    def __init__(self, programs: Programs, backend: str, epochs: int) -> None:
        self._programs = programs
        self._words = (
            "elastic",
            "--nodes",
            "1:4",
            "--backend",
            backend,
            "--gather-seconds",
            "2",
            "--",
            "l2r-runtime",
        )
        self._words += (
            "classify",
            "train",
            "--epochs",
            str(epochs),
            "--step-seconds",
            "0.25",
            "--snapshot-steps",
            "5",
        )
        self.rendezvous = programs.start("rendezvous", "--backend", backend)
        self.nodes: list[Program] = []

    def add(self, count: int) -> None:
        self.nodes += [self._programs.start(*self._words) for _ in range(count)]

    def size(self, count: int) -> None:
        """Come to `count` nodes: more of them, or the newest leave."""
        self.add(max(0, count - len(self.nodes)))
        while len(self.nodes) > count:
            os.kill(self.nodes.pop().process.pid, signal.SIGTERM)

    def kill_one(self) -> None:
        """Kill a node, the first one, and start another."""
        self.nodes.pop(0).kill_all()
        self.add(1)

    def settled(self, since: float) -> tuple[float, int]:
        """Wait until all nodes train together; return the seconds it took and the step that it went on from."""

        def together() -> list[dict]:
            latest = [next((r for r in reversed(n.records("elastic")) if "step" in r), {}) for n in self.nodes]
            fresh = [r for r in latest if r.get("world_size") == len(self.nodes) and r["time"] > since]
            return latest if len(fresh) == len(self.nodes) and len({r["round"] for r in fresh}) == 1 else []

        found = wait_for(together, f"{len(self.nodes)} nodes that train together", *self.nodes, seconds=240)
        return time.time() - since, found[0]["step"]


def measure(backend: str, epochs: int) -> None:
    with tempfile.TemporaryDirectory(prefix="l2r-") as folder:
        where = {"L2R_ENDPOINT": f"ipc://{folder}/x"}
        with Programs(Path(folder), **where) as programs:
            assert programs.run("fetch", "digits").process.returncode == 0
            job = Job(programs, backend, epochs)
            print(f"{backend}: load {os.getloadavg()[0]:.1f}")
            for count in (2, 4, 1, 3):
                since = time.time()
                job.size(count)
                print(f"  {count} nodes: {job.settled(since)}", flush=True)
                since = time.time()
                job.kill_one()
                print(f"  {count} nodes, one killed: {job.settled(since)}", flush=True)
            codes = [each.code(600) for each in job.nodes]
            print(f"  ends: nodes {codes}, rendezvous {job.rendezvous.code(60)}; load {os.getloadavg()[0]:.1f}")
            print(programs.run("classify", "evaluate").text().splitlines()[-2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("c10d", "etcd-v2"), default="c10d")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    measure(options.backend, options.epochs)


if __name__ == "__main__":
    main()
