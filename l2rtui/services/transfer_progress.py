"""How far a copy is, as a sentence: for transfers that count bytes in other threads."""

from __future__ import annotations

import time
from typing import Protocol

from l2rtui.domain.quantity import format_bytes

_SECONDS = 1.0


class Say(Protocol):
    """Takes a sentence, and whether it is worth a line of its own."""

    def __call__(self, text: str, *, is_step: bool) -> None:
        """Say it."""
        ...


class Counter:
    """Adds up bytes and says now and then how far it is.

    Args:
        say: Such as ``Talk.step``.
        total: Bytes in all; 0 when nobody knows.
    """

    def __init__(self, say: Say, total: int) -> None:
        self._say = say
        self._total = total
        self._began = self._said = time.monotonic()
        self._tenth = 0
        self.done = 0

    def add(self, count: int) -> None:
        """Count bytes that have come over; any thread."""
        self.done += count
        now = time.monotonic()
        if now - self._said < _SECONDS:
            return
        self._said = now
        tenth = 10 * self.done // self._total if self._total else 0
        self._say(self.sentence(now), is_step=tenth > self._tenth)
        self._tenth = tenth

    def sentence(self, now: float) -> str:
        """Such as ``12.0Mi of 1.00Gi, 8.1Mi/s``."""
        rate = self.done / max(now - self._began, 1e-6)
        of = f" of {format_bytes(self._total)}" if self._total else ""
        return f"{format_bytes(self.done)}{of}, {format_bytes(int(rate))}/s"
