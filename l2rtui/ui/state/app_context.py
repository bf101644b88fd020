"""App context: settings, backend, clock, background work and permissions, shared by all screens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from l2rtui.config import Settings, context_name
from l2rtui.errors import BackendError
from l2rtui.ui.keys.table import KeyTable, changing_actions
from l2rtui.ui.state.background import Background
from l2rtui.ui.state.undo_window import UndoWindow

if TYPE_CHECKING:
    from l2rtui.backends.base import Backend
    from l2rtui.services.curves import CurveStore

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
"""Actions of the app by the operation of the backend that they need, as ``Backend.denied`` names it."""


def protected_name(settings: Settings) -> str:
    """Return the name that must be typed before every change in a protected context; empty elsewhere."""
    if not settings.protected:
        return ""
    return context_name({"backend": settings.backend, "context": settings.context})


@dataclass(frozen=True, slots=True)
class ContextOpener:
    """Ways to the backend of another context.

    Attributes:
        settings_for: Returns the settings of a context and namespaces; None leaves these to the files. The
            context's own table in the settings counts, and so do flags such as ``--readonly``.
        make: Makes the backend of settings; called in a thread.
    """

    settings_for: Callable[[str, tuple[str, ...] | None], Settings]
    make: Callable[[Settings], Backend]


@dataclass
class AppContext:
    """Values and services that every screen gets.

    Attributes:
        clock: Seconds since the epoch; frozen in tests.
        context: The backend and its context, as the status bar names it.
        keys: The key table with the bindings of the settings.
        denied: Reason of a missing permission by the name of the action.
        protected: Name of a context in which that name must be typed before every change; empty elsewhere.
        is_admin: Other people's runs may be changed, after their names were typed.
        is_lent: Another program has the terminal.
        silent_since: Time of the backend's last sign of life, as the newest snapshot has it.
        cancel_seconds: Length of the undo window of a confirmed kill or destroy (``undo_window``).
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
    undo_window: UndoWindow = field(init=False)
    is_lent: bool = False
    silent_since: float | None = None

    def __post_init__(self) -> None:
        self.undo_window = UndoWindow(self.background)

    @cached_property
    def curves(self) -> CurveStore:
        """Curves of the runs, which records are added to as they arrive."""
        from l2rtui.services.curves import CurveStore

        return CurveStore()

    @property
    def backend(self) -> Backend:
        """The backend.

        Raises:
            BackendError: it is not connected yet.
        """
        if self.backend_or_none is None:
            raise BackendError("The backend is not connected yet.", "Try again in a moment.")
        return self.backend_or_none

    def acts_on(self, namespaces: Collection[str] = ()) -> str:
        """Return where a change acts, for its question, and whether it answers; empty before the connection."""
        if self.backend_or_none is None:
            return ""
        where, silence = self.backend_or_none.acts_on(namespaces), self.unanswered_seconds
        return f"{where}, which has not answered for {silence:.0f} s" if silence else where

    @property
    def unanswered_seconds(self) -> float:
        """Time since the backend's last sign of life; 0 while it responds."""
        # At least a second: a clock that is set back must not make a silent backend look alive.
        return 0.0 if self.silent_since is None else max(1.0, self.clock() - self.silent_since)

    def enter(self, settings: Settings, backend: Backend) -> None:
        """Act in another context from now on: nothing that held in the one before holds here."""
        self.settings, self.backend_or_none = settings, backend
        self.context = f"{backend.name} · {backend.location}" if backend.location else backend.name
        self.protected = protected_name(settings)
        self.denied, self.is_admin, self.silent_since = {}, False, None
        self.__dict__.pop("curves", None)  # cached: those of runs of the other context

    def deny(self, operations: Mapping[str, str]) -> None:
        """Turn off the actions that need these operations: reasons by operation, as ``Backend.denied`` has them."""
        self.denied = {action: reason for name, reason in operations.items() for action in ACTIONS.get(name, ())}

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Mark the terminal as lent while another program has it: ctrl+c is meant for that program."""
        self.is_lent = True
        try:
            yield
        finally:
            self.is_lent = False

    def forbidden(self, action: str) -> str:
        """Return the reason why an action, with or without arguments, is forbidden; empty when it is allowed."""
        name = action.partition("(")[0]
        if self.settings.readonly and name in changing_actions():
            return "the app was started with --readonly"
        return self.denied.get(name, "")
