"""What screens need from below: settings, the backend once it is there, the clock, background work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from l2rtui.config import Settings
from l2rtui.errors import BackendError
from l2rtui.ui.background import Background
from l2rtui.ui.keys import KeyTable, changing_actions
from l2rtui.ui.pending import Pending

if TYPE_CHECKING:
    from l2rtui.backends.base import Backend

ACTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "launch": ("launch", "place", "relaunch"),
        "kill": ("kill",),
        "scale": ("scale",),
        "destroy": ("destroy", "relaunch", "edit"),
        "exec": ("shell", "signal", "simulators", "restart", "send", "look"),
        "forward": ("forward",),
    }
)
"""Which actions need a deed of the backend."""


@dataclass
class Link:
    """Handed to every screen.

    Attributes:
        clock: Seconds since the epoch; frozen in tests.
        context: The backend and its context, as the status bar names it.
        keys: The keys as the settings have them.
        denied: Why an action is not allowed here, by its name: rights that are missing.
        protected: Name of a context in which every change wants that name typed; empty elsewhere.
        is_admin: Other people's runs may be changed, after their names were typed.
        is_lent: Another program has the terminal.
        cancel_seconds: For so long a confirmed kill or destroy can be called back.
    """

    settings: Settings
    background: Background
    clock: Callable[[], float]
    context: str
    backend_or_none: Backend | None = None
    keys: KeyTable = field(default_factory=KeyTable)
    denied: dict[str, str] = field(default_factory=dict)
    protected: str = ""
    cancel_seconds: float = 5.0
    is_admin: bool = False
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

    def deny(self, deeds: Mapping[str, str]) -> None:
        """These deeds of a backend are not possible: the actions that need them are off, with the reason.

        Args:
            deeds: As ``backends.base.Permitting`` names them.
        """
        self.denied = {action: reason for deed, reason in deeds.items() for action in ACTIONS.get(deed, ())}

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
