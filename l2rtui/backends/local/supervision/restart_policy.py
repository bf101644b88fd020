"""When a process that ended is started again: Kubernetes' policies and kubelet's back-off, as arithmetic.

kubelet restarts a container at once the first time, then after 10 s, doubling to 300 s, and forgets after 10
minutes without a failure (``pkg/kubelet/kubelet.go``).
Here 10 s is the setting ``backoff_seconds``; the others are 30 and 60 times that.
"""

from __future__ import annotations

import os

from l2rtui.domain.status import exit_text

_MOST = 30
_FORGET = 60
START_ERROR_CODE = 128
"""Exit code of a process that could not be started, as Kubernetes reports a StartError."""
UNKNOWN_EXIT = "its exit code is unknown: it ended while no supervisor was its parent"


def backoff(restarts_in_row: int, base_seconds: float) -> float:
    """Seconds to wait before the next start, after so many restarts in a row."""
    return (
        0.0 if restarts_in_row == 0 else min(base_seconds * 2 ** min(restarts_in_row - 1, 16), _MOST * base_seconds)
    )


def is_forgotten(ran_seconds: float, base_seconds: float) -> bool:
    """Whether a process ran so long that its earlier failures no longer count."""
    return ran_seconds >= _FORGET * base_seconds


def ending(exit_code: int | None) -> str:
    """How a process ended, for the line between two processes in a log."""
    return "exit code unknown" if exit_code is None else exit_text(exit_code)


def exit_code_of(wait_status: int) -> int:
    """The code of a waitpid() status as shells and Kubernetes write it: 128 + n for signal n."""
    code = os.waitstatus_to_exitcode(wait_status)
    return code if code >= 0 else 128 - code
