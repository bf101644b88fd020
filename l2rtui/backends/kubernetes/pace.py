"""When to ask the API server again: back-off for one watch, and one probe for all of them while the server is away.

The timing is client-go's, but for the outage: there every watch of every kind knocks by itself, and learns late
that the server is back, because its own pause has grown to half a minute. Here one probe for all of them knocks
every few seconds, and wakes them together.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Timing:
    """All waits of the watches, in seconds; tests shrink them together.

    Attributes:
        first, longest: Back-off of one watch: ``first`` doubles up to ``longest``, plus up to as much again.
        calm: After each time so long without a pause the next one is half as long.
        healthy: A watch that has been open this long is well: what goes wrong afterwards starts with ``first``.
        relist: A revision that is gone later than this after the last one is listed again at once.
        short: A watch that ends sooner, and without an event, has failed.
        forbidden: How often a right that is missing is asked for again.
        probe: Longest pause between two questions whether a server that answers with errors is well again.
        refused: The same while nothing listens at its address, and for a little while after: that costs the server
            nothing, and one that is starting is well in a few seconds.
        denied: Pause before a server that has let us in before, and now does not, is asked again.
        patience: A watch tries by itself after this long, whatever the probe says.
        quiet: A server that sends bookmarks sends one each minute; a silence of this long is told to people,
        dead: and after this long the connection counts as dead.
        watch: A watch is asked to end after a random time between this and twice this.
        page: Longest time for one page of a list.
    """

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
    watch: float = 300.0
    page: float = 180.0


class BackOff:
    """Pauses that grow: ``first``, doubled each time up to ``longest``, each with up to as much again at random.

    They shrink again by themselves: what fails once in a while, however often, is no reason for a long one.
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
        """The next pause, which begins now."""
        calm = max(0, int((self._clock() - self._over_at) / self._timing.calm))
        if calm:
            self._next = max(self._timing.first, self._next / 2 ** min(calm, 64))
        pause = self._next * (1 + self._chance())
        self._next = min(self._next * 2, self._timing.longest)
        self._over_at = self._clock() + pause
        return pause

    def reset(self) -> None:
        """All was well for a while: the next pause is the first one."""
        self._next = self._timing.first


class Pulse(Enum):
    """What a probe found."""

    WELL = "well"
    ILL = "ill"
    REFUSED = "refused"


_STARTING = 8
"""So often a server that has just begun to listen is asked as soon as one that does not."""


class Gate:
    """Where watches wait while the server is away; the first to come asks for all of them.

    Args:
        probe: Asks once whether the server is well.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[Pulse]],
        timing: Timing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probe = probe
        self._timing = timing
        self._clock = clock
        self._lock = asyncio.Lock()
        self._well_at = float("-inf")
        self._was_away = False
        """Before it was well, the last time that somebody asked."""

    async def wait(self) -> bool:
        """Return when the server has answered since this call began, or after a long while in any case.

        Returns:
            Whether it had been away, and is back.
        """
        since = self._clock()
        try:
            async with asyncio.timeout(self._timing.patience * (1 + random.random())):  # noqa: S311  (no secret)
                async with self._lock:
                    if self._well_at < since:
                        self._was_away = await self._until_well()
                    return self._was_away
        except TimeoutError:
            return False

    async def _until_well(self) -> bool:
        pause, longest, soon, was_away = self._timing.first, self._timing.probe, 0, False
        while True:
            await asyncio.sleep(min(pause, longest) * (1 + 0.05 * random.random()))  # noqa: S311  (no secret)
            pulse = await self._probe()
            if pulse is Pulse.WELL:
                self._well_at = self._clock()
                return was_away
            was_away = True
            # One that listens again has just been started, and will be well in a few seconds.
            soon = _STARTING if pulse is Pulse.REFUSED else soon - 1
            longest = self._timing.refused if soon > 0 else self._timing.probe
            pause *= 2
