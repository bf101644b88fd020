"""The caller's standard streams and terminal, as a command elsewhere uses them."""

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
    """Yield our stdin as it comes."""
    descriptor = sys.stdin.fileno()
    while block := await _read_when_ready(descriptor):
        yield block


async def _read_when_ready(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except (PermissionError, NotImplementedError):
        # epoll refuses regular files (EPERM), which are always readable; uvloop and others may have no readers.
        return await asyncio.to_thread(os.read, descriptor, _STDIN_BYTES)
    try:
        # A reader and not a thread that blocks in read(): a thread would swallow the first key after the command.
        # A new one for each block: one that stays may report once more what was read meanwhile, and read() blocks.
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, _STDIN_BYTES)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, however long that takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def raw_mode() -> Iterator[None]:
    """Pass every key on to the command; afterwards the terminal is as it was."""
    with _restored() as descriptor:
        tty.setraw(descriptor)
        yield


@contextlib.contextmanager
def line_mode(*ends: bytes) -> Iterator[None]:
    """Pass whole lines on, and at once what was typed before one of two ``ends``; no key raises a signal."""
    with _restored() as descriptor:
        mode = termios.tcgetattr(descriptor)
        mode[0] &= ~termios.IXON  # else ctrl+q never arrives
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
        # DRAIN: the command's last output is still translated as it expects before the mode changes.
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextlib.contextmanager
def forwarded_size(send: Callable[[int, int], Awaitable[None]]) -> Iterator[None]:
    """Send the columns and lines of the terminal, now and on every SIGWINCH."""
    loop = asyncio.get_running_loop()
    # The loop keeps weak references to tasks only: without this set a resize could be collected unsent.
    tasks: set[asyncio.Task[None]] = set()

    async def send_size() -> None:
        # A size is no reason to fail: the connection ends, and with it the command.
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
