"""`python -m tests.affected`: print the test files that import modules changed in the working tree, nearest first.

Nearest are changed tests, then those whose path mirrors the changed module, then those that import it by name, then
those of the modules that import it, and so on until there are enough. The rest are left to `make test`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_FILES = 12
"""Importing more of them would take longer than `make quick` may."""
MOST_MODULES = 40
"""Modules whose importers are searched, each in a twentieth of a second."""
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
    tests, modules = [], []
    for path in map(Path, changed):
        if path.suffix != ".py":
            continue
        if path.name.startswith("test_"):
            tests.append(str(path))
        elif path.name == "conftest.py":
            tests += git("ls-files", f"{path.parent}/**test_*.py", f"{path.parent}/test_*.py")
        else:
            modules.append(path)
    files, visited = dict.fromkeys(tests), set[Path]()
    # Few tests import a widget or a rule by name: the rest come through the modules that import it.
    while modules and len(visited) < MOST_MODULES:
        visited.update(modules)
        mirrors = [file for path in modules for file in mirrors_of(path, is_changed=str(path) in changed)]
        importers = [file for path in modules for file in importers_of(path, "tests/**/test_*.py")]
        files |= dict.fromkeys(file for file in (*mirrors, *importers) if _is_quick(file))
        if len(files) >= MOST_FILES:
            break
        above = [Path(file) for path in modules for file in importers_of(path, "l2rtui/**.py", "runtime/**.py")]
        modules = [path for path in dict.fromkeys(above) if path not in visited]
    return [file for file in files if _is_quick(file)]


def _is_quick(file: str) -> bool:
    """Return whether a file exists and has tests outside of the other tiers."""
    return (ROOT / file).exists() and not file.startswith(OTHER_TIERS)


def mirrors_of(path: Path, *, is_changed: bool) -> list[str]:
    """Return the test files with the name of a module; if it only imports a changed one, in the same room."""
    room = "" if is_changed else f"{'/'.join(path.parts[:2])}/"
    return git("ls-files", f"tests/{room}**/test_{path.stem}.py", f"tests/{room}test_{path.stem}.py")


def importers_of(path: Path, *where: str) -> list[str]:
    """Return the files at some paths with an import statement that names the module of a path."""
    parts = path.with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    package, _, name = module.rpartition(".")
    whole, part = (re.escape(text) for text in (module, package))
    pattern = rf"^\s*(from {whole} import|import {whole}\b|from {part} import .*\b{name}\b)"
    return git("grep", "--untracked", "-lP", pattern, "--", *where)


if __name__ == "__main__":
    sys.exit(main())
