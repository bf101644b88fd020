"""Attackers by the thousand: of each kind to the rendezvous, the exchange, the status port and the web app.

The tests of attackers with more of them: what may not end, move or be read is asserted there, and a table says how
many connections of which kind were made. All targets are attacked at once.

    python -m tests.bench.attackers --each 1000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fakes.attackers import EACH, REPORT

TESTS = (
    "tests/runtime/test_attackers.py::test_nobody_ends_or_moves_an_elastic_job",
    "tests/runtime/test_attackers.py::test_nobody_ends_a_learner_or_trains_with_it",
    "tests/e2e/test_attackers.py",
)


def main(arguments: list[str]) -> int:
    """Attack and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=1_000, help="connections of each kind to each port")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report"
        path.touch()
        env = {**os.environ, EACH: str(options.each), REPORT: str(path)}
        words = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
        running = [subprocess.Popen([*words, test], env=env) for test in TESTS]
        codes = [process.wait() for process in running]
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = sorted({kind for line in lines for kind in line["done"]})
    print(f"{'':>20}", *(f"{line['target']:>16}" for line in lines), sep="")
    for kind in kinds:
        numbers = (f"{line['done'].get(kind, 0):>16,}" for line in lines)
        print(f"{kind:>20}", *numbers, sep="")
    total = sum(sum(line["done"].values()) for line in lines)
    print(f"{total:,} connections; {'nothing ended, moved or was read' if not any(codes) else 'a test FAILED'}")
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
