"""Lines of several pods as one stream: the kept part in the order of time, then live; pods that come later join."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from l2rtui.backends.base import Backend, LogLine, LogQuery
from l2rtui.backends.streams import joined
from l2rtui.domain.change import Change, apply
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView
from l2rtui.errors import NotFoundError, UsageError

Lines = AsyncGenerator[LogLine, None]


def pattern(text: str, option: str) -> re.Pattern[str] | None:
    """Compile a filter; None for an empty one.

    Raises:
        UsageError: it is no regular expression.
    """
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise UsageError(f"{option} {text!r} is no regular expression: {error}.") from None


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

    The backlog is sorted by time over all pods (a tail counts over all of them); lines that are written later come
    as they come. Marks of restarts pass every filter.

    Args:
        include, exclude: Regular expressions, searched in the text of a line.
        targets: With ``follow``: what names the pods, as a person writes it; pods that it names later join, and the
            stream goes on until the runs are gone, or all their pods have ended.

    Raises:
        NotFoundError: none of the pods is there any more.
    """
    wanted, unwanted = pattern(include, "--grep"), pattern(exclude, "--exclude")

    def passes(line: LogLine) -> bool:
        return line.is_mark or not (
            (wanted and not wanted.search(line.text)) or (unwanted and unwanted.search(line.text))
        )

    is_live = query.follow and not query.previous
    each = replace(query, follow=is_live, seam=is_live)
    pool = _Pool(backend, each, is_one=len(pods) == 1 and not targets)
    late = pool.later(targets) if is_live and targets else None
    kept: deque[LogLine] = deque(maxlen=query.tail)
    is_kept = query.tail is not None
    async with aclosing(joined([pool.stream(pod) for pod in pods], late)) as lines:
        async for line in lines:
            if line.is_seam:
                for one in kept:
                    yield one
                kept.clear()
                is_kept = False
            elif not passes(line):
                pass
            elif is_kept:
                kept.append(line)
            else:
                yield line


class _Pool:
    """The logs that are open, by the names of their pods: a replaced pod may come under the same name."""

    def __init__(self, backend: Backend, query: LogQuery, *, is_one: bool) -> None:
        self._backend = backend
        self._query = query
        self._is_one = is_one
        self._has_ended = asyncio.Event()
        self._seen: set[str] = set()
        self._open: set[tuple[str, str]] = set()
        self._last: dict[tuple[str, str], float] = {}

    def stream(self, pod: PodView, query: LogQuery | None = None) -> Lines:
        """The log of one pod; nothing for one of many that went before it was opened."""
        self._seen.add(pod.uid)
        self._open.add(_key(pod))
        return self._lines(pod, query or self._query)

    async def later(self, targets: Sequence[str]) -> AsyncGenerator[Lines, None]:
        """Logs of pods that the targets name later; ends when none is open and none will come."""
        snapshot = EMPTY_SNAPSHOT
        async with aclosing(self._backend.watch()) as batches:
            batch: asyncio.Future[tuple[Change, ...]] = asyncio.ensure_future(anext(batches))
            try:
                while snapshot is EMPTY_SNAPSHOT or self._open or not _is_over(snapshot, targets):
                    await self._news(batch)
                    if batch.done():
                        snapshot = apply(snapshot, batch.result())
                        batch = asyncio.ensure_future(anext(batches))
                    for pod in (pod for target in targets for pod in snapshot.select(target)):
                        if pod.uid not in self._seen and _key(pod) not in self._open:
                            # All that it has written is new, except under a name whose log was read before.
                            since = self._last.get(_key(pod), self._query.since)
                            yield self.stream(pod, replace(self._query, tail=None, since=since))
            finally:
                batch.cancel()
                await asyncio.gather(batch, return_exceptions=True)

    async def _news(self, batch: asyncio.Future[tuple[Change, ...]]) -> None:
        """Wait until the cluster changes or a log ends."""
        ended = asyncio.ensure_future(self._has_ended.wait())
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
    """Whether no pod will come: the runs are gone, or all that they were to do has ended."""
    if not any(snapshot.runs_matching(target.partition("/")[0]) for target in targets):
        return True
    pods = [pod for target in targets for pod in snapshot.select(target)]
    return bool(pods) and all(pod.phase.is_over for pod in pods)


def _key(pod: PodView) -> tuple[str, str]:
    return pod.namespace, pod.name
