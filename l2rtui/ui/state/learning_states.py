"""States of learning of all runs, derived again only after one of their inputs has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import is_

from l2rtui.domain.metrics import PodMetrics, RunMetrics
from l2rtui.domain.runstatus import LearningState, RunReports, learning_state
from l2rtui.domain.snapshot import ContextHealth, PodView, RunView
from l2rtui.ui.state.connection_status import ConnectionStatus
from l2rtui.ui.state.record_ages import RecordAges

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
