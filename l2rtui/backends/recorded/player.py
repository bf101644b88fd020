"""Player of a recording: the state of the cluster and its logs at the current position of the replay."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from l2rtui.backends.recorded.recording import (
    ChangesEntry,
    EndEntry,
    Entry,
    LineEntry,
    OutageEntry,
    entries,
    read_header,
)
from l2rtui.domain.change import apply
from l2rtui.domain.log import LogLine, LogQuery
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot
from l2rtui.errors import BackendError, NotFoundError

MAX_LINES: Final = 5_000
"""Number of newest lines of each log that can be read."""
_BATCH: Final = 200
"""Number of entries after which a replay that is behind lets other tasks run."""


class Player:
    """Recording during its replay.

    The clock starts with the recording and runs ``speed`` times as fast as real time; it stops at the end.

    Args:
        monotonic: Seconds of a clock that never goes back.

    Raises:
        UsageError: The file is not a recording, see ``read_header``.

    Attributes:
        snapshot: State of the cluster. failure: Sentence on a current outage; otherwise empty.
        end: Why the recording ended; empty while it continues.
    """

    def __init__(self, path: Path, speed: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.speed = speed
        self.header = read_header(path)
        self.snapshot: ClusterSnapshot = EMPTY_SNAPSHOT
        self.failure = ""
        self.end = ""
        self._monotonic = monotonic
        self._began: float | None = None
        self._ended_at: float | None = None
        self._logs: dict[str, _Log] = {}
        self._waiting: set[asyncio.Event] = set()

    def now(self) -> float:
        """Return the time of the recording, seconds since the epoch."""
        if self._ended_at is not None:
            return self.header.time + self._ended_at
        elapsed = 0.0 if self._began is None else (self._monotonic() - self._began) * self.speed
        return self.header.time + elapsed

    async def run(self) -> None:
        """Play until the end of the file."""
        self._began = self._monotonic()
        seconds = 0.0
        try:
            for number, entry in enumerate(entries(self.path), start=1):
                await self._wait_until(entry.seconds, is_long=number % _BATCH == 0)
                seconds = entry.seconds
                self._play(entry)
        except (BackendError, msgspec.ValidationError) as error:
            self.end = str(error)
        except OSError as error:
            self.end = error.strerror or str(error)
        self.end = self.end or "the recording ends here"
        self._ended_at = seconds
        self._wake()

    async def _wait_until(self, seconds: float, *, is_long: bool) -> None:
        due = (self.header.time + seconds - self.now()) / self.speed
        if due > 0 or is_long:
            await asyncio.sleep(max(0.0, due))

    def _play(self, entry: Entry) -> None:
        match entry:
            case ChangesEntry():
                self.failure = ""
                self.snapshot = apply(EMPTY_SNAPSHOT if entry.is_first else self.snapshot, entry.changes)
                gone = self._logs.keys() - self.snapshot.pods.keys()
                self._logs = {uid: log for uid, log in self._logs.items() if uid not in gone}
            case LineEntry():
                self._logs.setdefault(entry.uid, _Log()).add(entry.log_line)
            case OutageEntry():
                self.failure = entry.sentence
            case EndEntry():
                self.end = entry.reason
        self._wake()

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

    async def states(self) -> AsyncGenerator[ClusterSnapshot]:
        """Yield the state of the cluster whenever it may differ.

        Raises:
            BackendError: The recorded watch has failed at this moment.
        """
        async for _ in self._moments():
            if self.failure:
                raise BackendError(self.failure)
            if self.snapshot is not EMPTY_SNAPSHOT or self.end:
                yield self.snapshot

    async def lines(self, uid: str, query: LogQuery) -> AsyncGenerator[LogLine]:
        """Yield the lines of a log like a backend.

        Raises:
            NotFoundError: The log of the previous process is requested.
        """
        if query.previous:
            raise NotFoundError("A recording has no log of a previous process.")
        position, is_seam_due = None, query.seam and query.follow
        async for _ in self._moments():
            log = self._logs.get(uid)
            if log is not None:
                for line in log.after(position, query):
                    yield line
                position = log.count
            if is_seam_due:
                is_seam_due = False
                yield LogLine(self.now(), "", "", is_seam=True)
            if not query.follow or (self.snapshot is not EMPTY_SNAPSHOT and uid not in self.snapshot.pods):
                return

    async def _moments(self) -> AsyncGenerator[None]:
        """Yield now, and again after each entry; simultaneous entries may be combined."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            while True:
                event.clear()
                yield
                await event.wait()
        finally:
            self._waiting.discard(event)


class _Log:
    """Newest lines of a log; ``count`` is the total number of lines up to now."""

    def __init__(self) -> None:
        self.count = 0
        self._lines: deque[LogLine] = deque(maxlen=MAX_LINES)

    def add(self, line: LogLine) -> None:
        self._lines.append(line)
        self.count += 1

    def after(self, position: int | None, query: LogQuery) -> Iterator[LogLine]:
        """Yield the lines after a position; None for the first read, to which the query's tail applies."""
        lines = tuple(self._lines)
        if position is not None:
            lines = lines[max(0, len(lines) - (self.count - position)) :]
        chosen = [
            line
            for line in lines
            if (query.since is None or line.time > query.since) and query.container in ("", line.container)
        ]
        tail = query.tail if position is None else None
        yield from chosen if tail is None else chosen[len(chosen) - tail :] if tail < len(chosen) else chosen
