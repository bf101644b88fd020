"""Packages that pip has installed for a setup, stored for the next setup of the same packages.

The key of a store is what decides on pip's result: the leading pip commands of the setup, every file that they name
(requirements, wheels, projects), pip's variables and the interpreter. Code that pip does not read is not in it. An
entry is used for a day: an index has new versions, and another day gets them.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

SETUP_DONE: Final = "setup.done"
"""Mark that the setup of a run on this machine has ended, beside its code."""
_USED_SECONDS: Final = 86_400.0
_NEW: Final = ".new-"
"""Prefix of an entry until it is complete."""
_PYTHON: Final = re.compile(r"python(\d+(\.\d+)*)?", re.ASCII)
_PIP: Final = re.compile(r"pip(\d+(\.\d+)*)?", re.ASCII)
_UNSTORED_OPTIONS: Final = frozenset(
    ("-t", "--target", "--prefix", "--root", "--user", "-e", "--editable", "-U", "--upgrade")
) | {"--force-reinstall", "--no-cache-dir", "--pre", "--dry-run"}
"""Options of pip that change the target, link to the code, or ask for new versions."""
_MOVING: Final = re.compile(r"\b(git|hg|svn|bzr)\+", re.ASCII)
"""Sources whose contents change under the same name."""
_REQUIREMENTS: Final = (".txt", ".in")
_MAX_FILES: Final = 20_000
_MAX_TEXT_BYTES: Final = 1 << 20


def leading_pip(setup: Sequence[Sequence[str]]) -> int:
    """Return how many commands at the beginning of a setup are a ``pip install``: no other has changed anything."""
    return sum(1 for _ in itertools.takewhile(_is_pip_install, setup))


def key_of(commands: Sequence[Sequence[str]], tree: Path, place: Sequence[str]) -> str | None:
    """Return the key of what pip commands install; None if it must not be stored.

    Args:
        tree: The working folder of the commands, which relative names in them refer to.
        place: What else decides: the interpreter or the image, and pip's variables.
    """
    words = [word for command in commands for word in command]
    if any(word.partition("=")[0] in _UNSTORED_OPTIONS for word in words) or any(map(_MOVING.search, words)):
        return None
    try:
        files = _files_named(words, tree)
    except (_UnstoredError, OSError):
        return None
    parts = [[list(command) for command in commands], sorted(files.items()), list(place)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def variables_of_pip(variables: Iterable[tuple[str, str]]) -> list[str]:
    """Return the variables that change what pip installs."""
    return sorted(
        f"{name}={value}" for name, value in variables if name.startswith("PIP_") and name != "PIP_TARGET"
    )


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def programs_of(commands: Sequence[Sequence[str]], environ: Mapping[str, str]) -> list[str]:
    """Return which files the programs of commands are, and their times: an environment may be made again."""
    paths = [Path(shutil.which(command[0], path=environ.get("PATH")) or command[0]) for command in commands]
    times = [_changed_ns(path) for path in paths]
    return [f"{os.path.realpath(path)} {time_ns}" for path, time_ns in zip(paths, times, strict=True)]


def take(store: Path, key: str, packages: Path) -> bool:
    """Link the packages of an entry into an empty folder; return whether there was one that is still used."""
    entry = store / key
    try:
        if not 0 <= time.time() - entry.stat().st_mtime < _USED_SECONDS:
            return False
        _link(entry, packages)
    except OSError:  # none, or another process removes it
        _empty(packages)
        return False
    return True


def add(store: Path, key: str, packages: Path) -> None:
    """Store a folder of packages, and remove expired entries."""
    made = store / f"{_NEW}{os.urandom(8).hex()}"
    try:
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        for entry in list(store.iterdir()):
            if time.time() - entry.stat().st_mtime >= _USED_SECONDS:
                shutil.rmtree(entry, ignore_errors=True)
        _link(packages, made)
        os.utime(made)
        made.rename(store / key)
    except OSError:  # a full disk, or another process has stored the same
        shutil.rmtree(made, ignore_errors=True)


class _UnstoredError(Exception):
    """Packages may change although nothing that is hashed does."""


def _is_pip_install(command: Sequence[str]) -> bool:
    first, *rest = [*command[:1], *command[1:4]] or [""]
    name = Path(first).name
    if _PYTHON.fullmatch(name) and rest[:2] == ["-m", "pip"]:
        return rest[2:] == ["install"]
    return _PIP.fullmatch(name) is not None and rest[:1] == ["install"]


def _files_named(words: Iterable[str], tree: Path) -> dict[str, str]:
    """Return each file that words name, also in the requirements among them, with a hash of its contents.

    Raises _UnstoredError and OSError.
    """
    hashes: dict[str, str] = {}
    queue = [(word, tree) for word in words]
    while queue:
        word, base = queue.pop()
        paths = (folder / name for name in _names_in(word) for folder in (tree, base))
        # One after the other: a folder that a word names may be large, and the limit ends its walk.
        for file in itertools.chain.from_iterable(map(_below, paths)):
            name = os.path.relpath(file, tree)
            if name in hashes:
                continue
            if len(hashes) == _MAX_FILES:
                raise _UnstoredError
            hashes[name] = _hash(file, is_own=not name.startswith(".."))
            if file.suffix in _REQUIREMENTS:
                queue += [(inner, file.parent) for inner in _requirements(file)]
    return hashes


def _names_in(word: str) -> Iterator[str]:
    """Yield possible paths in a word: ``./lib[gpu]``, ``-rbase.txt``, ``--constraint=c.txt``, ``file:a.whl``."""
    for part in (word, word.partition("=")[2], word[2:] if word[:1] == "-" else ""):
        if name := part.removeprefix("file://").removeprefix("file:").partition("[")[0]:
            yield name


def _below(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    for folder, _, names in os.walk(path):
        yield from (Path(folder, name) for name in names if not name.endswith(".pyc"))


def _requirements(file: Path) -> list[str]:
    text = file.read_text("utf-8", errors="replace") if file.stat().st_size < _MAX_TEXT_BYTES else "${"
    lines = [re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines()]
    words = [word for line in lines for word in line.split()]
    # pip replaces ${NAME} by a variable.
    if any("${" in word or word in _UNSTORED_OPTIONS or _MOVING.search(word) for word in words):
        raise _UnstoredError
    return words


def _hash(file: Path, *, is_own: bool) -> str:
    """Return a fingerprint of a file: its hash, or size and time outside of the own code."""
    if is_own:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    status = file.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def _link(source: Path, target: Path) -> None:
    """Fill a folder with the files of another one, which need no space of their own. Raises OSError."""
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def _empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
