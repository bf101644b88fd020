"""`python -m tests.affected`: print the test files that import modules changed in the working tree, nearest first.

Nearest are changed tests, then those whose path mirrors the changed module, then those that import it by name.
Tests that depend on it through other modules are left to `make test`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_FILES = 12
"""Importing more of them would take longer than `make quick` may."""
OTHER_TIERS = ("tests/cluster/", "tests/e2e/", "tests/gpu/", "tests/bench/")


def main() -> int:
    """Print the files, or report on stderr that there are none."""
    changed = changed_files() or git("diff", "--name-only", "HEAD~1", "HEAD")
    files = affected(changed)
    nearest = files[:MOST_FILES]
    print(
        f"{len(changed)} changed files; {len(nearest)} of {len(files)} files of tests that import them",
        file=sys.stderr,
    )
    if not files:
        print("Nothing that a test imports has changed; `make test` runs all.", file=sys.stderr)
        return 1
    print("\n".join(nearest))
    return 0


def git(*words: str) -> list[str]:
    """Return the lines that git prints; empty if it finds nothing."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def changed_files() -> list[str]:
    """Return the paths that differ from the last commit, with new ones."""
    return [*git("diff", "--name-only", "HEAD"), *git("ls-files", "--others", "--exclude-standard")]


def affected(changed: list[str]) -> list[str]:
    """Return the test files affected by the changed paths, nearest first."""
    tests, mirrors, importers = [], [], []
    for path in map(Path, changed):
        if path.suffix != ".py":
            continue
        if path.name.startswith("test_"):
            tests.append(str(path))
        elif path.name == "conftest.py":
            importers += git("ls-files", f"{path.parent}/**test_*.py", f"{path.parent}/test_*.py")
        else:
            mirrors += git("ls-files", f"tests/**/test_{path.stem}.py")
            importers += importers_of(path)
    paths = dict.fromkeys([*tests, *mirrors, *importers])
    return [path for path in paths if (ROOT / path).exists() and not path.startswith(OTHER_TIERS)]


def importers_of(path: Path) -> list[str]:
    """Return the files of tests with an import statement that names the module of a path."""
    parts = path.with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    package, _, name = module.rpartition(".")
    whole, part = (re.escape(text) for text in (module, package))
    pattern = rf"^\s*(from {whole} import|import {whole}\b|from {part} import .*\b{name}\b)"
    return git("grep", "--untracked", "-lP", pattern, "--", "tests/**/test_*.py")


if __name__ == "__main__":
    sys.exit(main())
