"""What can be made to go wrong: `--fault KIND` or `--fault KIND@SECONDS`, for whoever has to survive it."""

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
    "freeze": "stops sending poses, the control port goes on answering",
    "crash": "dies of SIGSEGV",
    "killed": "dies of SIGKILL, as if by somebody else",
    "exit": "ends with code 3",
    "slow": "answers control calls after 3 s",
    "refuse": "never listens on the control port",
    "garbage": "answers, poses and frames that are none",
    "ignore-sigterm": "goes on at SIGTERM, from the start on",
    "grandchild": "leaves behind a process in a session of its own that ignores SIGTERM, from the start on",
}
"""Kind to what it does. Those that are not "from the start on" begin so many seconds after a level was opened."""
_AT_START: Final = frozenset({"refuse", "ignore-sigterm", "grandchild"})
DEFAULT_SECONDS: Final = 1.0
SLOW_SECONDS: Final = 3.0
EXIT_CODE: Final = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to go wrong."""

    kind: str
    seconds: float = DEFAULT_SECONDS

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read ``KIND`` or ``KIND@SECONDS``. ValueError names what may stand there."""
        kind, at, after = text.partition("@")
        if kind not in KINDS:
            raise ValueError(f"there is no fault {kind!r}; known are {', '.join(KINDS)}")
        try:
            seconds = float(after) if at else DEFAULT_SECONDS
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < 1e6:
            raise ValueError(f"fault {kind}: {after!r} is no number of seconds")
        return cls(kind, seconds)


class Faults:
    """Which faults are in force."""

    def __init__(self, wanted: Sequence[Fault]) -> None:
        self._waiting = [each for each in wanted if each.kind not in _AT_START]
        self._present = {each.kind for each in wanted if each.kind in _AT_START}

    def has(self, kind: str) -> bool:
        """Whether a fault is in force."""
        return kind in self._present

    def begin(self) -> None:
        """Do at the start of the process what is to go wrong from there."""
        if self.has("grandchild"):
            _leave_grandchild()

    def look(self, seconds_open: float) -> None:
        """Let what is due begin; some do not return."""
        for each in [each for each in self._waiting if each.seconds <= seconds_open]:
            self._waiting.remove(each)
            self._present.add(each.kind)
            if each.kind == "crash":
                signal.signal(signal.SIGSEGV, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGSEGV)
            elif each.kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif each.kind == "exit":
                os._exit(EXIT_CODE)
            elif each.kind == "hang":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                while True:
                    time.sleep(3600)


def _leave_grandchild() -> None:
    """Fork twice, so that it is nobody's child, into a session of its own."""
    child = os.fork()
    if child:
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
