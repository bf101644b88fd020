"""Many streams of log lines as one: the kept part in the order of time, then what comes as it comes.

Every stream gives its kept lines, a seam, and its new lines (``LogQuery.seam``). Up to the seam the streams wait
for each other, a few hundred lines each, so that neither long logs nor many of them fill the memory.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

from l2rtui.backends.base import LogLine

Lines = AsyncGenerator[LogLine, None]
SEAM = LogLine(0.0, "", "", is_seam=True)

_AHEAD_LINES = 256
"""Kept lines that one stream may be ahead of the merge."""
_QUEUE_LINES = 1_000
"""New lines that wait for a slow reader; then the streams wait too. A screen reads hundreds of pods one by one."""
_OPENING = 32
"""Streams that are opened at the same time."""


async def joined(streams: Sequence[Lines], late: AsyncGenerator[Lines, None] | None = None) -> Lines:
    """Merge streams; gives one seam when each of them has passed its own, and ends with the last of them.

    Args:
        late: Streams that come later; their kept lines are new here.

    Raises:
        L2RError: the first one that a stream raises; the others are closed.
    """
    hub = _Hub()
    sources = [hub.open(stream, _Source()) for stream in streams]
    if late is not None:
        hub.open_late(late)
    try:
        async for line in _in_order(sources):
            yield line
        yield SEAM
        hub.check()
        while hub.running:
            item = await hub.live.get()
            while isinstance(item, LogLine) and not hub.live.empty():  # in a rush a line is not worth an await
                yield item
                item = hub.live.get_nowait()
            if isinstance(item, LogLine):
                yield item
            hub.check()
        while not hub.live.empty():
            if isinstance(item := hub.live.get_nowait(), LogLine):
                yield item
    finally:
        await hub.close()


class _Source:
    """The kept part of one stream; None stands for its end."""

    def __init__(self) -> None:
        self.kept: asyncio.Queue[LogLine | None] = asyncio.Queue(_AHEAD_LINES)
        self.error: BaseException | None = None


class _Hub:
    """The tasks that pump streams.

    Plain tasks instead of a TaskGroup: closing a generator inside a group raises GeneratorExit as a group.
    """

    def __init__(self) -> None:
        self.live: asyncio.Queue[LogLine | None] = asyncio.Queue(_QUEUE_LINES)
        self.running = 0
        self._error: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._gate = asyncio.Semaphore(_OPENING)

    def open(self, stream: Lines, source: _Source | None) -> _Source:
        """Pump a stream; without a source its kept lines are new ones."""
        held = source or _Source()
        self.running += 1
        self._start(self._pump(stream, held, is_kept=source is not None))
        return held

    def open_late(self, late: AsyncGenerator[Lines, None]) -> None:
        """Pump every stream that comes."""
        self.running += 1
        self._start(self._accept(late))

    def check(self) -> None:
        """Raise what a stream has raised."""
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Close every stream."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, late: AsyncGenerator[Lines, None]) -> None:
        try:
            async with aclosing(late) as streams:
                async for stream in streams:
                    self.open(stream, None)
        except Exception as error:  # noqa: BLE001  (whatever it is belongs to the reader)
            self._error = self._error or error
        await self._ended()

    async def _pump(self, stream: Lines, source: _Source, *, is_kept: bool) -> None:
        try:
            async with aclosing(stream) as lines:
                async with self._gate:
                    line = await anext(lines, None)
                while line is not None:
                    if not line.is_seam:
                        queue: asyncio.Queue[LogLine | None] = source.kept if is_kept else self.live
                        try:
                            queue.put_nowait(line)
                        except asyncio.QueueFull:
                            await queue.put(line)
                    elif is_kept:
                        is_kept = False
                        await source.kept.put(None)
                    line = await anext(lines, None)
        except Exception as error:  # noqa: BLE001  (whatever it is belongs to the reader)
            source.error = error
            self._error = self._error or error
        if is_kept:
            await source.kept.put(None)
        await self._ended()

    async def _ended(self) -> None:
        self.running -= 1
        await self.live.put(None)


async def _in_order(sources: Sequence[_Source]) -> Lines:
    """Kept lines of all sources in the order of time."""
    heads: list[tuple[float, int, LogLine]] = []

    async def advance(number: int) -> None:
        line = await sources[number].kept.get()
        if line is not None:
            heapq.heappush(heads, (line.time, number, line))
        elif (error := sources[number].error) is not None:
            raise error

    for number in range(len(sources)):
        await advance(number)
    while heads:
        _, number, line = heapq.heappop(heads)
        yield line
        await advance(number)
