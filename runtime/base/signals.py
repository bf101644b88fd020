"""Stop flag of a process, set by SIGTERM and SIGINT. Imports nearly nothing, so that it is installed first."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType
from typing import Final, NoReturn

END_SECONDS: Final = 3.0
"""Time for threads and exit hooks of foreign code when the work of a process is done."""


class Stop:
    """Flag that SIGTERM or SIGINT sets; loops check it and end in order."""

    def __init__(self) -> None:
        self.reason: str | None = None
        """Name of the signal. A plain attribute, not a threading.Event: a handler that takes a lock which its own
        thread holds waits for ever."""

    def install(self) -> None:
        """Install the handlers. Python allows it in the main thread only."""
        signal.signal(signal.SIGINT, self._on_signal)
        # Last: who looks for this handler, as Python has none, finds both.
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.reason = signal.Signals(number).name

    def is_set(self) -> bool:
        """Say whether the process was asked to end."""
        return self.reason is not None


def end_process(code: int, seconds: float = END_SECONDS) -> NoReturn:
    """End this process with ``code``, by force where a thread or an exit hook of foreign code does not end."""
    import threading
    import time

    def force() -> None:
        time.sleep(seconds)
        main = threading.main_thread()
        names = [thread.name for thread in threading.enumerate() if thread is not main and not thread.daemon]
        left = f"the thread {', '.join(names)}" if names else "an exit hook"
        os.write(2, f"l2r-runtime: ends by force: {left} has not ended within {seconds:g} s\n".encode())
        os._exit(code)

    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe: nobody reads it
            stream.flush()
    # A daemon: it goes on while the interpreter waits for threads that are none, and for hooks.
    threading.Thread(target=force, name="end", daemon=True).start()
    sys.exit(code)
