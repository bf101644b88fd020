"""Logs of several pods merged to one stream: the backlog by time, then live lines; pods that appear later join."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

from msgspec.structs import replace

from l2rtui.backends.base import Backend
from l2rtui.backends.common.log_merge import merge_streams
from l2rtui.domain.change import Change, apply
from l2rtui.domain.log import LogLine, LogQuery
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView
from l2rtui.errors import NotFoundError, UsageError

Lines = AsyncGenerator[LogLine, None]

_TURN_SECONDS: Final = 0.004
_CLOCK_WEIGHT: Final = 32
_WEIGHT_CHARACTERS: Final = 256


def weight_of(line: LogLine) -> int:
    """Return the work for a line: 1, plus 1 for each block of characters."""
    return 1 + len(line.text) // _WEIGHT_CHARACTERS


class ReadingTurns:
    """Turns of the streams of a program: one short turn per round of the event loop, however many have lines.

    A burst that is already in memory never suspends its reader, and a key needs several rounds of the loop.
    """

    def __init__(self) -> None:
        self._queue = asyncio.Lock()
        self._end: float | None = None  # of this round's turn; None before its first line

    async def paced(self, lines: Lines) -> Lines:
        """Yield the lines of a stream, in turns; the consumer's work on a line counts as reading it."""
        weight = 0
        async with aclosing(lines):
            async for line in lines:
                yield line
                weight += weight_of(line)
                if weight >= _CLOCK_WEIGHT:
                    weight = 0
                    if self._is_over():
                        async with self._queue:  # first come, first served
                            await asyncio.sleep(0)

    def _is_over(self) -> bool:
        now = time.monotonic()
        if self._end is None:
            self._end = now + _TURN_SECONDS
            asyncio.get_running_loop().call_soon(self._begin_round)
        return now > self._end

    def _begin_round(self) -> None:
        self._end = None


def pattern(text: str, option: str) -> re.Pattern[str] | None:
    """Compile a filter; None for an empty one.

    Raises:
        UsageError: it is not a regular expression.
    """
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise UsageError(f"{option} {text!r} is not a regular expression: {error}.") from None


async def merged(
    backend: Backend,
    pods: Sequence[PodView],
    query: LogQuery,
    *,
    include: str = "",
    exclude: str = "",
    targets: Sequence[str] = (),
) -> Lines:
    """Merge the logs of pods; each is opened once.

    The backlog is sorted by time over all pods (a tail counts over all of them); later lines are in order of
    arrival. Marks of restarts pass every filter.

    Args:
        include, exclude: Regular expressions, searched in the text of a line.
        targets: With ``follow``: names of runs, sets or pods. Pods that match later join, and the stream continues
            until the runs are deleted, or all their pods have ended.

    Raises:
        NotFoundError: the only pod does not exist.
    """
    include_pattern, exclude_pattern = pattern(include, "--grep"), pattern(exclude, "--exclude")

    def passes(line: LogLine) -> bool:
        return line.is_mark or not (
            (include_pattern and not include_pattern.search(line.text))
            or (exclude_pattern and exclude_pattern.search(line.text))
        )

    is_live = query.follow and not query.previous
    pod_query = replace(query, follow=is_live, seam=is_live)
    # The seam marks the end of the backlog of each log; only then can lines be ordered across pods.
    pool = _Pool(backend, pod_query, is_one=len(pods) == 1 and not targets)
    late = pool.later(targets) if is_live and targets else None
    backlog: deque[LogLine] = deque(maxlen=query.tail)
    is_backlog = query.tail is not None
    async with aclosing(merge_streams([pool.stream(pod) for pod in pods], late)) as lines:
        async for line in lines:
            if line.is_seam:
                for backlog_line in backlog:
                    yield backlog_line
                backlog.clear()
                is_backlog = False
            elif not passes(line):
                pass
            elif is_backlog:
                backlog.append(line)
            else:
                yield line


class _Pool:
    """Open logs by the names of their pods; a replaced pod may have the same name."""

    def __init__(self, backend: Backend, query: LogQuery, *, is_one: bool) -> None:
        self._backend = backend
        self._query = query
        self._is_one = is_one
        self._has_ended = asyncio.Event()
        self._opened_uids: set[str] = set()
        self._open: set[tuple[str, str]] = set()
        self._last: dict[tuple[str, str], float] = {}

    def stream(self, pod: PodView, query: LogQuery | None = None) -> Lines:
        """Return the log of one pod; if it is one of several and was deleted, an empty stream."""
        self._opened_uids.add(pod.uid)
        self._open.add(_key(pod))
        return self._lines(pod, query or self._query)

    async def later(self, targets: Sequence[str]) -> AsyncGenerator[Lines, None]:
        """Yield logs of pods that match later; end when no log is open and no pod can appear."""
        snapshot = EMPTY_SNAPSHOT
        async with aclosing(self._backend.watch()) as batches:
            batch: asyncio.Future[tuple[Change, ...]] = asyncio.ensure_future(anext(batches))
            try:
                while snapshot is EMPTY_SNAPSHOT or self._open or not _is_over(snapshot, targets):
                    await self._changed(batch)
                    if batch.done():
                        snapshot = apply(snapshot, batch.result())
                        batch = asyncio.ensure_future(anext(batches))
                    for pod in (pod for target in targets for pod in snapshot.select(target)):
                        if pod.uid not in self._opened_uids and _key(pod) not in self._open:
                            # Its whole log is new, unless its name had a log before: then continue after the last
                            # line that was read.
                            since = self._last.get(_key(pod), self._query.since)
                            yield self.stream(pod, replace(self._query, tail=None, since=since))
            finally:
                # An open watch would keep its connection until it is collected.
                batch.cancel()
                await asyncio.gather(batch, return_exceptions=True)

    async def _changed(self, batch: asyncio.Future[tuple[Change, ...]]) -> None:
        """Wait until the cluster changes or a log ends."""
        ended = asyncio.ensure_future(self._has_ended.wait())
        # The watch is not cancelled while waiting: its next batch must not be lost.
        either: set[asyncio.Future[Any]] = {batch, ended}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        self._has_ended.clear()

    async def _lines(self, pod: PodView, query: LogQuery) -> Lines:
        key = _key(pod)
        try:
            async with aclosing(self._backend.logs(pod, query)) as lines:
                async for line in lines:
                    if not line.is_seam:
                        self._last[key] = line.time
                    yield line
        except NotFoundError:
            if self._is_one:
                raise
        finally:
            self._open.discard(key)
            self._has_ended.set()


def _is_over(snapshot: ClusterSnapshot, targets: Sequence[str]) -> bool:
    """Return True if no further pod can appear: the runs are deleted, or all their pods have ended."""
    if not any(snapshot.runs_in(target)[0] for target in targets):
        return True
    pods = [pod for target in targets for pod in snapshot.select(target)]
    return bool(pods) and all(pod.phase.is_over for pod in pods)


def _key(pod: PodView) -> tuple[str, str]:
    return pod.namespace, pod.name
