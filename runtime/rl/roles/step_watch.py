"""Watch over steps of a foreign environment, which may take any time: slow is not dead.

While a step takes long, a thread answers the learner in the process's place, so that no side gives the other up,
and writes how long it has taken. Foreign code cannot be interrupted: a process that is asked to end, and whose step
does not return, ends without it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

from runtime.base import contract
from runtime.base.metrics import Console

NOTICE_SECONDS: Final = 1.0
"""Time after which a step is watched; the exchange needs a sign of life once a second."""
RECORD_SECONDS: Final = 10.0
STOP_SECONDS: Final = 6.0
"""Time from SIGTERM within which a step has to return: less than the usual grace of 10 s, which ends in SIGKILL."""


class StepWatch:
    """Thread that takes a process's part in the exchange while a step takes long.

    The process is between `begin` and `end` while it is in foreign code, and touches nothing of the exchange.

    Args:
        exchange: Exchange messages without a wait. record: write a metric record.
    """

    def __init__(
        self, environment: str, exchange: Callable[[], Any], record: Callable[[], Any], console: Console
    ) -> None:
        self._environment, self._exchange, self._record, self._console = environment, exchange, record, console
        self._ours = threading.Lock()
        """Held by the process except within a step."""
        self._closing = threading.Event()
        self._began = 0.0
        self._last = self._longest = 0.0
        self._error: BaseException | None = None
        self._asked: float | None = None
        self._signals: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._watch, name="step-watch", daemon=True)

    def __enter__(self) -> Self:
        # Python's handler waits until its main thread runs Python again; the descriptor is written to immediately.
        if threading.current_thread() is threading.main_thread():
            self._signals = os.pipe()
            for descriptor in self._signals:
                os.set_blocking(descriptor, False)
            signal.set_wakeup_fd(self._signals[1], warn_on_full_buffer=False)
        self._ours.acquire()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._ours.release()
        self._thread.join()
        if self._signals is not None:
            signal.set_wakeup_fd(-1)
            for descriptor in self._signals:
                os.close(descriptor)

    @contextmanager
    def foreign(self) -> Iterator[None]:
        """Be in foreign code for the block. Raises what the thread met meanwhile."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    @contextmanager
    def own(self) -> Iterator[None]:
        """Come back from foreign code for the block."""
        self.end()
        try:
            yield
        finally:
            self.begin()

    def begin(self) -> None:
        """Enter foreign code."""
        self._began = time.monotonic()
        self._ours.release()

    def end(self) -> None:
        """Leave the step. Raise the error of the thread, if any."""
        self._ours.acquire()
        self._last = time.monotonic() - self._began
        self._began = 0.0
        self._longest = max(self._longest, self._last)
        if self._error is not None:
            raise self._error

    def fields(self) -> dict[str, float]:
        """Return the fields of a metric record; none while steps are quick.

        `step_seconds` is the time of the last step, `longest_step_seconds` of the longest, and `stepping_seconds`
        of the current one so far.
        """
        fields: dict[str, float] = {}
        if self._longest >= NOTICE_SECONDS:
            fields = {"step_seconds": round(self._last, 1), "longest_step_seconds": round(self._longest, 1)}
        began = self._began
        if began and (now := time.monotonic() - began) >= NOTICE_SECONDS:
            fields["stepping_seconds"] = round(now, 1)
        return fields

    def _watch(self) -> None:
        recorded = time.monotonic()
        while not self._closing.wait(NOTICE_SECONDS):
            self._end_if_asked()
            began = self._began
            if not began or time.monotonic() - began < NOTICE_SECONDS:
                recorded = time.monotonic()
                continue
            if not self._ours.acquire(timeout=NOTICE_SECONDS):
                continue
            try:
                if self._began and self._error is None:
                    self._exchange()
                    if time.monotonic() - recorded >= RECORD_SECONDS:
                        recorded = time.monotonic()
                        self._record()
            # It is raised where the process comes back: here nobody would see it.
            except Exception as error:  # noqa: BLE001
                self._error = error
            finally:
                self._ours.release()

    def _end_if_asked(self) -> None:
        """End the process if it was asked to, and its step has not returned in time."""
        now = time.monotonic()
        if self._signals is not None:
            try:
                if os.read(self._signals[0], 64):
                    self._asked = self._asked or now
            except BlockingIOError:
                pass
        began = self._began
        if self._asked is None or not began or now - max(self._asked, began) < STOP_SECONDS:
            return
        self._console.say(
            f"ends without its environment: a step of {self._environment} has not returned for "
            f"{now - began:.0f} s, so its copies are not closed"
        )
        sys.stdout.flush()
        os._exit(contract.EXIT_INTERRUPTED)
