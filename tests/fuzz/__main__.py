"""Fuzzers for a time: ``python -m tests.fuzz --seconds N [NAME ...]``.

Each decoder runs in a separate process. Reported are tracebacks with the input that caused them, inputs that take
long, and growth of memory above 100 MB.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
import traceback

from tests.fuzz.mutation import mutated
from tests.fuzz.targets import TARGETS, Target

MOST_BYTES = 4 * 1024**3
GROWTH_BYTES = 100 * 2**20
SLOW_SECONDS = 5.0


def main() -> int:
    """Run all of them, or the named ones; return 1 if one has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(target.name for target in TARGETS))
    parser.add_argument("--seconds", type=float, default=60.0, help="for each of them (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random changes (0: another each time)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    targets = [target for target in TARGETS if not options.names or target.name in options.names]
    seed = options.seed or random.SystemRandom().randrange(1, 2**32)
    if options.here:
        are_well = [fuzz(target, options.seconds, seed) for target in targets]
        return 0 if all(are_well) else 1
    arguments = ("--here", "--seconds", str(options.seconds), "--seed", str(seed))
    codes = [subprocess.call([sys.executable, "-m", "tests.fuzz", *arguments, target.name]) for target in targets]
    return int(any(codes))


def fuzz(target: Target, seconds: float, seed: int) -> bool:
    """Run one for a time and print the results; return True if there is no problem."""
    # An input that would exhaust the machine's memory must be a finding, not the end of other programs.
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    rng, seeds = random.Random(seed), target.seeds()
    for data in seeds:
        target(data)
    for _ in range(50):  # caches fill with the first inputs
        _try(target, mutated(rng, seeds))
    before = _peak_bytes()
    problems: dict[str, bytes] = {}
    slowest, inputs, end = 0.0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        data = mutated(rng, seeds)
        began = time.process_time()  # on a busy machine wall time includes other programs
        if problem := _try(target, data):
            problems.setdefault(problem, data)
        slowest = max(slowest, taken := time.process_time() - began)
        if taken > SLOW_SECONDS:
            problems.setdefault(f"takes {taken:.0f} s of CPU", data)
        inputs += 1
    growth = _peak_bytes() - before
    if growth > GROWTH_BYTES:
        problems["grows"] = b""
    print(
        json.dumps(
            {"target": target.name, "inputs": inputs, "seed": seed, "problems": len(problems)}
            | {"growth_bytes": growth, "slowest_seconds": round(slowest, 3)}
        ),
        flush=True,
    )
    for problem, data in problems.items():
        print(f"--- {target.name}: {problem}\n    {data[:2000]!r}", flush=True)
    return not problems


def _peak_bytes() -> int:
    """Return the peak memory of this process, also during an input."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _try(target: Target, data: bytes) -> str:
    """Return the traceback of an input; empty if it raises nothing."""
    try:
        target(data)
    except Exception:  # noqa: BLE001  (tracebacks are the findings)
        return "".join(traceback.format_exc(limit=-3))
    return ""


if __name__ == "__main__":
    sys.exit(main())
