"""Commands inside a running container, on the caller's terminal or captured, and attachment to its own process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Final

from l2rtui.backends.common.refusals import has_no_input, is_not_running
from l2rtui.cloud.docker_engine import DockerEngine
from l2rtui.domain.log import CommandOutput
from l2rtui.domain.snapshot import PodView
from runtime.base.docker_client import BLOCK_BYTES, STDERR, take_frames

MAX_BYTES: Final = 16 << 20
"""Limit for each stream of a captured command; the excess is read and dropped."""


async def capture_command(engine: DockerEngine, container: str, argv: Sequence[str]) -> CommandOutput:
    """Run a command without input and wait for its end."""
    exec_id = await _create(engine, container, argv, is_terminal=False, has_input=False)
    out, err = bytearray(), bytearray()
    async with _started(engine, exec_id, is_terminal=False) as (reader, _):
        async for stream, content in frames(reader):
            target = err if stream == STDERR else out
            target += content[: MAX_BYTES - len(target)]
    return CommandOutput(await _exit_code(engine, exec_id), bytes(out), bytes(err))


async def attach_command(engine: DockerEngine, container: str, argv: Sequence[str]) -> int:
    """Run a command on our terminal and return its exit code; if we have no terminal, it gets none either."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    exec_id = await _create(engine, container, argv, is_terminal=is_terminal, has_input=True)
    async with _started(engine, exec_id, is_terminal=is_terminal) as (reader, writer):
        with _raw_terminal(engine, exec_id) if is_terminal else contextlib.nullcontext(), _input_to(writer):
            if is_terminal:  # the Engine multiplexes the streams only without a terminal
                while block := await reader.read(BLOCK_BYTES):
                    _write(sys.stdout.fileno(), block)
            else:
                async for stream, content in frames(reader):
                    _write((sys.stderr if stream == STDERR else sys.stdout).fileno(), content)
    return await _exit_code(engine, exec_id)


async def _create(
    engine: DockerEngine, container: str, argv: Sequence[str], *, is_terminal: bool, has_input: bool
) -> str:
    streams = {"AttachStdin": has_input, "AttachStdout": True, "AttachStderr": True}
    env = [f"TERM={os.environ.get('TERM', 'xterm')}"] if is_terminal else []
    body = {"Cmd": list(argv), "Tty": is_terminal, "Env": env, **streams}
    created = await engine.request_json("POST", f"/containers/{container}/exec", body=body)
    return str(created["Id"])


@contextlib.asynccontextmanager
async def _started(
    engine: DockerEngine, exec_id: str, *, is_terminal: bool
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await engine.upgrade(f"/exec/{exec_id}/start", {"Detach": False, "Tty": is_terminal})
    try:
        yield reader, writer
    finally:
        writer.close()


async def frames(reader: asyncio.StreamReader) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield the frames of a multiplexed stream until its end."""
    buffer = bytearray()
    with contextlib.suppress(ConnectionError):  # a normal end: the exit code tells the outcome
        while block := await reader.read(BLOCK_BYTES):
            buffer += block
            for frame in take_frames(buffer):
                yield frame


async def _exit_code(engine: DockerEngine, exec_id: str) -> int:
    details = await engine.request_json("GET", f"/exec/{exec_id}/json")
    # None while the command still runs: its streams ended because the container was killed.
    return int(details["ExitCode"] if details["ExitCode"] is not None else 128 + signal.SIGKILL)


@contextlib.contextmanager
def _input_to(writer: asyncio.StreamWriter) -> Iterator[None]:
    """Forward the standard input until its end."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        if block := os.read(descriptor, BLOCK_BYTES):
            writer.write(block)
            return
        loop.remove_reader(descriptor)
        if writer.can_write_eof():
            writer.write_eof()

    try:
        loop.add_reader(descriptor, read)
    except PermissionError:  # a plain file or /dev/null: epoll refuses them, and reading them never blocks
        while block := os.read(descriptor, BLOCK_BYTES):
            writer.write(block)
        writer.write_eof()
        yield
        return
    try:
        yield
    finally:
        loop.remove_reader(descriptor)


@contextlib.contextmanager
def _raw_terminal(engine: DockerEngine, exec_id: str) -> Iterator[None]:
    """Put the terminal into raw mode, so that every key reaches the command, and follow its size."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    tasks: set[asyncio.Task[None]] = set()  # the loop holds tasks only weakly

    async def send_size() -> None:
        size = shutil.get_terminal_size()
        with contextlib.suppress(Exception):  # the command may just have ended
            await engine.request("POST", f"/exec/{exec_id}/resize", w=size.columns, h=size.lines)

    def resized() -> None:
        task = loop.create_task(send_size())
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


_STREAMS: Final = "stream=1&stdin=1&stdout=1&stderr=1"


class AttachedContainer:
    """Streams of one container; see ``backends.base.AttachedProcess``."""

    def __init__(
        self,
        engine: DockerEngine,
        uid: str,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        *,
        has_terminal: bool,
    ) -> None:
        self._engine = engine
        self._uid = uid
        self._reader, self._writer = streams
        self.has_terminal = has_terminal

    async def output(self) -> AsyncGenerator[tuple[bool, bytes], None]:
        """Yield the output until the container ends; True marks standard error."""
        if not self.has_terminal:  # the Engine multiplexes the streams only without a terminal
            async with contextlib.aclosing(frames(self._reader)) as blocks:
                async for stream, content in blocks:
                    yield stream == STDERR, content
            return
        with contextlib.suppress(ConnectionError):
            while block := await self._reader.read(BLOCK_BYTES):
                yield False, block

    async def send(self, data: bytes) -> None:
        """Send input to the process."""
        self._writer.write(data)
        await self._writer.drain()

    async def end_input(self) -> None:
        """Close the input of the process, if its container was created to allow that."""
        if self._writer.can_write_eof():
            self._writer.write_eof()

    async def resize(self, columns: int, lines: int) -> None:
        """Set the size of its terminal."""
        await self._engine.request("POST", f"/containers/{self._uid}/resize", w=columns, h=lines)


@contextlib.asynccontextmanager
async def attached(engine: DockerEngine, pod: PodView) -> AsyncIterator[AttachedContainer]:
    """Attach to a running container.

    Raises:
        RefusedError: Its process has no standard input, or is not running.
    """
    details = await engine.request_json("GET", f"/containers/{pod.uid}/json")
    config, state = details.get("Config") or {}, details.get("State") or {}
    if state.get("Status") != "running":
        raise is_not_running(pod.name)
    if not config.get("OpenStdin"):
        raise has_no_input(pod.name)
    streams = await engine.upgrade(f"/containers/{pod.uid}/attach?{_STREAMS}", {})
    try:
        yield AttachedContainer(engine, pod.uid, streams, has_terminal=bool(config.get("Tty")))
    finally:
        streams[1].close()
