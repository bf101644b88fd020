"""The log of a pod: what was kept, then on across cuts, silence, rotation and restarts until the pod is gone.

A follow ends for many reasons, and the answer looks the same for all: the process ended, the server restarted, a
proxy lost patience, the node rotated the file and forgot the reader. So after each end the pod is looked at, and
the stream goes on from the cursor; a silent stream is opened anew as well, since some only look alive. Lines that
the server repeats are skipped, see ``loglines``.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import msgspec

from l2rtui.backends.base import LogLine, LogQuery
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.instances import Instance, container_names, ended_at, ending_text, instance
from l2rtui.backends.kubernetes.kinds import KINDS
from l2rtui.backends.kubernetes.loglines import Cursor, LineSplitter, StampParser
from l2rtui.backends.kubernetes.structs import PodStruct
from l2rtui.backends.streams import SEAM, joined
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import NotFoundError

Lines = AsyncGenerator[LogLine, None]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the streams wait; tests shorten it.

    Attributes:
        silence_seconds: A stream that says nothing for so long is opened anew; twice as long after each silence, up
            to ``longest_silence_seconds``.
        pause_seconds: Before the next attempt after a stream that gave nothing; doubles up to the longest.
        tries: Attempts to read what is kept, where nobody follows.
    """

    silence_seconds: float = 60.0
    longest_silence_seconds: float = 480.0
    pause_seconds: float = 0.25
    longest_pause_seconds: float = 15.0
    tries: int = 5


PATIENCE = Patience()
_OUTAGE_TRIES = 4
"""A log that could not be opened so often in a row says so once."""


async def read(api: Api, pod: PodView, query: LogQuery, *, patience: Patience = PATIENCE) -> Lines:
    """Lines of one pod, of all its containers.

    Raises:
        NotFoundError: the pod is gone, and its log with it.
        ApiError: the user may not read it, or (without ``follow``) the server does not give it.
    """
    source = _Pod(api, pod, patience)
    found = await source.look()
    if found is None:
        raise NotFoundError(f"The pod {pod.name} is gone, and its log with it.", "Look at the pods again.")
    names = container_names(found)
    inner = replace(query, seam=query.follow)
    streams = [_Container(source, found, name, is_only=len(names) == 1).read(inner) for name in names]
    async with aclosing(joined(streams)) as lines:
        if query.tail is None or len(names) == 1:
            async for line in lines:
                if query.seam or not line.is_seam:
                    yield line
            return
        # Each container gave its last lines: the last ones of all are wanted.
        kept: deque[LogLine] = deque(maxlen=query.tail)
        async for line in lines:
            if line.is_seam:
                break
            kept.append(line)
        for line in kept:
            yield line
        if query.seam:
            yield SEAM
        async for line in lines:
            yield line


@dataclass(slots=True)
class _Pod:
    """The pod that is read, by its uid: another one of the same name is not it."""

    api: Api
    view: PodView
    patience: Patience
    namespace: str = field(init=False)

    def __post_init__(self) -> None:
        self.namespace = self.view.namespace or self.api.namespace

    @property
    def path(self) -> str:
        """Path of its log."""
        return KINDS["Pod"].path(self.namespace, self.view.name, "log")

    async def look(self, *, tries: int | None = None) -> PodStruct | None:
        """The pod as it is; None when it is gone. Asks again while the server fails."""
        path = KINDS["Pod"].path(self.namespace, self.view.name)
        pauses = Pauses(self.patience)
        left = self.patience.tries if tries is None else tries
        while True:
            try:
                found = msgspec.json.decode(await self.api.request("GET", path), type=PodStruct)
            except ApiError as error:
                left -= 1
                if error.is_not_found:
                    return None
                if is_final(error) or left == 0:
                    raise
                await pauses.wait()
            else:
                return found if self.view.uid in ("", found.metadata.uid) else None


class Pauses:
    """Back-off: each pause twice as long as the one before, with jitter, until something went well."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._next = patience.pause_seconds

    async def wait(self) -> None:
        """Pause."""
        await asyncio.sleep(self._next * random.uniform(0.7, 1.3))  # noqa: S311  (no secret)
        self._next = min(2 * self._next, self._patience.longest_pause_seconds)

    def reset(self) -> None:
        """Begin again with the shortest."""
        self._next = self._patience.pause_seconds


def is_final(error: ApiError) -> bool:
    """Whether asking again cannot help."""
    return error.is_forbidden or error.is_unauthorized


class _Container:
    """The log of one container."""

    def __init__(self, pod: _Pod, found: PodStruct, name: str, *, is_only: bool) -> None:
        first = instance(found, name)
        self._pod = pod
        self._name = name
        self._label = "" if is_only else name
        self._cursor = Cursor()
        self._number = first.number if first else 0
        self._is_marked = False
        self._words = ""
        self._half = b""
        self._failures = 0
        self._was_silent = False
        self._pauses = Pauses(pod.patience)
        self._silence = pod.patience.silence_seconds

    async def read(self, query: LogQuery) -> Lines:
        """The lines that a query wants."""
        floor = int(query.since * 1e9) if query.since is not None else 0
        self._cursor = Cursor(floor)
        if query.previous:
            async with aclosing(self._kept(query.tail, is_previous=True)) as lines:
                async for line in lines:
                    yield line
            return
        async with aclosing(self._kept(query.tail)) as lines:
            async for line in lines:
                yield line
        if query.seam:
            yield SEAM
        if query.follow:
            async with aclosing(self._follow()) as lines:
                async for line in lines:
                    yield line

    async def _look(self) -> Instance | None:
        """The newest process; None when the pod is gone or none will ever run."""
        found = await self._pod.look(tries=-1)
        return instance(found, self._name) if found is not None else None

    async def _follow(self) -> Lines:
        while (now := await self._look()) is not None:
            has_news = False
            async with aclosing(self._pass(now)) as lines:
                async for line in lines:
                    has_news = has_news or not line.is_mark
                    yield line
            if now.is_final:
                return
            if has_news:
                self._failures = 0
                self._pauses.reset()
            elif not self._was_silent:
                await self._pauses.wait()

    async def _pass(self, now: Instance) -> Lines:
        """What is new at one look at the pod."""
        if now.number > self._number:
            async with aclosing(self._next_process(now)) as lines:
                async for line in lines:
                    yield line
        async with aclosing(self._stream() if now.is_running else self._ended(now)) as lines:
            async for line in lines:
                yield line

    async def _ended(self, now: Instance) -> Lines:
        """What a process that does not run any more has still written, once, and a mark."""
        if now.ending is not None and not self._is_marked:
            async with aclosing(self._kept(None)) as lines:
                async for line in lines:
                    yield line
            self._is_marked = True
            yield self._mark(ending_text(now.ending), ended_at(now.ending))

    async def _next_process(self, now: Instance) -> Lines:
        """The rest of the process before, and a mark; the cursor then stands at the beginning of the next."""
        ending = now.previous or now.ending
        text = f"restart {now.number}"
        if now.number == self._number + 1:
            # While it waits for its next start a container keeps one log alone, and that is the newer one.
            if now.previous is not None and not self._is_marked:
                async with aclosing(self._kept(None, is_previous=True)) as lines:
                    async for line in lines:
                        yield line
        else:
            text = f"restart {now.number}; the lines of {now.number - self._number - 1} processes before are lost"
        yield self._mark(text if self._is_marked else f"{text}, {ending_text(ending)}", ended_at(ending))
        self._number, self._is_marked = now.number, False
        self._cursor = Cursor()

    async def _kept(self, tail: int | None, *, is_previous: bool = False) -> Lines:
        """What is kept now, from the cursor on. Tries again where the server fails in the middle."""
        query = {"previous": "true"} if is_previous else {}
        if tail is not None:
            for line in await self._tail(query, tail):
                yield line
            return
        tries, pauses = self._pod.patience.tries, Pauses(self._pod.patience)
        while True:
            try:
                async with aclosing(self._opened(query)) as lines:
                    async for line in lines:
                        tries = self._pod.patience.tries
                        yield line
            except ApiError as error:
                tries -= 1
                if await self._is_over(error, tries, pauses):
                    return
            else:
                return

    async def _tail(self, query: dict[str, str], tail: int) -> list[LogLine]:
        """The last lines that are kept now. A cut begins anew: nobody can tell which were the last ones then."""
        start, tries, pauses = self._cursor, self._pod.patience.tries, Pauses(self._pod.patience)
        while True:
            self._cursor = Cursor(start.floor)
            try:
                # Even of no lines at all the last one is wanted: as the place from which to go on.
                async with aclosing(self._opened({**query, "tailLines": str(max(1, tail))})) as lines:
                    found = [line async for line in lines]
            except ApiError as error:
                tries -= 1
                if await self._is_over(error, tries, pauses):
                    return []
            else:
                self._cursor.forget_before_first()
                return found if tail else []

    async def _is_over(self, error: ApiError, tries: int, pauses: Pauses) -> bool:
        """Whether there is nothing to read; pauses before the next attempt, or raises when none can help."""
        if _says_nothing_is_there(error):
            return True
        if is_final(error) or tries <= 0:
            raise error
        await pauses.wait()
        return False

    async def _stream(self) -> Lines:
        """One follow, until it ends in whatever way."""
        self._was_silent = False
        began = time.monotonic()
        try:
            async with aclosing(self._opened({"follow": "true"})) as lines:
                async for line in lines:
                    yield line
        except ApiError as error:
            if is_final(error):
                raise
            if error.is_unreachable and time.monotonic() - began >= self._silence:
                self._silence = min(2 * self._silence, self._pod.patience.longest_silence_seconds)
                self._was_silent = True
            elif not (error.is_not_found or _says_nothing_is_there(error)):
                self._failures += 1
                if self._failures == _OUTAGE_TRIES:
                    yield self._mark(f"the log cannot be read now, trying again: {error.message}", time.time())

    async def _opened(self, query: dict[str, str]) -> Lines:
        """New lines of one request."""
        wanted = {"container": self._name, "timestamps": "true", **query}
        if since := self._cursor.since:
            wanted["sinceTime"] = since
        self._cursor.reopen()
        splitter, parser = LineSplitter(), StampParser()
        chunks = self._pod.api.stream(self._pod.path, wanted, idle_timeout_seconds=self._silence)
        async with aclosing(chunks) as stream:
            async for chunk in stream:
                for raw in splitter.feed(chunk):
                    if (line := self._line(raw, parser)) is not None:
                        yield line
        # Half a line at the end is a cut, and comes whole the next time; unless it is the same half again.
        if "follow" not in query and (raw := splitter.flush()):
            if raw != self._half:
                self._half = raw
                raise ApiError(f"The log of {self._pod.view.name} was cut in the middle of a line.")
            line = self._line(raw, parser)
            if line is not None:
                yield line

    def _line(self, raw: bytes, parser: StampParser) -> LogLine | None:
        found = parser.parse(raw)
        if found is None:
            # The kubelet's own words on what it cannot read; it repeats them each time.
            words = raw.decode("utf-8", "replace").strip()
            if words in ("", self._words):
                return None
            self._words = words
            return self._mark(words, time.time())
        stamp, text = found
        if not self._cursor.is_new(stamp):
            return None
        self._silence = self._pod.patience.silence_seconds
        return LogLine(stamp / 1e9, self._pod.view.name, text.decode("utf-8", "replace"), container=self._label)

    def _mark(self, text: str, at: float) -> LogLine:
        return LogLine(at or time.time(), self._pod.view.name, text, is_mark=True, container=self._label)


def _says_nothing_is_there(error: ApiError) -> bool:
    """The container has not started, or there was no process before."""
    return error.status == 400
