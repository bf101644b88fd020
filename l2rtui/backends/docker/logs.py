"""Lines of a container's log: out of the Engine's frames, in the order in which they came, and once each."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from l2rtui.backends.base import LogLine, LogQuery
from l2rtui.backends.docker import views
from l2rtui.backends.docker.engine import Engine, EngineError, MissingError
from l2rtui.domain.status import exit_text

_HEADER = 8
_STREAMS = (0, 1, 2)
_RESTART_SECONDS = 0.2
_CONFLICT = 409
"""The container is about to be removed."""


class Lines:
    """Takes blocks of a multiplexed stream and gives whole lines with their times."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._rest = dict.fromkeys(_STREAMS, b"")

    def feed(self, block: bytes) -> list[tuple[int, str]]:
        """Add a block; give the lines that are complete now, each with its nanoseconds since the epoch."""
        self._buffer += block
        found: list[tuple[int, str]] = []
        while len(self._buffer) >= _HEADER:
            stream, size = self._buffer[0], int.from_bytes(self._buffer[4:_HEADER], "big")
            if len(self._buffer) < _HEADER + size:
                break
            piece = bytes(self._buffer[_HEADER : _HEADER + size])
            del self._buffer[: _HEADER + size]
            *whole, self._rest[stream] = (self._rest[stream] + piece).split(b"\n")
            found.extend(_line(line) for line in whole)
        return found

    def end(self) -> list[tuple[int, str]]:
        """What was written without a line's end."""
        return [_line(rest) for rest in self._rest.values() if rest]


class Reader:
    """Reads one container; remembers what was given, so that a stream that is opened anew gives each line once."""

    def __init__(self, engine: Engine, container: str, pod: str) -> None:
        self._engine = engine
        self._container = container
        self._pod = pod
        self._last = 0
        self._at_last: Counter[str] = Counter()

    async def read(self, query: LogQuery) -> AsyncGenerator[LogLine]:
        """The lines that a query asks for."""
        state = await self._inspect()
        started = views.nanoseconds_of(state["State"]["StartedAt"]) if state is not None else 0
        wanted = self._wanted(query)
        if query.previous:
            wanted["until"] = _engine_time(started)
            if state is None or not state.get("RestartCount"):
                return
        async for line in self._pass(wanted, follow=False):
            yield line
        if not query.follow or query.previous:
            return
        if query.seam:
            yield LogLine(time.time(), self._pod, "", is_seam=True)
        restarts = int(state.get("RestartCount", 0)) if state is not None else 0
        while state is not None:
            again = self._wanted(query) if not self._last else {"since": _engine_time(self._last)}
            async for line in self._pass(again, follow=True):
                yield line
            state = await self._next_process(restarts)
            if state is not None and int(state["RestartCount"]) != restarts:
                restarts = int(state["RestartCount"])
                text = f"restart {restarts}, {exit_text(int(state['State']['ExitCode']))}"
                yield LogLine(time.time(), self._pod, text, is_mark=True)

    async def _pass(self, wanted: Mapping[str, Any], *, follow: bool) -> AsyncIterator[LogLine]:
        known, at_last = self._last, self._at_last.copy()
        lines = Lines()
        try:
            stream = self._engine.stream(
                f"/containers/{self._container}/logs",
                stdout=1, stderr=1, timestamps=1, follow=int(follow), **wanted,
            )  # fmt: skip
            async with aclosing(stream) as blocks:
                async for block in blocks:
                    for line in self._fresh(lines.feed(block), known, at_last):
                        yield line
            for line in self._fresh(lines.end(), known, at_last):
                yield line
        except EngineError as error:
            if error.status not in (404, _CONFLICT):
                raise

    def _fresh(self, found: list[tuple[int, str]], known: int, at_last: Counter[str]) -> list[LogLine]:
        """Leave out what was given before: what is earlier, and as many of equal lines of the same moment."""
        fresh: list[LogLine] = []
        for moment, text in found:
            if not moment:  # the rest of a line that was too long for the Engine
                fresh.append(LogLine(self._last / 1e9, self._pod, text))
                continue
            if moment < known:
                continue
            if moment == known and at_last[text]:
                at_last[text] -= 1
                continue
            if moment > self._last:
                self._last, self._at_last = moment, Counter()
            self._at_last[text] += 1
            fresh.append(LogLine(moment / 1e9, self._pod, text))
        return fresh

    def _wanted(self, query: LogQuery) -> dict[str, Any]:
        wanted: dict[str, Any] = {}
        if query.tail is not None:
            wanted["tail"] = query.tail
        if query.since is not None:
            wanted["since"] = f"{query.since:.9f}"
        return wanted

    async def _next_process(self, restarts: int) -> Mapping[str, Any] | None:
        """Wait while the Engine is about to start it again; None when it is gone or over."""
        while True:
            state = await self._inspect()
            if state is None or state["State"]["Status"] in ("exited", "dead", "removing", "created"):
                return None
            if state["State"]["Status"] == "running" or int(state["RestartCount"]) != restarts:
                return state
            await asyncio.sleep(_RESTART_SECONDS)

    async def _inspect(self) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = await self._engine.ask("GET", f"/containers/{self._container}/json")
        except MissingError:
            return None
        return found


def _line(raw: bytes) -> tuple[int, str]:
    stamp, _, text = raw.partition(b" ")
    try:
        moment = views.nanoseconds_of(stamp.decode("ascii"))
    except (ValueError, UnicodeDecodeError):  # a piece without a time: longer than the Engine keeps together
        return 0, raw.decode("utf-8", "surrogateescape").rstrip("\r")
    return moment, text.decode("utf-8", "surrogateescape").rstrip("\r")


def _engine_time(nanoseconds: int) -> str:
    return f"{nanoseconds // 1_000_000_000}.{nanoseconds % 1_000_000_000:09}"
