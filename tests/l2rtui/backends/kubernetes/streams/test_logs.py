"""Pod logs against a server that repeats, cuts and restarts: every line once, in order, and each restart
reported.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import pytest
from aiohttp import web

from l2rtui.backends.common.log_merge import MAX_LINE_BYTES, LineSplitter
from l2rtui.backends.kubernetes.api.errors import ApiError, RequestInfo, status_error
from l2rtui.backends.kubernetes.streams.logs import Cursor, LogTiming, StampParser, read
from l2rtui.domain.log import LogQuery
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import NotFoundError
from tests.l2rtui.backends.kubernetes.log_server import BEGIN, SECOND, Pod, Process, serving, stamp

FAST = LogTiming(silence_seconds=0.3, longest_silence_seconds=1.0, pause_seconds=0.01, longest_pause_seconds=0.05)
VIEW = PodView("u", "p", namespace="ml")
DEADLINE_SECONDS = 60.0


async def lines(api, query=None, view=VIEW):
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        aclosing(read(api, view, query or LogQuery(), timing=FAST)) as it,
    ):
        return [line async for line in it]


async def texts(api, query=None):
    return [line.text for line in await lines(api, query)]


def following(api, *, seam=False):
    return aclosing(read(api, VIEW, LogQuery(follow=True, seam=seam), timing=FAST))


def numbered(count, begin=0):
    """Lines whose times collide, like those of a busy process."""
    dice = random.Random(count)
    at, read_lines = BEGIN, []
    for number in range(begin, begin + count):
        at += dice.choice((0, 0, 1_000, SECOND // 2))
        read_lines.append((at, f"line {number}"))
    return read_lines


# --- pure parts --------------------------------------------------------------------------------------------------
def test_lines_are_cut_out_of_any_chunks():
    splitter = LineSplitter()
    read_lines = [line for chunk in (b"a", b"b\nc\n", b"\nd") for line in splitter.feed(chunk)]
    assert read_lines == [b"ab", b"c", b""]
    assert splitter.flush() == b"d"


def test_a_line_without_end_takes_bounded_memory_and_says_what_was_cut():
    splitter = LineSplitter(limit=10)
    for _ in range(1000):
        assert not list(splitter.feed(b"x" * 1000))
    (line,) = splitter.feed(b"\n")
    assert line == b"x" * 10 + b" [999990 more bytes]"
    assert list(splitter.feed(b"next\n")) == [b"next"]


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("2025-06-15T15:06:40Z", BEGIN),
        ("2025-06-15T15:06:40.5Z", BEGIN + SECOND // 2),
        ("2025-06-15T15:06:40.123456789Z", BEGIN + 123_456_789),
        ("2025-06-15T17:06:40.000000001+02:00", BEGIN + 1),
        ("2025-06-15T09:36:40-05:30", BEGIN),
    ],
)
def test_times_keep_their_nanoseconds(text, nanoseconds):
    assert StampParser().parse(f"{text} said  this ".encode()) == (nanoseconds, b"said  this ")


@pytest.mark.parametrize(
    "text", ["", "unable to retrieve container logs", "2025-06-15 x", "2025-13-45T99:00:00Z x"]
)
def test_what_has_no_time_is_told_apart(text):
    assert StampParser().parse(text.encode()) is None


def test_a_cursor_knows_what_was_given_even_at_equal_times():
    cursor = Cursor()
    assert [cursor.is_new(at) for at in (5, 5, 7)] == [True] * 3
    cursor.reopen()
    assert [cursor.is_new(at) for at in (5, 5, 7, 7, 5)] == [False, False, False, True, True]


def test_a_clock_that_is_set_back_loses_nothing():
    cursor = Cursor()
    assert [cursor.is_new(at) for at in range(20_000, 10_000, -1)] == [True] * 10_000


def test_a_cursor_forgets_old_lines_and_still_skips_them():
    cursor = Cursor()
    times = range(BEGIN, BEGIN + 10_000)
    assert all(cursor.is_new(at) for at in times)
    cursor.reopen()
    assert not any(cursor.is_new(at) for at in times)
    assert cursor.is_new(BEGIN + 10_000)


# --- over HTTP ---------------------------------------------------------------------------------------------------
async def test_what_was_kept_is_read_with_its_times():
    pod = Pod()
    pod.main[0].lines = numbered(3)
    async with serving(pod) as api:
        read_lines = await lines(api)
    assert [(line.time, line.pod, line.text) for line in read_lines] == [
        (at / 1e9, "p", text) for at, text in pod.main[0].lines
    ]


async def test_tail_since_and_previous_choose():
    pod = Pod({"main": [Process(numbered(5)), Process(numbered(10, begin=5))]})
    pod.main[0].ended = {"exitCode": 1}
    async with serving(pod) as api:
        assert await texts(api, LogQuery(tail=2)) == ["line 13", "line 14"]
        assert await texts(api, LogQuery(tail=0)) == []
        assert await texts(api, LogQuery(previous=True, tail=1)) == ["line 4"]
        at, _ = pod.main[1].lines[6]
        later = [text for when, text in pod.main[1].lines if when / 1e9 > at / 1e9]
        assert await texts(api, LogQuery(since=at / 1e9)) == later


async def test_half_a_line_at_the_end_is_asked_for_again():
    half = f"{stamp(BEGIN)} whole\n{stamp(BEGIN + SECOND)} ha"
    pod = Pod(errors=[web.Response(text=half)])
    pod.main[0].lines = [(BEGIN, "whole"), (BEGIN + SECOND, "half")]
    async with serving(pod) as api:
        assert await texts(api) == ["whole", "half"]
    pod = Pod(errors=[web.Response(text=half), web.Response(text=half)])
    async with serving(pod) as api:
        assert await texts(api) == ["whole", "ha"]


async def test_there_is_nothing_before_the_first_process():
    async with serving(Pod()) as api:
        assert await texts(api, LogQuery(previous=True)) == []


@pytest.mark.parametrize("tail", [None, 0, 3])
@pytest.mark.parametrize("seed", range(6))
async def test_a_stream_that_is_cut_at_any_byte_gives_each_line_once(seed, tail):
    pod = Pod(cuts=0.03, dice=random.Random(seed))
    stored, coming = numbered(40), [(at + 60 * SECOND, text) for at, text in numbered(120, begin=40)]
    pod.main[0].lines = list(stored)
    read_lines, seam = [], None
    async with serving(pod) as api, asyncio.timeout(DEADLINE_SECONDS):
        query = LogQuery(follow=True, tail=tail, seam=True)
        async with aclosing(read(api, VIEW, query, timing=FAST)) as stream:
            async for line in stream:
                if line.is_seam:
                    seam = len(read_lines)
                    writing = asyncio.create_task(write(pod, coming))
                elif not line.is_mark:
                    read_lines.append(line.text)
            await writing
    first = 0 if tail is None else 40 - tail
    assert read_lines == [f"line {number}" for number in range(first, 160)]
    assert seam == 40 - first
    assert len(pod.opened) > 3


async def write(pod, coming):
    """Write lines in bursts, then end."""
    for number, (at, text) in enumerate(coming):
        pod.write(text, at)
        if number % 7 == 0:
            await asyncio.sleep(0.005)
    pod.phase = "Succeeded"
    pod.end(0, "Completed")


async def test_restarts_are_told_and_no_line_between_is_lost():
    pod = Pod()
    pod.main[0].lines = numbered(3)
    async with asyncio.timeout(DEADLINE_SECONDS), serving(pod) as api, following(api) as stream:
        read_lines = [(await anext(stream)).text for _ in range(3)]
        pod.write("last words", BEGIN + 60 * SECOND)
        pod.end(137, "OOMKilled")
        read_lines += [(await anext(stream)).text for _ in range(2)]
        pod.restart()
        pod.write("again", BEGIN + 99 * SECOND)
        read_lines += [(await anext(stream)).text for _ in range(2)]
        pod.is_there = False
        pod.wake()
        read_lines += [line.text async for line in stream]
    oom = "killed by SIGKILL (exit 137), OOMKilled"
    assert read_lines == ["line 0", "line 1", "line 2", "last words", oom, "restart 1", "again"]


async def test_a_restart_that_nobody_saw_is_caught_up_from_the_previous_process():
    pod = Pod(mute=True)
    pod.main[0].lines = numbered(2)
    async with asyncio.timeout(DEADLINE_SECONDS), serving(pod) as api, following(api) as stream:
        read_lines = [(await anext(stream)).text for _ in range(2)]
        pod.write("unseen", BEGIN + 60 * SECOND)
        pod.end(3)
        pod.restart()
        pod.write("again", BEGIN + 99 * SECOND)
        pod.mute = False
        read_lines += [(await anext(stream)).text for _ in range(3)]
    assert read_lines == ["line 0", "line 1", "unseen", "restart 1, exit 3", "again"]


async def test_a_silent_stream_is_opened_anew():
    pod = Pod(mute=True)
    async with asyncio.timeout(DEADLINE_SECONDS), serving(pod) as api, following(api) as stream:
        waiting = asyncio.ensure_future(anext(stream))
        while sum("follow" in query for query in pod.opened) < 2:
            await asyncio.sleep(0.01)
        pod.write("there", BEGIN)
        pod.mute = False
        assert (await waiting).text == "there"


async def test_an_outage_is_told_once_and_outlived():
    pod = Pod(errors=[])
    pod.main[0].lines = numbered(1)
    async with asyncio.timeout(DEADLINE_SECONDS), serving(pod) as api, following(api, seam=True) as stream:
        assert (await anext(stream)).text == "line 0"
        assert (await anext(stream)).is_seam
        pod.errors = [web.json_response({"message": "no kubelet"}, status=500) for _ in range(9)]
        mark = await anext(stream)
        assert mark.is_mark
        assert "no kubelet" in mark.text
        pod.write("back", BEGIN + 99 * SECOND)
        assert (await anext(stream)).text == "back"


async def test_who_may_not_read_is_told_at_once():
    refusal = {"kind": "Status", "reason": "Forbidden", "message": "pods/log is forbidden"}
    for query in (LogQuery(), LogQuery(follow=True)):
        pod = Pod(errors=[web.json_response(refusal, status=403)])
        async with serving(pod) as api:
            with pytest.raises(ApiError, match="forbidden"):
                await lines(api, query)
        assert len(pod.opened) == 1


async def test_a_missing_right_is_told_in_few_words_with_its_verb_and_the_namespace():
    output = (
        'pods "p" is forbidden: User "eve" cannot get resource "pods/log" in API group "" in the namespace "ml": '
        'RBAC: role.rbac.authorization.k8s.io "x" not found'
    )
    pod = Pod(errors=[web.json_response({"kind": "Status", "reason": "Forbidden", "message": output}, status=403)])
    async with serving(pod) as api:
        with pytest.raises(ApiError) as caught:
            await lines(api)
    assert caught.value.message == (
        "The server did not read pods/p/log in the namespace ml: eve lacks the right to get pods/log."
    )
    assert caught.value.detail == output
    everywhere = 'nodes is forbidden: User "eve" cannot list resource "nodes" in API group "" at the cluster scope'
    reported = status_error(RequestInfo("GET", "/api/v1/nodes"), 403, "Forbidden", everywhere)
    assert reported.message == "The server did not read nodes: eve lacks the right to list nodes in all namespaces."


async def test_a_pod_that_is_gone_or_another_of_its_name_is_not_found():
    pod = Pod(is_there=False)
    async with serving(pod) as api:
        with pytest.raises(NotFoundError, match="p no longer exists"):
            await lines(api)
        pod.is_there = True
        with pytest.raises(NotFoundError):
            await lines(api, view=PodView("other", "p", namespace="ml"))


async def test_containers_are_merged_by_time_and_named():
    pod = Pod({"main": [Process([(BEGIN, "a"), (BEGIN + 2, "c")])], "sim": [Process([(BEGIN + 1, "b")])]})
    # Times of a float are too coarse for single nanoseconds: spread them.
    for processes in pod.containers.values():
        processes[0].lines = [(BEGIN + (at - BEGIN) * SECOND, text) for at, text in processes[0].lines]
    async with serving(pod) as api:
        assert [(line.container, line.text) for line in await lines(api)] == [
            ("main", "a"),
            ("sim", "b"),
            ("main", "c"),
        ]
        assert await texts(api, LogQuery(tail=2)) == ["b", "c"]
        named = [(line.container, line.text) for line in await lines(api, LogQuery(container="sim"))]
        assert named == [("sim", "b")]
        assert await texts(api, LogQuery(container="main", tail=1)) == ["c"]
        with pytest.raises(NotFoundError, match="has no container other: it has main, sim"):
            await lines(api, query=LogQuery(container="other"))


async def test_odd_bytes_and_endless_lines_do_no_harm():
    pod = Pod()
    pod.main[0].lines = [(BEGIN, "\udcff\udcfe bytes"), (BEGIN, "x" * (MAX_LINE_BYTES + 5_000))]
    async with serving(pod) as api:
        odd, long = await texts(api)
    assert odd == "\ufffd\ufffd bytes"
    assert len(long) < MAX_LINE_BYTES + 100
    assert long.endswith("more bytes]")


async def test_the_kubelets_own_words_are_marks():
    pod = Pod(errors=[web.Response(text=f"unable to retrieve container logs\n{stamp(BEGIN)} fine\n")])
    async with serving(pod) as api:
        mark, line = await lines(api)
    assert (mark.is_mark, mark.text) == (True, "unable to retrieve container logs")
    assert (line.is_mark, line.text) == (False, "fine")
