"""Plain language, measured: phrases that make a reader read a sentence twice, and the length of sentences.

    python -m tests.language                  figures for code, messages, tests and documents
    python -m tests.language --lines docs     every line with a marked phrase in a file or folder

A marked phrase is not an error by itself: many of them mean inverted sentences and riddles. `python -m tests.house`
compares the figures with `MOST_MARKED`, `MOST_MARKED_IN` and `MOST_SENTENCE_WORDS`.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
MARKED: Final = re.compile(
    r"""one's\ own | \balone\b | \bbeside\b | \bby\ (itself|themselves)\b | \bgoes?\ on\b | \banew\b
    | \bth(at|ose)\ of\b | \bstands?\ (in|for|there|beside|apart|behind|still)\b | \blies?\b(?!\ about)
    | \b(is|are|there\ is|there\ are)\ none\b | \bis\ no\ (?!longer)\w+ | \bin\ (the|its)\ place\ of\b
    | \bfor\ good\b | \bat\ once\b | \bfor\ ever\b | \bof\ (then|today|before)\b | \bsuch\ a\b
    | \bwhat\ (is|was|are|it|they|he|has|can|could|would|a|an|the|no|must|follows|comes|lies)\b
    | \b(who|no|some)(ever|body)\b | \b(is|are)\ (told|said|asked|had|gone|over)\b
    | \bas\ (many|large|long)\ before\b | \bthe\ present\b
    | \b(hence|therefore)\b | \bbecomes?\ (one|none)\b | \b(no|any)\ more\b | \bto\ be\ had\b
    | \bare\ had\b | \bmidst\b | \bunawares\b | \boutstay | \bgo(es)?\ with\b""",
    re.IGNORECASE | re.VERBOSE,
)
MOST_MARKED: Final = {"docstring": 3.0, "comment": 3.5}
"""The most marked phrases in 1,000 words of the packages, by kind of text."""
MOST_MARKED_IN: Final = {"docs": 2.0, "README.md": 2.0, "CHANGELOG.md": 4.0}
"""The most marked phrases in 1,000 words of a document or a folder of them."""
MOST_SENTENCE_WORDS: Final = 18
"""The most words of a mean sentence in each of these documents."""
_WORD: Final = re.compile(r"[A-Za-z']+")
_SENTENCE_END: Final = re.compile(r"[.?!]\)?(?:\s|$)")
_FEWEST_WORDS: Final = 4


class Text(NamedTuple):
    """A docstring, comment, message or line of a document."""

    path: Path
    kind: str
    line: int
    text: str


def texts(root: Path) -> Iterator[Text]:
    """Yield the texts of a file or of all files of a folder."""
    for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
        if path.suffix == ".py":
            yield from _of_module(path)
        elif path.suffix == ".md":
            yield from _of_document(path)


def figures(roots: Iterator[Path] | list[Path]) -> dict[str, tuple[int, int]]:
    """Return marked phrases and words by kind of text."""
    found: dict[str, tuple[int, int]] = {}
    for root in roots:
        for text in texts(root):
            marked, words = found.get(text.kind, (0, 0))
            found[text.kind] = (
                marked + sum(1 for _ in MARKED.finditer(text.text)),
                words + len(_WORD.findall(text.text)),
            )
    return found


def _of_module(path: Path) -> Iterator[Text]:
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if docstring := ast.get_docstring(node):
            docstrings.add(id(node.body[0].value))  # type: ignore[attr-defined]
            yield Text(path, "docstring", node.body[0].lineno, docstring)
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        if is_text and len(_WORD.findall(node.value)) >= _FEWEST_WORDS:
            yield Text(path, "message", node.lineno, node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and len(token.string.split()) >= _FEWEST_WORDS:
            yield Text(path, "comment", token.start[0], token.string.lstrip("# "))


def _of_document(path: Path) -> Iterator[Text]:
    is_code = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        is_code ^= line.startswith("```")
        if not is_code and len(line.split()) >= _FEWEST_WORDS:
            yield Text(path, "document", number, re.sub(r"`[^`]*`", "`x`", line))


def sentence_length(root: Path) -> float:
    """Return the mean number of words of the sentences in the paragraphs of documents."""
    lengths = []
    for path in sorted(root.rglob("*.md")) if root.is_dir() else [root]:
        prose = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        prose = re.sub(r"`[^`]*`", "x", prose)
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-*|#] )|\n(?=\|)", prose):
            if not paragraph.lstrip().startswith(("|", "#", "![")):
                sentences = _SENTENCE_END.split(" ".join(paragraph.split()))
                lengths += [count for sentence in sentences if (count := len(_WORD.findall(sentence))) > 1]
    return sum(lengths) / max(1, len(lengths))


def main() -> int:
    """Print the figures, or the lines with a marked phrase."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", metavar="PATH", type=Path, help="print the lines with a marked phrase")
    options = parser.parse_args()
    if options.lines:
        for text in texts(options.lines):
            for offset, line in enumerate(text.text.splitlines()):
                if MARKED.search(line):
                    print(f"{text.path}:{text.line + offset}: {text.kind}: {line.strip()[:150]}")
        return 0
    groups = {
        "l2rtui, runtime": ["l2rtui", "runtime"],
        "tests": ["tests"],
        "documents": ["docs", "README.md"],
        "CHANGELOG.md": ["CHANGELOG.md"],
    }
    for name, roots in groups.items():
        for kind, (marked, words) in sorted(figures([ROOT / root for root in roots]).items()):
            print(f"{name:16} {kind:10} {1000 * marked / words:5.1f} marked phrases in 1,000 of {words:,} words")
    for root in MOST_MARKED_IN:
        print(f"{root:16} {sentence_length(ROOT / root):5.1f} words a sentence")
    return 0


if __name__ == "__main__":
    sys.exit(main())
