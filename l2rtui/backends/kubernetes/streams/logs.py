"""Log of a pod: stored lines, then new ones, across connection losses, rotation and restarts until the pod is gone.

A follow ends for many reasons that look the same to the client: the process ended, the server restarted, a proxy
timed out, or the kubelet rotated the file and lost the reader (kubernetes/kubernetes issue 115701). So after each
end the pod is read, and the stream continues from the cursor. A silent stream is reopened as well, as some die
without an end. Lines that the server repeats are skipped.
"""

from __future__ import annotations

import calendar
import re
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.backends.common.log_merge import SEAM, LineSplitter, merge_streams
from l2rtui.backends.kubernetes.api.backoff import RetryPauses
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.api.structs import PodStruct
from l2rtui.backends.kubernetes.state.container_status import (
    ContainerProcess,
    container_names,
    ended_at,
    ending_text,
    newest_process,
)
from l2rtui.backends.kubernetes.state.own_reports import pod_of
from l2rtui.domain.log import LogLine, LogQuery, visible_state
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import NotFoundError
from runtime.base import bounded_json
from runtime.base.contract import METRIC_PREFIX, WORKER_NAME, WORKERS_RECORD

# Enough for the one to two seconds that the server repeats, at thousands of lines per second.
_MAX_STAMPS = 4_096
_SECOND = 1_000_000_000
LogLines = AsyncGenerator[LogLine, None]
_SHARED_LINES, _SHARED_TAIL = 32, 2_000
"""Pod lines to read per requested worker line, and the minimum: other workers may write more."""
_WORKER_LINE = re.compile(rb"\[(?P<worker>\d{1,4})\](?P<mark>!?) ")
"""See ``contract.WORKER_LINE`` and ``contract.WORKER_MARK``."""
_WORKERS_RECORD = f"{METRIC_PREFIX}{WORKERS_RECORD}".encode()
_OUTAGE_TRIES = 4
"""Number of consecutive failures after which a mark in the log reports the outage, once."""


class StampParser:
    """Parser of the RFC 3339 time before each line; caches the last second, as most lines share it."""

    def __init__(self) -> None:
        self._second = b""
        self._epoch = 0

    def parse(self, line: bytes) -> tuple[int, bytes] | None:
        """Return nanoseconds since the epoch and the text; None if the line does not start with a time."""
        # By hand: datetime.fromisoformat() does not support nanoseconds, and strptime() costs 10 µs a line.
        stamp, _, text = line.partition(b" ")
        second, rest = stamp[:19], stamp[19:]
        if len(second) < 19 or second[10:11] != b"T":
            return None
        if second != self._second:
            try:
                moment = time.strptime(second.decode("ascii"), "%Y-%m-%dT%H:%M:%S")
            except ValueError:
                return None
            self._second, self._epoch = second, calendar.timegm(moment)
        digits, zone = _fraction(rest)
        offset = _offset(zone)
        if offset is None:
            return None
        return (self._epoch - offset) * _SECOND + int(digits.ljust(9, b"0")[:9] or b"0"), text


def _fraction(rest: bytes) -> tuple[bytes, bytes]:
    """Split into the digits after the decimal point and the zone."""
    if rest[:1] != b".":
        return b"", rest
    end = 1
    while rest[end : end + 1].isdigit():
        end += 1
    return rest[1:end], rest[end:]


def _offset(zone: bytes) -> int | None:
    """Return seconds east of UTC; None without a zone."""
    if zone == b"Z":
        return 0
    if len(zone) != 6 or zone[:1] not in b"+-" or not (zone[1:3] + zone[4:6]).isdigit():
        return None
    seconds = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
    return -seconds if zone[:1] == b"-" else seconds


class Cursor:
    """Position in the log of one process; lines up to ``floor`` (ns since the epoch) are never new."""

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        self._last = floor
        self._recent: deque[int] = deque()
        self._expected: Counter[int] = Counter()
        self._is_repeating = floor > 0

    @property
    def since(self) -> str:
        """Value of ``sinceTime``, a whole second as the kubelet supports no finer; empty for the whole log."""
        if not self._last:
            return ""
        # One second earlier: lines of stdout and stderr with the same time may come in either order.
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._last // _SECOND - 1))

    def reopen(self) -> None:
        """Expect repeated lines first, after the stream was reopened from ``since``."""
        self._expected = Counter(self._recent)
        self._is_repeating = True

    def is_new(self, stamp: int) -> bool:
        """Return True if the line with this time was not read before, and count it as read."""
        if self._is_repeating:
            if self._expected[stamp] > 0:
                self._expected[stamp] -= 1
                return False
            if stamp <= self.floor:
                return False
            self._is_repeating = False
        self._recent.append(stamp)
        self._last = stamp
        # A forgotten time becomes the floor: its line can no longer be recognised, so no line that old counts as
        # new.
        if len(self._recent) > _MAX_STAMPS:
            self.floor = max(self.floor, self._recent.popleft())
        return True

    def forget_before_first(self) -> None:
        """Raise the floor to the first line: earlier lines are before the requested tail."""
        if self._recent:
            self.floor = max(self.floor, self._recent[0])


class LogTiming(Struct, frozen=True):
    """Timeouts and pauses of log streams; tests shorten them.

    Attributes:
        silence_seconds: A stream that is silent for this long is reopened; doubled after each silence, up to
            ``longest_silence_seconds``.
        pause_seconds: Pause after a stream without lines; doubled up to the longest.
        tries: Attempts to read stored lines without ``follow``.
    """

    silence_seconds: float = 60.0
    longest_silence_seconds: float = 480.0
    pause_seconds: float = 0.25
    longest_pause_seconds: float = 15.0
    tries: int = 5

    def pauses(self) -> RetryPauses:
        """Return the pauses of one series of attempts."""
        return RetryPauses(self.pause_seconds, self.longest_pause_seconds)


DEFAULT_LOG_TIMING = LogTiming()


async def read(api: Api, pod: PodView, query: LogQuery, *, timing: LogTiming = DEFAULT_LOG_TIMING) -> LogLines:
    """Yield the lines of all containers of one pod.

    Raises:
        NotFoundError: The pod is gone with its log, or it has no such container.
        ApiError: The user may not read it, or (without ``follow``) the server does not provide it.
    """
    source = _Pod(api, pod_of(pod), timing, pod.worker)
    pod_struct = await source.read_pod()
    if pod_struct is None:
        raise NotFoundError(
            f"The pod {pod.name} no longer exists, and neither does its log.", "Look at the pods again."
        )
    names, is_only = _selected(pod_struct, query.container), len(container_names(pod_struct)) == 1
    is_shared = pod.worker is not None
    # The last lines of a pod include all its workers.
    inner_tail = (
        max(_SHARED_LINES * query.tail, _SHARED_TAIL) if is_shared and query.tail is not None else query.tail
    )
    inner = replace(query, seam=query.follow, tail=inner_tail)
    streams = [_Container(source, pod_struct, name, is_only=is_only).read(inner) for name in names]
    async with aclosing(merge_streams(streams)) as lines:
        if query.tail is None or (len(names) == 1 and not is_shared):
            async for line in lines:
                if query.seam or not line.is_seam:
                    yield line
            return
        # Each container has returned its own last lines: only the last of them together are the tail.
        last_lines: deque[LogLine] = deque(maxlen=query.tail)
        async for line in lines:
            if line.is_seam:
                break
            last_lines.append(line)
        for line in last_lines:
            yield line
        if query.seam:
            yield SEAM
        async for line in lines:
            yield line


def _selected(pod: PodStruct, container: str) -> tuple[str, ...]:
    """Return the names of the containers to read: the given one, otherwise all."""
    names = container_names(pod)
    if not container:
        return names
    if container not in names:
        sentence = f"The pod {pod.metadata.name} has no container {container}: it has {', '.join(names)}."
        raise NotFoundError(sentence, "Name one of them by -c.")
    return (container,)


@dataclass(slots=True)
class _Pod:
    """Pod whose log is read, identified by its uid: a successor may have the same name."""

    api: Api
    view: PodView
    timing: LogTiming
    worker: int | None = None
    namespace: str = field(init=False)

    def __post_init__(self) -> None:
        self.namespace = self.view.namespace or self.api.namespace

    @property
    def path(self) -> str:
        return KINDS["Pod"].path(self.namespace, self.view.name, "log")

    async def read_pod(self, *, tries: int | None = None) -> PodStruct | None:
        """Read the pod; None if it is gone. Retries while the server fails, without limit for -1 tries."""
        path = KINDS["Pod"].path(self.namespace, self.view.name)
        pauses = self.timing.pauses()
        left = self.timing.tries if tries is None else tries
        while True:
            try:
                pod = bounded_json.decode(await self.api.request("GET", path), PodStruct)
            except ApiError as error:
                left -= 1
                if error.is_not_found:
                    return None
                if error.is_final or left == 0:
                    raise
                await pauses.wait()
            else:
                return pod if self.view.uid in ("", pod.metadata.uid) else None


class _Container:
    """Log of one container."""

    def __init__(self, pod: _Pod, pod_struct: PodStruct, name: str, *, is_only: bool) -> None:
        first = newest_process(pod_struct, name)
        self._pod = pod
        self._name = name
        self._label = "" if is_only else name
        self._cursor = Cursor()
        self._number = first.number if first else 0
        self._is_marked = False
        self._last_complaint = ""
        self._half = b""
        self._failures = 0
        self._was_silent = False
        self._pauses = pod.timing.pauses()
        self._silence = pod.timing.silence_seconds

    def read(self, query: LogQuery) -> LogLines:
        self._cursor = Cursor(int(query.since * 1e9) if query.since is not None else 0)
        if query.previous:
            return self._stored_lines(query.tail, is_previous=True)
        parts = [self._stored_lines(query.tail)]
        if query.seam:
            parts.append(_seam())
        if query.follow:
            parts.append(self._follow())
        return _chained(*parts)

    async def _newest_process(self) -> ContainerProcess | None:
        """Return the newest process; None if the pod is gone or no process will ever run."""
        pod = await self._pod.read_pod(tries=-1)
        return newest_process(pod, self._name) if pod is not None else None

    async def _follow(self) -> LogLines:
        while (now := await self._newest_process()) is not None:
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

    def _pass(self, now: ContainerProcess) -> LogLines:
        """Return the new lines after one reading of the pod."""
        # Generators start when they are read: the second one sees the cursor that the first has moved.
        lines = self._stream() if now.is_running else self._ended(now)
        return _chained(self._next_process(now), lines) if now.number > self._number else lines

    async def _ended(self, now: ContainerProcess) -> LogLines:
        """Yield the last lines of a process that has ended, once, and a mark."""
        if now.ending is not None and not self._is_marked:
            async with aclosing(self._stored_lines(None)) as lines:
                async for line in lines:
                    yield line
            self._is_marked = True
            yield self._mark(ending_text(now.ending), ended_at(now.ending))

    async def _next_process(self, now: ContainerProcess) -> LogLines:
        """Yield the rest of the previous process and a mark; the cursor is then at the beginning of the next."""
        ending = now.previous or now.ending
        text = f"restart {now.number}"
        if now.number == self._number + 1:
            # While a container waits for its next start only one log is stored: the newer one.
            if now.previous is not None and not self._is_marked:
                async with aclosing(self._stored_lines(None, is_previous=True)) as lines:
                    async for line in lines:
                        yield line
        else:
            text = f"restart {now.number}; the lines of {now.number - self._number - 1} processes before are lost"
        yield self._mark(text if self._is_marked else f"{text}, {ending_text(ending)}", ended_at(ending))
        self._number, self._is_marked = now.number, False
        self._cursor = Cursor()

    async def _stored_lines(self, tail: int | None, *, is_previous: bool = False) -> LogLines:
        """Yield the stored lines from the cursor on; retries if the server fails midway."""
        query = {"previous": "true"} if is_previous else {}
        if tail is not None:
            for line in await self._tail(query, tail):
                yield line
            return
        tries, pauses = self._pod.timing.tries, self._pod.timing.pauses()
        while True:
            try:
                async with aclosing(self._opened(query)) as lines:
                    async for line in lines:
                        # Every line is progress: only consecutive failures count against the limit.
                        tries = self._pod.timing.tries
                        yield line
            except ApiError as error:
                tries -= 1
                if await self._is_absent(error, tries, pauses):
                    return
            else:
                return

    async def _tail(self, query: dict[str, str], tail: int) -> list[LogLine]:
        """Return the last stored lines; after a broken connection all are read again, as the tail has moved by
        then.
        """
        start, tries, pauses = self._cursor, self._pod.timing.tries, self._pod.timing.pauses()
        while True:
            self._cursor = Cursor(start.floor)
            try:
                # At least one line, even for a tail of 0: its time is the position to follow from.
                async with aclosing(self._opened({**query, "tailLines": str(max(1, tail))})) as lines:
                    last_lines = [line async for line in lines]
            except ApiError as error:
                tries -= 1
                if await self._is_absent(error, tries, pauses):
                    return []
            else:
                self._cursor.forget_before_first()
                return last_lines if tail else []

    async def _is_absent(self, error: ApiError, tries: int, pauses: RetryPauses) -> bool:
        """Return True if there is no log; otherwise pause before the next attempt, or raise if retries cannot
        help.
        """
        if _has_no_log(error):
            return True
        if error.is_final or tries <= 0:
            raise error
        await pauses.wait()
        return False

    async def _stream(self) -> LogLines:
        """Yield the lines of one follow, until it ends for any reason."""
        self._was_silent = False
        began = time.monotonic()
        try:
            async with aclosing(self._opened({"follow": "true"})) as lines:
                async for line in lines:
                    yield line
        except ApiError as error:
            if error.is_final:
                raise
            # The idle timeout of the stream: quiet programs are common, so each silence makes the next timeout
            # longer.
            if error.is_unreachable and time.monotonic() - began >= self._silence:
                self._silence = min(2 * self._silence, self._pod.timing.longest_silence_seconds)
                self._was_silent = True
            elif not (error.is_not_found or _has_no_log(error)):
                self._failures += 1
                if self._failures == _OUTAGE_TRIES:
                    yield self._mark(f"the log cannot be read now, trying again: {error.message}", time.time())

    async def _opened(self, query: dict[str, str]) -> LogLines:
        parameters = {"container": self._name, "timestamps": "true", **query}
        if since := self._cursor.since:
            parameters["sinceTime"] = since
        self._cursor.reopen()
        splitter, parser = LineSplitter(), StampParser()
        chunks = self._pod.api.stream(self._pod.path, parameters, idle_timeout_seconds=self._silence)
        async with aclosing(chunks) as stream:
            async for chunk in stream:
                for raw in splitter.feed(chunk):
                    if (line := self._line(raw, parser)) is not None:
                        yield line
        # An unfinished last line means a broken connection, and the next attempt returns it complete. If it comes
        # again unchanged, the program has written it without a line feed.
        if "follow" not in query and (raw := splitter.flush()):
            if raw != self._half:
                self._half = raw
                raise ApiError(f"The log of {self._pod.view.name} was cut in the middle of a line.")
            line = self._line(raw, parser)
            if line is not None:
                yield line

    def _line(self, raw: bytes, parser: StampParser) -> LogLine | None:
        parsed = parser.parse(raw)
        if parsed is None:
            # A line without a time is a message of the kubelet's ("unable to retrieve container logs"), repeated
            # with each request.
            message = raw.decode("utf-8", "replace").strip()
            if message in ("", self._last_complaint):
                return None
            self._last_complaint = message
            return self._mark(message, time.time())
        stamp, text = parsed
        if not self._cursor.is_new(stamp):
            return None
        self._silence = self._pod.timing.silence_seconds
        if self._pod.worker is not None:
            return self._line_of_worker(stamp / 1e9, text)
        state = visible_state(text.decode("utf-8", "replace"))
        return LogLine(stamp / 1e9, self._pod.view.name, state, container=self._label)

    def _line_of_worker(self, at: float, text: bytes) -> LogLine | None:
        """Return a line of the selected worker; None for a line of another worker, or of all of them."""
        match = _WORKER_LINE.match(text)
        if match is None:  # from another container, or from the supervisor before it starts a worker
            if text.startswith(_WORKERS_RECORD):
                return None
        elif int(match["worker"]) != self._pod.worker:
            return None
        elif match["mark"]:
            return self._mark(text[match.end() :].decode("utf-8", "replace"), at)
        else:
            text = text[match.end() :]
        name = WORKER_NAME.format(self._pod.view.name, self._pod.worker)
        return LogLine(at, name, visible_state(text.decode("utf-8", "replace")), container=self._label)

    def _mark(self, text: str, at: float) -> LogLine:
        return LogLine(at or time.time(), self._pod.view.name, text, is_mark=True, container=self._label)


async def _chained(*streams: LogLines) -> LogLines:
    """Yield the lines of several streams, one after another."""
    for stream in streams:
        async with aclosing(stream) as lines:
            async for line in lines:
                yield line


async def _seam() -> LogLines:
    yield SEAM


def _has_no_log(error: ApiError) -> bool:
    """Return True if the container has not started, or had no previous process (400 Bad Request)."""
    return error.status == 400
