"""``python -m tests.bench.exchange PART``, a part being one of the names below: see each one's --help."""

from __future__ import annotations

import importlib
import sys

PARTS = (
    "segments",
    "weights",
    "scale",
    "workers",
    "members",
    "simulation",
    "faults",
    "abuse",
    "inference",
    "inference_learning",
)

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        sys.exit(f"usage: python -m tests.bench.exchange {'|'.join(PARTS)} [options]")
    importlib.import_module(f"tests.bench.exchange.{sys.argv[1]}").main(sys.argv[2:])
