"""House rules that no linter has: ``python -m tests.house`` names each violation and exits with 1.

Names without meaning, docstrings that start with a question word, public class names used for two things, too few
comments, decoders of JSON other than the bounded one, collectives that send pickles, phrases that make
sentences hard to read (`tests.language`), and tests that look at private parts. The reasons are in
docs/architecture.md.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests import language

ROOT = Path(__file__).parents[1]
PACKAGES = ("l2rtui", "runtime")
VAGUE = frozenset({
    "one", "found", "each", "told", "kept", "asked", "wanted", "known", "shown", "said", "seen", "held", "given",
    "taken", "meant", "whole", "home", "deed", "stranger",
})  # fmt: skip
"""Names that may not be bound anywhere, since they do not describe the value."""
OPENERS = frozenset(("What", "Who", "Whether", "How", "Where", "Why"))
MAX_SHARED_NAMES = 5
MAX_PRIVATE_ACCESSES = 100
"""Accesses of all tests to private parts of other objects: each is a test that a change of the inside breaks."""
PUBLIC = frozenset(("_replace", "_fields", "_asdict", "_exit", "_getframe"))
"""Names of the standard library that begin with an underscore and are documented."""
MIN_COMMENTS_PER_1000 = 25
DECODERS = frozenset(("json.load", "json.loads", "msgspec.json.decode", "msgspec.json.Decoder"))
DECODES = (
    "runtime/base/bounded_json.py",
    "runtime/exchange/protocol/framing.py",  # messages of known types, on the hot path, with bounds of its own
    "runtime/base/training.py",  # numbers are checked while they are read
    "runtime/sim/launchers/shim.py",  # starts in milliseconds: the standard library only
    "l2rtui/backends/kubernetes/api/decode.py",  # pages of 10,000 pods, with their own limits
    "l2rtui/domain/",  # pure; `stored_spec.decode` has checked these texts
)
"""The modules that decode JSON themselves, each with its reason."""
PICKLING = re.compile(r"(torch\.distributed|dist)\.\w+_object(_list)?")
"""Collectives of torch.distributed that send pickles, which run code when another rank reads them."""


def main() -> int:
    """Print every violation; return the exit code."""
    problems = list(violations())
    for problem in problems:
        print(problem)
    print(f"house rules: {len(problems)} violations" if problems else "house rules: kept")
    return bool(problems)


def violations() -> Iterator[str]:
    """Yield one sentence for each violation."""
    classes: dict[str, set[Path]] = defaultdict(set)
    lines = comments = 0
    for path in sources():
        tree = ast.parse(path.read_text("utf-8"))
        name = path.relative_to(ROOT)
        lines += len(path.read_text("utf-8").splitlines())
        comments += count_comments(path)
        yield from (f"{name}:{line}: the name {word!r} says nothing" for line, word in vague_names(tree))
        yield from (
            f"{name}: the docstring of {owner} opens with a question word" for owner in question_words(tree)
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].add(name)
            is_checked = isinstance(node, ast.Attribute) and not str(name).startswith(DECODES)
            if is_checked and (decoder := ast.unparse(node)) in DECODERS:
                yield f"{name}:{node.lineno}: {decoder} has no bounds, use runtime.base.bounded_json"
            if isinstance(node, ast.Attribute) and PICKLING.fullmatch(ast.unparse(node)):
                yield f"{name}:{node.lineno}: {node.attr} sends a pickle: send tensors"
    shared = [name for name, paths in classes.items() if not name.startswith("_") and len(paths) > 1]
    if len(shared) > MAX_SHARED_NAMES:
        yield f"public class names in more than one file: {', '.join(sorted(shared))}; at most {MAX_SHARED_NAMES}"
    for kind, (marked, words) in language.figures([ROOT / package for package in PACKAGES]).items():
        if (rate := 1000 * marked / words) > language.MOST_MARKED.get(kind, rate):
            yield f"{kind}s: {rate:.1f} marked phrases in 1,000 words: `python -m tests.language --lines l2rtui`"
    for name, most in language.MOST_MARKED_IN.items():
        marked, words = language.figures([ROOT / name])["document"]
        if (rate := 1000 * marked / words) > most:
            yield f"{name}: {rate:.1f} marked phrases in 1,000 words: `python -m tests.language --lines {name}`"
        if (length := language.sentence_length(ROOT / name)) > language.MOST_SENTENCE_WORDS:
            yield f"{name}: {length:.1f} words a sentence, at most {language.MOST_SENTENCE_WORDS}"
    accesses = sum(private_accesses(ast.parse(path.read_text("utf-8"))) for path in (ROOT / "tests").rglob("*.py"))
    if accesses > MAX_PRIVATE_ACCESSES:
        yield f"tests: {accesses} accesses to private parts of other objects, at most {MAX_PRIVATE_ACCESSES}"
    if 1000 * comments < MIN_COMMENTS_PER_1000 * lines:
        yield f"{1000 * comments / lines:.1f} comments in 1,000 lines, at least {MIN_COMMENTS_PER_1000}"


def private_accesses(tree: ast.Module) -> int:
    """Return the number of private attributes of other objects, and of private names that are imported."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            count += sum(_is_private(alias.name) for alias in node.names)
        elif isinstance(node, ast.Attribute) and _is_private(node.attr):
            count += ast.unparse(node.value) not in {"self", "cls", "super()"}
    return count


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


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


if __name__ == "__main__":
    sys.exit(main())
