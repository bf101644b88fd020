"""Being asked to end. Its own file, so that it is in force before anything slower than this is imported."""

from __future__ import annotations

import signal
from types import FrameType


class Stop:
    """Set by SIGTERM or SIGINT; the loops look at it and end in order."""

    def __init__(self) -> None:
        self.reason: str | None = None
        """Name of the signal. A plain attribute: a handler that took a lock could wait for its own thread."""

    def install(self) -> None:
        """Take over SIGTERM and SIGINT. Only the main thread may."""
        signal.signal(signal.SIGTERM, self._asked)
        signal.signal(signal.SIGINT, self._asked)

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        self.reason = signal.Signals(number).name

    def is_set(self) -> bool:
        """Say whether the process was asked to end."""
        return self.reason is not None
