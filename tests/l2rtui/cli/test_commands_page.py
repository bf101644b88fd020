"""Commands of docs/commands.md: this program understands each of them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from l2rtui.cli.other_words import translated, without_kind
from l2rtui.cli.parser import find_verb, split_verb, verb_parser

PAGE = Path(__file__).parents[3] / "docs" / "commands.md"


def commands():
    """Every command of the page, in tables and in blocks."""
    text = PAGE.read_text("utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line.partition(" | ")[0] for block in blocks for line in block.splitlines()]
    written = [part for line in lines for part in re.findall(r"l2rtui [^;]*", line)]
    return sorted({*written, *re.findall(r"`(l2rtui [^`]+)`", text)} - {"l2rtui VERB --help"})


def test_the_page_has_commands():
    assert len(commands()) > 40


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_page_is_understood(command):
    words = shlex.split(command)
    name, rest = split_verb(words[1 : words.index("--") if "--" in words else None])
    verb_parser(find_verb(name)).read(rest)


@pytest.mark.parametrize("words", ["get pods", "get po -o wide", "ls", "ps", "status", "top", "log x", "help wait"])
def test_a_word_of_the_page_that_only_looks_is_one_that_runs(words):
    name, *rest = words.split()
    assert f"`{words.partition(' x')[0]}" in PAGE.read_text("utf-8") or words == "help wait"
    verb, others = split_verb(translated(name, rest))
    if "--help" not in others:
        verb_parser(find_verb(verb)).read(others)


def test_describe_takes_the_kind_of_the_page():
    assert without_kind(["pod", "X"]) == ["X"]
