"""Alerts for a learner that can send none any more: a process for which the supervisor does not wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from l2rtui.backends.local.environment import RUNTIME_COMMAND, find_command
from runtime.base import contract

if TYPE_CHECKING:
    import subprocess

_processes: Final[list[subprocess.Popen[bytes]]] = []


def send(environ: Mapping[str, str], reason: str, cwd: str, *, is_by_limit: bool = False) -> None:
    """Start the delivery. Its output goes to the supervisor's log.

    Args:
        environ: Of the learner: rules, folder and secrets.
        reason: Sentence on how it ended.

    Raises:
        OSError: it cannot be started.
    """
    import subprocess  # a supervisor that sends nothing does not load it

    command = find_command(RUNTIME_COMMAND, environ["PATH"], cwd)
    if command is None:
        raise OSError(None, f"{RUNTIME_COMMAND} is not there")
    # Not as a part of the pod: what is left of that is killed. As a part of the run, so that a destroy ends it.
    own = {key: value for key, value in environ.items() if key != contract.ENV_POD_ID}
    words: Sequence[str] = ("--limit",) if is_by_limit else ()
    # Those that have ended are reaped here; the last is left to init.
    _processes[:] = [process for process in _processes if process.poll() is None]
    _processes.append(
        subprocess.Popen(
            [command, "alert", "--ended", reason, *words],
            env=own,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    )
