"""Alerts on behalf of a learner that has ended, sent by a process for which the supervisor does not wait."""

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
        environ: Environment of the learner: rules, folder and secrets.
        reason: Sentence on how it ended.

    Raises:
        OSError: It cannot be started.
    """
    import subprocess  # loaded only by a supervisor that sends an alert

    command = find_command(RUNTIME_COMMAND, environ["PATH"], cwd)
    if command is None:
        raise OSError(None, f"{RUNTIME_COMMAND} is not there")
    # Not part of the pod, whose remaining processes are killed, but part of the run, so that a destroy ends it.
    own = {key: value for key, value in environ.items() if key != contract.ENV_POD_ID}
    words: Sequence[str] = ("--limit",) if is_by_limit else ()
    # Ended deliveries are reaped here; the last one is left to init.
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
