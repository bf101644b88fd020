"""App context: settings, backend, clock, background work and permissions, shared by all screens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from textual.worker import Worker

from l2rtui.config import Settings, context_name
from l2rtui.errors import BackendError
from l2rtui.ui.keys.palette import changing_actions
from l2rtui.ui.keys.table import KeyTable
from l2rtui.ui.state.background import Background

if TYPE_CHECKING:
    from l2rtui.backends.base import Backend, ContextMember
    from l2rtui.domain.node import Node
    from l2rtui.domain.snapshot import ClusterSnapshot, ContextHealth, PodView, RunView
    from l2rtui.services.curves import CurveStore
    from l2rtui.services.logs import ReadingTurns
    from l2rtui.services.terminal import Words
    from l2rtui.ui.state.notices import AbsenceNotice

Row = TypeVar("Row", "PodView", "RunView")

ACTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "launch": ("launch", "place", "relaunch", "gone"),
        "kill": ("kill",),
        "scale": ("scale",),
        "destroy": ("destroy", "relaunch", "edit"),
        "exec": ("shell", "signal", "test_alerts", "simulators", "restart", "send", "look"),
        "forward": ("forward",),
        "volumes": ("volumes",),
        "reserve": ("reserve", "unreserve"),
    }
)
"""Actions of the app by the backend operation that they need, with the names of ``Backend.denied``."""


ONE_CONTEXT: Final = ("edit", "relaunch")
"""Operations that launch, which must be within the slots of one cluster."""


def protected_name(settings: Settings) -> str:
    """Return the name that must be typed before every change in a protected context; empty elsewhere."""
    if not settings.protected:
        return ""
    return context_name({"backend": settings.backend, "context": settings.context})


@dataclass(frozen=True, slots=True)
class ContextOpener:
    """Access to the backend of another context, or of several in one view.

    Attributes:
        settings_for: Returns the settings of a context and namespaces; None takes these from the files. The
            context's table in the settings applies, and so do flags such as ``--readonly``.
        make: Makes the backend of settings; called in a thread.
        compose: Makes the backend of several contexts from the settings of each.
        files: Files that the app was started with, by option: ``--kubeconfig``, ``--config``.
    """

    settings_for: Callable[[str, tuple[str, ...] | None], Settings]
    make: Callable[[Settings], Backend]
    compose: Callable[[Mapping[str, Settings]], Backend] | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    def open(self, context: str, namespaces: tuple[str, ...] | None) -> tuple[Settings, Backend]:
        """Return settings and backend of a context, or of several: ``a,b``, or ``*`` for all; reads files.

        Raises:
            ConfigError: there is no such context. UsageError: the settings name a backend without contexts.
        """
        from l2rtui.backends.registry import named_contexts

        if names := named_contexts(context):
            return self.open_several(names, namespaces)
        settings = self.settings_for(context, namespaces)
        return settings, self.make(settings)

    def open_several(self, contexts: Sequence[str], namespaces: tuple[str, ...] | None) -> tuple[Settings, Backend]:
        """Return the settings of a view of these contexts, without any context's own table, and its backend."""
        from l2rtui.backends.registry import compose

        settings = self.settings_for(",".join(contexts), namespaces)
        members = {context: self.settings_for(context, namespaces) for context in contexts}
        return settings, (self.compose or compose)(members)


@dataclass
class AppContext:
    """Values and services that every screen gets.

    Attributes:
        clock: Seconds since the epoch; frozen in tests.
        speed: Seconds of that clock in a second; not 1 in a replay.
        context: The backend and its context, as shown in the status bar.
        keys: The key table with the bindings of the settings.
        denied: Reason of a missing permission by the name of the action.
        protected: Name of a context in which that name must be typed before every change; empty elsewhere.
        is_admin: Other people's runs may be changed, after their names were typed.
        is_lent: Another program uses the terminal.
        silent_since: Time of the backend's last response, from the newest snapshot.
        contexts: State of each context, from the newest snapshot; empty if only one is shown.
        absence: Events since the app was last open here; None before the connection.
        cancel_seconds: Length of the undo window of a confirmed kill or destroy (``undo_window``).
        start_files: Files that the app was started with, by option: ``--kubeconfig``, ``--config``.
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
    speed: float = 1.0
    silent_since: float | None = None
    contexts: tuple[ContextHealth, ...] = ()
    absence: AbsenceNotice | None = None
    start_files: Mapping[str, str] = field(default_factory=dict)
    _flags: dict[Settings, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.undo_window = UndoWindow(self.background)
        self.background.complete = self.completed

    @cached_property
    def curves(self) -> CurveStore:
        """Curves of the runs; records are added as they arrive."""
        from l2rtui.services.curves import CurveStore

        return CurveStore()

    @cached_property
    def turns(self) -> ReadingTurns:
        """Turns of all streams of log lines, displayed or read for records."""
        from l2rtui.services.logs import ReadingTurns  # the first frame does not need it

        return ReadingTurns()

    @property
    def backend(self) -> Backend:
        """The backend.

        Raises:
            BackendError: it is not connected yet.
        """
        if self.backend_or_none is None:
            raise BackendError("The backend is not connected yet.", "Try again in a moment.")
        return self.backend_or_none

    def acts_on(self, namespaces: Collection[str] = (), row: PodView | RunView | None = None) -> str:
        """Return the place of a change for its question, and its silence if it does not answer; empty before the
        connection.

        Args:
            row: Object that changes: if several contexts are shown, the context of the row is named.
        """
        if self.backend_or_none is None:
            return ""
        member = self.member_of(row) if row is not None else None
        where = (member.backend if member is not None else self.backend_or_none).acts_on(namespaces)
        silence = self.unanswered_seconds
        if row is not None and member is not None:
            silence = next((self._age(own.old_since) for own in self.contexts if own.name == row.context), 0.0)
        return f"{where}, which has not answered for {silence:.0f} s" if silence else where

    @property
    def unanswered_seconds(self) -> float:
        """Time since the backend's last response; 0 while it responds."""
        return self._age(self.silent_since)

    def _age(self, since: float | None) -> float:
        # At least a second: if the clock is set back, a silent backend must not look alive.
        return 0.0 if since is None else max(1.0, self.clock() - since)

    # --- where several contexts are shown ----------------------------------------------------------------------
    def member_of(self, row: PodView | RunView | Node) -> ContextMember | None:
        """Return the context of a row if several are shown; None if there is only one."""
        contexts = self.backend_or_none.contexts if self.backend_or_none is not None and row.context else None
        return contexts.member(row) if contexts is not None else None

    def protected_for(self, rows: Sequence[PodView | RunView]) -> str:
        """Return the name that must be typed before these rows change; empty without protection."""
        members = filter(None, map(self.member_of, rows))
        return self.protected or next(filter(None, (protected_name(member.settings) for member in members)), "")

    def unchangeable(self, verb: str, rows: Sequence[PodView | RunView]) -> str:
        """Return the reason why these rows cannot be changed together here; empty if they can."""
        members = {row.context: member for row in rows if (member := self.member_of(row)) is not None}
        if len(members) > 1:
            return f"These are of the contexts {' and '.join(members)}: {verb} acts in one. Mark rows of only one."
        for name, member in members.items():
            if member.settings.readonly:
                return f"The context {name} is read-only: {verb} leaves everything as it is."
            if verb in ONE_CONTEXT:
                return f"{verb} needs one context: `:ctx {member.context}` opens that of {rows[0].name}."
        return ""

    def command_line(self, *commands: Words, row: PodView | RunView | None = None) -> str:
        """Return the line of commands that act on the app's context.

        Args:
            row: Object of the commands; with several contexts and namespaces, those of the row are named.
        """
        from l2rtui.services.terminal import write  # the first frame does not need it

        member = self.member_of(row) if row is not None else None
        return write(commands, self.start_flags(row), member.prefix if member is not None else "")

    def lines_for(self, rows: Sequence[Row], commands_of: Callable[[list[Row]], Sequence[Words]]) -> str:
        """Return the line of commands for rows, with one part for each context and namespace.

        Args:
            commands_of: Returns the commands for rows of one place; empty if no command selects exactly these.
        """
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            groups.setdefault((row.context, row.namespace if self._has_namespaces(row) else ""), []).append(row)
        parts = [(commands_of(group), group[0]) for group in groups.values()]
        if not all(commands for commands, _ in parts):
            return ""
        return " && ".join(self.command_line(*commands, row=row) for commands, row in parts)

    def seen_by_line(self, snapshot: ClusterSnapshot, row: PodView | RunView) -> ClusterSnapshot:
        """Return the part of a snapshot that a command line for a row sees: the context and namespace that it
        names.
        """
        from l2rtui.domain.snapshot import ClusterSnapshot

        member = self.member_of(row)
        if member is not None:
            runs = (member.original(run) for run in snapshot.runs.values() if run.context == row.context)
            pods = (member.original(pod) for pod in snapshot.pods.values() if pod.context == row.context)
            snapshot = ClusterSnapshot({}, {pod.uid: pod for pod in pods}, {run.uid: run for run in runs})
        return snapshot.in_namespace(row.namespace) if self._has_namespaces(row) else snapshot

    def as_seen(self, row: Row) -> Row:
        """Return a row with the names of its own context."""
        member = self.member_of(row)
        return row if member is None else member.original(row)

    def _has_namespaces(self, row: PodView | RunView) -> bool:
        """True if several namespaces are shown and the line must name the row's."""
        member = self.member_of(row)
        namespaces = (self.settings if member is None else member.settings).namespaces
        return len(namespaces) > 1 and row.namespace in namespaces

    def completed(self, text: str) -> str:
        """Return a sentence whose command lines act on the app's context."""
        if "`l2rtui " not in text:
            return text
        from l2rtui.services.terminal import with_flags

        return with_flags(text, self.start_flags())

    def start_flags(self, row: PodView | RunView | None = None) -> tuple[str, ...]:
        """Return the options that the app, or the context of a row, needs in addition to a start without
        options.
        """
        from l2rtui.services.terminal import flags_of

        member = self.member_of(row) if row is not None else None
        settings = self.settings if member is None else member.settings
        if member is not None and not settings.context:
            settings = replace(settings, context=member.context)
        if row is not None and self._has_namespaces(row):
            settings = replace(settings, namespaces=(row.namespace,))
        # Read once for each: this reads the settings file to find the defaults.
        if settings not in self._flags:
            self._flags[settings] = flags_of(settings, self.start_files)
        return self._flags[settings]

    def enter(self, settings: Settings, backend: Backend) -> None:
        """Switch to another context; all state of the previous one is dropped."""
        self.settings, self.backend_or_none = settings, backend
        self.context = f"{backend.name} · {backend.location}" if backend.location else backend.name
        self.protected = protected_name(settings)
        self.denied, self.is_admin, self.silent_since, self.contexts = {}, False, None, ()
        self.__dict__.pop("curves", None)  # cached: curves of runs of the other context

    def deny(self, operations: Mapping[str, str]) -> None:
        """Disable the actions that need these operations: reasons by operation, from ``Backend.denied``."""
        self.denied = {action: reason for name, reason in operations.items() for action in ACTIONS.get(name, ())}

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Mark the terminal as used by another program: ctrl+c is meant for that program."""
        self.is_lent = True
        try:
            yield
        finally:
            self.is_lent = False

    def forbidden(self, action: str) -> str:
        """Return the reason why an action, with or without arguments, is forbidden; empty if it is allowed."""
        name = action.partition("(")[0]
        if self.settings.readonly and name in changing_actions():
            return "the app was started with --readonly"
        return self.denied.get(name, "")


class UndoWindow:
    """Confirmed changes that have not started; ``AppContext.cancel_seconds`` is the length of the window."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._waiting: list[tuple[str, Worker[None]]] = []

    def start(self, what: str, seconds: float, begin: Callable[[], object]) -> None:
        """Start a change, such as ``killing r7-w-1``, after a countdown in the status bar; immediately for 0
        seconds.
        """
        if seconds <= 0:
            begin()
            return
        worker = self._background.start(self._count_down(what, seconds, begin), group="pending", what=what)
        self._waiting.append((what, worker))

    def undo_newest(self) -> str:
        """Cancel the newest waiting change and return its description; empty if none is waiting."""
        self._waiting = [(what, worker) for what, worker in self._waiting if not worker.is_finished]
        if not self._waiting:
            return ""
        what, worker = self._waiting.pop()
        worker.cancel()
        return what

    async def _count_down(self, what: str, seconds: float, begin: Callable[[], object]) -> None:
        remaining = seconds
        while remaining > 0:
            with self._background.busy(f"{what} in {remaining:.0f} s, u cancels it"):
                await asyncio.sleep(min(1.0, remaining))
            remaining -= 1.0
        # No await between the last second and begin: the worker is cancelled before it or finished after it, so
        # undo_newest never reports a change as undone that has started.
        begin()


LIVE: Final = frozenset({"theme", "keys", "filters", "notify", "readonly", "protected", "grace_seconds", "limits"})
"""Settings of the app itself. The backend has already used the others for reading nodes and making clients."""


def reloaded(before: Settings, after: Settings) -> tuple[Settings, str]:
    """Return the settings to use from now on, and a sentence about the changes.

    Args:
        before: Current settings. after: Settings just read.
    """
    names = (setting.name for setting in fields(Settings))
    changed = [name for name in names if getattr(before, name) != getattr(after, name)]
    if not changed:
        return before, "The settings are as they were."
    live = [name for name in changed if name in LIVE]
    later = [name for name in changed if name not in LIVE]
    parts = (
        f"Counts now: {', '.join(live)}." if live else "",
        f"From the next start: {', '.join(later)}." if later else "",
    )
    return replace(before, **{name: getattr(after, name) for name in live}), " ".join(filter(None, parts))
