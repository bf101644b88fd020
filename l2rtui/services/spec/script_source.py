"""Program of a set: a file in the spec's folder, whose text is stored with the run, or an S3 URL."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from l2rtui.domain.quantity import format_bytes
from l2rtui.domain.workload import PROGRAM_WORD, Program, SetSpec

MAX_BYTES = 262_144
"""Limit of the text: a ConfigMap holds 1 MiB, and the stored spec contains the text a second time."""
_MODULE_WORDS = ("--program", PROGRAM_WORD)
"""Arguments that pass the file of a run's own classes to a process of the runtime."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/(?:[^/\s?#]+/)*([^/\s?#]+)")


def load(source: str, folder: Path, where: str) -> Program | None:
    """Read the program named by a spec; None if it names none.

    Args:
        folder: Folder of the spec file, to which the path is relative.
        where: The set, for sentences.

    Raises:
        ValueError: it cannot be read, is too large, or is not text.
    """
    if not source:
        return None
    if "://" in source:
        match = _S3.fullmatch(source)
        if match is None or not _NAME.fullmatch(match[1]):
            raise ValueError(f"{where}: program: {source!r} is not s3://BUCKET/KEY")
        return Program(match[1], url=source)
    path = folder / source
    if not _NAME.fullmatch(path.name):
        raise ValueError(f"{where}: program: {path.name!r} is not a plain file name")
    try:
        with path.open("rb") as file:
            # One byte more than allowed, so that a file of any size is read only this far.
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{where}: program: {path.absolute()} cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise ValueError(
            f"{where}: program: {path} is larger than the {format_bytes(MAX_BYTES)} that travel with a run: "
            "put it into the image or into S3"
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{where}: program: {path} is not UTF-8 text") from None
    if not text.strip():
        raise ValueError(f"{where}: program: {path} is empty")
    return Program(path.name, text)


def load_module(source: str, folder: Path, where: str) -> Program | None:
    """Read the file with a run's own classes, like ``load``; ValueError also if Python could not import it."""
    module = load(source, folder, where)
    if module is not None and not (module.name.endswith(".py") and module.name[:-3].isidentifier()):
        raise ValueError(f"{where}: program: {module.name!r} cannot be imported: name it like my_method.py")
    return module


def with_module(part: SetSpec, module: Program | None) -> SetSpec:
    """Return a set of the runtime's processes with the file of the run's own classes, and its command with that
    file.

    Any other command gets the file only if it names it itself.
    """
    if module is None:
        return part
    is_ours = part.command[:2] == ("l2r-runtime", str(part.role)) and PROGRAM_WORD not in part.command
    command = (*part.command, *_MODULE_WORDS) if is_ours else part.command
    return replace(part, command=command, program=module) if PROGRAM_WORD in command else part


def without_module(part: SetSpec) -> SetSpec:
    """Return the set without the changes of ``with_module``."""
    command = part.command
    if part.program is not None and command[-2:] == _MODULE_WORDS:
        command = command[:-2]
    return replace(part, command=command, program=None)


def command_of(command: list[str], program: Program | None, where: str) -> tuple[str, ...]:
    """Return the command of a set with a program: ``python {program}`` by default.

    Raises:
        ValueError: there is neither; the program is not used by the command, or the other way round; or it is not
            Python's and has no command.
    """
    if not command and program is None:
        raise ValueError(f"{where}: write its command, or its program")
    if program is not None and command and PROGRAM_WORD not in command:
        sentence = f"{where}: its command does not run its program: write {PROGRAM_WORD} where its path belongs"
        raise ValueError(sentence)
    if program is None and PROGRAM_WORD in command:
        raise ValueError(f"{where}: its command names {PROGRAM_WORD}, and it has no program")
    if program is not None and not command and (shell := _shell_of(program)):
        raise ValueError(
            f"{where}: its program {program.name} is a shell script, and python would run it: "
            f'write command: [{shell}, "{PROGRAM_WORD}"]'
        )
    return tuple(command) if command else ("python", PROGRAM_WORD)


def _shell_of(program: Program) -> str:
    """Return the shell that runs a program, by its first line or its name; empty for other programs."""
    first = program.text.partition("\n")[0]
    words = [word.rpartition("/")[2] for word in first.removeprefix("#!").split() if not word.startswith("-")]
    interpreter = words[1:] if words[:1] == ["env"] else words
    shell = interpreter[0] if first.startswith("#!") and interpreter else program.name.rpartition(".")[2]
    return shell if shell in ("sh", "bash", "dash", "zsh", "ksh") else ""
