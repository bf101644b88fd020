"""Watch a backend and keep the newest snapshot, published at a bounded rate.

The monitor never gives up: if the watch fails it keeps the last snapshot with the error and the time of the last
answer, and retries with client-go's back-off (0.8 s doubling to 30 s). Readers see old state marked as old.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from l2rtui.backends.base import Backend
from l2rtui.domain.change import apply, difference
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot
from l2rtui.errors import BackendError
from runtime.base.processes import exponential_delay

FIRST_BACKOFF_SECONDS = 0.8
LAST_BACKOFF_SECONDS = 30.0
_log = logging.getLogger(__name__)


class Monitor:
    """One watch of one backend.

    Attributes:
        snapshot: The newest known state.
        error: Reason why the watch is down; empty while it works.
        heard_at: ``time.monotonic()`` of the last batch from the backend; None before the first.
    """

    def __init__(self, backend: Backend, *, period_seconds: float = 0.1) -> None:
        self.snapshot: ClusterSnapshot = EMPTY_SNAPSHOT
        self.error = ""
        self.heard_at: float | None = None
        self._backend = backend
        self._period = period_seconds
        self._news = asyncio.Event()
        self._tried = asyncio.Event()

    async def run(self) -> None:
        """Watch until cancelled."""
        failures = 0
        while True:
            is_new = True
            try:
                async with aclosing(self._backend.watch()) as batches:
                    async for changes in batches:
                        # A new watch lists everything again. Only the difference is published, so that unchanged
                        # rows keep their identity and are not painted again.
                        news = changes
                        if is_new and self.snapshot is not EMPTY_SNAPSHOT:
                            news = difference(self.snapshot, apply(EMPTY_SNAPSHOT, changes))
                        self._publish(apply(self.snapshot, news))
                        is_new, failures = False, 0
                self._fail("the watch ended")
            except BackendError as error:
                self._fail(str(error))
            failures += 1
            await asyncio.sleep(exponential_delay(failures, FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS))

    async def answered(self) -> None:
        """Return once the backend has answered for the first time.

        Raises:
            BackendError: the watch has failed before.
        """
        await self._tried.wait()
        if self.heard_at is None:
            raise BackendError(self.error)

    async def updates(self) -> AsyncGenerator[ClusterSnapshot, None]:
        """Yield the newest snapshot whenever it, or ``error``, has changed; at most one each period."""
        while True:
            await self._news.wait()
            self._news.clear()
            yield self.snapshot
            await asyncio.sleep(self._period)

    def _publish(self, snapshot: ClusterSnapshot) -> None:
        is_first, self.heard_at = self.heard_at is None, time.monotonic()
        self._tried.set()
        if self.error:
            _log.info("the watch is back")
        if is_first or self.error or snapshot is not self.snapshot:
            self.error = ""
            self.snapshot = snapshot
            self._news.set()

    def _fail(self, error: str) -> None:
        if error != self.error:  # an outage of hours is one line, not one for each attempt
            _log.warning("the watch is lost: %s", error)
        self.error = error
        self._tried.set()
        self._news.set()
