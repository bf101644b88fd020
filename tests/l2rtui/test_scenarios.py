"""docs/scenarios.md names existing tests, and the test of every scenario."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [line for line in (ROOT / "docs" / "scenarios.md").read_text().splitlines() if re.match(r"\| \d", line)]


def functions_of(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def test_every_scenario_has_its_tests_or_says_that_it_has_none():
    assert len(ROWS) >= 48
    assert [int(row.split("|")[1]) for row in ROWS] == list(range(1, len(ROWS) + 1))
    for row in ROWS:
        *_, proof, _ = row.split("|")
        assert "`tests/" in proof or "not covered" in proof, row


@pytest.mark.slow
def test_the_tests_that_are_named_exist():
    names = {name for row in ROWS for name in re.findall(r"`(tests/[^`]+)`", row)}
    missing = set()
    for name in names:
        path, _, function = name.partition("::")
        if not (ROOT / path).is_file() or (function and function not in functions_of(ROOT / path)):
            missing.add(name)
    assert missing == set()
