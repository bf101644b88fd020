"""State of the learning of runs, for verbs: from one look at their logs, or from several in sequence.

Each log is a request per pod: the learners' are read first, or the first of each set of a run without a learner;
the others only if they can explain a state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Struct

from l2rtui.backends.base import Backend
from l2rtui.domain.log import LogLine, LogQuery
from l2rtui.domain.metrics import PodMetrics, RunBound, RunMetrics
from l2rtui.domain.runstatus import Learning, LearningState, RunReports, learning_state
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import Role
from l2rtui.errors import L2RError
from l2rtui.services import pod_records
from l2rtui.services.metrics import HISTORY, Series

LIMIT_SECONDS: Final = 10.0
"""Longest wait for the logs of all runs; a run whose log has not arrived by then is judged by its pods."""
REREAD_SECONDS: Final = 5.0
"""Time after which logs are read further; between two readings, states are derived from pods and the time."""
_AT_ONCE: Final = 8
_MAX_PODS: Final = 32
"""Pods of a run whose records are read."""


@dataclass(slots=True)
class _Records:
    """Records of one run, as they arrive.

    Attributes:
        series: Of the learner with this uid.
        newest: Time of the newest record of each log, by uid of the pod; reading continues there. None: no record.
        read_pods: Uids of pods whose log was read to its end.
        silent_seconds: Time since the backend's last response; 0 while it responds.
    """

    series: Series
    learner_uid: str = ""
    learner: RunMetrics | None = None
    pods: dict[str, PodMetrics] = field(default_factory=dict)
    newest: dict[str, float | None] = field(default_factory=dict)
    read_pods: set[str] = field(default_factory=set)
    silent_seconds: float = 0.0

    def keep(self, uids: Collection[str]) -> None:
        """Drop deleted pods."""
        by_pod: tuple[dict[str, Any], ...] = (self.pods, self.newest)
        for values in by_pod:
            for uid in values.keys() - set(uids):
                del values[uid]
        self.read_pods.intersection_update(uids)

    def reports(self, now: float) -> RunReports:
        """Return them with their ages, by the clocks of their writers."""
        ages = {uid: max(0.0, now - record.time) for uid, record in self.pods.items() if record.time}
        age = max(0.0, now - self.learner.time) if self.learner is not None and self.learner.time else 0.0
        unseen = "nothing answers" if self.silent_seconds else ""
        return RunReports(self.learner, age, self.pods, ages, unseen, self.silent_seconds, self.read_pods)


class RunLearning(Struct, frozen=True):
    """State of a run's learning, the newest metrics in its learner's log, and the bottleneck of its speed; both are
    None if nothing was read.
    """

    state: LearningState
    metrics: RunMetrics | None
    bound: RunBound | None = None


class LearningReader:
    """Learning of runs that are read repeatedly: only new lines of a log are requested.

    Args:
        with_ended: Also read the logs of ended learners, which their states do not need.
    """

    def __init__(self, backend: Backend, *, with_ended: bool = False) -> None:
        self._backend = backend
        self._with_ended = with_ended
        self._records: dict[str, _Records] = {}
        self._period: int | None = None

    @property
    def period(self) -> int:
        """Number of the current period: logs that were read in an earlier period are read further."""
        return int(time.monotonic() / REREAD_SECONDS)

    async def look(self, snapshot: ClusterSnapshot, runs: Sequence[RunView], now: float) -> dict[str, RunLearning]:
        """Return state and metrics of these runs, by uid; a log that cannot be read is not an error.

        Args:
            now: Seconds since the epoch.
        """
        is_due, self._period = self._period != self.period, self.period
        silent_seconds = 0.0 if snapshot.silent_since is None else max(1.0, now - snapshot.silent_since)
        self._records = {run.uid: self._records.get(run.uid) or _Records(Series(run.name)) for run in runs}
        for records in self._records.values():
            records.silent_seconds = silent_seconds
        # Hundreds of parallel logs would exhaust the API server's fairness queue for all users.
        limit = asyncio.Semaphore(_AT_ONCE)
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                looks = (
                    _RunLook(self._backend, run, snapshot.pods_of(run.name), self._records[run.uid], limit, is_due)
                    for run in runs
                )
                await asyncio.gather(*(look.read(now, with_ended=self._with_ended) for look in looks))
        except TimeoutError:
            pass  # use the records that have arrived
        return {
            run.uid: RunLearning(
                learning_state(run, snapshot.pods_of(run.name), self._records[run.uid].reports(now), now),
                self._records[run.uid].learner,
                RunBound.of(self._records[run.uid].learner, self._records[run.uid].pods.values()),
            )
            for run in runs
        }


async def run_learning(
    backend: Backend, snapshot: ClusterSnapshot, runs: Sequence[RunView], now: float
) -> dict[str, RunLearning]:
    """Return state and metrics of these runs from a single look, by uid; see ``LearningReader``."""
    return await LearningReader(backend).look(snapshot, runs, now)


class _RunLook(Struct, frozen=True):
    """One look at the logs of a run.

    Attributes:
        limit: Bounds the logs that are read in parallel.
        is_due: Logs that were read before are read further.
    """

    backend: Backend
    run: RunView
    pods: Sequence[PodView]
    records: _Records
    limit: asyncio.Semaphore
    is_due: bool

    async def read(self, now: float, *, with_ended: bool) -> None:
        """Read the logs that may determine the state of the run."""
        records = self.records
        records.keep({pod.uid for pod in self.pods})
        learner = next((pod for pod in self.pods if pod.role is Role.LEARNER), None)
        if learner is None or learner.uid != records.learner_uid:  # another pod: its records start again
            records.series, records.learner = Series(self.run.name), None
            records.learner_uid = "" if learner is None else learner.uid
        if learner is not None and (learner.ready or (with_ended and learner.phase.is_over)):
            await self._read_learner(learner)
        others = [pod for pod in self.pods if pod.role is not Role.LEARNER and pod.ready][:_MAX_PODS]
        if learner is None:
            # The pods of a set run one program: one that reports steps shows that the run goes on, and where the
            # first writes no records, the others write none either.
            firsts = {pod.set_name: pod for pod in reversed(others)}.values()
            await asyncio.gather(*(self._read_pod(pod) for pod in firsts))
            others = [pod for pod in others if pod not in firsts]
        state = learning_state(self.run, self.pods, records.reports(now), now)
        may_change = state.is_worth_explaining if learner is not None else state.state is Learning.STALLED
        if may_change:
            await asyncio.gather(*(self._read_pod(pod) for pod in others))

    async def _read_learner(self, pod: PodView) -> None:
        records = self.records
        async with aclosing(self._lines(pod, 2 * HISTORY)) as lines:
            async for line in lines:
                if (metrics := records.series.read_line(line.text)) is not None:
                    records.learner, records.newest[pod.uid] = metrics, line.time

    async def _read_pod(self, pod: PodView) -> None:
        records = self.records
        async with aclosing(self._lines(pod, pod_records.BACKLOG_LINES)) as lines:
            async for line in lines:
                if (record := pod_records.read(line.text)) is not None:
                    records.pods[pod.uid] = pod_records.after(records.pods.get(pod.uid), record)
                    records.newest[pod.uid] = line.time

    async def _lines(self, pod: PodView, tail: int) -> AsyncGenerator[LogLine, None]:
        """Yield the lines of a log after its newest record; none before it is due again, or if it was deleted."""
        if pod.uid in self.records.newest and not self.is_due:
            return
        since = self.records.newest.setdefault(pod.uid, None)
        async with self.limit:
            try:
                async with aclosing(self.backend.logs(pod, LogQuery(tail=tail, since=since))) as lines:
                    async for line in lines:
                        yield line
            except L2RError:
                return  # other pods decide
        self.records.read_pods.add(pod.uid)
