"""Commands beside a container's process: on the caller's own terminal, or with what they say taken down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

from l2rtui.backends.base import Captured
from l2rtui.backends.docker.engine import Engine

MOST_BYTES: Final = 16 << 20
"""Of each stream of a captured command; what is more is read and thrown away."""
_BLOCK: Final = 1 << 16
_HEADER: Final = 8
_STDERR: Final = 2


async def captured(engine: Engine, container: str, argv: Sequence[str]) -> Captured:
    """Run a command without input and wait for its end."""
    number = await _prepare(engine, container, argv, is_terminal=False, has_input=False)
    out, err = bytearray(), bytearray()
    async with _opened(engine, number, is_terminal=False) as (reader, _):
        async for stream, piece in _pieces(reader):
            kept = err if stream == _STDERR else out
            kept += piece[: MOST_BYTES - len(kept)]
    return Captured(await _code(engine, number), bytes(out), bytes(err))


async def attached(engine: Engine, container: str, argv: Sequence[str]) -> int:
    """Run a command on our terminal and wait; where ours is none, it gets none either."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    number = await _prepare(engine, container, argv, is_terminal=is_terminal, has_input=True)
    async with _opened(engine, number, is_terminal=is_terminal) as (reader, writer):
        with _terminal(engine, number) if is_terminal else contextlib.nullcontext(), _input_to(writer):
            if is_terminal:
                while block := await reader.read(_BLOCK):
                    _write(sys.stdout.fileno(), block)
            else:
                async for stream, piece in _pieces(reader):
                    _write((sys.stderr if stream == _STDERR else sys.stdout).fileno(), piece)
    return await _code(engine, number)


async def _prepare(
    engine: Engine, container: str, argv: Sequence[str], *, is_terminal: bool, has_input: bool
) -> str:
    body = {
        "Cmd": list(argv),
        "Tty": is_terminal,
        "AttachStdin": has_input,
        "AttachStdout": True,
        "AttachStderr": True,
        "Env": [f"TERM={os.environ.get('TERM', 'xterm')}"] if is_terminal else [],
    }
    made = await engine.ask("POST", f"/containers/{container}/exec", body=body)
    return str(made["Id"])


@contextlib.asynccontextmanager
async def _opened(
    engine: Engine, number: str, *, is_terminal: bool
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await engine.hijacked(f"/exec/{number}/start", {"Detach": False, "Tty": is_terminal})
    try:
        yield reader, writer
    finally:
        writer.close()


async def _pieces(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, bytes]]:
    """Pieces of a multiplexed stream until its end."""
    while True:
        try:
            header = await reader.readexactly(_HEADER)
            yield header[0], await reader.readexactly(int.from_bytes(header[4:], "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return


async def _code(engine: Engine, number: str) -> int:
    found = await engine.ask("GET", f"/exec/{number}/json")
    return int(found["ExitCode"] if found["ExitCode"] is not None else 137)


@contextlib.contextmanager
def _input_to(writer: asyncio.StreamWriter) -> Iterator[None]:
    """Hand on what is typed, until its end."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        block = os.read(descriptor, _BLOCK)
        if block:
            writer.write(block)
            return
        loop.remove_reader(descriptor)
        if writer.can_write_eof():
            writer.write_eof()

    try:
        loop.add_reader(descriptor, read)
    except PermissionError:  # a plain file or /dev/null: epoll takes none, and its end is near
        while block := os.read(descriptor, _BLOCK):
            writer.write(block)
        writer.write_eof()
        yield
        return
    try:
        yield
    finally:
        loop.remove_reader(descriptor)


@contextlib.contextmanager
def _terminal(engine: Engine, number: str) -> Iterator[None]:
    """Hand every key on as it is, and the terminal's size when it changes."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    tasks: set[asyncio.Task[None]] = set()

    async def resize() -> None:
        size = shutil.get_terminal_size()
        with contextlib.suppress(Exception):  # the command may just have ended
            await engine.raw("POST", f"/exec/{number}/resize", w=size.columns, h=size.lines)

    def resized() -> None:
        task = loop.create_task(resize())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    before = termios.tcgetattr(descriptor)
    loop.add_signal_handler(signal.SIGWINCH, resized)
    try:
        tty.setraw(descriptor)
        resized()
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)
        loop.remove_signal_handler(signal.SIGWINCH)


def _write(descriptor: int, block: bytes) -> None:
    while block:
        block = block[os.write(descriptor, block) :]
