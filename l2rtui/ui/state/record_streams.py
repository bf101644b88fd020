"""Streams of metric records: the learner of every run, and the pods of the selected run.

Reports are bounded to one a second, so that a burst of records costs one repaint.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
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
RETRY_SECONDS: Final = 5.0
MAX_POD_STREAMS: Final = 32
"""Of one run; no terminal shows more rows than that."""
_BATCH: Final = 8
_PAUSE_SECONDS: Final = 0.02
"""Streams of metrics that are opened together, and the time until the next."""

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
                            loop = asyncio.get_running_loop()
                            self._timer = loop.call_later(seconds_to_refresh(PERIOD_SECONDS), self._send)
            except L2RError:
                pass  # the status bar says that the backend is down; the records come back with it
            else:
                if not self._is_endless:
                    return
            await asyncio.sleep(RETRY_SECONDS)

    def _send(self) -> None:
        self._timer = None
        newest, self._newest = self._newest, {}
        self._report(newest)


class MetricsStream(_RecordStreams[RunMetrics]):
    """Metrics of the learner of every run, reported by uid of the run."""

    def __init__(self, ctx: AppContext, report: Callable[[Mapping[str, RunMetrics]], object]) -> None:
        super().__init__(ctx, report, "metrics", is_endless=True)
        self._waiting: dict[str, tuple[RunView, PodView]] = {}
        self._next: asyncio.TimerHandle | None = None

    def follow(self, runs: Iterable[RunView], pods_of: Callable[[str], Iterable[PodView]]) -> None:
        """Follow the learners of these runs and no others; ``pods_of`` lists the pods of a run, learners first."""
        learners = {pod.uid: (run, pod) for run in runs for pod in takewhile(_is_learner, pods_of(run.name))}
        self._cancel_except(learners.keys())
        # Rebuilt each time: a learner that is gone before its turn is never opened.
        self._waiting = {uid: pair for uid, pair in learners.items() if uid not in self._workers}
        self._open_some()

    def _open_some(self) -> None:
        """Open a few streams; hundreds at once would block the keys."""
        for uid in list(self._waiting)[:_BATCH]:
            run, pod = self._waiting.pop(uid)
            follow = partial(metrics.follow, self._ctx.backend, run, pod, partial(self._ctx.curves.add, run.uid))
            self._open(pod.uid, run.uid, f"the metrics of {run.name}", follow)
        if self._waiting and self._next is None:
            self._next = asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._open_more)

    def _open_more(self) -> None:
        self._next = None
        if self._ctx.backend_or_none is not None:  # None: the app is ending, and the timer was still set
            self._open_some()


class PodRecordStream(_RecordStreams[PodMetrics]):
    """Records of the pods of one run, reported by uid of the pod; a pod without records is read once."""

    def __init__(self, ctx: AppContext, report: Callable[[Mapping[str, PodMetrics]], object]) -> None:
        super().__init__(ctx, report, "podnews", is_endless=False)

    def follow(self, pods: Iterable[PodView]) -> None:
        """Follow these pods and no others."""
        followed = [pod for pod in pods if pod.started and _has_records(pod)][:MAX_POD_STREAMS]
        self._cancel_except({pod.uid for pod in followed})
        for pod in followed:
            if pod.uid not in self._workers:
                follow = partial(pod_records.follow, self._ctx.backend, pod)
                self._open(pod.uid, pod.uid, f"the records of {pod.name}", follow)


def _is_learner(pod: PodView) -> bool:
    return pod.role is Role.LEARNER


def _has_records(pod: PodView) -> bool:
    """Return True for pods that may write records; a learner's are those of its run, an ended pod's are stale."""
    # The records of a job say what it did, so they count also when it is over.
    return pod.role not in (None, Role.LEARNER) and (pod.role is Role.JOB or not pod.phase.is_over)
