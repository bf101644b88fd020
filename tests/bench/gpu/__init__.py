"""Learner, racing and inference on a GPU beside the CPU: `python -m tests.bench.gpu --help`.

All of it takes at most twelve minutes. It needs no network and no installation beyond torch: docs/gpu.md names the
wheels that a bare machine lacks. Every section is a process of its own, so that a fault of CUDA in one of them
costs only its rows.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence

SECTIONS = {
    "machine": 20.0,
    "updates": 120.0,
    "runs": 150.0,
    "racing": 150.0,
    "inference": 70.0,
    "experiments": 140.0,
}
"""Seconds that each section may take; together below twelve minutes, with the starts of their processes."""
START_SECONDS = 8.0


def run_section(name: str, device: str, *, is_tiny: bool, seconds: float, only: str) -> int:
    """Run one section in this process; it leaves out what its time does not allow, and says so.

    Returns the exit code: 1 if a row failed.
    """
    from tests.bench.gpu.measuring import Bench

    bench = Bench(device, time.monotonic() + seconds, is_tiny=is_tiny, only=only)
    importlib.import_module(f"tests.bench.gpu.{name}").measure(bench)
    if bench.failures:
        print(f"{name}: {len(bench.failures)} rows failed: {', '.join(bench.failures)}", flush=True)
    return 1 if bench.failures else 0


def main(arguments: Sequence[str]) -> int:
    """Run the sections one after the other; 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, … or cpu (the same code, slowly)")
    parser.add_argument("--sections", nargs="+", choices=tuple(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--tiny", action="store_true", help="small sizes and short times, to try the bench itself")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose title contains TEXT")
    parser.add_argument("--section", choices=tuple(SECTIONS), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.section is not None:
        seconds = SECTIONS[options.section]
        return run_section(
            options.section, options.device, is_tiny=options.tiny, seconds=seconds, only=options.only
        )
    failed = []
    for name in options.sections:
        print(f"\n## {name}", flush=True)
        command = [sys.executable, "-m", "tests.bench.gpu", "--section", name, "--device", options.device]
        command += ["--only", options.only]
        started = subprocess.Popen([*command, *(["--tiny"] if options.tiny else [])], start_new_session=True)
        try:
            code = started.wait(SECTIONS[name] + START_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        if code != 0:
            print(f"{name}: {'took too long' if code is None else f'ended with {code}'}", flush=True)
            failed.append(name)
        stop_group(started)
    return 1 if failed else 0


def stop_group(leader: subprocess.Popen[bytes]) -> None:
    """End a section with all processes that it may have left."""
    try:
        os.killpg(leader.pid, 9)
    except ProcessLookupError:
        pass  # it ended in order
    leader.wait()
