"""State of the learning of runs from a single look, for verbs: their logs are read once and not followed.

A log is a request to each pod: the learners' come first, those of workers only where they can explain a state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from l2rtui.backends.base import Backend
from l2rtui.domain.log import LogQuery
from l2rtui.domain.metrics import PodMetrics, RunMetrics
from l2rtui.domain.runstatus import LearningState, RunReports, learning_state
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import Role
from l2rtui.errors import L2RError
from l2rtui.services import pod_records
from l2rtui.services.metrics import HISTORY, Series

LIMIT_SECONDS: Final = 10.0
"""Time for the logs of all runs; a run whose log did not arrive until then is derived from its pods."""
_AT_ONCE: Final = 8
_MAX_PODS: Final = 32
"""Pods of a run whose records are read."""


@dataclass(slots=True)
class _Records:
    """Records of one run, as they arrive.

    Attributes:
        read_pods: Uids of pods whose log was read to its end.
        silent_seconds: Time since the backend's last sign of life; 0 while it responds.
    """

    learner: RunMetrics | None = None
    pods: dict[str, PodMetrics] = field(default_factory=dict)
    read_pods: set[str] = field(default_factory=set)
    silent_seconds: float = 0.0

    def reports(self, now: float) -> RunReports:
        """Return them with their ages, by the clocks of their writers."""
        ages = {uid: max(0.0, now - record.time) for uid, record in self.pods.items() if record.time}
        age = max(0.0, now - self.learner.time) if self.learner is not None and self.learner.time else 0.0
        unseen = "nothing answers" if self.silent_seconds else ""
        return RunReports(self.learner, age, self.pods, ages, unseen, self.silent_seconds, self.read_pods)


@dataclass(frozen=True, slots=True)
class RunLearning:
    """State of the learning of a run, and the newest metrics in its learner's log; None where none was read."""

    state: LearningState
    metrics: RunMetrics | None


async def learning_states(
    backend: Backend, snapshot: ClusterSnapshot, runs: Sequence[RunView], now: float
) -> dict[str, LearningState]:
    """Return the state of the learning of these runs, by uid; see ``run_learning``."""
    learning = await run_learning(backend, snapshot, runs, now)
    return {uid: own.state for uid, own in learning.items()}


async def run_learning(
    backend: Backend, snapshot: ClusterSnapshot, runs: Sequence[RunView], now: float, *, with_ended: bool = False
) -> dict[str, RunLearning]:
    """Return state and metrics of these runs, by uid; a log that cannot be read is no error.

    Args:
        now: Seconds since the epoch.
        with_ended: Read also the logs of learners that are over; their states need none.
    """
    # Hundreds of logs at once would exhaust the API server's fairness queue for everybody.
    limit = asyncio.Semaphore(_AT_ONCE)
    silent_seconds = 0.0 if snapshot.silent_since is None else max(1.0, now - snapshot.silent_since)
    records = {run.uid: _Records(silent_seconds=silent_seconds) for run in runs}
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            readers = (
                _read(backend, run, snapshot.pods_of(run.name), records[run.uid], limit, now, with_ended=with_ended)
                for run in runs
            )
            await asyncio.gather(*readers)
    except TimeoutError:
        pass  # what has arrived counts
    return {
        run.uid: RunLearning(
            learning_state(run, snapshot.pods_of(run.name), records[run.uid].reports(now), now),
            records[run.uid].learner,
        )
        for run in runs
    }


async def _read(
    backend: Backend,
    run: RunView,
    pods: Sequence[PodView],
    records: _Records,
    limit: asyncio.Semaphore,
    now: float,
    *,
    with_ended: bool,
) -> None:
    learner = next((pod for pod in pods if pod.role is Role.LEARNER), None)
    if learner is not None and (learner.ready or (with_ended and learner.phase.is_over)):
        await _read_learner(backend, run, learner, records, limit)
    if learner is not None and not learning_state(run, pods, records.reports(now), now).is_worth_explaining:
        return
    others = [pod for pod in pods if pod.role is not Role.LEARNER and pod.ready][:_MAX_PODS]
    await asyncio.gather(*(_read_pod(backend, pod, records, limit) for pod in others))


async def _read_learner(
    backend: Backend, run: RunView, pod: PodView, records: _Records, limit: asyncio.Semaphore
) -> None:
    series = Series(run.name)
    async with limit:
        try:
            async with aclosing(backend.logs(pod, LogQuery(tail=2 * HISTORY))) as lines:
                async for line in lines:
                    records.learner = series.read_line(line.text) or records.learner
        except L2RError:
            return  # it is gone or has no log: its pods decide


async def _read_pod(backend: Backend, pod: PodView, records: _Records, limit: asyncio.Semaphore) -> None:
    async with limit:
        try:
            async with aclosing(backend.logs(pod, LogQuery(tail=pod_records.BACKLOG_LINES))) as lines:
                async for line in lines:
                    if (record := pod_records.read(line.text)) is not None:
                        records.pods[pod.uid] = pod_records.after(records.pods.get(pod.uid), record)
        except L2RError:
            return
    records.read_pods.add(pod.uid)
