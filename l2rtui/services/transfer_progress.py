"""Progress of a transfer as a sentence; bytes may be counted in other threads."""

from __future__ import annotations

import time
from typing import Protocol

from l2rtui.domain.quantity import format_bytes, format_rate

_SECONDS = 1.0


class Say(Protocol):
    """Callback for a sentence, with a flag for steps that need a separate line."""

    def __call__(self, text: str, *, is_step: bool) -> None:
        """Report the sentence."""


class Counter:
    """Adds up bytes and reports the progress once a second.

    Args:
        say: Such as ``Talk.step``.
        total: Total bytes; 0 if unknown.
    """

    def __init__(self, say: Say, total: int) -> None:
        self._say = say
        self._total = total
        self._began = self._reported_at = time.monotonic()
        self._tenth = 0
        self.done = 0

    def add(self, count: int) -> None:
        """Count transferred bytes; from any thread."""
        self.done += count
        now = time.monotonic()
        if now - self._reported_at < _SECONDS:
            return
        self._reported_at = now
        # Without a terminal each tenth is one line: a transfer of hours must not flood a log.
        tenth = 10 * self.done // self._total if self._total else 0
        self._say(self.sentence(now), is_step=tenth > self._tenth)
        self._tenth = tenth

    def sentence(self, now: float) -> str:
        """Return the progress, such as ``12.0Mi of 1.00Gi, 8.1 MiB/s``."""
        rate = self.done / max(now - self._began, 1e-6)
        of = f" of {format_bytes(self._total)}" if self._total else ""
        return f"{format_bytes(self.done)}{of}, {format_rate(int(rate))}"
