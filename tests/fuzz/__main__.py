"""Fuzzers for a time: ``python -m tests.fuzz --seconds N [NAME ...]``.

Each decoder runs in a separate process. Its seeds are correct inputs and the corpus; see ``tests.fuzz.guidance``.
Reported are tracebacks with the input that caused them, inputs that take long, and growth of memory above 100 MB.
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
from concurrent.futures import ThreadPoolExecutor

from tests.fuzz import guidance
from tests.fuzz.mutation import deepened, mutated
from tests.fuzz.targets import TARGETS, Target

MOST_BYTES = 4 * 1024**3
GROWTH_BYTES = 100 * 2**20
SLOW_SECONDS = 5.0
DEEP_SHARE = 0.02
"""Share of inputs with a deeply nested value: they are slow, and the other changes never produce one."""


def main() -> int:
    """Run all of them, or the named ones; return 1 if one has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(target.name for target in TARGETS))
    parser.add_argument("--seconds", type=float, default=60.0, help="for each of them (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random changes (0: another each time)")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes (%(default)s)")
    parser.add_argument("--store", action="store_true", help="add inputs that reach new lines to the corpus")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    targets = [target for target in TARGETS if not options.names or target.name in options.names]
    seed = options.seed or random.SystemRandom().randrange(1, 2**32)
    if options.here:
        are_well = [fuzz(target, options.seconds, seed, stores=options.store) for target in targets]
        return 0 if all(are_well) else 1
    arguments = ["--here", "--seconds", str(options.seconds), "--seed", str(seed)]
    arguments += ["--store"] if options.store else []
    commands = ([sys.executable, "-m", "tests.fuzz", *arguments, target.name] for target in targets)
    with ThreadPoolExecutor(options.jobs) as pool:
        return int(any(list(pool.map(subprocess.call, commands))))


def fuzz(target: Target, seconds: float, seed: int, *, stores: bool = False) -> bool:
    """Run one for a time and print the results; return True if there is no problem."""
    # An input that would exhaust the machine's memory must be a finding, not the end of other programs.
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    rng, seeds, coverage = random.Random(seed), target.seeds(), guidance.Coverage()
    seeds += guidance.stored(target.name)
    for data in seeds:
        with coverage.watched():
            target(data)
    known = coverage.lines
    fresh: list[bytes] = []
    for _ in range(50):  # caches fill with the first inputs
        _try(target, mutated(rng, seeds))
    before = _peak_bytes()
    problems: dict[str, bytes] = {}
    slowest, inputs, end = 0.0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        data = deepened(rng, seeds) if rng.random() < DEEP_SHARE else mutated(rng, seeds)
        began = time.process_time()  # on a busy machine wall time includes other programs
        with coverage.watched():
            problem = _try(target, data)
        if problem:
            problems.setdefault(problem, data)
        elif coverage.has_news:
            seeds.append(data)
            fresh.append(data)
        slowest = max(slowest, taken := time.process_time() - began)
        if taken > SLOW_SECONDS:
            problems.setdefault(f"takes {taken:.0f} s of CPU", data)
        inputs += 1
    if stores:
        guidance.store(target.name, fresh)
    growth = _peak_bytes() - before
    if growth > GROWTH_BYTES:
        problems["grows"] = b""
    print(
        json.dumps(
            {"target": target.name, "inputs": inputs, "seed": seed, "problems": len(problems)}
            | {"lines": coverage.lines, "new_lines": coverage.lines - known}
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
    """Return the traceback of an input without the error's text; empty if it raises nothing."""
    try:
        target(data)
    except Exception as error:  # noqa: BLE001  (tracebacks are the findings)
        return "".join((*traceback.format_tb(error.__traceback__, limit=-3), type(error).__name__))
    return ""


if __name__ == "__main__":
    sys.exit(main())
