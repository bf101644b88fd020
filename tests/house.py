"""House rules that no linter has: ``python -m tests.house`` names each violation and exits with 1.

Names that say nothing, docstrings that open with a question word, folders and classes that outgrow a reader, public
class names that stand for two things, and too few comments. docs/architecture.md gives the reasons.
"""

from __future__ import annotations

import ast
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ("l2rtui", "runtime")
VAGUE = frozenset({
    "one", "found", "each", "told", "kept", "asked", "wanted", "known", "shown", "said", "seen", "held", "given",
    "taken", "meant", "whole", "home", "deed", "stranger",
})  # fmt: skip
"""Names that are not bound anywhere: say what the value is."""
OPENERS = frozenset(("What", "Who", "Whether", "How", "Where", "Why"))
MAX_MODULES = 25
MAX_CLASS_LINES = 500
MAX_SHARED_NAMES = 5
MIN_COMMENTS_PER_1000 = 25


class ClassSource(NamedTuple):
    """Where a class is, how long it is, and the names of its bases."""

    path: Path
    lines: int
    bases: tuple[str, ...]


def main() -> int:
    """Print every violation; return the exit code."""
    problems = list(violations())
    for problem in problems:
        print(problem)
    print(f"house rules: {len(problems)} violations" if problems else "house rules: kept")
    return bool(problems)


def violations() -> Iterator[str]:
    """Yield one sentence for each violation."""
    classes: dict[str, list[ClassSource]] = defaultdict(list)
    modules: Counter[Path] = Counter()
    lines = comments = 0
    for path in sources():
        tree = ast.parse(path.read_text("utf-8"))
        name = path.relative_to(ROOT)
        modules[name.parent] += 1
        lines += len(path.read_text("utf-8").splitlines())
        comments += count_comments(path)
        yield from (f"{name}:{line}: the name {word!r} says nothing" for line, word in vague_names(tree))
        yield from (
            f"{name}: the docstring of {owner} opens with a question word" for owner in question_words(tree)
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases = tuple(base.id if isinstance(base, ast.Name) else "" for base in node.bases)
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                classes[node.name].append(ClassSource(name, size, bases))
    yield from (f"{room}: {n} modules, at most {MAX_MODULES}" for room, n in modules.items() if n > MAX_MODULES)
    for name in classes:
        if (size := lineage_lines(name, classes)) > MAX_CLASS_LINES:
            yield f"class {name}: {size} lines with all that it inherits here, at most {MAX_CLASS_LINES}"
    shared = [name for name, places in classes.items() if is_shared(name, places)]
    if len(shared) > MAX_SHARED_NAMES:
        yield f"public class names in more than one file: {', '.join(sorted(shared))}; at most {MAX_SHARED_NAMES}"
    if 1000 * comments < MIN_COMMENTS_PER_1000 * lines:
        yield f"{1000 * comments / lines:.1f} comments in 1,000 lines, at least {MIN_COMMENTS_PER_1000}"


def sources() -> list[Path]:
    """Return the modules of both packages."""
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def count_comments(path: Path) -> int:
    """Return the number of comments, without directives to tools."""
    with path.open("rb") as file:
        tokens = [token.string for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT]
    return sum(not text.startswith(("# noqa", "# type:", "# fmt:")) for text in tokens)


def vague_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of each vague variable, parameter and field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        else:
            continue
        if name.strip("_") in VAGUE:
            yield node.lineno, name


def question_words(tree: ast.Module) -> Iterator[str]:
    """Yield the owners of docstrings that open with a question word."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = (ast.get_docstring(node) or "").split()
            if words and words[0].rstrip(",:") in OPENERS:
                yield getattr(node, "name", "the module")


def lineage_lines(name: str, classes: dict[str, list[ClassSource]]) -> int:
    """Return the lines of a class and of every class that it inherits within the packages."""
    pending, lineage = [name], set()
    while pending:
        current = pending.pop()
        if current in classes and current not in lineage:
            lineage.add(current)
            pending += [base for source in classes[current] for base in source.bases]
    return sum(max(source.lines for source in classes[member]) for member in lineage)


def is_shared(name: str, places: list[ClassSource]) -> bool:
    """Return True for a public name that classes of several files have."""
    return not name.startswith("_") and len({source.path for source in places}) > 1


if __name__ == "__main__":
    sys.exit(main())
