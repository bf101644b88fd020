"""Time limit of a computation in the main thread, for the regular expressions that a user types.

A pattern such as ``(a+)+$`` tries every way to divide a line: for forty letters this takes years. The engine of the
standard library has no limit and keeps the interpreter lock, so another thread does not help. It does check for
signals in the main thread, where Textual runs, so a process timer interrupts it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

Result = TypeVar("Result")
MATCH_SECONDS: Final = 1.0
"""Limit for all lines of a log or a batch: an alternation of words takes 0.2 s for the fifty thousand of a full
log.
"""
_LOOK_SECONDS: Final = 0.05


def within(seconds: float, compute: Callable[[], Result]) -> Result:
    """Return the result of a pure function computed in the main thread; in another thread there is no limit.

    Args:
        seconds: CPU time, so that a busy machine or a suspended terminal does not trigger the limit.

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
            is_computing = False  # once: a second signal would arrive during the clean-up
            raise TimeoutError

    handler = signal.signal(signal.SIGALRM, look)
    timer = signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
    try:
        return compute()
    finally:
        is_computing = False
        signal.setitimer(signal.ITIMER_REAL, *timer)
        # A last signal may still be pending, and the default action of this one ends the process.
        if callable(handler):
            signal.signal(signal.SIGALRM, handler)
