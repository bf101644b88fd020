"""Other systems beside the exchange, all with 16 small trajectories in a message, and the ancestor's format.

The others are installed from PyPI into an environment of their own (``--environment``), once. One that cannot be
installed or does not run is said to be missing, and the rest goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tests.bench.exchange.ends import SMALL
from tests.bench.exchange.segments import ours, raw

SEGMENT_BYTES = 128 * SMALL.item_bytes
BUNDLE = 16
PACKAGES = {"grpc": "grpcio", "flight": "pyarrow", "ray": "ray"}
TITLES = {
    "grpc": "gRPC stream",
    "flight": "Arrow Flight",
    "torch": "torch RPC",
    "ray": "Ray",
    "ancestor": "ancestor",
}
PROGRAM = Path(__file__).parent / "peer_systems.py"


def interpreters(folder: Path) -> dict[str, str]:
    """Python for each system that is to be had; torch is of the environment that runs this."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "numpy"], check=True)
    found = {"torch": sys.executable, "ancestor": sys.executable}
    for system, package in PACKAGES.items():
        has = subprocess.run([python, "-m", "pip", "show", "-q", package], capture_output=True, check=False)
        if has.returncode:
            made = subprocess.run([python, "-m", "pip", "install", "-q", package], check=False)
            if made.returncode:
                print(f"{package} cannot be installed here; {TITLES[system]} is left out", file=sys.stderr)
                continue
        found[system] = str(python)
    return found


def theirs(python: str, system: str, size: int, seconds: float) -> float | None:
    """Messages a second, or None if the system does not run."""
    command = [python, str(PROGRAM), system, str(size), str(seconds)]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=seconds + 120, text=True)
        return float(json.loads(done.stdout.strip().rpartition("\n")[2]))
    except (ValueError, subprocess.TimeoutExpired) as error:
        print(f"{TITLES[system]} did not run: {error}", file=sys.stderr)
        return None


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--systems", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument(
        "--environment",
        type=Path,
        default=Path(tempfile.gettempdir()) / "l2r-bench-peers",
        help="folder for packages",
    )
    options = parser.parse_args(arguments)
    pythons = {
        name: python for name, python in interpreters(options.environment).items() if name in options.systems
    }
    rounds: list[dict[str, float | None]] = []
    for _ in range(options.rounds):
        now: dict[str, float | None] = {
            "raw TCP": raw("small", options.seconds)[0],
            "exchange": ours("small", options.seconds, transport="tcp")[0],
        }
        for system, python in pythons.items():
            bundle = 1 if system == "ancestor" else BUNDLE
            rate = theirs(python, system, bundle * SEGMENT_BYTES, options.seconds)
            now[TITLES[system]] = rate and rate * bundle
        rounds.append(now)
        print(".", end="", file=sys.stderr, flush=True)
    print(
        f"\ntrajectories of {SEGMENT_BYTES} bytes a second, {options.rounds} rounds; how many times theirs ours is"
    )
    for name in rounds[0]:
        both = [(now[name], now["exchange"]) for now in rounds]
        ratios = [ours_ / rate for rate, ours_ in both if rate and ours_]
        if ratios:
            rate = statistics.median([rate for rate, _ in both if rate])
            middle, least, most = statistics.median(ratios), min(ratios), max(ratios)
            print(f"  {name:16} {rate:9.0f}/s x{middle:8.2f} ({least:.2f} to {most:.2f})")


if __name__ == "__main__":
    main(sys.argv[1:])
