"""Event loop in virtual time: its clock moves instead of waiting, so that hours pass within a second."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LeapingSelector(selectors.DefaultSelector):
    """Selector that moves its clock instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing would ever happen again"
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Loop whose sockets are real and whose time is virtual."""

    def __init__(self) -> None:
        self._leaping = LeapingSelector()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now

    def stop_for(self, seconds: float) -> None:
        """Let time pass while nothing of this process runs, as if it were stopped."""
        self._leaping.now += seconds


def run_virtually(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
