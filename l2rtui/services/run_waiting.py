"""Waiting until runs reach a condition: running, learned, done, failed or gone.

If a run can no longer reach it, the wait ends immediately instead of at its timeout: a learner that failed
permanently never reaches a return. Outages of the backend do not end the wait (``services.monitor``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct

from l2rtui.backends.base import Backend
from l2rtui.domain.quantity import counted
from l2rtui.domain.runstatus import NO_REPORTS, Learning, learning_state, lost_pod, run_status
from l2rtui.domain.snapshot import LOST, UNSUPERVISED, ClusterSnapshot, PodView, RunView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role
from l2rtui.errors import L2RError
from l2rtui.services import metrics
from l2rtui.services.launcher import SETTLE_SECONDS
from l2rtui.services.monitor import Monitor

_LOOK_SECONDS: Final = 0.2
_RETRY_SECONDS: Final = 2.0
"""Pause before a log that could not be read is opened again."""


class WaitCondition(StrEnum):
    """State that a run should reach."""

    RUNNING = "running"
    LEARNED = "learned"
    DONE = "done"
    FAILED = "failed"
    GONE = "gone"


class WaitOutcome(StrEnum):
    """State of a run relative to its condition."""

    WAITING = "waiting"
    REACHED = "reached"
    OUT_OF_REACH = "out of reach"


class Verdict(NamedTuple):
    """WaitOutcome of one run, with a sentence that does not name the run."""

    outcome: WaitOutcome
    reason: str


class Goal(Struct, frozen=True):
    """WaitCondition to wait for.

    Attributes:
        value: Return to reach; only for ``learned``.
    """

    condition: WaitCondition
    value: float = 0.0


@dataclass(slots=True)
class ReturnReading:
    """Returns of one run, updated while its learner's log is read.

    Attributes:
        newest, best: None before the first.
        is_read: The log was read to its end, as its learner has ended.
    """

    newest: float | None = None
    best: float | None = None
    is_read: bool = False

    def add(self, value: float) -> None:
        """Add one return."""
        self.newest, self.best = value, value if self.best is None else max(self.best, value)


def judge(goal: Goal, run: RunView | None, pods: Sequence[PodView], reading: ReturnReading, now: float) -> Verdict:
    """Return the state of a run relative to a condition.

    Args:
        run: None once it is deleted. pods: pods of the run.
        now: Seconds since the epoch.
    """
    if goal.condition is WaitCondition.GONE:
        return _gone(run, pods)
    if run is None:
        return Verdict(WaitOutcome.OUT_OF_REACH, "was destroyed")
    learning = learning_state(run, pods, NO_REPORTS, now)
    is_done = learning.state is Learning.DONE
    # The best counts: a return that falls again afterwards was reached all the same.
    if goal.condition is WaitCondition.LEARNED and reading.best is not None and reading.best >= goal.value:
        return Verdict(WaitOutcome.REACHED, f"mean return reached {reading.best:.4g}")
    if goal.condition is WaitCondition.DONE and is_done:
        return Verdict(WaitOutcome.REACHED, "has finished")
    if goal.condition is WaitCondition.RUNNING and _all_run(run, pods):
        return Verdict(WaitOutcome.REACHED, "has finished" if is_done else f"{len(pods)}/{len(pods)} running")
    if (lost := lost_pod(run, pods)) is not None:
        sentence = f"{lost.name} {lost.status.sentence}"
        return Verdict(
            WaitOutcome.REACHED if goal.condition is WaitCondition.FAILED else WaitOutcome.OUT_OF_REACH, sentence
        )
    # The last records may be the best: a finished learner is judged once its log is read to the end.
    if (
        is_done
        and goal.condition in (WaitCondition.FAILED, WaitCondition.LEARNED)
        and (goal.condition is WaitCondition.FAILED or reading.is_read)
    ):
        return Verdict(WaitOutcome.OUT_OF_REACH, f"has finished{_best(reading)}")
    status = run_status(run, pods)
    if run.reason == LOST:
        is_meant = goal.condition is WaitCondition.FAILED
        return Verdict(WaitOutcome.REACHED if is_meant else WaitOutcome.OUT_OF_REACH, status.sentence)
    figure = "" if reading.newest is None else f", return {reading.newest:.4g} of {goal.value:.4g}"
    return Verdict(WaitOutcome.WAITING, f"{status.sentence}{figure}")


def _gone(run: RunView | None, pods: Sequence[PodView]) -> Verdict:
    if run is None and not pods:
        return Verdict(WaitOutcome.REACHED, "is gone")
    return Verdict(
        WaitOutcome.WAITING,
        run_status(run, pods).sentence if run is not None else f"{counted(len(pods), 'pod')} left",
    )


def _all_run(run: RunView, pods: Sequence[PodView]) -> bool:
    required = sum(worker_set.replicas for worker_set in run.sets)
    present = [pod for pod in pods if not pod.is_terminating]
    return 0 < required <= sum(pod.ready or pod.phase is Phase.SUCCEEDED for pod in present)


def _best(reading: ReturnReading) -> str:
    return "" if reading.best is None else f" with a best return of {reading.best:.4g}"


class RunWaiter:
    """Verdicts on some runs, renewed as the cluster changes.

    Args:
        adoption_failure: Returns the error of the adoption of a run; empty without one.

    Attributes:
        monitor: Watch of the backend; its ``error`` is the reason why no new state is known.
    """

    def __init__(
        self,
        backend: Backend,
        runs: Sequence[RunView],
        goal: Goal,
        *,
        settle_seconds: float = SETTLE_SECONDS,
        adoption_failure: Callable[[str], str] = lambda _: "",
    ) -> None:
        self.monitor = Monitor(backend)
        self._backend = backend
        self._runs = tuple(runs)
        self._goal = goal
        self._adoption_failure = adoption_failure
        self._settle = settle_seconds if goal.condition is WaitCondition.RUNNING else 0.0
        self._readings = {run.uid: ReturnReading() for run in runs}
        self._processes: dict[str, tuple[frozenset[tuple[str, int]], float]] = {}
        self._final: dict[str, Verdict] = {}

    async def read_once(self, snapshot: ClusterSnapshot) -> None:
        """Read the newest return of each run before the first verdict, for a wait with a single check."""
        if self._goal.condition is not WaitCondition.LEARNED:
            return
        for run in self._runs:
            newest = await metrics.newest(self._backend, run.name, metrics.learner_of(snapshot, run.name))
            if newest is not None and newest.reported_return is not None:
                self._readings[run.uid].add(newest.reported_return)

    async def verdicts(self) -> AsyncGenerator[dict[str, Verdict], None]:
        """Yield the verdict on each run by uid, several times a second; the caller ends it."""
        tasks = [asyncio.ensure_future(self.monitor.run())]
        if self._goal.condition is WaitCondition.LEARNED:
            tasks += [asyncio.ensure_future(self._read_returns(run)) for run in self._runs]
        try:
            while True:
                for task in tasks:
                    if task.done():
                        task.result()  # a bug must not look like a run that never reaches the condition
                if self.monitor.heard_at is not None:
                    yield {run.uid: self._verdict(run) for run in self._runs}
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _verdict(self, run: RunView) -> Verdict:
        if run.uid in self._final:
            return self._final[run.uid]
        snapshot = self.monitor.snapshot
        present, pods = snapshot.runs.get(run.uid), _pods_of(snapshot, run)
        verdict = judge(self._goal, present, pods, self._readings[run.uid], time.time())
        if verdict.outcome is WaitOutcome.REACHED and not self._has_settled(run, pods):
            return Verdict(WaitOutcome.WAITING, "its pods have only just started")
        is_alone = present is not None and present.reason == UNSUPERVISED
        failure = self._adoption_failure(run.name) if is_alone else ""
        if failure and verdict.outcome is WaitOutcome.WAITING and self._goal.condition is not WaitCondition.GONE:
            verdict = Verdict(WaitOutcome.OUT_OF_REACH, f"has no supervisor, and gets none: {failure}")
        if verdict.outcome is not WaitOutcome.WAITING:
            self._final[run.uid] = verdict
        return verdict

    def _has_settled(self, run: RunView, pods: Sequence[PodView]) -> bool:
        """Return True if the same processes have run for a moment: a process that dies immediately was Running,
        too.
        """
        if not self._settle:
            return True
        # Restarts are compared too: a pod that crashed and restarted is Running again, with another count.
        processes = frozenset((pod.uid, pod.restarts) for pod in pods)
        before, since = self._processes.get(run.uid, (None, 0.0))
        if before != processes:
            since = time.monotonic()
            self._processes[run.uid] = processes, since
        return time.monotonic() - since >= self._settle

    async def _read_returns(self, run: RunView) -> None:
        """Follow the log of a run's learner, and of its replacements."""
        reading, uid = self._readings[run.uid], ""
        while True:
            learner = next((pod for pod in _pods_of(self.monitor.snapshot, run) if pod.role is Role.LEARNER), None)
            if learner is not None and learner.phase is not Phase.PENDING and learner.uid != uid:
                uid, reading.is_read = learner.uid, False
                try:
                    async with aclosing(metrics.follow(self._backend, run, learner)) as records:
                        async for record in records:
                            if record.reported_return is not None:
                                reading.add(record.reported_return)
                    reading.is_read = True
                except L2RError:
                    uid = ""  # an outage: the same log is opened again
                    await asyncio.sleep(_RETRY_SECONDS)
            await asyncio.sleep(_LOOK_SECONDS)


def _pods_of(snapshot: ClusterSnapshot, run: RunView) -> tuple[PodView, ...]:
    """Return the pods of a run; none of a later run with the same name."""
    namesake = snapshot.run_named(run.name)
    return () if namesake is not None and namesake.uid != run.uid else snapshot.pods_of(run.name)
