"""Lines of several pods as one stream: the kept part in the order of time, then live."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from heapq import merge

from l2rtui.backends.base import Backend, LogLine, LogQuery
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import BackendError, UsageError

_QUEUE_LINES = 10_000
"""Lines that wait for a slow reader; then the pumps wait too, and the files keep what comes."""


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
) -> AsyncGenerator[LogLine, None]:
    """Merge the logs of pods.

    The backlog is sorted by time over all pods (a tail counts over all of them); lines that are written later come
    as they come. Marks of restarts pass every filter.

    Args:
        include, exclude: Regular expressions, searched in the text of a line.
    """
    wanted, unwanted = pattern(include, "--grep"), pattern(exclude, "--exclude")

    def passes(line: LogLine) -> bool:
        return line.is_mark or not (
            (wanted and not wanted.search(line.text)) or (unwanted and unwanted.search(line.text))
        )

    now = replace(query, follow=False)
    backlogs = [[line async for line in backend.logs(pod, now)] for pod in pods]
    backlog = [line for line in merge(*backlogs, key=lambda line: line.time) if passes(line)]
    for line in backlog if query.tail is None else backlog[len(backlog) - min(query.tail, len(backlog)) :]:
        yield line
    if not query.follow or query.previous:
        return
    last = [max((line.time for line in lines), default=query.since or 0.0) for lines in backlogs]
    async with aclosing(_live(backend, list(zip(pods, last, strict=True)), replace(query, tail=None))) as live:
        async for line in live:
            if passes(line):
                yield line


async def _live(
    backend: Backend, pods: Sequence[tuple[PodView, float]], query: LogQuery
) -> AsyncGenerator[LogLine, None]:
    """Pump every pod's new lines into one queue; ends when all pods are gone for good.

    Plain tasks instead of a TaskGroup: closing a generator inside a group raises GeneratorExit as a group.
    """
    queue: asyncio.Queue[LogLine | BackendError | None] = asyncio.Queue(_QUEUE_LINES)

    async def pump(pod: PodView, since: float) -> None:
        try:
            async with aclosing(backend.logs(pod, replace(query, since=since))) as lines:
                async for line in lines:
                    await queue.put(line)
        except BackendError as error:
            await queue.put(error)
        await queue.put(None)

    tasks = [asyncio.create_task(pump(pod, since), name=f"logs {pod.name}") for pod, since in pods]
    running = len(tasks)
    try:
        while running:
            match await queue.get():
                case None:
                    running -= 1
                case BackendError() as error:
                    raise error
                case LogLine() as line:
                    yield line
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
