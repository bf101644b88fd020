"""`python -m tests.bench [NAME …]`: run the measurements by name; without a name, say which there are.

Each prints ratios against something in the same run where that is possible, because machines are noisy. None of
them is a test.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

import tests.bench


def main(arguments: list[str]) -> int:
    """Run the named measurements one after the other."""
    known = {module.name: module.name for module in pkgutil.iter_modules(tests.bench.__path__)}
    known.pop("__main__")
    for name in arguments:
        if name not in known:
            print(f"There is no measurement {name}; there are {', '.join(sorted(known))}.", file=sys.stderr)
            return 2
    for name in arguments:
        importlib.import_module(f"tests.bench.{name}").main([])
    if not arguments:
        for name in sorted(known):
            summary = (importlib.import_module(f"tests.bench.{name}").__doc__ or "").strip().splitlines()[0]
            print(f"{name:12} {summary}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
