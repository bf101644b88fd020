"""Merged logs: order of time, filters that never hide a restart, and an end once all pods are deleted."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import pytest

from l2rtui.domain.log import LogLine, LogQuery
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import BackendError, UsageError
from l2rtui.services import logs


class Scripted:
    """The logs of a backend, written by the test: stored lines, then live ones."""

    def __init__(
        self, kept: dict[str, Sequence[LogLine]], live: dict[str, Sequence[LogLine | Exception]] | None = None
    ):
        self.kept, self.live = kept, live or {}
        self.open = 0

    async def logs(self, pod: PodView, query: LogQuery) -> AsyncIterator[LogLine]:
        self.open += 1
        try:
            lines = [line for line in self.kept.get(pod.name, ()) if query.since is None or line.time > query.since]
            for line in lines if query.tail is None else lines[len(lines) - min(query.tail, len(lines)) :]:
                yield line
            if query.seam:
                yield LogLine(0, pod.name, "", is_seam=True)
            for line in self.live.get(pod.name, ()) if query.follow else ():
                await asyncio.sleep(0)
                if isinstance(line, Exception):
                    raise line
                yield line
        finally:
            self.open -= 1


def pod(name):
    return PodView(uid=name, name=name)


def line(pod, time, text="x", *, is_mark=False):
    return LogLine(time, pod, text, is_mark)


KEPT = {
    "a": [line("a", 1, "one"), line("a", 4, "four"), line("a", 5, "end", is_mark=True)],
    "b": [line("b", 2, "two"), line("b", 3, "three")],
}


async def collect(backend, query, **filters):
    async with aclosing(logs.merged(backend, [pod("a"), pod("b")], query, **filters)) as stream:
        return [one.text async for one in stream]


async def test_the_backlog_is_in_the_order_of_time():
    assert await collect(Scripted(KEPT), LogQuery()) == ["one", "two", "three", "four", "end"]


async def test_a_tail_counts_over_all_pods():
    assert await collect(Scripted(KEPT), LogQuery(tail=2)) == ["four", "end"]
    assert await collect(Scripted(KEPT), LogQuery(tail=0)) == []


async def test_filters_search_and_marks_pass():
    assert await collect(Scripted(KEPT), LogQuery(), include="^t") == ["two", "three", "end"]
    assert await collect(Scripted(KEPT), LogQuery(), exclude="o") == ["three", "end"]


async def test_live_lines_follow_without_loss_or_doubles():
    live = {"a": [line("a", 6, "six"), line("a", 8, "eight")], "b": [line("b", 7, "seven")]}
    backend = Scripted(KEPT, live)

    found = await collect(backend, LogQuery(follow=True))

    assert found[:5] == ["one", "two", "three", "four", "end"]
    assert sorted(found[5:]) == ["eight", "seven", "six"]
    assert backend.open == 0


async def test_leaving_early_closes_every_stream():
    backend = Scripted(
        KEPT, {"a": [line("a", 9 + n) for n in range(1000)], "b": [line("b", 9 + n) for n in range(1000)]}
    )
    async with aclosing(logs.merged(backend, [pod("a"), pod("b")], LogQuery(follow=True, tail=0))) as stream:
        await anext(stream)

    assert backend.open == 0


async def test_a_broken_stream_is_told():
    backend = Scripted({}, {"a": [BackendError("the log of a is gone")]})

    with pytest.raises(BackendError, match="the log of a is gone"):
        await collect(backend, LogQuery(follow=True))


async def test_a_wrong_pattern_gets_a_sentence():
    with pytest.raises(UsageError, match=r"--grep '\(' is not a regular expression"):
        await collect(Scripted({}), LogQuery(), include="(")


async def endless():
    for number in itertools.count():
        yield LogLine(float(number), "p", "x" * (number % 1_000))


async def test_streams_that_never_wait_take_turns_and_leave_time_to_others():
    turns, read = logs.ReadingTurns(), [0] * 5

    async def count(number: int) -> None:
        async with aclosing(turns.paced(endless())) as lines:
            async for _ in lines:
                read[number] += 1

    readers = [asyncio.create_task(count(number)) for number in range(len(read))]
    while min(read) < 1_000:
        await asyncio.sleep(0)  # would never return from a reader that takes every available line
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
