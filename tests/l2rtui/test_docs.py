"""README.md and docs/: the commands are ones that the programs know, and every page is in the site and linked."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from l2rtui.backends.common.train_settings import settings_findings
from l2rtui.cli.other_words import translated
from l2rtui.cli.parser import VERBS, app_parser, find_verb, split_verb, verb_parser
from l2rtui.config import settings_of_file
from l2rtui.domain.preflight import Severity
from l2rtui.errors import UsageError
from l2rtui.services.spec.spec_file import load
from tests.language import figures, sentence_length

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
PROGRAMS = {"l2rtui": "l2rtui", ".venv/bin/l2rtui": "l2rtui", "l2r-runtime": "l2r-runtime", "make": "make"}
COMPLETE = ("README.md", "docs/commands.md", "docs/tutorials/", "docs/guides/", "docs/from/")
"""Pages whose commands in the text and in tables are complete; elsewhere `l2rtui volume` may stand for a verb."""
SEPARATORS = {";", "&", "&&", "|", "||", "(", ")", ";;"}


class Command(NamedTuple):
    """One command of a page."""

    page: Path
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}: {' '.join(self.words)}"


def shell_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of `sh` and `console` blocks with their numbers; of `console` those behind a prompt."""
    language, whole, began = None, "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*```(\w*)", line):
            language = None if language is not None else match[1]
        elif language == "sh" or (language == "console" and line.startswith("$ ")):
            began = began if whole else number
            whole += line.removeprefix("$ ") if language == "console" else line
            if whole.endswith("\\"):
                whole = whole[:-1]
                continue
            yield began, whole
            whole = ""


def commands_of(page: Path) -> Iterator[Command]:
    """Yield the commands of a page that begin with one of our programs, or with make."""
    text = page.read_text("utf-8")
    for number, line in shell_lines(text):
        for words in simple_commands(line):
            yield Command(page, number, words)
    if str(page.relative_to(ROOT)).startswith(COMPLETE):
        for number, line in enumerate(text.splitlines(), 1):
            for span in re.findall(r"`((?:l2rtui|l2r-runtime|make) (?!VERB)[^`]+)`", line):
                for words in simple_commands(span):
                    yield Command(page, number, words)


def simple_commands(line: str) -> Iterator[tuple[str, ...]]:
    """Split a shell line at pipes and separators; leave out assignments and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    tokens = [*lexer, ";"]
    for index, token in enumerate(tokens):
        if token in SEPARATORS:
            if words and words[0] in PROGRAMS:
                yield tuple(words)
            words = []
        elif set(token) <= set("<>&") or (index and set(tokens[index - 1]) <= set("<>&")):
            continue
        elif words or not re.fullmatch(r"[A-Z_0-9]+=.*", token):
            words.append(token)


def fault(words: tuple[str, ...]) -> str:
    """Return what is wrong with a command; empty if the program takes it."""
    program, arguments = PROGRAMS[words[0]], [word for word in words[1:] if word != "…"]
    if program == "l2rtui":
        name, rest = split_verb(arguments[: arguments.index("--") if "--" in arguments else None])
        if name not in VERBS and (meant := translated(name, rest)):
            name, *rest = meant  # a word of another tool that only reads, such as `ps`
        try:
            (verb_parser(find_verb(name)) if name else app_parser()).read(rest)
        except UsageError as error:
            return str(error)
        except SystemExit:  # --help, --version
            return ""
        return ""
    if program == "l2r-runtime":
        return runtime_fault(arguments)
    unknown = {word for word in arguments if "=" not in word and not word.startswith("-")} - TARGETS
    return f"the Makefile has no target {', '.join(sorted(unknown))}" if unknown else ""


def runtime_fault(arguments: list[str]) -> str:
    from runtime.cli import _options

    try:
        _options(arguments)
    except SystemExit as end:
        return f"l2r-runtime ends with {end.code}" if end.code else ""
    return ""


def test_the_pages_have_commands():
    assert sum(len(list(commands_of(page))) for page in PAGES) > 200


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_understood(page):
    faults = [f"{command}\n    {why}" for command in commands_of(page) if (why := fault(command.words))]
    assert not faults, "\n".join(faults)


def specs():
    """The whole spec files of the pages for users; fragments such as `pod: {...}` have no kind and are left out."""
    for page in PAGES:
        if str(page.relative_to(ROOT)).startswith(COMPLETE):
            blocks = re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
            for number, block in enumerate(blocks):
                if re.search(r"^(kind|worker):", block, re.MULTILINE):
                    yield pytest.param(page, block, id=f"{page.relative_to(DOCS)}-{number}")


@pytest.mark.parametrize(("page", "block"), specs())
def test_a_spec_of_a_page_is_one_that_the_program_reads(page, block, tmp_path):
    for name in re.findall(r"program: (?:\./)?(\w+\.py)", block):
        code = re.search(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
        (tmp_path / name).write_text(code[1] if code else "print('a program of a reader')\n")
    path = tmp_path / "spec.yaml"
    path.write_text(block)
    spec = load(str(path)).spec
    assert spec.sets
    assert [note.sentence for note in settings_findings(spec) if note.severity is Severity.REFUSAL] == []


def config_files():
    """The settings files of all pages."""
    for page in PAGES:
        for number, block in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)):
            yield pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")


@pytest.mark.parametrize("block", config_files())
def test_a_settings_file_of_a_page_is_valid(block, tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(block)
    settings, contexts = settings_of_file({"L2RTUI_CONFIG": str(path)})
    assert settings or contexts


@pytest.mark.parametrize(
    "line",
    [
        "l2rtui lunch -f run.yaml",
        "l2rtui launch --file-name run.yaml",
        "A=1 l2rtui runs | l2rtui pods --stat failing",
        "l2r-runtime drvie checkpoints",
        "make docks",
    ],
)
def test_a_wrong_command_has_a_fault(line, capsys):
    assert any(fault(words) for words in simple_commands(line))


def test_every_page_is_in_the_navigation_once():
    # Only the names of pages: the tags of MkDocs' own YAML are not used.
    names = re.findall(r"^ +- (?:.*: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert sorted(names) == [str(page.relative_to(DOCS)) for page in PAGES[1:]]
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["theme"]["font"] is False


def test_pages_for_users_are_in_plain_english():
    pages = [DOCS / "index.md", *(page for page in PAGES if page.parent not in (ROOT, DOCS))]
    long = [f"{page.relative_to(ROOT)}: {mean:.1f}" for page in pages if (mean := sentence_length(page)) > 18]
    assert long == []
    marked, words = figures(pages)["document"]
    assert 1000 * marked <= 2 * words, "`python -m tests.language --lines docs/guides` shows the phrases"


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, as MkDocs makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_every_page_is_linked_from_another_and_no_link_is_broken():
    linked, broken = set(), []
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", prose(page)):
            if "://" in target:
                continue
            path = Path(os.path.normpath(page.parent / target)) if target else page
            if path != page:
                linked.add(path)
            if not path.exists() or (anchor and anchor not in anchors(path)):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert broken == []
    assert set(PAGES[1:]) - linked == set()
