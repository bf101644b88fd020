"""README.md and docs/, checked: ``python -m tests.documents [FOLDER]`` prints each problem and exits with 1 if any.

A command that the program does not know, a link to nothing, a page that is linked from nowhere or missing in the
navigation, a generated page that is out of date. `make docs` runs it before it builds the site.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from l2rtui.cli.other_words import translated
from l2rtui.cli.parser import VERBS, app_parser, find_verb, split_verb, verb_parser
from l2rtui.errors import UsageError

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
_LINK: Final = re.compile(r"\]\(([^)#\s]*)#?([^)\s]*)\)")
_MODULE: Final = re.compile(r"`((?:l2rtui|runtime)/[\w/]+\.py)`(?:, `(\w+)`)?")
PROGRAMS = {"l2rtui": "l2rtui", ".venv/bin/l2rtui": "l2rtui", "l2r-runtime": "l2r-runtime", "make": "make"}
COMPLETE = ("README.md", "commands.md", "tutorials", "guides", "from", "explained")
"""Pages and folders whose commands are complete in the text, too; elsewhere `l2rtui volume` may stand for a
verb."""
SEPARATORS = {";", "&", "&&", "|", "||", "(", ")", ";;"}


class Command(NamedTuple):
    """One command of a page."""

    page: Path
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}: {' '.join(self.words)}"


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
    if is_complete(page):
        for number, line in enumerate(text.splitlines(), 1):
            for span in re.findall(r"`((?:l2rtui|l2r-runtime|make) (?!VERB)[^`]+)`", line):
                for words in simple_commands(span):
                    yield Command(page, number, words)


def is_complete(page: Path) -> bool:
    """Return True if every command in the text of the page is complete."""
    return page.name in COMPLETE or page.parent.name in COMPLETE


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


def write_files(page: Path, folder: Path) -> None:
    """Write the files that the page shows under their names, and those of manifests/, into a folder."""
    (folder / "manifests").symlink_to(ROOT / "manifests")
    for name, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        (folder / name).write_text(text)


class Reader:
    """A reader who types the commands of a page, one after the other, in a folder with the files of the page.

    The reader has own names instead of the page's (``replaced``) and answers questions with yes.
    """

    asking: Final = frozenset({"cluster", "destroy", "kill", "launch", "relaunch", "reserve", "scale"})

    def __init__(
        self,
        argv: Callable[..., list[str]],
        env: Mapping[str, str],
        page: Path,
        folder: Path,
        replaced: Mapping[str, str] | None = None,
        verbs: Iterable[str] = (),
    ) -> None:
        self.argv, self.env, self.folder, self.replaced = argv, dict(env), folder, replaced or {}
        self.commands = [
            command
            for command in commands_of(page)
            if command.words[0] == "l2rtui" and command.words[1:] and (not verbs or command.words[1] in set(verbs))
        ]
        write_files(page, folder)

    def words(self, start: str = "") -> list[str]:
        """Return the next command of the page, which begins with these words."""
        line = " ".join(self.commands.pop(0).words)
        assert line.startswith(f"l2rtui {start}"), line
        for old, new in self.replaced.items():
            line = line.replace(old, new)
        return line.split()[1:]

    def types(self, start: str = "", *more: str, code: int = 0) -> str:
        """Type the next command of the page, with more words; return what it prints."""
        words = [*self.words(start), *more]
        if words[0] in self.asking and not {"-o", "--dry-run"} & set(words):
            words.insert(1, "--yes")
        done = subprocess.run(
            self.argv(*words),
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=480,
            check=False,
        )
        assert done.returncode == code, f"l2rtui {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def follows(self, start: str, expected: str) -> None:
        """Type the next command of the page, which never ends; read until a line has the text."""
        with subprocess.Popen(
            self.argv(*self.words(start)), env=self.env, cwd=self.folder, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert any(expected in line for line in process.stdout or ()), (
                    f"{start}: it ended before {expected}"
                )
            finally:
                process.terminate()


def fault(words: tuple[str, ...]) -> str:
    """Return what is wrong with a command; empty if the program takes it."""
    program, arguments = PROGRAMS[words[0]], [word for word in words[1:] if word != "…"]
    if program == "l2rtui":
        name, rest = split_verb(arguments[: arguments.index("--") if "--" in arguments else None])
        if name not in VERBS and (meant := translated(name, rest)):
            name, *rest = meant  # a word of another tool that only reads, such as `ps`
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # --help, --version
                (verb_parser(find_verb(name)) if name else app_parser()).read(rest)
        except UsageError as error:
            return str(error)
        except SystemExit:
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


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, as MkDocs makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def pages_of(root: Path) -> list[Path]:
    """Return README.md and the pages of docs/."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def missing_code(root: Path, page: Path) -> Iterator[str]:
    """Yield a sentence for each module, and each name after a module, that a page mentions and the code lacks."""
    for module, name in _MODULE.findall(prose(page)):
        path = root / module
        if not path.is_file():
            yield f"there is no module {module}"
        elif (
            name
            and re.search(rf"^(\s*(async )?def |class ){name}\b", path.read_text("utf-8"), re.MULTILINE) is None
        ):
            yield f"{module} defines no {name}"


def problems(root: Path) -> Iterator[str]:
    """Yield a sentence for each fault of the pages in this folder."""
    pages = pages_of(root)
    linked: set[Path] = set()
    for page in pages:
        name = page.relative_to(root)
        for command in commands_of(page):
            if why := fault(command.words):
                yield f"{name}:{command.line}: `{' '.join(command.words)}`: {why}"
        for target, anchor in _LINK.findall(prose(page)):
            if "://" in target:
                continue
            path = Path(os.path.normpath(page.parent / target)) if target else page
            if path != page:
                linked.add(path)
            if not path.exists() or (anchor and anchor not in anchors(path)):
                yield f"{name}: the link {target}{f'#{anchor}' if anchor else ''} leads to nothing"
        yield from (f"{name}: {sentence}" for sentence in missing_code(root, page))
    # Only the names of pages: the tags of MkDocs' own YAML are not used.
    nav = re.findall(r"^ +- (?:.*: )?([\w/-]+\.md)$", (root / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    for page in pages[1:]:
        name = page.relative_to(root / "docs")
        if page not in linked:
            yield f"docs/{name}: no page links to it"
        if nav.count(str(name)) != 1:
            yield f"docs/{name}: it is {nav.count(str(name))} times in the navigation of mkdocs.yml"


def main() -> int:
    """Print the problems; return the exit code."""
    root = Path(*sys.argv[1:2]).resolve() if sys.argv[1:] else ROOT
    found = list(problems(root))
    print("\n".join(found or ["pages: every command, link and page is sound"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
