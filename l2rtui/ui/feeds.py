"""Streams that screens watch: the log of the selection, and the learners' numbers. Rates are bounded here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from textual.worker import Worker

from l2rtui.backends.base import LogLine, LogQuery
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.workload import Role
from l2rtui.errors import L2RError, NotFoundError
from l2rtui.services.logs import merged
from l2rtui.services.metrics import RunMetrics, follow
from l2rtui.ui.beat import until_beat
from l2rtui.ui.link import Link
from l2rtui.ui.widgets.log_pane import LogPane

BACKLOG_LINES: Final = 2_000
METRICS_PERIOD_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 5.0
_LOOK_EVERY: Final = 32
_TURN_SECONDS: Final = 0.004
"""For so long lines are taken before everything else has a turn."""
_AT_ONCE: Final = 8
_PAUSE_SECONDS: Final = 0.02
"""Streams of metrics that are begun together, and the time until the next."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose log is wanted.

    Attributes:
        key: Another key begins another log; the same key with more pods adds these to it.
        title: What the pane is headed with. run: prefix that pod names share.
        since_seconds: Only lines of this many last seconds; None means all that are kept.
    """

    key: str
    title: str
    run: str
    pods: tuple[PodView, ...]
    is_merged: bool = False
    is_previous: bool = False
    since_seconds: float | None = None

    @property
    def kind(self) -> tuple[object, ...]:
        """Two subjects of one kind are the same log."""
        return self.key, self.is_previous, self.since_seconds


NO_SUBJECT: Final = Subject("", "", "", ())


class LogFeed:
    """Streams the log of one subject at a time into a pane."""

    def __init__(self, link: Link, pane: LogPane) -> None:
        self._link = link
        self._pane = pane
        self._reading = _Reading(link, pane, NO_SUBJECT)

    @property
    def subject(self) -> Subject:
        """Whose log is shown."""
        return self._reading.subject

    def stop(self) -> None:
        """Leave all streams."""
        self._reading.stop()

    def show(self, subject: Subject) -> None:
        """Show this log; pods that are new since the last call are added to a log that is shown already."""
        if subject.kind != self.subject.kind:
            self._reading.stop()
            what = "of the process before was kept" if subject.is_previous else "has been written yet"
            empty = f"Nothing {what}." if subject.pods else ""
            self._pane.restart(run=subject.run, is_merged=subject.is_merged, empty=empty)
            self._reading = _Reading(self._link, self._pane, subject)
            self._reading.start()
        else:
            self._reading.subject = subject
            self._reading.follow_new()


class _Reading:
    """The streams of one subject: what was kept, sorted over all pods, and then one stream for each name of a pod.

    A replaced pod has the name of the one before. Where the backend's stream goes on across replacements, that is
    enough; where it ends with the pod, the next pod of that name gets a stream from where the last one ended.
    """

    def __init__(self, link: Link, pane: LogPane, subject: Subject) -> None:
        self.subject = subject
        self._link = link
        self._pane = pane
        self._workers: list[Worker[None]] = []
        self._has_backlog = False
        self._is_stopped = False
        self._seen: set[str] = set()
        self._open: set[str] = set()
        self._last: dict[str, float] = {}
        self._told: set[str] = set()

    def start(self) -> None:
        """Read what was kept, then follow."""
        self._work(self._begin())

    def stop(self) -> None:
        """Leave all streams; what was on its way to the pane is thrown away."""
        self._is_stopped = True
        for worker in self._workers:
            worker.cancel()

    def follow_new(self) -> None:
        """Open a stream for each pod that has none under its name."""
        if not self._has_backlog or self.subject.is_previous:
            return
        for pod in self.subject.pods:
            if pod.uid not in self._seen and pod.name not in self._open:
                self._seen.add(pod.uid)
                self._open.add(pod.name)
                self._work(self._follow(pod))

    async def _begin(self) -> None:
        subject = self.subject
        since = None if subject.since_seconds is None else self._link.clock() - subject.since_seconds
        query = LogQuery(tail=BACKLOG_LINES, since=since, previous=subject.is_previous)
        await self._pour(subject.pods, query)
        self._has_backlog = True
        self.follow_new()

    async def _follow(self, pod: PodView) -> None:
        await self._pour((pod,), LogQuery(follow=True, since=self._last.get(pod.name)))
        self._open.discard(pod.name)
        self.follow_new()

    async def _pour(self, pods: Sequence[PodView], query: LogQuery) -> None:
        """Hand lines over when the loop comes round: one by one when it is quiet, many at once in a rush."""
        batch: list[LogLine] = []
        clock = time.monotonic
        until = clock() + _TURN_SECONDS

        def hand_over() -> None:
            if not self._is_stopped:
                self._pane.extend(batch)
            batch.clear()

        loop = asyncio.get_running_loop()
        try:
            async with aclosing(merged(self._link.backend, pods, query)) as lines:
                async for line in lines:
                    self._last[line.pod] = line.time
                    batch.append(line)
                    if len(batch) == 1:
                        loop.call_soon(hand_over)
                        until = clock() + _TURN_SECONDS
                    if len(batch) % _LOOK_EVERY == 0 and clock() > until:
                        await asyncio.sleep(0)
        except NotFoundError:
            pass  # the pod went while its log was opened: the next snapshot says so
        except L2RError as error:
            if (text := str(error)) not in self._told:  # what was kept and what follows fail alike
                self._told.add(text)
                self._pane.extend([LogLine(self._link.clock(), pods[0].name, text, is_mark=True)])

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        self._workers = [worker for worker in self._workers if not worker.is_finished]
        self._workers.append(
            self._link.background.start(work, group="log", what=f"the log of {self.subject.title}")
        )


class MetricsFeed:
    """Follows the learner of every run, and tells all news at most once a second."""

    def __init__(self, link: Link, tell: Callable[[Mapping[str, RunMetrics]], object]) -> None:
        self._link = link
        self._tell = tell
        self._workers: dict[str, Worker[None]] = {}
        self._newest: dict[str, RunMetrics] = {}
        self._wanted: dict[str, tuple[RunView, PodView]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next: asyncio.TimerHandle | None = None

    def follow(self, runs: Iterable[RunView], pods_of: Callable[[str], Iterable[PodView]]) -> None:
        """Begin with learners that are new, stop with those that are gone.

        Args:
            pods_of: Pods of a run by its name, learners first.
        """
        wanted = {pod.uid: (run, pod) for run in runs for pod in _learners(pods_of(run.name))}
        for uid in self._workers.keys() - wanted.keys():
            self._workers.pop(uid).cancel()
        self._wanted = {uid: one for uid, one in wanted.items() if uid not in self._workers}
        self._begin_some()

    def _begin_some(self) -> None:
        """Begin with a few: hundreds at once would keep the keys waiting."""
        for uid in list(self._wanted)[:_AT_ONCE]:
            run, pod = self._wanted.pop(uid)
            self._workers[uid] = self._link.background.start(
                self._read(run, pod), group="metrics", what=f"the metrics of {run.name}"
            )
        if self._wanted and self._next is None:
            self._next = asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        self._next = None
        if self._link.backend_or_none is not None:  # else the app is ending
            self._begin_some()

    async def _read(self, run: RunView, pod: PodView) -> None:
        while True:
            try:
                async with aclosing(follow(self._link.backend, run, pod)) as records:
                    async for metrics in records:
                        self._newest[run.uid] = metrics
                        if self._timer is None:
                            loop = asyncio.get_running_loop()
                            self._timer = loop.call_later(until_beat(METRICS_PERIOD_SECONDS), self._send)
            except L2RError:
                pass  # the watch says that the backend is down; the numbers come back with it
            await asyncio.sleep(RETRY_SECONDS)

    def _send(self) -> None:
        self._timer = None
        newest, self._newest = self._newest, {}
        self._tell(newest)


def _learners(pods: Iterable[PodView]) -> Iterable[PodView]:
    return takewhile(lambda pod: pod.role is Role.LEARNER, pods)
