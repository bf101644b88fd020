"""Time limit of a computation in the main thread, for the regular expressions that a user types.

One such as ``(a+)+$`` tries every way to divide a line: on forty letters for years. The engine of the standard
library has no limit and keeps the interpreter lock, so another thread is no help; but it looks for signals in
the main thread, in which Textual runs. A timer of the process therefore ends it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

Result = TypeVar("Result")
MATCH_SECONDS: Final = 1.0
"""For all lines of a log or of a batch: a choice of words takes 0.2 s for the fifty thousand of a full log."""
_LOOK_SECONDS: Final = 0.05


def within(seconds: float, compute: Callable[[], Result]) -> Result:
    """Return what a pure function computes in the main thread; in another thread there is no limit.

    Args:
        seconds: Of computing, so that a busy machine or a suspended terminal is no reason to stop.

    Raises:
        TimeoutError: it takes longer.
    """
    if threading.current_thread() is not threading.main_thread():
        return compute()
    deadline = time.thread_time() + seconds
    is_computing = True

    def look(_signal: int, _frame: object) -> None:
        nonlocal is_computing
        if is_computing and time.thread_time() > deadline:
            is_computing = False  # once: a second time would come in the middle of the cleaning up
            raise TimeoutError

    handler = signal.signal(signal.SIGALRM, look)
    timer = signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
    try:
        return compute()
    finally:
        is_computing = False
        signal.setitimer(signal.ITIMER_REAL, *timer)
        # A last signal may still be on its way, and the default of this one is to end the process.
        if callable(handler):
            signal.signal(signal.SIGALRM, handler)
