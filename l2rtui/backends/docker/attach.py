"""Attachment to the standard streams of a container's own process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from l2rtui.backends.common.refusals import has_no_input, is_not_running
from l2rtui.backends.docker.exec import frames
from l2rtui.cloud.docker_engine import DockerEngine
from l2rtui.domain.snapshot import PodView
from runtime.base.docker_client import BLOCK_BYTES, STDERR

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
