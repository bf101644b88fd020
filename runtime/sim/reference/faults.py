"""Fault injection: `--fault KIND` or `--fault KIND@SECONDS`, for tests of supervisors."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

KINDS: Final = {
    "hang": "stops doing anything, and ignores SIGTERM as a hung process does",
    "deaf": "stops answering on the control port, poses go on",
    "freeze": "stops sending poses, the control port still answers",
    "crash": "dies of SIGSEGV",
    "killed": "dies of SIGKILL, as if sent by another program",
    "exit": "ends with code 3",
    "slow": "answers control calls after 3 s",
    "refuse": "never listens on the control port",
    "garbage": "malformed answers, poses and frames",
    "ignore-sigterm": "ignores SIGTERM, from the start",
    "grandchild": "leaves behind a process in a session of its own that ignores SIGTERM, from the start on",
}
"""Description of each kind. Unless it says "from the start on", a fault begins some seconds after a level was
opened.
"""
_AT_START: Final = frozenset({"refuse", "ignore-sigterm", "grandchild"})
DEFAULT_SECONDS: Final = 1.0
SLOW_SECONDS: Final = 3.0
EXIT_CODE: Final = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and the seconds after which it begins."""

    kind: str
    seconds: float = DEFAULT_SECONDS

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Parse ``KIND`` or ``KIND@SECONDS``. Raises ValueError with the allowed kinds."""
        kind, at, after = text.partition("@")
        if kind not in KINDS:
            raise ValueError(f"unknown fault {kind!r}; the faults are {', '.join(KINDS)}")
        try:
            seconds = float(after) if at else DEFAULT_SECONDS
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < 1e6:
            raise ValueError(f"fault {kind}: {after!r} is not a number of seconds")
        return cls(kind, seconds)


class Faults:
    """Set of faults that have begun or will begin."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._waiting = [fault for fault in faults if fault.kind not in _AT_START]
        self._present = {fault.kind for fault in faults if fault.kind in _AT_START}

    def has(self, kind: str) -> bool:
        """Return True if a fault has begun."""
        return kind in self._present

    def begin(self) -> None:
        """Begin the faults of the process start."""
        if self.has("grandchild"):
            _leave_grandchild()

    def begin_due(self, seconds_open: float) -> None:
        """Begin the faults that are due; some do not return."""
        for fault in [fault for fault in self._waiting if fault.seconds <= seconds_open]:
            self._waiting.remove(fault)
            self._present.add(fault.kind)
            if fault.kind == "crash":
                signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # a handler such as faulthandler's would run first
                os.kill(os.getpid(), signal.SIGSEGV)
            elif fault.kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault.kind == "exit":
                os._exit(EXIT_CODE)
            elif fault.kind == "hang":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                while True:
                    time.sleep(3600)


def _leave_grandchild() -> None:
    """Fork twice and change the session: a process outside the tree and the session, which a plain kill misses."""
    if child := os.fork():
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(BaseException):
        while True:
            time.sleep(3600)
    os._exit(0)
