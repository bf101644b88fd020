"""Watch a backend and keep the newest snapshot, published at a bounded rate.

The monitor never gives up: when the backend fails it keeps the last snapshot, says why and since when, and tries
again with client-go's back-off (0.8 s doubling to 30 s). Readers see an old truth marked as old, never a guess.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from l2rtui.backends.base import Backend
from l2rtui.domain.change import apply, difference
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot
from l2rtui.errors import BackendError

FIRST_BACKOFF_SECONDS = 0.8
LAST_BACKOFF_SECONDS = 30.0


class Monitor:
    """One watch of one backend.

    Attributes:
        snapshot: The newest state that is known.
        error: Why the watch is down at this moment; empty when it is well.
        heard_at: ``time.monotonic()`` of the last word from the backend; None before the first.
    """

    def __init__(self, backend: Backend, *, period_seconds: float = 0.1) -> None:
        self.snapshot: ClusterSnapshot = EMPTY_SNAPSHOT
        self.error = ""
        self.heard_at: float | None = None
        self._backend = backend
        self._period = period_seconds
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Watch for ever; cancel it to stop."""
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            is_new = True
            try:
                async with aclosing(self._backend.watch()) as batches:
                    async for changes in batches:
                        # A new watch tells everything again: only what differs from what we know is news.
                        news = changes
                        if is_new and self.snapshot is not EMPTY_SNAPSHOT:
                            news = difference(self.snapshot, apply(EMPTY_SNAPSHOT, changes))
                        self._publish(apply(self.snapshot, news))
                        is_new, backoff = False, FIRST_BACKOFF_SECONDS
                self._fail("the watch ended")
            except BackendError as error:
                self._fail(str(error))
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, LAST_BACKOFF_SECONDS)

    async def updates(self) -> AsyncGenerator[ClusterSnapshot, None]:
        """Give the newest snapshot whenever it, or ``error``, has changed; at most one each period."""
        while True:
            await self._news.wait()
            self._news.clear()
            yield self.snapshot
            await asyncio.sleep(self._period)

    def _publish(self, snapshot: ClusterSnapshot) -> None:
        is_first, self.heard_at = self.heard_at is None, time.monotonic()
        if is_first or self.error or snapshot is not self.snapshot:
            self.error = ""
            self.snapshot = snapshot
            self._news.set()

    def _fail(self, error: str) -> None:
        self.error = error
        self._news.set()
