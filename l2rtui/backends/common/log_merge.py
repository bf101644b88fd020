"""Log streams: bytes into lines of bounded length, and many streams merged into one, sorted by time.

New lines come as they arrive. Every stream yields its stored lines, a seam, and its new lines (``LogQuery.seam``).
Up to the seam this is a k-way merge over a heap. Each stream reads ahead by a few hundred lines and then waits, so
that neither long nor many logs fill the memory.
"""

from __future__ import annotations

import asyncio
import heapq
import re
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final

from l2rtui.domain.log import LogLine

Lines = AsyncGenerator[LogLine, None]
SEAM = LogLine(0.0, "", "", is_seam=True)

_AHEAD_LINES = 256
"""Number of stored lines that one stream may read ahead of the merge."""
_QUEUE_LINES = 256
"""Number of new lines that are buffered for a slow reader; then the streams wait too (back-pressure)."""
_MAX_OPENING = 32
"""Number of streams that are opened concurrently: each is a request, and servers refuse hundreds of them."""


async def merge_streams(streams: Sequence[Lines], late: AsyncGenerator[Lines, None] | None = None) -> Lines:
    """Merge streams; yield one seam when all streams have passed theirs, and end with the last stream.

    Args:
        late: Streams that start later; their stored lines count as new lines.

    Raises:
        L2RError: The first error of a stream; the other streams are closed.
    """
    hub = _Hub()
    sources = [hub.open(stream, _Source()) for stream in streams]
    if late is not None:
        hub.open_late(late)
    try:
        async for line in _by_time(sources):
            yield line
        yield SEAM
        hub.check()
        while hub.running:
            item = await hub.live.get()
            # Take buffered lines without an await, which would cost more than the line itself.
            while isinstance(item, LogLine) and not hub.live.empty():
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
    """The stored part of one stream; None in the queue marks its end."""

    def __init__(self) -> None:
        self.stored: asyncio.Queue[LogLine | None] = asyncio.Queue(_AHEAD_LINES)
        self.error: BaseException | None = None


class _Hub:
    """Tasks that read the streams into queues.

    Plain tasks instead of a TaskGroup: closing a generator inside a group raises GeneratorExit as a group.
    """

    def __init__(self) -> None:
        self.live: asyncio.Queue[LogLine | None] = asyncio.Queue(_QUEUE_LINES)
        self.running = 0
        self._error: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._gate = asyncio.Semaphore(_MAX_OPENING)

    def open(self, stream: Lines, source: _Source | None) -> _Source:
        """Read a stream; without a source, its stored lines count as new lines."""
        target = source or _Source()
        self.running += 1
        self._start(self._pump(stream, target, is_stored=source is not None))
        return target

    def open_late(self, late: AsyncGenerator[Lines, None]) -> None:
        """Read every stream that ``late`` yields."""
        self.running += 1
        self._start(self._accept(late))

    def check(self) -> None:
        """Raise the first error of a stream."""
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
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
        except Exception as error:  # noqa: BLE001  (every error must reach the reader)
            self._error = self._error or error
        await self._ended()

    async def _pump(self, stream: Lines, source: _Source, *, is_stored: bool) -> None:
        try:
            async with aclosing(stream) as lines:
                # The first line only: a stream that waits for new lines must not block the opening of others.
                async with self._gate:
                    line = await anext(lines, None)
                while line is not None:
                    if not line.is_seam:
                        queue: asyncio.Queue[LogLine | None] = source.stored if is_stored else self.live
                        try:
                            queue.put_nowait(line)
                        except asyncio.QueueFull:
                            await queue.put(line)
                    elif is_stored:
                        is_stored = False
                        await source.stored.put(None)
                    line = await anext(lines, None)
        except Exception as error:  # noqa: BLE001  (every error must reach the reader)
            source.error = error
            self._error = self._error or error
        if is_stored:
            await source.stored.put(None)
        await self._ended()

    async def _ended(self) -> None:
        # The None wakes a waiting reader, so that it sees the end or the error.
        self.running -= 1
        await self.live.put(None)


async def _by_time(sources: Sequence[_Source]) -> Lines:
    # The number breaks ties, so that lines with equal times are not compared themselves.
    heads: list[tuple[float, int, LogLine]] = []

    async def advance(number: int) -> None:
        line = await sources[number].stored.get()
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


MAX_LINE_BYTES: Final = 16_384
"""Longest text of a line; a longer line is truncated, and its length is appended."""
_STAMP_BYTES = 40
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\S{1,30} ")
"""Timestamp that servers put before a line; the carriage returns of a progress bar come after it."""


class LineSplitter:
    """Splits a byte stream into lines; buffers at most one line of the maximum length."""

    def __init__(self, limit: int = MAX_LINE_BYTES + _STAMP_BYTES) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._cut = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield complete lines without line feeds; the rest is buffered."""
        first, *others = chunk.split(b"\n")
        self._append(first)
        for part in others:
            yield self._pop_line()
            self._append(part)

    def flush(self) -> bytes:
        """Return the last line if it has no line feed; otherwise empty."""
        return self._pop_line()

    def _append(self, part: bytes) -> None:
        # Only the last state of a progress bar is visible; a line of all states would lose it at the length limit.
        if b"\r" in part.rstrip(b"\r") or (self._rest.endswith(b"\r") and part.strip(b"\r")):
            joined = bytes(self._rest) + part
            stamp = _STAMP.match(joined)
            at = joined.rfind(b"\r", 0, len(joined.rstrip(b"\r")))
            self._rest.clear()
            self._cut = 0
            part = (stamp[0] if stamp else b"") + joined[at + 1 :]
        room = self._limit - len(self._rest)
        self._rest += part[:room]
        self._cut += max(0, len(part) - room)

    def _pop_line(self) -> bytes:
        line = bytes(self._rest) + (f" [{self._cut} more bytes]".encode() if self._cut else b"")
        self._rest.clear()
        self._cut = 0
        return line
