"""Stop flag of a process, set by SIGTERM and SIGINT. Imports nearly nothing, so that it is installed first."""

from __future__ import annotations

import signal
from types import FrameType


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
