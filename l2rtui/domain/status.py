"""Status of a pod in one word, one level and one sentence, derived from the report of its backend; and its events.

Phases and reasons are taken from Kubernetes and displayed verbatim: Pending, Running, Succeeded, Failed, Unknown;
CrashLoopBackOff, OOMKilled, Error, Completed and others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from msgspec import Struct

from l2rtui.domain.quantity import counted


class KubeEvent(Struct, frozen=True):
    """Event about an object, after the Kubernetes API's Event (events.k8s.io/v1).

    Attributes:
        time: Last occurrence, seconds since the epoch. level: Normal or Warning.
        object: Kind and name, ``Pod racing-sac-w-x7k2p``. count: number of occurrences.
    """

    time: float
    level: str
    reason: str
    object: str
    message: str
    namespace: str = ""
    count: int = 1


class Phase(StrEnum):
    """Pod phase, as Kubernetes defines it."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"

    @property
    def is_over(self) -> bool:
        """True if no process of the pod will run again; such a pod uses no slot."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


class Level(StrEnum):
    """Severity of a state, which determines its colour and glyph."""

    OK = "ok"
    WAIT = "wait"
    WARN = "warn"
    BAD = "bad"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Status:
    """Status for display."""

    word: str
    level: Level
    sentence: str


LOGIN_REFUSED = "login refused since "
"""Beginning of the problem of a login that a server no longer accepts; a time follows."""
QUEUED: Final = "Queued"
"""State of a run that waits in a queue, shown as the reason of its row."""
STOPPED: Final = "Stopped"
"""Reason of a pod whose process is stopped by SIGSTOP."""
EVICTIONS: Final = frozenset({
    "Evicted", "Preempted", "NodeLost", "NodeShutdown", "Shutdown",
    "PreemptionByScheduler", "DeletionByTaintManager", "EvictionByEvictionAPI", "TaintManagerEviction",
})  # fmt: skip
"""Reasons of pods and events: the node, the scheduler or an administrator ended the pod, and not its run."""
CRASH_LOOP = "CrashLoopBackOff"
_SIGNALS = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
            9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM"}  # fmt: skip


_LAST_SIGNAL = 64
"""SIGRTMAX on Linux: greater exit codes than 128 + 64, such as 255 of ``sys.exit(-1)`` and of ssh, are not
signals.
"""


def exit_text(exit_code: int) -> str:
    """Describe how a process ended. 128 + n means signal n, as in shells and Kubernetes."""
    if _is_signal(exit_code):
        number = exit_code - 128
        return f"killed by {_SIGNALS.get(number, f'signal {number}')} (exit {exit_code})"
    return f"exit {exit_code}"


def _with(exit_code: int, verb: str) -> str:
    """Combine ``ended`` or ``failed`` with the exit: ``failed with exit 1``, ``killed by SIGKILL (exit 137)``."""
    return exit_text(exit_code) if _is_signal(exit_code) else f"{verb} with {exit_text(exit_code)}"


def _is_signal(exit_code: int) -> bool:
    return 128 < exit_code <= 128 + _LAST_SIGNAL


def is_failing(phase: Phase, reason: str, *, is_terminating: bool) -> bool:
    """True if pod_status() has the level BAD. Builds no texts, as the ledger calls it for every pod."""
    return not is_terminating and (phase is Phase.FAILED or reason == CRASH_LOOP)


def pod_status(
    phase: Phase,
    reason: str = "",
    message: str = "",
    *,
    exit_code: int | None = None,
    restarts: int = 0,
    is_terminating: bool = False,
) -> Status:
    """Combine phase, reason and last exit into one Status.

    Args:
        reason: The backend's reason for a state beyond the phase, for example ``CrashLoopBackOff``.
        message: The backend's own sentence, which is appended.
        exit_code: Exit code of the last process of the pod that ended; None without one.
    """
    times = counted(restarts, "restart")
    ended = f", last {_with(exit_code, 'ended')}" if exit_code is not None and restarts else ""
    detail = f": {message}" if message else ""
    # Checked first: a pod that crashes while it is being deleted needs no attention.
    if is_terminating:
        return Status("Terminating", Level.WAIT, f"is being stopped{detail}")
    # The phase of a pod in back-off is still Running.
    if reason == CRASH_LOOP:
        return Status(reason, Level.BAD, f"crash-looping, {times}{ended}{detail}")
    match phase:
        case Phase.RUNNING:
            again = f"running, {times}{ended}" if restarts else "running"
            return Status(reason or "Running", Level.OK if not reason else Level.WARN, f"{again}{detail}")
        case Phase.PENDING:
            level = Level.WARN if reason else Level.WAIT
            return Status(reason or "Pending", level, f"waits to start{ended}{detail}")
        case Phase.SUCCEEDED:
            return Status(reason or "Completed", Level.DONE, f"finished{detail}")
        case Phase.FAILED:
            how = _with(exit_code, "failed") if exit_code is not None else "failed with no exit code"
            return Status(reason or "Failed", Level.BAD, f"{how}{detail}")
        case _:  # Phase.UNKNOWN
            return Status(reason or "Unknown", Level.WARN, f"is in an unknown state{detail}")
