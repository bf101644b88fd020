"""Rules of ``.gitignore`` and ``.l2rignore`` (gitignore(5)): which files of a folder are not sent with a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

FILES: Final = (".gitignore", ".l2rignore")
"""Names of the files with rules; a rule of a later file wins."""
_MAX_BYTES: Final = 262_144
_PARTS: Final = re.compile(
    r"\\(?P<literal>.)|\[(?P<group>[!^]?\]?[^\]]*)\]|(?P<star>\*+|\?)|(?P<other>.)", re.DOTALL
)


class Rule(Struct, frozen=True):
    """One line of an ignore file.

    Attributes:
        pattern: Matches paths relative to the folder of the file.
        base: That folder below the packed one, or the packed one below that folder (``is_above``); ends with ``/``
            unless they are the same.
        is_negated: The line begins with ``!``: matching paths are sent. only_folders: it ends with ``/``.
    """

    pattern: re.Pattern[str]
    base: str = ""
    is_above: bool = False
    is_negated: bool = False
    only_folders: bool = False

    def matches(self, path: str, *, is_folder: bool) -> bool:
        """Return whether the rule is about a path, which is relative to the packed folder."""
        if self.only_folders and not is_folder:
            return False
        if self.is_above:
            return self.pattern.fullmatch(self.base + path) is not None
        return path.startswith(self.base) and self.pattern.fullmatch(path[len(self.base) :]) is not None


def is_ignored(rules: Iterable[Rule], path: str, *, is_folder: bool) -> bool:
    """Return the verdict of the last rule that matches; without one a path is sent."""
    matching = [rule for rule in rules if rule.matches(path, is_folder=is_folder)]
    return bool(matching) and not matching[-1].is_negated


def rules_in(folder: Path, base: str = "", *, is_above: bool = False) -> tuple[Rule, ...]:
    """Return the rules of the ignore files in a folder; base and is_above as in ``Rule``. Raises OSError."""
    names = FILES[:1] if is_above else FILES
    lines = (line for name in names for line in _lines(folder / name))
    return tuple(rule for line in lines if (rule := _rule(line, base, is_above=is_above)) is not None)


def rules_above(folder: Path) -> tuple[Rule, ...]:
    """Return the rules that its git repository has above a folder, outermost first. Raises OSError."""
    between: list[Path] = []
    for parent in (folder, *folder.parents):
        if (parent / ".git").exists():
            bases = ((above, f"{folder.relative_to(above).as_posix()}/") for above in reversed(between))
            return tuple(rule for above, base in bases for rule in rules_in(above, base, is_above=True))
        between.append(parent.parent)
    return ()


def _lines(path: Path) -> Iterator[str]:
    if path.is_file():
        with path.open("rb") as file:
            yield from file.read(_MAX_BYTES).decode("utf-8", "surrogateescape").splitlines()


def _rule(line: str, base: str, *, is_above: bool) -> Rule | None:
    """Return the rule of a line; None for an empty line and a comment."""
    text = re.sub(r"(?<!\\) +$", "", line)
    if not text or text.startswith("#"):
        return None
    is_negated = text.startswith("!")
    text = text[is_negated:]
    only_folders = text.endswith("/")
    text = text.rstrip("/")
    # A pattern with a slash is relative to the folder of its file; one without is about names at any depth.
    anchor = "" if "/" in text else r"(?:.*/)?"
    try:
        pattern = re.compile(anchor + _expression(text.removeprefix("/")), re.DOTALL)
    except re.error:  # a range like [z-a], which git does not match either
        return None
    return Rule(pattern, base, is_above, is_negated, only_folders)


def _expression(glob: str) -> str:
    """Return the regular expression of a pattern of gitignore(5)."""
    glob = re.sub(r"(?<!\\)\*\*/(?:\*\*/)+", "**/", glob)
    if glob == "**":
        return ".+"
    start, glob = (r"(?:.*/)?", glob[3:]) if glob.startswith("**/") else ("", glob)
    end, glob = (r"/.+", glob[:-3]) if glob.endswith("/**") else ("", glob)
    return start + r"/(?:.*/)?".join(map(_of_part, glob.split("/**/"))) + end


def _of_part(glob: str) -> str:
    parts = []
    for part in _PARTS.finditer(glob):
        if part["group"] is not None:
            negation = "^" if part["group"][:1] in ("!", "^") else ""
            members = part["group"][len(negation) :].replace("\\", "\\\\").replace("[", r"\[")
            members = f"\\{members}" if members.startswith("]") else members
            parts.append(f"(?!/)[{negation}{members}]")
        elif part["star"] is not None:
            parts.append("[^/]" if part["star"] == "?" else "[^/]*")
        else:
            parts.append(re.escape(part["literal"] or part["other"]))
    return "".join(parts)
