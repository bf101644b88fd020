"""Undo window of a kill or destroy: seconds after the confirmation in which key ``u`` cancels it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from textual.worker import Worker

from l2rtui.ui.state.background import Background


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
