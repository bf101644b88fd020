"""Commands in a container: captured, and on our own standard streams or terminal."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import sys
import termios

import pytest

from l2rtui.backends.docker import exec as commands
from l2rtui.errors import NotFoundError
from tests.fakes.docker_engine import frame


@pytest.fixture
def container(fake):
    return fake.create("c", {"Image": "img:1", "HostConfig": {"NetworkMode": "bridge"}})["Id"]


async def test_both_streams_and_the_code_of_a_captured_command(engine, fake, container):
    fake.exec_output = lambda argv: (frame(1, b"out ") + frame(2, b"bad") + frame(1, " ".join(argv).encode()), 7)
    done = await commands.capture_command(engine, container, ["ls", "-l"])
    assert (done.code, done.out, done.err) == (7, b"out ls -l", b"bad")
    (started,) = fake.execs.values()
    assert (started["request"]["AttachStdin"], started["request"]["Tty"]) == (False, False)


async def test_more_than_fits_is_dropped_and_read_to_its_end(engine, fake, container, monkeypatch):
    monkeypatch.setattr(commands, "MAX_BYTES", 10)
    fake.exec_output = lambda _: (frame(1, b"x" * 100_000) + frame(2, b"end"), 0)
    done = await commands.capture_command(engine, container, ["cat"])
    assert (done.out, done.err) == (b"x" * 10, b"end")


async def test_a_command_without_a_code_was_killed_with_its_container(engine, fake, container):
    fake.exec_output = lambda _: (frame(1, b"half"), None)
    assert (await commands.capture_command(engine, container, ["x"])).code == 137


async def test_no_container(engine):
    with pytest.raises(NotFoundError):
        await commands.capture_command(engine, "none", ["x"])


async def test_our_standard_streams_are_those_of_the_command(engine, fake, container, tmp_path, monkeypatch):
    (tmp_path / "in").write_bytes(b"typed")
    fake.exec_output = lambda _: (frame(1, b"out ") + frame(2, b"err"), 5)
    with (
        (tmp_path / "in").open() as source,
        (tmp_path / "out").open("w") as out,
        (tmp_path / "err").open("w") as err,
    ):
        for name, file in (("stdin", source), ("stdout", out), ("stderr", err)):
            monkeypatch.setattr(sys, name, file)
        assert await commands.attach_command(engine, container, ["cat"]) == 5
        monkeypatch.undo()
    assert (tmp_path / "out").read_bytes() == b"out read typed"
    assert (tmp_path / "err").read_bytes() == b"err"


async def test_a_pipe_is_read_to_its_end(engine, fake, container, tmp_path, monkeypatch):
    reading, writing = os.pipe()
    os.write(writing, b"piped")
    os.close(writing)
    with os.fdopen(reading) as source, (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdin", source)
        monkeypatch.setattr(sys, "stdout", out)
        await commands.attach_command(engine, container, ["cat"])
        monkeypatch.undo()
    assert (tmp_path / "out").read_bytes() == b"outread piped"


async def test_on_a_terminal_bytes_pass_as_they_are_and_the_size_is_sent(engine, fake, container, monkeypatch):
    master, slave = pty.openpty()
    fake.exec_output = lambda _: (b"\x1b[1mprompt$ ", 0)

    async def type_keys():
        while not any(
            record["sizes"] for record in fake.execs.values()
        ):  # switching to raw mode drops earlier input
            await asyncio.sleep(0.01)
        os.write(master, b"x\x04")  # in raw mode the end-of-input character is an ordinary byte

    with os.fdopen(slave, "r+b", buffering=0) as terminal:
        text = io.TextIOWrapper(terminal)
        monkeypatch.setattr(sys, "stdin", text)
        monkeypatch.setattr(sys, "stdout", text)
        before = termios.tcgetattr(slave)
        typing = asyncio.create_task(type_keys())
        async with asyncio.timeout(20):
            assert await commands.attach_command(engine, container, ["sh"]) == 0
            await typing
        assert termios.tcgetattr(slave) == before
        monkeypatch.undo()
        output = os.read(master, 100)
        while not output.endswith(b"\x1b[1mprompt$ x"):  # the kernel may deliver the output in pieces
            output += os.read(master, 100)
        text.detach()
    os.close(master)
    (record,) = fake.execs.values()
    assert record["request"]["Tty"]
    assert record["request"]["Env"][0].startswith("TERM=")
    assert record["sizes"]
