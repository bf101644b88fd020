"""States of learning of all runs, and the ages of their newest metric records, by this machine's clock. Pure.

A record carries the time of its own machine, whose clock may be minutes off. That time is used only for the first
record of a run, which may come from an old log. Every later record has just arrived, whatever its clock says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import is_
from typing import Final, Protocol

from l2rtui.domain.metrics import PodMetrics, RunMetrics, is_old
from l2rtui.domain.quantity import age
from l2rtui.domain.runstatus import LearningState, RunReports, learning_state
from l2rtui.domain.snapshot import ContextHealth, PodView, RunView
from l2rtui.ui.state.connection_status import ConnectionStatus

NOT_READ: Final = "?"
"""In place of the age of a pod's old record while its log is not read: it may have written newer ones since."""
WORKER_INTERVAL_SECONDS: Final = 10.0
"""Time between two records of a worker (``runtime.rl.roles.worker``); a learner reports its own interval."""


class Timed(Protocol):
    """A record with the time of its writer's clock."""

    @property
    def time(self) -> float:
        """Seconds since the epoch; 0 if the record has no time."""


class RecordAges:
    """Arrival of the newest record of each run or pod, by uid.

    Attributes:
        arrivals: Time of the record by its writer's clock, and of its arrival by that of the app.
    """

    def __init__(self) -> None:
        self.arrivals: dict[str, tuple[float, float]] = {}

    def take(self, records: Mapping[str, Timed], now: float) -> None:
        """Note which of these records are new."""
        for uid, record in records.items():
            before = self.arrivals.get(uid)
            if before is None:
                self.arrivals[uid] = (record.time, min(now, record.time or now))
            elif before[0] != record.time:
                self.arrivals[uid] = (record.time, now)

    def keep(self, uids: Collection[str]) -> None:
        """Drop all others."""
        self.arrivals = {uid: arrival for uid, arrival in self.arrivals.items() if uid in uids}

    def seconds(self, uid: str, now: float) -> float:
        """Return the age of a record; 0 without a record."""
        return max(0.0, now - self.arrivals[uid][1]) if uid in self.arrivals else 0.0

    def age_if_old(self, uid: str, now: float, interval_seconds: float = WORKER_INTERVAL_SECONDS) -> str:
        """Return the age of a record in a few characters; empty if it is recent, or without a record."""
        if uid not in self.arrivals:
            return ""
        seconds = now - self.arrivals[uid][1]
        return age(seconds) if is_old(seconds, interval_seconds) else ""


_Inputs = tuple[RunView, Sequence[PodView], RunMetrics | None, int]


class LearningStates:
    """State of the learning of each run, by uid.

    Attributes:
        health: State of the connection; while it is lost the current state is unknown.
        looked: Uids of pods whose log is open: the records of all others grow old while their writers go on.
        read_runs: Uids of runs whose learner's log was read up to the present.
    """

    def __init__(self, ages: RecordAges) -> None:
        self.health = ConnectionStatus()
        self._silent: dict[str, float] = {}
        self.looked: AbstractSet[str] = frozenset()
        self.read_runs: AbstractSet[str] = frozenset()
        self._ages = ages
        self._turn = 0
        self._states: dict[str, tuple[_Inputs, LearningState]] = {}

    def expire(self) -> None:
        """Derive all states again on the next call, since time has passed or records of pods have come."""
        self._turn += 1

    def take_contexts(self, contexts: Sequence[ContextHealth]) -> None:
        """Set the state of each context if several are shown: for a silent one the current state is unknown."""
        silent = {own.name: own.old_since for own in contexts if own.old_since is not None}
        if silent != self._silent:
            self._silent = silent
            self.expire()

    def keep(self, runs: Mapping[str, RunView]) -> None:
        """Drop deleted runs."""
        if len(self._states) > len(runs):
            self._states = {uid: state for uid, state in self._states.items() if uid in runs}

    def faults(self) -> Iterable[tuple[RunView, Sequence[PodView], LearningState]]:
        """Yield the runs whose learning has a fault, with their pods."""
        return ((inputs[0], inputs[1], state) for inputs, state in self._states.values() if state.is_fault)

    @property
    def states(self) -> dict[str, LearningState]:
        """The latest states by uid of the run."""
        return {uid: state for uid, (_, state) in self._states.items()}

    def of(
        self,
        run: RunView,
        pods: Sequence[PodView],
        metrics: RunMetrics | None,
        records: Mapping[str, PodMetrics],
        now: float,
    ) -> LearningState:
        """Return the state of a run; the same object while nothing differs, so that its row is not made again."""
        inputs = (run, pods, metrics, self._turn)
        last = self._states.get(run.uid)
        if last is not None and all(map(is_, last[0], inputs)):
            return last[1]
        before = last[1] if last is not None else None
        state = learning_state(run, pods, self._reports(run, pods, metrics, records, now), now, before)
        self._states[run.uid] = inputs, before if before == state else state
        return self._states[run.uid][1]

    def _reports(
        self,
        run: RunView,
        pods: Sequence[PodView],
        metrics: RunMetrics | None,
        records: Mapping[str, PodMetrics],
        now: float,
    ) -> RunReports:
        own, read_pods = {}, set()
        if self.looked:  # only for few runs: the pods of the others need no check
            read_pods = {pod.uid for pod in pods if pod.uid in self.looked}
            own = {uid: records[uid] for uid in read_pods if uid in records}
        outage, outage_seconds = self.health.outage, self.health.outage_seconds
        if not outage and (since := self._silent.get(run.context)) is not None:
            outage, outage_seconds = f"the context {run.context} does not answer", now - since
        return RunReports(
            metrics,
            self._ages.seconds(run.uid, now),
            own,
            {uid: self._ages.seconds(uid, now) for uid in own},
            outage,
            outage_seconds,
            read_pods,
            run.uid in self.read_runs,
        )
