"""Stop flag of a process, set by SIGTERM and SIGINT. Imports nearly nothing, so that it can be installed first."""

from __future__ import annotations

import signal
from types import FrameType


class Stop:
    """Flag that SIGTERM or SIGINT sets; loops check it and end in order."""

    def __init__(self) -> None:
        self.reason: str | None = None
        """Name of the signal. A plain attribute, not a threading.Event: a signal handler deadlocks if it takes a
        lock that its own thread holds.
        """
        self._is_installed = False

    def install(self) -> None:
        """Install the handlers. Python only allows it in the main thread."""
        self._is_installed = True
        signal.signal(signal.SIGINT, self._on_signal)
        # Installed last: code that sees this handler can rely on both.
        signal.signal(signal.SIGTERM, self._on_signal)

    def keep(self) -> None:
        """Install the handlers again after foreign code, which may have set its own."""
        if self._is_installed and signal.getsignal(signal.SIGTERM) != self._on_signal:
            self.install()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.reason = signal.Signals(number).name

    def is_set(self) -> bool:
        """Return whether the process was asked to end."""
        return self.reason is not None
