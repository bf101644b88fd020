"""Words of other tools in docs/commands.md; `tests/l2rtui/test_docs.py` reads the commands of all pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from l2rtui.cli.other_words import translated, without_kind
from l2rtui.cli.parser import find_verb, split_verb, verb_parser

PAGE = Path(__file__).parents[3] / "docs" / "commands.md"


@pytest.mark.parametrize("words", ["get pods", "get po -o wide", "ls", "ps", "status", "top", "log x", "help wait"])
def test_a_word_of_the_page_that_only_looks_is_one_that_runs(words):
    name, *rest = words.split()
    assert f"`{words.partition(' x')[0]}" in PAGE.read_text("utf-8") or words == "help wait"
    verb, others = split_verb(translated(name, rest))
    if "--help" not in others:
        verb_parser(find_verb(verb)).read(others)


def test_describe_takes_the_kind_of_the_page():
    assert without_kind(["pod", "X"]) == ["X"]
