"""What screens need from below: settings, the backend once it is there, the clock, background work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from l2rtui.backends.base import Backend
from l2rtui.config import Settings
from l2rtui.errors import BackendError
from l2rtui.ui.background import Background


@dataclass
class Link:
    """Handed to every screen.

    Attributes:
        clock: Seconds since the epoch; frozen in tests.
        context: The backend and its context, as the status bar names it.
    """

    settings: Settings
    background: Background
    clock: Callable[[], float]
    context: str
    backend_or_none: Backend | None = None

    @property
    def backend(self) -> Backend:
        """The backend.

        Raises:
            BackendError: a key was pressed in the moment before it was there.
        """
        if self.backend_or_none is None:
            raise BackendError("The backend is not connected yet.", "Try again in a moment.")
        return self.backend_or_none
