"""Run folder, run id and commands of the programs that take options instead of training settings.

A step, a fetch, a node of an elastic job or a parameter server may be followed by ``-- COMMAND``. A process that is
stopped before its work is done must not look finished; see `InterruptedWorkError`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from runtime.base import contract
from runtime.base.errors import FailedError, SetupError

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001  (it has no public name)


def add_command(
    commands: Commands, name: str, text: str, start: Callable[..., Any], usage: str = ""
) -> argparse.ArgumentParser:
    """Add a command and return its parser; `start` gets the options and the stop flag.

    The first line of `text` is shown in the list of commands, the second is the command's description, and the rest
    follows its options unchanged.
    """
    summary, description, epilog = text.split("\n", 2)
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        usage=usage or None,
        epilog=epilog.lstrip("\n"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(start=start)
    return parser


def run_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder for data that outlives the process. Raises SetupError if it is not set."""
    folder = environ.get(contract.ENV_DIR)
    if not folder:
        raise SetupError(f"{contract.ENV_DIR} is not set; it names the folder that the processes of the run share")
    return Path(folder)


def run_id(environ: Mapping[str, str]) -> str:
    """Return the id of this launch of the run."""
    return environ.get(contract.ENV_RUN_ID) or environ.get(contract.ENV_RUN) or "run"


def program(command: Sequence[str]) -> list[str]:
    """Return the argv to start: Python, Python files and ``l2r-runtime`` run in this process's interpreter."""
    # By name they would be looked up in PATH, which lacks a virtual environment that was not activated.
    if command[0] == "l2r-runtime":
        return [sys.executable, "-m", "runtime", *command[1:]]
    if command[0].endswith(".py"):
        return [sys.executable, "-u", *command]
    if command[0] in {"python", "python3"}:
        return [sys.executable, *command[1:]]
    return list(command)


def become(command: Sequence[str]) -> None:
    """Replace this process by `command` and never return. Raises FailedError if the program does not exist."""
    sys.stdout.flush()  # exec drops buffered output
    argv = program(command)
    try:
        os.execvp(argv[0], argv)  # noqa: S606  (without a shell on purpose)
    except OSError as error:
        raise FailedError(f"{argv[0]} cannot be started: {error}") from error
