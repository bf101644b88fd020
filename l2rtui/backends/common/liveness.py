"""Health check of a quiet server: a small request every few seconds, so that an outage is noticed and dated.

A stopped process, or a link that drops packets, breaks no connection: its watch is as silent as one without
changes. TCP keep-alive does not help, as the kernel of a stopped process answers it. The same holds for this
process: after it was stopped, or its machine slept, its connections may be dead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from msgspec import Struct


class LivenessTiming(Struct, frozen=True):
    """Timeouts in seconds; silence is reported at most ``2 * answer + quiet + again`` after the last response.

    Attributes:
        quiet: Time without any response after which a request is sent.
        answer: Timeout of that request.
        silent: Shortest silence that is reported. Longer than quiet plus answer: one late response is not silence.
        again: Pause between failed requests; with ``answer`` it bounds how late a recovery is noticed.
    """

    quiet: float = 4.0
    answer: float = 4.0
    silent: float = 10.0
    again: float = 0.5


class Liveness:
    """Time of the last response of one server.

    Args:
        ask: Sends a small request with this timeout in seconds; True for a response of any status.
        on_change: Called after ``silent_since`` has changed.
        clock: Seconds since the epoch.

    Attributes:
        silent_since: Time of the last response, in seconds since the epoch; None while the server responds.
    """

    def __init__(
        self,
        ask: Callable[[float], Awaitable[bool]],
        on_change: Callable[[], None],
        timing: LivenessTiming | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.silent_since: float | None = None
        self._ask = ask
        self._on_change = on_change
        self._timing = timing or LivenessTiming()
        self._clock = clock
        self._heard_at: float | None = None

    def hear(self) -> None:
        """Record any sign of life: a chunk of a watch, or a response."""
        self._heard_at = asyncio.get_running_loop().time()
        if self.silent_since is not None:
            self.silent_since = None
            self._on_change()

    async def run(self) -> None:
        """Send requests while the server is quiet, until cancelled."""
        loop, timing = asyncio.get_running_loop(), self._timing
        if self._heard_at is None:
            self._heard_at = loop.time()
        while True:
            last_sign = self._clock() - (loop.time() - self._heard_at)
            began = loop.time(), self._clock()
            pause = max(timing.again, timing.quiet - (loop.time() - self._heard_at))
            await asyncio.sleep(pause)
            # By both clocks: on Linux and macOS the monotonic clock stops while the machine sleeps.
            overslept = max(loop.time() - began[0], self._clock() - began[1]) - pause
            if overslept >= timing.silent:
                # Connections may have died unnoticed: reported as silence, whose end reopens the watches.
                self._report(last_sign)
            elif loop.time() - self._heard_at < timing.quiet:
                continue
            if await self._ask(timing.answer):
                self.hear()
                continue
            # A watch may have received something while the request failed.
            silence = loop.time() - self._heard_at
            if silence >= timing.silent:
                self._report(self._clock() - silence)

    def _report(self, since: float) -> None:
        if self.silent_since is None:
            self.silent_since = since
            self._on_change()
