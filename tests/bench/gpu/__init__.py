"""Learner, racing and inference on a GPU compared with the CPU: `python -m tests.bench.gpu --help`.

All of it takes less than ten minutes, and each half less than five. It needs no network; docs/gpu.md names the
wheels that a machine with torch for CUDA may lack. Every step is a separate process, so that a CUDA fault in one of
them costs only its rows.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

FIRST = {"machine": 35.0, "correctness": 80.0, "updates": 100.0, "racing": 75.0}
SECOND = {"runs": 130.0, "inference": 40.0, "experiments": 120.0}
STEPS = FIRST | SECOND
"""Seconds of each step in order, including its start, for which the first import of torch may take 20.

Unused time of a step is passed on to the next ones.
"""
CLOSING_SECONDS = 6.0
"""Reserve of a step's time for the row that is being measured at its end."""


def limits(steps: Sequence[str], seconds: float | None) -> Iterator[tuple[str, float]]:
    """Yield each step with its deadline, in seconds since the start of the first.

    `seconds` are divided in proportion to `STEPS`; None uses the times of `STEPS`.
    """
    share = 1.0 if seconds is None else seconds / sum(STEPS[name] for name in steps)
    end = 0.0
    for name in steps:
        end += share * STEPS[name]
        yield name, end


def run_step(name: str, options: argparse.Namespace) -> int:
    """Run one step in this process; it reports rows left out for lack of time.

    Returns the exit code: 1 if a row failed.
    """
    end = time.monotonic() + options.seconds - CLOSING_SECONDS
    from tests.bench.gpu import measuring

    bench = measuring.Bench(options.device, end, is_tiny=options.tiny, only=options.only)
    if options.out is not None:
        measuring.write_rows_to(options.out, bench, name)
    importlib.import_module(f"tests.bench.gpu.{name}").measure(bench)
    if bench.failures:
        print(f"{name}: {len(bench.failures)} rows failed: {', '.join(bench.failures)}", flush=True)
    return 1 if bench.failures else 0


def main(arguments: Sequence[str]) -> int:
    """Run the steps one after the other; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, … or cpu (the same code, slowly)")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--steps",
        "--sections",
        nargs="+",
        metavar="STEP",
        choices=tuple(STEPS),
        default=list(STEPS),
        help=f"{', '.join(STEPS)} (default: all)",
    )
    chosen.add_argument("--first", dest="steps", action="store_const", const=list(FIRST), help=", ".join(FIRST))
    chosen.add_argument("--second", dest="steps", action="store_const", const=list(SECOND), help=", ".join(SECOND))
    chosen.add_argument("--step", choices=tuple(STEPS), help=argparse.SUPPRESS)
    parser.add_argument(
        "--seconds", type=float, help=f"of all steps together (default: {sum(STEPS.values()):.0f} for all of them)"
    )
    parser.add_argument("--tiny", action="store_true", help="small sizes and short times, to try the bench itself")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose title contains TEXT")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all rows there too, as a table in Markdown")
    options = parser.parse_args(arguments)
    if options.step is not None:
        return run_step(options.step, options)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("")
    # End like with ctrl+c, together with the step, which would otherwise continue and occupy the card for the next
    # try.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    failed, began = [], time.monotonic()
    for name, end in limits(options.steps, options.seconds):
        print(f"\n## {name}", flush=True)
        seconds = began + end - time.monotonic()
        if (problem := run_process(name, seconds, options)) is not None:
            print(f"{name}: {problem}", flush=True)
            failed.append(name)
            if options.out is not None:
                with options.out.open("a") as table:
                    table.write(f"| **{name}** | FAILED: {problem} |\n")
    print(f"\n{'failed: ' + ', '.join(failed) if failed else 'all steps ended in order'}", flush=True)
    return 1 if failed else 0


def run_process(name: str, seconds: float, options: argparse.Namespace) -> str | None:
    """Run one step as a process and end its leftovers; return the failure, if any."""
    command = [sys.executable, "-m", "tests.bench.gpu", "--step", name, "--seconds", f"{seconds:.1f}"]
    command += ["--device", options.device, "--only", options.only, *(["--tiny"] if options.tiny else [])]
    command += ["--out", str(options.out)] if options.out is not None else []
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"took longer than its {seconds:.0f} s"
    finally:
        try:
            os.killpg(process.pid, 9)
        except ProcessLookupError:
            pass  # it ended in order
        process.wait()
    return None if code == 0 else f"ended with {code}"
