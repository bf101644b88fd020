"""Log files: every written line is read once and in order, from either end, across rotation and processes."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import time
from pathlib import Path

import pytest

from l2rtui.backends.local.logs import read_logs
from l2rtui.backends.local.supervision import log_file
from l2rtui.backends.local.supervision.log_file import KEPT_PROCESSES, MAX_LINE, LogWriter, parse_stamp, stamp
from l2rtui.domain.log import LogQuery


async def read(folder: Path, **query: object) -> list[str]:
    return [line.text async for line in read_logs(folder, "p", LogQuery(**query), lambda: True)]


def write(folder: Path, serial: int, *lines: str, max_bytes: int = 1 << 20, mark: str = "") -> None:
    writer = LogWriter(folder, serial, max_bytes)
    if mark:
        writer.mark(mark)
    for line in lines:
        writer.write(f"{line}\n".encode())
    writer.close()


def test_stamps_are_rfc_3339_with_microseconds():
    assert stamp(1795176000.1234567) == b"2026-11-20T12:00:00.123456Z"
    assert parse_stamp(b"2026-11-20T12:00:00.123456Z") == pytest.approx(1795176000.123456)
    assert parse_stamp(b"yesterday") is None
    assert parse_stamp(b"x" * 27) is None
    now = time.time()
    assert parse_stamp(stamp(now)) == pytest.approx(now, abs=1e-5)


async def test_lines_come_back_whatever_the_chunks(tmp_path):
    text = "one\n\ntwo\r\nthree \N{SNOWMAN}\nlast without end".encode()
    for size in (1, 2, 3, 7, 100):
        folder = tmp_path / str(size)
        writer = LogWriter(folder, 0, 1 << 20)
        for start in range(0, len(text), size):
            writer.write(text[start : start + size])
        writer.close()
        assert await read(folder) == ["one", "", "two\r", "three \N{SNOWMAN}", "last without end"]


async def test_very_long_lines_are_cut(tmp_path):
    write(tmp_path, 0, "x" * (2 * MAX_LINE + 5), "next")
    assert [len(line) for line in await read(tmp_path)] == [MAX_LINE, MAX_LINE, 5, 4]
    assert [len(line) for line in await read(tmp_path, tail=2)] == [5, 4]


async def test_a_log_is_bounded_and_read_across_its_rotation(tmp_path):
    lines = [f"line {number}" for number in range(400)]
    write(tmp_path, 0, *lines, max_bytes=4096)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"0.log", "0.log.1"}
    assert max(sizes.values()) < 4096 + 100
    texts = await read(tmp_path)
    assert texts == lines[-len(texts) :]
    assert len(texts) > 100
    for tail in (0, 1, 5, 90, 150, 1000):
        assert await read(tmp_path, tail=tail) == texts[len(texts) - min(tail, len(texts)) :]


async def test_processes_follow_each_other_with_marks(tmp_path):
    write(tmp_path, 0, "a", "b")
    write(tmp_path, 1, "c", mark="restart 1, exit 1")
    write(tmp_path, 2, "d", "e", mark="restart 2, killed by SIGKILL (exit 137)")
    everything = ["a", "b", "restart 1, exit 1", "c", "restart 2, killed by SIGKILL (exit 137)", "d", "e"]
    assert await read(tmp_path) == everything
    for tail in range(8):
        assert await read(tmp_path, tail=tail) == everything[7 - tail :]
    assert await read(tmp_path, previous=True) == ["restart 1, exit 1", "c"]
    assert await read(tmp_path, previous=True, tail=1) == ["c"]
    marks = [line.is_mark async for line in read_logs(tmp_path, "p", LogQuery(), lambda: True)]
    assert marks == [False, False, True, False, True, False, False]


@pytest.mark.parametrize("query", [{}, {"follow": True}, {"since": 1.0}, {"follow": True, "tail": 1000}])
async def test_a_folder_that_has_not_changed_for_long_is_read_to_its_end(tmp_path, query):
    write(tmp_path, 0, *(f"line {number}" for number in range(200)), max_bytes=4096)
    write(tmp_path, 1, "c", mark="restart 1, exit 1")
    write(tmp_path, 2, "d", mark="restart 2, exit 1")
    everything = await read(tmp_path, tail=1000)
    os.utime(tmp_path, (time.time() - 3_600,) * 2)
    assert await read(tmp_path, **query) == everything


async def test_there_may_be_nothing_to_read(tmp_path):
    for query in ({}, {"tail": 3}, {"previous": True}, {"since": 1.0}, {"follow": True}):
        assert await read(tmp_path / "none", **query) == []
    write(tmp_path, 0, "only one process")
    assert await read(tmp_path, previous=True) == []


async def test_since_gives_only_what_is_later(tmp_path):
    write(tmp_path, 0, "early")
    write(tmp_path, 1, "middle")
    *_, middle = [line.time async for line in read_logs(tmp_path, "p", LogQuery(), lambda: True)]
    write(tmp_path, 2, "late", "later")
    assert await read(tmp_path, since=middle) == ["late", "later"]
    assert await read(tmp_path, since=middle, tail=1) == ["later"]
    assert await read(tmp_path, since=time.time() + 60) == []


async def test_only_the_latest_processes_are_kept(tmp_path):
    for serial in range(KEPT_PROCESSES + 3):
        write(tmp_path, serial, f"process {serial}")
    assert await read(tmp_path) == [f"process {serial}" for serial in range(3, KEPT_PROCESSES + 3)]


async def test_the_next_writer_goes_on_in_the_middle_of_a_line(tmp_path):
    first = LogWriter(tmp_path, 0, 1 << 20)
    first.write(b"hel")
    os.close(first._file)  # killed: no orderly end
    second = LogWriter(tmp_path, 0, 1 << 20)
    second.write(b"lo\nworld\n")
    second.close()
    assert await read(tmp_path) == ["hello", "world"]


async def test_lines_of_another_form_are_passed_over(tmp_path):
    write(tmp_path, 0, "good")
    with (tmp_path / "0.log").open("ab") as file:
        file.write(b"\n\xff\xff no stamp\n")
    assert await read(tmp_path) == ["good"]
    assert await read(tmp_path, tail=3) == ["good"]


async def test_a_full_disk_loses_lines_and_not_the_file(tmp_path, monkeypatch):
    writer = LogWriter(tmp_path, 0, 1 << 20)
    writer.write(b"before\n")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(log_file, "write_all", full)
    with pytest.raises(OSError, match="No space"):
        writer.write(b"lost\n")
    writer.mark("lost too")
    monkeypatch.undo()
    writer.write(b"after\n")
    writer.close()
    assert await read(tmp_path) == ["before", "after"]


@pytest.mark.parametrize("seed", range(3))
async def test_a_follower_misses_and_doubles_nothing(tmp_path, seed):
    """A writer that rotates, restarts and stops mid-line, and a reader that keeps up with each rotation."""
    draw = random.Random(seed)
    lines = [f"{number} {'x' * draw.randrange(60)}" for number in range(600)]
    is_done = False
    texts: list[str] = []

    async def follow():
        query = LogQuery(follow=True, tail=draw.choice([None, 0]))
        async for line in read_logs(tmp_path, "p", query, lambda: is_done):
            texts.extend([] if line.is_mark else [line.text])

    following = asyncio.ensure_future(follow())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    serial, written = 0, 0
    writer = LogWriter(tmp_path, serial, 4096)
    for line in lines:
        data = f"{line}\n".encode()
        cut = draw.randrange(len(data))
        for part in (data[:cut], data[cut:]):
            writer.write(part)
            if draw.random() < 0.02:
                await asyncio.sleep(0.001)
        written += len(data) + 28
        if written > 3500:
            # As slow as the reader: a file that is rotated twice before the reader looks is lost, as documented.
            async with asyncio.timeout(60):
                while not texts or texts[-1] != line:
                    await asyncio.sleep(0.005)
            written = 0
        if draw.random() < 0.01:
            writer.close()
            serial += 1
            writer = LogWriter(tmp_path, serial, 4096)
            writer.mark("restart")
            async with asyncio.timeout(60):
                while not texts or texts[-1] != line:
                    await asyncio.sleep(0.005)
            written = 0
    writer.close()
    is_done = True
    async with asyncio.timeout(60):
        await following
    assert texts == lines


async def test_the_tail_of_a_large_log_reads_only_its_end(tmp_path, monkeypatch):
    write(tmp_path, 0, *("y" * 200 for _ in range(20_000)), max_bytes=1 << 30)
    read_bytes = 0
    real = Path.open

    def counting(path, *args, **wishes):
        file = real(path, *args, **wishes)
        inner = file.read

        class Counting:
            def __getattr__(self, name):
                return getattr(file, name)

            def read(self, size):
                nonlocal read_bytes
                data = inner(size)
                read_bytes += len(data)
                return data

        return Counting()

    monkeypatch.setattr(Path, "open", counting)
    assert len(await read(tmp_path, tail=10)) == 10
    assert 0 < read_bytes <= 2 * 65_536


@pytest.mark.parametrize("max_bytes", [4096, 1 << 20])
@pytest.mark.parametrize("query", [{}, {"tail": 150}, {"since": 1.0}, {"previous": True}], ids=str)
async def test_a_log_that_is_written_faster_than_it_is_read_ends_where_it_was(tmp_path, query, max_bytes):
    write(tmp_path, 0, *(f"earlier {number}" for number in range(100)), max_bytes=max_bytes)
    write(tmp_path, 1, *(f"line {number}" for number in range(100)), max_bytes=max_bytes)
    expected = await read(tmp_path, **query)
    writer, lines = LogWriter(tmp_path, 1, max_bytes), []
    async for line in read_logs(tmp_path, "p", LogQuery(**query), lambda: False):
        lines.append(line.text)
        writer.write(b"another\nand another\n")
        assert len(lines) <= 2 * len(expected)
    writer.close()
    if max_bytes > 4096:  # otherwise files are rotated away before they are read
        assert lines == expected


async def test_a_flood_is_stored_whole(lab):
    await lab.launch(lab.set("flood", "50000", "say", "end", "sleep", "600"))
    lines = await lab.until_line("end")
    assert lines == [*(f"line {number}" for number in range(50_000)), "end"]


# --- progress bars: determined-ai/determined#3542, kubeflow/pipelines#9593, tqdm/tqdm#1319 -----------------------
def bar(number: int, *, is_behind: bool = False) -> bytes:
    text = f"Epoch 3/10: {number % 100:3d}%|{'#' * 20}| {number}/100000"
    return (f"{text}\r" if is_behind else f"\r{text}").encode()


@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_bar_is_one_line_with_its_newest_state(tmp_path, is_behind, size):
    writer = LogWriter(tmp_path, 0, 1 << 20)
    text = b"begin\n" + b"".join(bar(number, is_behind=is_behind) for number in range(2000)) + b"\nend\n"
    for start in range(0, len(text), size):
        writer.write(text[start : start + size])
    writer.close()
    last = bar(1999).decode().strip()
    assert [line.rstrip("\r") for line in await read(tmp_path)] == ["begin", last, "end"]
    assert [line.rstrip("\r") for line in await read(tmp_path, tail=2)] == [last, "end"]


async def test_the_states_of_a_bar_are_lines_of_a_second_and_one_line_to_readers(tmp_path, monkeypatch):
    clock = 1_800_000_000.0
    monkeypatch.setattr(log_file.time, "time", lambda: clock)
    writer = LogWriter(tmp_path, 0, 4096)
    writer.write(b"begin\n")
    for number in range(400):
        clock += 0.25
        writer.write(bar(number))
    monkeypatch.undo()
    assert await read(tmp_path) == ["begin", bar(399).decode().strip()] or (tmp_path / "0.log.1").exists()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3 * 4096  # also rotated within a bar
    writer.write(b"\nend\n")
    writer.close()
    assert (await read(tmp_path, tail=2)) == [bar(399).decode().strip(), "end"]


@pytest.mark.parametrize("is_behind", [False, True])
async def test_a_follower_sees_the_newest_state_of_a_bar_within_two_seconds(tmp_path, is_behind):
    writer = LogWriter(tmp_path, 0, 1 << 20)
    seen = []

    async def follow():
        async for line in read_logs(tmp_path, "p", LogQuery(follow=True), lambda: writer is None):
            seen.append((time.monotonic(), line))  # noqa: PERF401  (as they come)

    following = asyncio.ensure_future(follow())
    try:
        began = time.monotonic()
        for number in range(60):
            writer.write(bar(number, is_behind=is_behind))
            await asyncio.sleep(0.05)
        written = time.monotonic()
        async with asyncio.timeout(60):
            while not seen or "59/100000" not in seen[-1][1].text:
                await asyncio.sleep(0.02)
        # Two seconds on a quiet machine; a state that waits for the next line would never come.
        assert seen[-1][0] - written < 20
        assert len(seen) < 10 + 2 * (written - began), "a state of each second, not of each write"
        assert all(line.replaces for _, line in seen[1:])
        assert "\r" not in "".join(line.text.rstrip("\r") for _, line in seen)
        writer.write(b"\nend\n")
        async with asyncio.timeout(60):
            while seen[-1][1].text != "end":
                await asyncio.sleep(0.02)
        assert not seen[-1][1].replaces
    finally:
        writer.close()
        writer = None
        await following
