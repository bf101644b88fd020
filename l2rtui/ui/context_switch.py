"""Change of the context while the app runs.

The other context is opened and its first snapshot awaited before the current one is left. If any of that fails, the
error is shown and the current view stays.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from msgspec import Struct
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static
from textual.worker import Worker, WorkerCancelled, WorkerFailed, get_current_worker

from l2rtui.backends.base import Backend
from l2rtui.config import Settings
from l2rtui.domain.quantity import counted
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import BackendError, L2RError, RefusedError
from l2rtui.services.monitor import Monitor
from l2rtui.ui.dialogs.dialog import Dialog
from l2rtui.ui.home.screen import ClusterScreen
from l2rtui.ui.state.app_context import AppContext, ContextOpener
from l2rtui.ui.state.background import Background
from l2rtui.ui.text import Span, TextStyle


class Opened(Struct, frozen=True):
    """Backend that has answered, and the watch that updates its snapshot."""

    settings: Settings
    backend: Backend
    monitor: Monitor
    watch: Worker[None]


async def switch(
    ctx: AppContext,
    opener: ContextOpener,
    context: str,
    namespaces: tuple[str, ...] | None,
    dialog: ConnectingScreen,
    enter: Callable[[Opened], Awaitable[None]],
) -> None:
    """Open a context and enter it; the dialog is closed after opening, or on failure.

    Args:
        enter: Leaves the current context and shows the other; it then owns the backend.

    Raises:
        L2RError: the context cannot be opened, or the current one cannot be left now.
    """
    try:
        opened = await _open(ctx.background, opener, context, namespaces)
    except L2RError as error:
        raise BackendError(f"{error.message.rstrip('.')}. The view stays where it is.", error.hint) from error
    finally:
        await dialog.dismiss(True)
    try:
        # Otherwise a kill whose undo window is still open would start in the other cluster.
        if ctx.background.doing:
            raise RefusedError(busy_sentence(ctx.background.doing))
        await enter(opened)
    finally:
        if ctx.backend_or_none is not opened.backend:  # the app may be closed while the other context is entered
            await ctx.background.finish(_discard(opened.backend, opened.watch))


def busy_sentence(doing: str) -> str:
    """Return why the context cannot be changed while something is done in it."""
    return f"Now {doing}: the context can be changed when that has ended."


async def _open(
    background: Background, opener: ContextOpener, context: str, namespaces: tuple[str, ...] | None
) -> Opened:
    # In a thread: this reads files and imports a client library on first use.
    settings, backend = await asyncio.to_thread(opener.open, context, namespaces)
    watch: Worker[None] | None = None
    try:
        if backend.contexts is not None:
            await backend.contexts.open()  # a context that does not exist is an error, not an outage to wait for
        monitor = Monitor(backend)
        watch = background.start(monitor.run(), group="watch", what="the watch")
        await monitor.answered()
    except BaseException:
        await background.finish(_discard(backend, watch))
        raise
    return Opened(settings, backend, monitor, watch)


async def _discard(backend: Backend, watch: Worker[None] | None) -> None:
    """Close a backend after its watch: a watch that still runs would open another connection."""
    if watch is not None:
        watch.cancel()
        with contextlib.suppress(WorkerCancelled, WorkerFailed):
            await watch.wait()
    await backend.close()


def spared(opened: Opened) -> tuple[Worker[None], ...]:
    """Return the work that continues while the current context is left: the new watch, and the change itself."""
    return opened.watch, get_current_worker()


def ended_sentence(screen: ClusterScreen) -> str:
    """Return a sentence about the work that ends when the context of a screen is left; empty if there is none."""
    forwards = screen.pod_actions.open_forwards
    logs = sum(bool(log.selection.pods) for log in screen.panes.logs.controllers)
    counts = ((logs, "followed log"), (forwards, "forwarded port"))
    ended = " and ".join(counted(number, noun) for number, noun in counts if number)
    return f"Of {screen.ctx.context}, {ended} ended." if ended else ""


class ConnectingScreen(Dialog[bool]):
    """Notice that returns True at the end of the attempt, and None when the user cancels it.

    It is modal because a question opened during the attempt would name one context and act on the other.
    """

    def __init__(self, where: str) -> None:
        super().__init__("connecting")
        self._where = where

    def compose(self) -> ComposeResult:
        """Yield the title and a line about esc."""
        with Vertical(classes="dialog"):
            yield Static(id="title")
            yield Static(id="hint")

    def on_mount(self) -> None:
        """Show the name of the context."""
        self.show("title", [(Span("◌ ", TextStyle.WAIT), Span(f"Connecting to {sanitize(self._where)}."))])
        self.show("hint", [(Span("The present view stays until it answers.   esc gives up", TextStyle.DIM),)])
