"""The caller's standard streams and terminal, for use by a command that runs elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Final

_STDIN_BYTES: Final = 65_536


async def stdin_blocks() -> AsyncGenerator[bytes, None]:
    """Yield our stdin in blocks as they arrive."""
    descriptor = sys.stdin.fileno()
    while block := await _read_when_ready(descriptor):
        yield block


async def _read_when_ready(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except (PermissionError, NotImplementedError):
        # epoll refuses regular files (EPERM), which are always readable; some event loops, such as uvloop, may have
        # no readers.
        return await asyncio.to_thread(os.read, descriptor, _STDIN_BYTES)
    try:
        # A reader, not a thread that blocks in read(): a thread would swallow the first key after the command.
        # A new reader for each block: a persistent one may fire once more after the data was read, and read() would
        # block.
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, _STDIN_BYTES)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all data, however long that takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def raw_mode() -> Iterator[None]:
    """Pass every key on to the command, and restore the terminal afterwards."""
    with _restored() as descriptor:
        tty.setraw(descriptor)
        yield


@contextlib.contextmanager
def line_mode(*ends: bytes) -> Iterator[None]:
    """Pass whole lines on, or the text typed so far after one of two ``ends``; no key raises a signal."""
    with _restored() as descriptor:
        mode = termios.tcgetattr(descriptor)
        mode[0] &= ~termios.IXON  # otherwise ctrl+q never arrives
        mode[3] &= ~termios.ISIG
        mode[6][termios.VEOL], mode[6][termios.VEOL2] = ends
        termios.tcsetattr(descriptor, termios.TCSADRAIN, mode)
        yield


@contextlib.contextmanager
def _restored() -> Iterator[int]:
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        yield descriptor
    finally:
        # DRAIN: the command's last output is still translated before the mode changes.
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextlib.contextmanager
def forwarded_size(send: Callable[[int, int], Awaitable[None]]) -> Iterator[None]:
    """Send the columns and lines of the terminal, now and on every SIGWINCH."""
    loop = asyncio.get_running_loop()
    # The loop keeps only weak references to tasks: without this set a resize could be collected unsent.
    tasks: set[asyncio.Task[None]] = set()

    async def send_size() -> None:
        # A failed resize must not end the command: if the connection is broken, the command ends anyway.
        with contextlib.suppress(Exception):
            size = os.get_terminal_size(sys.stdout.fileno())
            await send(size.columns, size.lines)

    def on_resize() -> None:
        task = loop.create_task(send_size())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop.add_signal_handler(signal.SIGWINCH, on_resize)
    on_resize()
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
