"""Logs: frames cut anywhere, lines of two streams, restarts, broken streams, and readers that stop."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2rtui.backends.docker.logs import ContainerLog, LogFrameDecoder
from l2rtui.domain.log import LogQuery
from l2rtui.errors import BackendError
from tests.fakes.docker_engine import START_NS, frame, stamp

OUT, ERR = 1, 2


@pytest.fixture
def make_log(engine, fake):
    """Make a reader of one running container; each yields each line once."""
    identity = fake.create("c", {"Image": "img:1", "HostConfig": {"NetworkMode": "bridge"}})["Id"]
    fake.set_running(fake.by_name("c"))
    return lambda: ContainerLog(engine, identity, "c")


@pytest.fixture
def log(make_log):
    return make_log()


async def texts(log, **query):
    return [line.text async for line in log.read(LogQuery(**query))]


async def collect(log, lines, **query):
    """Read into a list that the test watches in parallel."""
    async for line in log.read(LogQuery(**query)):
        lines.append(line)


@given(st.lists(st.integers(1, 30), max_size=20))
def test_frames_may_be_cut_anywhere(sizes):
    stream = b"".join(
        frame(number, f"{stamp(START_NS + at)} {text}".encode())
        for at, (number, text) in enumerate([(OUT, "one\n"), (ERR, "two\n"), (OUT, "three\n"), (OUT, "no end")])
    )
    decoder, lines, at = LogFrameDecoder(), [], 0
    for size in [*sizes, len(stream)]:
        lines += decoder.feed(stream[at : at + size])
        at += size
    assert [text for _, text in lines + decoder.end()] == ["one", "two", "three", "no end"]
    assert [moment for moment, _ in lines] == [START_NS, START_NS + 1, START_NS + 2]


def test_a_line_of_one_stream_is_put_together_across_the_other():
    decoder = LogFrameDecoder()
    moment = stamp(START_NS)
    pieces = [(OUT, f"{moment} be"), (ERR, f"{moment} error\n"), (OUT, "gun\n")]
    lines = [line for stream, text in pieces for line in decoder.feed(frame(stream, text.encode()))]
    assert [text for _, text in lines] == ["error", "begun"]


def test_a_line_without_an_end_takes_bounded_memory_and_says_what_was_cut():
    decoder = LogFrameDecoder()
    pieces = [f"{stamp(START_NS)} ", *["x" * 16_000] * 1_000, "\n", f"{stamp(START_NS + 1)} next\n"]
    lines = [line for piece in pieces for line in decoder.feed(frame(OUT, piece.encode()))]
    (first, second), _ = zip(*((text, moment) for moment, text in lines), strict=True)
    assert first.endswith(" more bytes]")
    assert len(first) < 20_000
    assert second == "next"


async def test_lines_of_both_streams_in_the_order_of_the_engine(log, fake):
    fake.write("c", "one\n")
    fake.write("c", "two\n", ERR)
    fake.write("c", "three\r\n")
    assert await texts(log) == ["one", "two", "three"]
    assert await texts(log, tail=1) == []  # the same reader yields each line once


async def test_tail_since_and_what_is_not_text(make_log, fake):
    for number in range(5):
        fake.write("c", f"line {number}\n")
    last = fake.logs[fake.by_name("c")["Id"]][-1][0]
    reader = make_log()
    assert await texts(reader, tail=2) == ["line 3", "line 4"]
    reader = make_log()
    assert await texts(reader, since=last / 1e9 - 0.5) == ["line 4"]
    fake.logs[fake.by_name("c")["Id"]].append((fake.tick(), OUT, b"\xff\n"))
    assert (await texts(reader))[-1] == "\udcff"


async def test_equal_lines_of_one_moment_are_all_given_and_never_twice(log, fake):
    moment = fake.tick()
    for text in ("same\n", "same\n", "other\n"):
        fake.write("c", text, moment=moment)
    lines = []
    following = asyncio.create_task(collect(log, lines, follow=True))
    async with asyncio.timeout(30):
        while len(lines) < 3:
            await asyncio.sleep(0.01)
        fake.write("c", "same\n", moment=moment)  # a third one with the time of the newest line yielded before
        fake.write("c", "end\n")
        fake.end("c")
        await following
    assert [line.text for line in lines] == ["same", "same", "other", "same", "end"]


async def test_following_goes_on_across_a_restart_which_is_marked(log, fake):
    fake.write("c", "first\n")
    lines = []
    following = asyncio.create_task(collect(log, lines, follow=True, seam=True))
    async with asyncio.timeout(30):
        while not fake.streams:
            await asyncio.sleep(0.01)
        fake.by_name("c")["State"] |= {"Status": "restarting", "ExitCode": 3}
        fake.wake()
        while fake.requests[-1] != (
            "GET",
            f"/containers/{fake.by_name('c')['Id']}/json",
        ):  # it waits for the next process
            await asyncio.sleep(0.01)
        fake.restart("c")
        fake.write("c", "second\n")
        while not any(line.text == "second" for line in lines):
            await asyncio.sleep(0.01)
        fake.end("c")
        await following
    assert [line.text for line in lines if not line.is_mark] == ["first", "", "second"]
    assert [line.is_seam for line in lines] == [False, True, False, False]
    assert lines[2].is_mark
    assert lines[2].text.startswith("restart 1, ")


async def test_the_previous_process_ends_where_this_one_starts(log, make_log, fake):
    fake.write("c", "old\n")
    assert await texts(log, previous=True) == []  # there was no other process
    fake.restart("c")
    fake.write("c", "new\n")
    reader = make_log()
    assert await texts(reader, previous=True) == ["old"]


async def test_a_container_that_is_gone_has_no_lines(log, fake):
    fake.containers.clear()
    assert await texts(log, follow=True) == []


async def test_a_stream_that_breaks_off_is_an_error(log, fake):
    fake.write("c", "one\n")
    lines = []
    following = asyncio.create_task(collect(log, lines, follow=True))
    async with asyncio.timeout(30):
        while not fake.streams or not lines:
            await asyncio.sleep(0.01)
        fake.cut.set()
        fake.wake()
        with pytest.raises(BackendError, match="cannot be reached"):
            await following
    assert [line.text for line in lines] == ["one"]


async def test_a_reader_that_stops_ends_the_engine_s_stream(log, fake):
    fake.write("c", "one\n")
    async with aclosing(log.read(LogQuery(follow=True, seam=True))) as lines:
        async for line in lines:
            if line.is_seam:
                break
    following = asyncio.create_task(texts(log, follow=True))
    async with asyncio.timeout(30):
        while not fake.streams:
            await asyncio.sleep(0.01)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        while fake.streams:  # the fake only notices when it writes
            fake.write("c", "more\n")
            await asyncio.sleep(0.01)
