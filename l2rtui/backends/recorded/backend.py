"""Backend that replays a recording; every call that would change something, or needs other data, is refused."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from l2rtui.backends.base import AttachedProcess
from l2rtui.backends.recorded.recording import (
    ChangesEntry,
    EndEntry,
    Entry,
    LineEntry,
    OutageEntry,
    entries,
    read_header,
)
from l2rtui.domain.change import Change, apply, difference
from l2rtui.domain.log import CommandOutput, LogLine, LogQuery
from l2rtui.domain.plan import LaunchPlan, ScalePlan, StepDone
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.receipt import DestroyProgress, LeakReport, Receipt
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import BackendError, NotFoundError, RefusedError

MAX_LINES: Final = 5_000
"""Number of newest lines of each log that can be read."""
_BATCH: Final = 200
"""Number of entries after which a replay that is behind lets other tasks run."""


class Player:
    """Recording during its replay.

    The clock starts with the recording and runs ``speed`` times as fast as real time; it stops at the end.

    Args:
        monotonic: Seconds of a clock that never goes back.

    Raises:
        UsageError: The file is not a recording, see ``read_header``.

    Attributes:
        snapshot: State of the cluster. failure: Sentence on a current outage; otherwise empty.
        end: Why the recording ended; empty while it continues.
    """

    def __init__(self, path: Path, speed: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.speed = speed
        self.header = read_header(path)
        self.snapshot: ClusterSnapshot = EMPTY_SNAPSHOT
        self.failure = ""
        self.end = ""
        self._monotonic = monotonic
        self._began: float | None = None
        self._ended_at: float | None = None
        self._logs: dict[str, _PodLog] = {}
        self._waiting: set[asyncio.Event] = set()

    def now(self) -> float:
        """Return the time of the recording, seconds since the epoch."""
        if self._ended_at is not None:
            return self.header.time + self._ended_at
        elapsed = 0.0 if self._began is None else (self._monotonic() - self._began) * self.speed
        return self.header.time + elapsed

    async def run(self) -> None:
        """Play until the end of the file."""
        self._began = self._monotonic()
        seconds = 0.0
        try:
            for number, entry in enumerate(entries(self.path), start=1):
                await self._wait_until(entry.seconds, is_long=number % _BATCH == 0)
                seconds = entry.seconds
                self._play(entry)
        except (BackendError, msgspec.ValidationError) as error:
            self.end = str(error)
        except OSError as error:
            self.end = error.strerror or str(error)
        self.end = self.end or "the recording ends here"
        self._ended_at = seconds
        self._wake()

    async def _wait_until(self, seconds: float, *, is_long: bool) -> None:
        due = (self.header.time + seconds - self.now()) / self.speed
        if due > 0 or is_long:
            await asyncio.sleep(max(0.0, due))

    def _play(self, entry: Entry) -> None:
        match entry:
            case ChangesEntry():
                self.failure = ""
                self.snapshot = apply(EMPTY_SNAPSHOT if entry.is_first else self.snapshot, entry.changes)
                gone = self._logs.keys() - self.snapshot.pods.keys()
                self._logs = {uid: log for uid, log in self._logs.items() if uid not in gone}
            case LineEntry():
                self._logs.setdefault(entry.uid, _PodLog()).add(entry.log_line)
            case OutageEntry():
                self.failure = entry.sentence
            case EndEntry():
                self.end = entry.reason
        self._wake()

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

    async def states(self) -> AsyncGenerator[ClusterSnapshot]:
        """Yield the state of the cluster whenever it may differ.

        Raises:
            BackendError: The recorded watch has failed at this moment.
        """
        async for _ in self._moments():
            if self.failure:
                raise BackendError(self.failure)
            if self.snapshot is not EMPTY_SNAPSHOT or self.end:
                yield self.snapshot

    async def lines(self, uid: str, query: LogQuery) -> AsyncGenerator[LogLine]:
        """Yield the lines of a log like a backend.

        Raises:
            NotFoundError: The log of the previous process is requested.
        """
        if query.previous:
            raise NotFoundError("A recording has no log of a previous process.")
        position, is_seam_due = None, query.seam and query.follow
        async for _ in self._moments():
            log = self._logs.get(uid)
            if log is not None:
                for line in log.after(position, query):
                    yield line
                position = log.count
            if is_seam_due:
                is_seam_due = False
                yield LogLine(self.now(), "", "", is_seam=True)
            if not query.follow or (self.snapshot is not EMPTY_SNAPSHOT and uid not in self.snapshot.pods):
                return

    async def _moments(self) -> AsyncGenerator[None]:
        """Yield now, and again after each entry; simultaneous entries may be combined."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            while True:
                event.clear()
                yield
                await event.wait()
        finally:
            self._waiting.discard(event)


class _PodLog:
    """Newest lines of a log; ``count`` is the total number of lines up to now."""

    def __init__(self) -> None:
        self.count = 0
        self._lines: deque[LogLine] = deque(maxlen=MAX_LINES)

    def add(self, line: LogLine) -> None:
        self._lines.append(line)
        self.count += 1

    def after(self, position: int | None, query: LogQuery) -> Iterator[LogLine]:
        """Yield the lines after a position; None for the first read, to which the query's tail applies."""
        lines = tuple(self._lines)
        if position is not None:
            lines = lines[max(0, len(lines) - (self.count - position)) :]
        chosen = [
            line
            for line in lines
            if (query.since is None or line.time > query.since) and query.container in ("", line.container)
        ]
        tail = query.tail if position is None else None
        yield from chosen if tail is None else chosen[len(chosen) - tail :] if tail < len(chosen) else chosen


class ReplayBackend:
    """Cluster of a recording.

    Args:
        path: File that ``l2rtui --record`` has written.
        speed: Seconds of the recording per second.

    Raises:
        UsageError: The file is not a recording.
    """

    name = "replay"
    adopt = records = contexts = inspector = renderer = reservations = results = kept_results = queue = None
    secrets = volumes = None
    history_to = ""

    def __init__(self, path: Path, speed: float = 1.0) -> None:
        self.player = Player(path, speed)
        self._task: asyncio.Task[None] | None = None

    def now(self) -> float:
        """Return the time of the recording, seconds since the epoch."""
        return self.player.now()

    @property
    def location(self) -> str:
        """File, position in UTC, and speed."""
        player = self.player
        moment = datetime.fromtimestamp(player.now(), UTC)
        speed = "" if player.speed == 1.0 else f" x{player.speed:g}"
        end = " · ended" if player.end else ""
        return f"{player.path.name} {moment:%Y-%m-%d %H:%M:%S}{speed}{end}"

    def acts_on(self, namespaces: Collection[str] = ()) -> str:  # noqa: ARG002  (nothing is changed in any)
        """Return the place where a change would act."""
        return f"on the recording {self.player.path.name}"

    # --- observation -------------------------------------------------------------------------------------------
    async def snapshot(self) -> ClusterSnapshot:
        """Return the state at this moment of the replay; the first state before that."""
        self._start()
        async with aclosing(self.player.states()) as states:
            return await anext(states)

    async def watch(self) -> AsyncGenerator[tuple[Change, ...]]:
        """Yield changes at the times at which they happened.

        Raises:
            BackendError: The recorded watch has failed at this moment.
        """
        self._start()
        latest, is_first = EMPTY_SNAPSHOT, True
        async with aclosing(self.player.states()) as states:
            async for state in states:
                changes = difference(latest, state)
                if changes or is_first:
                    latest, is_first = state, False
                    yield changes

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self.player.run(), name="replay")

    async def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine]:
        """Yield the recorded lines of a pod; a log that was not opened was not recorded."""
        async with aclosing(self.player.lines(pod.uid, query)) as lines:
            async for line in lines:
                yield line

    async def leaks(self) -> LeakReport:
        """Return no leak: a recording only has rows."""
        return LeakReport()

    async def denied(self) -> Mapping[str, str]:
        """Return the refusals, by action."""
        return dict.fromkeys(("launch", "kill", "scale", "destroy", "exec", "forward"), "this is a recording")

    async def doctor(self) -> tuple[Finding, ...]:
        """Return what was recorded, its time, and the recording version."""
        header = self.player.header
        sentence = f"of the backend {header.backend}, by l2rtui {header.version}"
        return (Finding(Severity.OK, self.player.path.name, sentence),)

    async def close(self) -> None:
        """Stop the replay."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    # --- actions that a recording does not support -------------------------------------------------------------
    def _refuse(self, what: str) -> NoReturn:
        raise RefusedError(f"{what} is not possible: this is a recording.")

    async def check(self, plan: LaunchPlan) -> tuple[Finding, ...]:  # noqa: ARG002
        """Refuse a plan."""
        self._refuse("A plan")

    async def launch(self, plan: LaunchPlan) -> AsyncGenerator[StepDone]:  # noqa: ARG002
        """Refuse a launch."""
        self._refuse("A launch")
        yield  # type: ignore[unreachable]  # makes it a generator

    async def spec(self, run: str) -> RunSpec:
        """Refuse to read a spec: it may contain confidential data, so it is not recorded."""
        self._refuse(f"The spec of {run}")

    async def scale(self, plan: ScalePlan, grace_seconds: float | None = None) -> None:  # noqa: ARG002
        """Refuse to scale."""
        self._refuse(f"Scaling {plan.run}")

    async def kill(self, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:  # noqa: ARG002
        """Refuse to kill."""
        self._refuse("Killing pods")

    async def destroy(
        self,
        run: RunView,
        *,
        grace_seconds: float | None = None,  # noqa: ARG002
        purge: bool = False,  # noqa: ARG002
        force: bool = False,  # noqa: ARG002
    ) -> AsyncGenerator[DestroyProgress | Receipt]:
        """Refuse to destroy."""
        self._refuse(f"Destroying {run.name}")
        yield  # type: ignore[unreachable]  # makes it a generator

    async def exec(self, pod: PodView, argv: Sequence[str]) -> int:  # noqa: ARG002
        """Refuse a terminal."""
        self._refuse(f"A command in {pod.name}")

    @asynccontextmanager
    async def attach(self, pod: PodView) -> AsyncIterator[AttachedProcess]:
        """Refuse a terminal."""
        self._refuse(f"The input of {pod.name}")
        yield  # type: ignore[unreachable]  # makes it a generator

    async def capture(self, pod: PodView, argv: Sequence[str]) -> CommandOutput:  # noqa: ARG002
        """Refuse a command."""
        self._refuse(f"A command in {pod.name}")
