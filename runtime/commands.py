"""What the programs beside a run's loops have in common: words for a command line and for an end (stdlib only).

A step, a fetch, a node of an elastic job or a parameter server takes options instead of settings, may be followed
by ``-- COMMAND``, and is stopped in the middle of work that is not done: then it must not look finished.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from runtime import contract
from runtime.process import UsageError


class FailedError(Exception):
    """The work cannot be done; the sentence says what failed and what to change."""


class InterruptedWorkError(Exception):
    """The process was asked to end before its work was done."""


def run_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder for what outlives the process. Raises UsageError if there is none."""
    folder = environ.get(contract.ENV_DIR)
    if not folder:
        raise UsageError(f"{contract.ENV_DIR} is not set; it names the folder that the processes of the run share")
    return Path(folder)


def run_id(environ: Mapping[str, str]) -> str:
    """Return the id of this launch of the run."""
    return environ.get(contract.ENV_RUN_ID) or environ.get(contract.ENV_RUN) or "run"


def program(command: Sequence[str]) -> list[str]:
    """Return a command as it is started: Python, its files and our own program are of this very Python."""
    if command[0] == "l2r-runtime":
        return [sys.executable, "-m", "runtime", *command[1:]]
    if command[0].endswith(".py"):
        return [sys.executable, "-u", *command]
    if command[0] in {"python", "python3"}:
        return [sys.executable, *command[1:]]
    return list(command)


def exit_code(returned: int) -> int:
    """Return the exit code that a shell gives for what `Popen.wait` returned: 128 and the number of a signal."""
    return 128 - returned if returned < 0 else returned


def become(command: Sequence[str]) -> None:
    """Turn this process into `command`; returns never. Raises FailedError if there is no such program."""
    sys.stdout.flush()
    words = program(command)
    try:
        os.execvp(words[0], words)  # noqa: S606  (a shell is what is not wanted)
    except OSError as error:
        raise FailedError(f"{words[0]} cannot be started: {error}") from error
