"""Attackers by the thousand: of each kind, against the rendezvous, the exchange, the status port and the web app.

The tests of attackers with more of them: they assert that nothing ends, moves or leaks, and a table lists the
number of connections of each kind. The targets are attacked one after the other, each with a line when it is done.

    python -m tests.bench.attackers --each 1000 [TARGET …]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fakes.attackers import EACH, REPORT

TESTS = {
    "rendezvous": "tests/runtime/test_attackers.py::test_nobody_ends_or_moves_an_elastic_job",
    "exchange and status": "tests/runtime/test_attackers.py::test_nobody_ends_a_learner_or_trains_with_it",
    "web app": "tests/e2e/test_attackers.py",
}
COLUMNS = (
    *("no token", "another token", "replay", "garbage", "silent", "drip", "other user"),
    *("no token, HTTP", "another token, HTTP", "replay, HTTP"),
)


def main(arguments: list[str]) -> int:
    """Attack and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=1_000, help="connections of each kind to each port")
    parser.add_argument("targets", nargs="*", default=list(TESTS), help=f"of {', '.join(TESTS)}; else all")
    options = parser.parse_args(arguments)
    if unknown := set(options.targets) - TESTS.keys():
        parser.error(f"no target is called {', '.join(sorted(unknown))}")
    print("| to | " + " | ".join(COLUMNS) + " | all | ended, moved, read |")
    print("| --- |" + " --- |" * (len(COLUMNS) + 2), flush=True)
    failed = [name for name in options.targets if not attack(name, TESTS[name], options.each)]
    return int(bool(failed))


def attack(name: str, test: str, each: int) -> bool:
    """Run one test with this many connections of each kind, and print a line for each attacked port."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report"
        path.touch()
        words = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", test]
        done = subprocess.run(
            words,
            env={**os.environ, EACH: str(each), REPORT: str(path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    outcome = "a test FAILED" if done.returncode else "0, 0, 0"
    for line in lines:
        counts = line["done"]
        numbers = " | ".join(f"{counts[kind]:,}" if kind in counts else "" for kind in COLUMNS)
        print(f"| {line['target']} | {numbers} | {sum(counts.values()):,} | {outcome} |")
    if done.returncode:
        print(done.stdout)
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    sys.stdout.flush()
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
