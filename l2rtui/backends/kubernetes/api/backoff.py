"""Back-off of a watch after an error or an outage: growing pauses, and one shared probe while the server is down.

The pauses follow client-go's reflector (800 ms doubling to 30 s, halved again after calm time). Outages are handled
differently. In client-go every watch retries independently, so it may notice the recovery half a minute late. Here
one probe requests ``/readyz`` for all watches every few seconds and wakes them together.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from enum import Enum

from msgspec import Struct

from runtime.base.processes import exponential_delay


class Timing(Struct, frozen=True):
    """Timeouts and pauses of the watches, in seconds; tests shrink them together.

    Attributes:
        first, longest: Back-off of one watch: ``first`` doubles up to ``longest``, plus up to 100 % of random
            jitter.
        calm: The next pause is halved for each such period without a pause.
        healthy: After a watch has been open this long, its back-off restarts with ``first``.
        relist: If a revision expires later than this after the last expiry, the list is read again without a pause.
        short: A watch that ends sooner than this, without an event, counts as failed.
        forbidden: Interval at which a missing permission is checked again.
        probe: Longest pause between two probes of a server that responds with errors.
        refused: Longest pause between two probes while connections are refused, and shortly after: a refusal costs
            the server nothing, and a starting server becomes ready within seconds.
        denied: Pause before a retry when a server denies access that it granted before.
        patience: A watch retries on its own after this long, regardless of the probe.
        quiet: Silence after which a watch is reported as stale; servers send a bookmark every minute.
        dead: Silence after which the connection counts as dead.
        watch: The server is asked to end a watch after a random time between this and twice this.
        page: Timeout for one page of a list.
        stale: Shortest interruption of a watch that is reported.
        tick: Longest time between two checks for staleness, which occurs without an event.
    """

    # client-go's reflector: NewExponentialBackoffManager(800ms, 30s, 2min, factor 2, jitter 1).
    first: float = 0.8
    longest: float = 30.0
    calm: float = 4.0
    healthy: float = 1.0
    relist: float = 10.0
    short: float = 1.0
    forbidden: float = 60.0
    probe: float = 4.2
    refused: float = 1.0
    denied: float = 0.5
    patience: float = 30.0
    quiet: float = 75.0
    dead: float = 90.0
    # As client-go (minWatchTimeout 5 min): without a random end all watches of all clients would reconnect
    # together.
    watch: float = 300.0
    page: float = 180.0
    stale: float = 3.0
    tick: float = 1.0


class BackOff:
    """Exponential back-off with jitter: ``first``, doubled up to ``longest``, each plus up to 100 % at random.

    The pause decays during calm time, so that a rare failure is not penalised for failures of an hour ago.
    """

    def __init__(
        self,
        timing: Timing,
        chance: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timing = timing
        self._chance = chance
        self._clock = clock
        self._next = timing.first
        self._over_at = clock()

    def pause(self) -> float:
        """Return the next pause in seconds and count it as started."""
        calm = max(0, int((self._clock() - self._over_at) / self._timing.calm))
        if calm:
            # min(): a process that was suspended for a week must not compute 2 ** 150,000.
            self._next = max(self._timing.first, self._next / 2 ** min(calm, 64))
        pause = self._next * (1 + self._chance())
        self._next = min(self._next * 2, self._timing.longest)
        # Calm time counts from the end of the pause: the wait itself says nothing about the server.
        self._over_at = self._clock() + pause
        return pause

    def reset(self) -> None:
        """Restart with the first pause, after a period without failures."""
        self._next = self._timing.first


class RetryPauses:
    """Back-off of one caller's retries: each pause is twice the previous, up to the longest, with 30 % jitter."""

    def __init__(self, first: float, longest: float = 3.0) -> None:
        self._first, self._longest = first, longest
        self._failures = 0

    async def wait(self) -> None:
        """Sleep for the next pause."""
        self._failures += 1
        pause = exponential_delay(self._failures, self._first, self._longest)
        await asyncio.sleep(pause * random.uniform(0.7, 1.3))  # noqa: S311  (no secret)

    def reset(self) -> None:
        """Restart with the first pause."""
        self._failures = 0


class ProbeResult(Enum):
    """Result of one probe of the server."""

    HEALTHY = "well"
    UNHEALTHY = "ill"
    REFUSED = "refused"


_STARTING_PROBES = 8
"""Number of probes at the short interval after a server has begun to listen again."""


class ServerGate:
    """Gate at which watches wait during an outage; the first one probes the server for all of them."""

    def __init__(
        self,
        probe: Callable[[], Awaitable[ProbeResult]],
        timing: Timing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probe = probe
        self._timing = timing
        self._clock = clock
        self._lock = asyncio.Lock()
        self._well_at = float("-inf")
        # Result of the last probing round; callers that waited for the lock meanwhile return it too.
        self._was_away = False

    async def wait(self) -> bool:
        """Wait until the server has responded after this call began, or for ``patience``; return True if it was
        down.
        """
        since = self._clock()
        try:
            async with asyncio.timeout(self._timing.patience * (1 + random.random())):  # noqa: S311  (no secret)
                async with self._lock:
                    # A response from before our call says nothing about the failure that led to it.
                    if self._well_at < since:
                        self._was_away = await self._until_well()
                    return self._was_away
        except TimeoutError:
            return False

    async def _until_well(self) -> bool:
        longest, number, quick_probes, was_away = self._timing.probe, 0, 0, False
        while True:
            number += 1
            pause = exponential_delay(number, self._timing.first, longest)
            await asyncio.sleep(pause * (1 + 0.05 * random.random()))  # noqa: S311  (no secret)
            result = await self._probe()
            if result is ProbeResult.HEALTHY:
                self._well_at = self._clock()
                return was_away
            was_away = True
            # A server that listens again has just been started, and will be ready in a few seconds.
            quick_probes = _STARTING_PROBES if result is ProbeResult.REFUSED else quick_probes - 1
            longest = self._timing.refused if quick_probes > 0 else self._timing.probe
