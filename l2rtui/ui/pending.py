"""The seconds in which a confirmed change can still be called back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from textual.worker import Worker

from l2rtui.ui.background import Background


class Pending:
    """What was confirmed and has not begun. One key calls back the newest of it."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._waiting: list[tuple[str, Worker[None]]] = []

    def start(self, what: str, seconds: float, begin: Callable[[], object]) -> None:
        """Begin after some seconds; the status bar counts them.

        Args:
            what: For people: ``killing racing-sac-w-1``.
        """
        if seconds <= 0:
            begin()
            return
        worker = self._background.start(self._count(what, seconds, begin), group="pending", what=what)
        self._waiting.append((what, worker))

    def call_back(self) -> str:
        """Call back the newest; says what it was, empty when nothing waits."""
        self._waiting = [(what, worker) for what, worker in self._waiting if not worker.is_finished]
        if not self._waiting:
            return ""
        what, worker = self._waiting.pop()
        worker.cancel()
        return what

    async def _count(self, what: str, seconds: float, begin: Callable[[], object]) -> None:
        left = seconds
        while left > 0:
            with self._background.busy(f"{what} in {left:.0f} s, u calls it back"):
                await asyncio.sleep(min(1.0, left))
            left -= 1.0
        begin()
