"""Run a command in a container, on the caller's own terminal or between pipes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty as terminal
from collections.abc import AsyncGenerator, Iterator, Sequence

import aiohttp

from l2rtui.backends.base import Captured
from l2rtui.backends.kubernetes import channels
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.kinds import KINDS
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import BackendError

_BLOCK = 65_536
_MOST_BYTES = 16 << 20
"""Of each stream of a captured command; what is more is thrown away."""


async def run(api: Api, pod: PodView, argv: Sequence[str], *, tty: bool | None = None, container: str = "") -> int:
    """Run a command in a pod, with our stdin, stdout and stderr; its exit code.

    Args:
        tty: Give it a terminal; None does so where both our ends are one.
        container: Empty means the pod's first, or the one that its annotation names.

    Raises:
        ApiError: the server does not let us in, or there is no such container.
        BackendError: the command cannot be run, or the connection was cut: the command may still run.
    """
    is_tty = sys.stdin.isatty() and sys.stdout.isatty() if tty is None else tty
    query = [("command", word) for word in argv]
    query += [("stdin", "true"), ("stdout", "true"), ("stderr", "false" if is_tty else "true")]
    query += [("tty", "true" if is_tty else "false")]
    query += [("container", container)] if container else []
    path = KINDS["Pod"].path(pod.namespace or api.namespace, pod.name, "exec")
    socket = await api.websocket(path, query, protocols=channels.EXEC_PROTOCOLS)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(socket.close)
        if is_tty:
            stack.enter_context(_raw())
            stack.enter_context(_sizes(socket))
        talking = asyncio.create_task(_send(socket))
        try:
            return await _receive(socket, argv[0])
        finally:
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)


async def captured(api: Api, pod: PodView, argv: Sequence[str], *, container: str = "") -> Captured:
    """Run a command in a pod without input, and give what it says.

    Raises:
        ApiError: the server does not let us in, or there is no such container.
        BackendError: the command cannot be run, or the connection was cut.
    """
    query = [("command", word) for word in argv]
    query += [("stdin", "false"), ("stdout", "true"), ("stderr", "true"), ("tty", "false")]
    query += [("container", container)] if container else []
    path = KINDS["Pod"].path(pod.namespace or api.namespace, pod.name, "exec")
    socket = await api.websocket(path, query, protocols=channels.EXEC_PROTOCOLS)
    said = {channels.STDOUT: bytearray(), channels.STDERR: bytearray()}
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(socket.close)
        async for data in channels.messages(socket):
            if data[0] == channels.STATUS:
                code = channels.exit_code(data[1:], argv[0])
                return Captured(code, bytes(said[channels.STDOUT]), bytes(said[channels.STDERR]))
            if data[0] in said:
                kept = said[data[0]]
                kept += data[1 : 1 + max(0, _MOST_BYTES - len(kept))]
    raise _cut(argv[0])


def _cut(command: str) -> BackendError:
    return BackendError(
        f"The connection to {command} was cut; nobody can tell whether it still runs.", "Look at the pod again."
    )


async def _receive(socket: aiohttp.ClientWebSocketResponse, command: str) -> int:
    """Write what the command says until its status comes."""
    outputs = {channels.STDOUT: sys.stdout.fileno(), channels.STDERR: sys.stderr.fileno()}
    async for data in channels.messages(socket):
        if data[0] == channels.STATUS:
            return channels.exit_code(data[1:], command)
        if data[0] in outputs and len(data) > 1:
            await asyncio.to_thread(_write, outputs[data[0]], data[1:])
    raise _cut(command)


async def _send(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Send our stdin until it ends; then end the command's, where the protocol can."""
    async with contextlib.aclosing(_stdin()) as blocks:
        async for block in blocks:
            await socket.send_bytes(channels.frame(channels.STDIN, block))
    if socket.protocol == channels.EXEC_PROTOCOLS[0]:
        await socket.send_bytes(channels.closing(channels.STDIN))


async def _stdin() -> AsyncGenerator[bytes, None]:
    """Our stdin as it comes. A file cannot be waited for and is read at once."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except (PermissionError, NotImplementedError):
        while block := await asyncio.to_thread(os.read, descriptor, _BLOCK):
            yield block
        return
    try:
        while True:
            await ready.wait()
            ready.clear()
            block = os.read(descriptor, _BLOCK)
            if not block:
                return
            yield block
    finally:
        loop.remove_reader(descriptor)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Hand every key to the command, and the terminal back as it was."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    terminal.setraw(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _sizes(socket: aiohttp.ClientWebSocketResponse) -> Iterator[None]:
    """Tell the command the size of the terminal, now and whenever it changes."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def send() -> None:
        size = os.get_terminal_size(sys.stdout.fileno())
        with contextlib.suppress(aiohttp.ClientError, OSError):  # the connection ends, and with it the command
            await socket.send_bytes(channels.resize(size.columns, size.lines))

    def tell() -> None:
        task = loop.create_task(send())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop.add_signal_handler(signal.SIGWINCH, tell)
    tell()
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
