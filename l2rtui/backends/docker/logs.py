"""Lines of a container's log: decoded from the Engine's frames, in the Engine's order, each exactly once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final

from l2rtui.backends.common.log_merge import LineSplitter
from l2rtui.backends.docker import containers, views
from l2rtui.cloud.docker_engine import DockerEngine, DockerError
from l2rtui.domain.log import LogLine, LogQuery, visible_state
from l2rtui.domain.status import exit_text
from runtime.base.docker_client import CONFLICT, take_frames

_RESTART_SECONDS: Final = 0.2
_MAX_FRAME_BYTES: Final = 16 << 20

TimedLine = tuple[int, str]
"""Nanoseconds since the epoch (0 for the continuation of a line that the Engine has split) and text."""


class LogFrameDecoder:
    """Decodes blocks of a multiplexed stream into complete lines with their times."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        # One per stream: a line of stdout may be interrupted by a line of stderr.
        self._splitters: defaultdict[int, LineSplitter] = defaultdict(LineSplitter)

    def feed(self, block: bytes) -> list[TimedLine]:
        """Add a block; return the lines that are now complete."""
        self._buffer += block
        lines: list[TimedLine] = []
        for stream, content in take_frames(self._buffer):
            lines.extend(map(_timed, self._splitters[stream].feed(content)))
        if len(self._buffer) > _MAX_FRAME_BYTES:
            self._buffer.clear()  # not a frame of the Engine, whose log lines come in pieces of 16 KiB
        return lines

    def end(self) -> list[TimedLine]:
        """Return text that was written without a line end."""
        return [_timed(rest) for splitter in self._splitters.values() if (rest := splitter.flush())]


class ContainerLog:
    """Reader of one container's log; after a reconnect it continues without gaps or repetitions."""

    def __init__(self, engine: DockerEngine, container: str, pod: str) -> None:
        self._engine = engine
        self._container = container
        self._pod = pod
        self._newest = 0
        """Time of the newest line, in nanoseconds."""
        self._at_newest: Counter[str] = Counter()
        """Lines of exactly that time: `since` includes them, so a new stream repeats them."""

    async def read(self, query: LogQuery) -> AsyncGenerator[LogLine]:
        """Yield the lines that a query selects; when following, also the lines of restarted processes."""
        details = await containers.inspect(self._engine, self._container)
        restarts = int(details.get("RestartCount", 0)) if details is not None else 0
        selection = _selection(query)
        if query.previous:
            if details is None or not restarts:
                return
            # The Engine keeps all processes of a container in one log: the last process's lines begin at its start.
            selection["until"] = _engine_time(views.nanoseconds_of(details["State"]["StartedAt"]))
        async for line in self._read_once(selection, follow=False):
            yield line
        if not query.follow or query.previous:
            return
        if query.seam:
            yield LogLine(time.time(), self._pod, "", is_seam=True)
        while details is not None:
            selection = {"since": _engine_time(self._newest)} if self._newest else _selection(query)
            async for line in self._read_once(selection, follow=True):
                yield line
            details = await self._next_process(restarts)
            if details is not None and int(details["RestartCount"]) != restarts:
                restarts = int(details["RestartCount"])
                text = f"restart {restarts}, {exit_text(int(details['State']['ExitCode']))}"
                yield LogLine(time.time(), self._pod, text, is_mark=True)

    async def _read_once(self, selection: Mapping[str, Any], *, follow: bool) -> AsyncIterator[LogLine]:
        newest, repeated = self._newest, self._at_newest.copy()
        decoder = LogFrameDecoder()
        try:
            stream = self._engine.stream(
                f"/containers/{self._container}/logs",
                stdout=1, stderr=1, timestamps=1, follow=int(follow), **selection,
            )  # fmt: skip
            async with aclosing(stream) as blocks:
                async for block in blocks:
                    for line in self._unread(decoder.feed(block), newest, repeated):
                        yield line
            for line in self._unread(decoder.end(), newest, repeated):
                yield line
        except DockerError as error:
            if error.status not in (404, CONFLICT):  # already removed, or about to be removed
                raise

    def _unread(self, lines: list[TimedLine], newest: int, repeated: Counter[str]) -> list[LogLine]:
        """Leave out repeated lines: older lines, and as many equal lines of the same moment as were yielded."""
        unread: list[LogLine] = []
        for moment, text in lines:
            if not moment:
                unread.append(LogLine(self._newest / 1e9, self._pod, text))
                continue
            if moment < newest:
                continue
            if moment == newest and repeated[text]:
                repeated[text] -= 1
                continue
            if moment > self._newest:
                self._newest, self._at_newest = moment, Counter()
            self._at_newest[text] += 1
            unread.append(LogLine(moment / 1e9, self._pod, text))
        return unread

    async def _next_process(self, restarts: int) -> Mapping[str, Any] | None:
        """Wait while the Engine is about to restart it; None if it is gone or has ended permanently."""
        while True:
            details = await containers.inspect(self._engine, self._container)
            if details is None or details["State"]["Status"] in ("exited", "dead", "removing", "created"):
                return None
            # Only the count shows a process that restarts within one poll.
            if details["State"]["Status"] == "running" or int(details["RestartCount"]) != restarts:
                return details
            await asyncio.sleep(_RESTART_SECONDS)


def _selection(query: LogQuery) -> dict[str, Any]:
    """Convert a query to parameters of the Engine."""
    selection = {"tail": query.tail, "since": None if query.since is None else f"{query.since:.9f}"}
    return {name: value for name, value in selection.items() if value is not None}


def _timed(raw: bytes) -> TimedLine:
    stamp, _, text = raw.partition(b" ")
    try:
        moment = views.nanoseconds_of(stamp.decode("ascii"))
    except ValueError:  # the Engine splits lines of more than 16 KiB and timestamps only the first piece
        moment, text = 0, raw
    return moment, visible_state(text.decode("utf-8", "surrogateescape").rstrip("\r"))


def _engine_time(nanoseconds: int) -> str:
    # Not through a float, which holds 53 bits: nanoseconds since 1970 need 61.
    return f"{nanoseconds // 1_000_000_000}.{nanoseconds % 1_000_000_000:09}"
