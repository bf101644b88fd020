"""Restart policy and back-off of pods as arithmetic: kubelet's rules.

kubelet restarts a container at once the first time, then after 10 s, doubling to 300 s, and forgets after 10
minutes without a failure (``pkg/kubelet/kubelet.go``).
Here 10 s is the setting ``backoff_seconds``; the others are 30 and 60 times that.
"""

from __future__ import annotations

import os

from l2rtui.domain.status import exit_text
from runtime.base.processes import exponential_delay, shell_exit_code

_MAX_FACTOR = 30
_FORGET_FACTOR = 60
START_ERROR_CODE = 128
"""Exit code of a process that could not be started, as Kubernetes reports a StartError."""
UNKNOWN_EXIT = "its exit code is unknown: it ended while no supervisor was its parent"


def backoff(restarts_in_row: int, base_seconds: float) -> float:
    """Return the seconds before the next start, after so many restarts in a row."""
    return exponential_delay(restarts_in_row, base_seconds, _MAX_FACTOR * base_seconds)


def is_forgotten(ran_seconds: float, base_seconds: float) -> bool:
    """Return True when a process ran so long that its earlier failures no longer count."""
    return ran_seconds >= _FORGET_FACTOR * base_seconds


def exit_code_text(exit_code: int | None) -> str:
    """Describe the end of a process, for the mark between two processes in a log."""
    return "exit code unknown" if exit_code is None else exit_text(exit_code)


def exit_code_of(wait_status: int) -> int:
    """Convert a waitpid() status to the code that shells and Kubernetes write: 128 + n for signal n."""
    return shell_exit_code(os.waitstatus_to_exitcode(wait_status))
