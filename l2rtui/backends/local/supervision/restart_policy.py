"""Restart policy and back-off of pods, following kubelet's rules.

kubelet restarts a container the first time without a pause, then after 10 s, doubling to 300 s, and forgets
failures after 10 minutes without one (``pkg/kubelet/kubelet.go``). Here the setting ``backoff_seconds`` replaces
the 10 s; the other values are 30 and 60 times that.
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
    """Return the seconds before the next start, after this number of consecutive restarts."""
    return exponential_delay(restarts_in_row, base_seconds, _MAX_FACTOR * base_seconds)


def is_forgotten(ran_seconds: float, base_seconds: float) -> bool:
    """Return True if a process ran long enough that its earlier failures no longer count."""
    return ran_seconds >= _FORGET_FACTOR * base_seconds


def exit_code_text(exit_code: int | None) -> str:
    """Describe the end of a process, for the mark between two processes in a log."""
    return "exit code unknown" if exit_code is None else exit_text(exit_code)


def exit_code_of(wait_status: int) -> int:
    """Convert a waitpid() status to the exit code in shells and Kubernetes: 128 + n for signal n."""
    return shell_exit_code(os.waitstatus_to_exitcode(wait_status))
