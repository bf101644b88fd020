"""Streams of metric records: the learner of every run, and the pods of the selected run.

Reports are bounded to one a second, so that a burst of records costs one repaint.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from itertools import takewhile
from typing import Final, Generic, TypeVar

from textual.worker import Worker

from l2rtui.domain.metrics import PodMetrics, RunMetrics
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.workload import Role
from l2rtui.errors import L2RError
from l2rtui.services import metrics, pod_records
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.state.refresh_clock import seconds_to_refresh

PERIOD_SECONDS: Final = 1.0
SHORTEST_PERIOD_SECONDS: Final = 0.05
RETRY_SECONDS: Final = 5.0
MAX_POD_STREAMS: Final = 32
"""Limit for one run; no terminal shows more rows than that."""
MAX_WAITING_STREAMS: Final = 8
"""Limit for all other runs whose learners wait for data, together."""
TURN_SECONDS: Final = 40.0
"""Time for which a pod is followed if more are waiting: three records of a worker, which writes every 10 s."""
_BATCH: Final = 8
_PAUSE_SECONDS: Final = 0.02
"""Number of metrics streams that are opened together, and the pause before the next batch."""

R = TypeVar("R")


class _RecordStreams(Generic[R]):
    """One stream of records for each uid.

    Args:
        report: Called with the newest record of each uid that has a new one.
        is_endless: A stream that ends is opened again, until its uid is no longer followed.
    """

    def __init__(
        self, ctx: AppContext, report: Callable[[Mapping[str, R]], object], group: str, *, is_endless: bool
    ) -> None:
        self._ctx = ctx
        self._report = report
        self._group = group
        self._is_endless = is_endless
        self._workers: dict[str, Worker[None]] = {}
        self._newest: dict[str, R] = {}
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Close all streams; unreported records are dropped."""
        self._cancel_except(())
        if self._timer is not None:
            self._timer.cancel()

    def _cancel_except(self, uids: Collection[str]) -> None:
        for uid in self._workers.keys() - uids:
            self._workers.pop(uid).cancel()

    def _open(self, uid: str, key: str, what: str, follow: Callable[[], AsyncGenerator[R, None]]) -> None:
        work = self._read(key, follow)
        self._workers[uid] = self._ctx.background.start(work, group=self._group, what=what)

    async def _read(self, key: str, follow: Callable[[], AsyncGenerator[R, None]]) -> None:
        while True:
            try:
                async with aclosing(follow()) as records:
                    async for record in records:
                        self._newest[key] = record
                        if self._timer is None:
                            self._timer = asyncio.get_running_loop().call_later(self._pause, self._send)
            except L2RError:
                pass  # the status bar shows that the backend is down; records resume with it
            else:
                if not self._is_endless:
                    return
            self._note_end(key)
            await asyncio.sleep(RETRY_SECONDS)

    def _note_end(self, key: str) -> None:
        """Note that a stream has ended, or could not be opened."""

    @property
    def _pause(self) -> float:
        """Seconds until the next report."""
        if self._ctx.speed <= 1.0:
            return seconds_to_refresh(PERIOD_SECONDS)
        # In a replay at 30 times the speed, an extra second would make records look half a minute old and raise an
        # alarm.
        return max(SHORTEST_PERIOD_SECONDS, PERIOD_SECONDS / self._ctx.speed)

    def _send(self) -> None:
        self._timer = None
        newest, self._newest = self._newest, {}
        self._report(newest)


class MetricsStream(_RecordStreams[RunMetrics]):
    """Metrics of the learner of every run, reported by uid of the run.

    Attributes:
        read: Uids of runs whose learner's log was read up to the present, or could not be read.
    """

    def __init__(self, ctx: AppContext, report: Callable[[Mapping[str, RunMetrics]], object]) -> None:
        super().__init__(ctx, report, "metrics", is_endless=True)
        self.read: set[str] = set()
        self._waiting: dict[str, tuple[RunView, PodView]] = {}
        self._next: asyncio.TimerHandle | None = None

    def follow(self, runs: Iterable[RunView], pods_of: Callable[[str], Iterable[PodView]]) -> None:
        """Follow exactly the learners of these runs; ``pods_of`` lists the pods of a run, learners first."""
        learners = {pod.uid: (run, pod) for run in runs for pod in takewhile(_is_learner, pods_of(run.name))}
        self._cancel_except(learners.keys())
        # Rebuilt each time: a learner that is deleted before its turn is never opened.
        self._waiting = {uid: pair for uid, pair in learners.items() if uid not in self._workers}
        self._open_some()

    def close(self) -> None:
        """Close all streams, and open no others."""
        super().close()
        self._waiting = {}
        if self._next is not None:
            self._next.cancel()

    def _note_end(self, key: str) -> None:
        self.read.add(key)

    def _open_some(self) -> None:
        """Open a few streams; hundreds in one step would block the keys."""
        for uid in list(self._waiting)[:_BATCH]:
            run, pod = self._waiting.pop(uid)
            add = partial(self._ctx.curves.add, run.uid)
            follow = partial(
                metrics.follow,
                self._ctx.backend,
                run,
                pod,
                add,
                self._ctx.turns,
                has_backlog=False,
                at_present=partial(self.read.add, run.uid),
            )
            self._open(pod.uid, run.uid, f"the metrics of {run.name}", follow)
        if self._waiting and self._next is None:
            self._next = asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._open_more)

    def _open_more(self) -> None:
        self._next = None
        if self._ctx.backend_or_none is not None:  # None: the app is ending, and the timer was still set
            self._open_some()


class PodRecordStream(_RecordStreams[PodMetrics]):
    """Records of pods, reported by uid of the pod: workers and evaluators always, other pods while they write
    records.

    If there are more pods than streams, they take turns. A pod that fell silent is followed until it prints again,
    so that its state does not come and go with its turn.

    Attributes:
        looked: Uids of pods whose log is open and whose records were reported up to now.
    """

    def __init__(
        self,
        ctx: AppContext,
        report: Callable[[Mapping[str, PodMetrics]], object],
        *,
        most: int = MAX_POD_STREAMS,
        group: str = "podnews",
    ) -> None:
        super().__init__(ctx, report, group, is_endless=False)
        self._most = most
        self.looked: set[str] = set()
        self._live: set[str] = set()
        self._ended: set[str] = set()
        self._turn_ends = 0.0
        self._opened_at: dict[str, float] = {}

    def follow(self, pods: Iterable[PodView], late: Collection[str] = ()) -> None:
        """Follow exactly these pods; if they outnumber the streams, the next ones follow when a turn is over.

        Args:
            late: Uids of pods that have printed nothing for too long.
        """
        candidates = {pod.uid: pod for pod in pods if pod.started and _has_records(pod)}
        followed = [uid for uid in self._workers if uid in candidates]
        now = time.monotonic()
        if len(candidates) > self._most and now >= self._turn_ends:
            self._turn_ends = now + TURN_SECONDS
            stays = [uid for uid in followed if uid in late][: self._most // 2]
            # Pods that have waited longest are next, those that were never open first.
            waiting = sorted(candidates.keys() - set(stays), key=lambda uid: self._opened_at.get(uid, 0.0))
            followed = [*stays, *waiting]
        chosen = [*followed, *(uid for uid in candidates if uid not in followed)][: self._most]
        self._cancel_except(chosen)
        # A log that ended although its pod exists: the node's agent was restarted, or its connection cut.
        for uid in self._ended & set(chosen):
            self._workers.pop(uid, None)
        self._ended.clear()
        self._opened_at = {uid: at for uid, at in self._opened_at.items() if uid in candidates}
        for uid in chosen:
            if uid not in self._workers:
                self._opened_at[uid] = now
                pod = candidates[uid]
                self._open(uid, uid, f"the records of {pod.name}", partial(self._records, pod))

    async def _records(self, pod: PodView) -> AsyncGenerator[PodMetrics, None]:
        is_watched = pod.role in (Role.WORKER, Role.EVALUATOR)
        self._live.add(pod.uid)
        try:
            records_of_pod = pod_records.follow(self._ctx.backend, pod, self._ctx.turns, is_watched=is_watched)
            async with aclosing(records_of_pod) as records:
                async for record in records:
                    if record is pod_records.LogPosition.ENDED:
                        break
                    if isinstance(record, PodMetrics):
                        yield record
                    else:
                        self.looked.add(pod.uid)
                else:
                    return  # this pod writes no records
            # After a pause: the log of a deleted pod ends repeatedly until a snapshot shows the deletion.
            await asyncio.sleep(RETRY_SECONDS)
            self._ended.add(pod.uid)
        finally:
            self._live.discard(pod.uid)
            self.looked.discard(pod.uid)

    def _send(self) -> None:
        # Only now, with the record itself: until it arrives, the record of an earlier turn would look like silence.
        self.looked |= self._newest.keys() & self._live
        super()._send()


class WatchedPods:
    """Streams of the pods whose records can explain a state: pods of the selected run, and of learners that wait.

    Args:
        report: Called with the newest records, by uid of the pod.
    """

    def __init__(self, ctx: AppContext, report: Callable[[Mapping[str, PodMetrics]], object]) -> None:
        self._selected = PodRecordStream(ctx, report)
        self._waiting = PodRecordStream(ctx, report, most=MAX_WAITING_STREAMS, group="waiting")

    @property
    def looked(self) -> frozenset[str]:
        """Uids of pods whose records are current."""
        return frozenset(self._selected.looked | self._waiting.looked)

    def close(self) -> None:
        """Close all streams."""
        self._selected.close()
        self._waiting.close()

    def follow_selected(self, pods: Sequence[PodView], late: Collection[str] = ()) -> None:
        """Follow the pods of the selected run."""
        self._selected.follow(pods, late)

    def follow_waiting(self, pods: Sequence[PodView], late: Collection[str] = ()) -> None:
        """Follow pods of other runs whose learners wait for data."""
        self._waiting.follow(pods, late)


def _is_learner(pod: PodView) -> bool:
    return pod.role is Role.LEARNER


def _has_records(pod: PodView) -> bool:
    """Return True for pods that may write records; a learner's are the run's metrics, an ended pod's are stale."""
    # The records of a job describe its result, so they count after it has ended too.
    return pod.role not in (None, Role.LEARNER) and (pod.role is Role.JOB or not pod.phase.is_over)
