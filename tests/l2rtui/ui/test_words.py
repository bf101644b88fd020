"""One thing has one word: words that the app no longer uses do not come back."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import l2rtui

ROOT = Path(l2rtui.__file__).parent
OLD_WORDS = {
    "process before": "previous",
    "from now on": "live output",
    "printed nothing": "no output",
    "is held by {": "the name of the pod, and its state",
    "fails again and again": "crash-looping",
    "shares its machine": "other load on its node",
    "share of time without data": "waiting for data",
    "lag, versions": "policy lag",
    "in evaluation": "eval progress",
    " too old": "dropped as stale",
    "calls it back": "cancels it",
    "call back": "undo",
    "called back": "cancelled",
    "stays as it is.": "no changes",
    "Nothing is left of": "no leaks",
    "Asking.": "Loading…",
    "is being read": "Loading…",
    "train on": "resume",
    "nearer": "zoom in",
    "farther": "zoom out",
    "put/take": "place/remove",
    "looked again": "refreshed",
    "a line across the log": "a marker",
    "the program's affair": "how it reacts is up to the program",
    "± sd": "95 % interval",
    "is reserved for": "reserved … for",
    "is being destroyed": "stopping",
    "acts     ": "place",
    "where    ": "place",
    "looking at the queue": "Loading the queue…",
}
"""Old words, and what the app says instead."""
UI = sorted((ROOT / "ui").rglob("*.py"))


def sentences(path: Path) -> list[str]:
    """Texts of a module that may be shown: string constants without docstrings, actions and ids."""
    tree = ast.parse(path.read_text("utf-8"))
    quiet = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    } | {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in quiet
    ]
    names = ("nearer(1)", "nearer(-1)", "grid.nearer", "grid.farther")
    return [text for text in texts if text not in names]


@pytest.mark.parametrize("path", UI, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_app_uses_none_of_its_old_words(path):
    found = {word: text for text in sentences(path) for word in OLD_WORDS if word in text}
    assert not found, {word: OLD_WORDS[word] for word in found}


def test_the_sentences_of_runs_and_pods_have_none_of_them_either():
    for name in ("status.py", "runstatus.py", "curves/chart.py", "exchange/topology.py"):
        found = [word for text in sentences(ROOT / "domain" / name) for word in OLD_WORDS if word in text]
        assert not found, name


SPACED = re.compile(r"(?:^|\d) %(?![sd(])")
"""Another form of ``38%``; the value before it may be computed."""
ALL = sorted(path for floor in ("ui", "cli", "domain", "services") for path in (ROOT / floor).rglob("*.py"))


def test_a_percentage_has_one_form_in_app_and_commands():
    spaced = {
        f"{path.relative_to(ROOT)}: {text}" for path in ALL for text in sentences(path) if SPACED.search(text)
    }
    assert not spaced
