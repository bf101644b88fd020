"""What screens need from below: settings, the backend once it is there, the clock, background work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from l2rtui.backends.base import Backend
from l2rtui.config import Settings
from l2rtui.errors import BackendError
from l2rtui.ui.background import Background
from l2rtui.ui.keys import changing_actions
from l2rtui.ui.pending import Pending


@dataclass
class Link:
    """Handed to every screen.

    Attributes:
        clock: Seconds since the epoch; frozen in tests.
        context: The backend and its context, as the status bar names it.
        denied: Why an action is not allowed here, by its name: rights that are missing.
        protected: Name of a context in which every change wants that name typed; empty elsewhere.
        is_lent: Another program has the terminal.
        cancel_seconds: For so long a confirmed kill or destroy can be called back.
    """

    settings: Settings
    background: Background
    clock: Callable[[], float]
    context: str
    backend_or_none: Backend | None = None
    denied: dict[str, str] = field(default_factory=dict)
    protected: str = ""
    cancel_seconds: float = 5.0
    pending: Pending = field(init=False)
    is_lent: bool = False

    def __post_init__(self) -> None:
        self.pending = Pending(self.background)

    @property
    def backend(self) -> Backend:
        """The backend.

        Raises:
            BackendError: a key was pressed in the moment before it was there.
        """
        if self.backend_or_none is None:
            raise BackendError("The backend is not connected yet.", "Try again in a moment.")
        return self.backend_or_none

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Hold while another program has the terminal: ctrl+c is meant for that program."""
        self.is_lent = True
        try:
            yield
        finally:
            self.is_lent = False

    def forbidden(self, action: str) -> str:
        """Why an action, with or without its arguments, may not be done; empty when it may."""
        name = action.partition("(")[0]
        if self.settings.readonly and name in changing_actions():
            return "the app was started with --readonly"
        return self.denied.get(name, "")
