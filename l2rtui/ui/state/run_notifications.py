"""Notifications, with a bell, when a run of the user fails, finishes, stops learning or learns again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from l2rtui.domain.runstatus import Learning, LearningState, run_status
from l2rtui.domain.snapshot import UNSEEN, ClusterSnapshot, RunView
from l2rtui.domain.status import Level

_SETTLED: Final = frozenset((Learning.LIVE, Learning.SLOW, Learning.DONE, Learning.FAILED))


def _cause(run: RunView, snapshot: ClusterSnapshot) -> str:
    if any(problem.startswith(f"The namespace {run.namespace} ") for problem in snapshot.problems):
        return f"its namespace {run.namespace} was deleted"
    return "its ConfigMap was deleted"


class RunNotifications:
    """States of the runs of one owner; each change of state is reported once."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._states: dict[str, Level] = {}  # BAD, DONE, or OK for every other level
        self._learning: dict[str, Learning] = {}
        self._reported: set[str] = set()
        """Uids of runs that were reported as not learning; only these can learn again."""
        self._runs: Mapping[str, RunView] = {}

    def update(self, snapshot: ClusterSnapshot) -> list[str]:
        """Return sentences about changes since the last call; none for new runs."""
        sentences: list[str] = []
        states: dict[str, Level] = {}
        for uid, run in snapshot.runs.items():
            if run.owner != self._owner:
                continue
            pods = snapshot.pods_of(run.name)
            status = run_status(run, pods)
            state = states[uid] = status.level if status.level in (Level.BAD, Level.DONE) else Level.OK
            # None for a run that is new to us: old failures must not ring at the start of the app.
            before = self._states.get(uid)
            if before is not None and before is not state:
                if state is Level.BAD:
                    sentences.append(f"{run.name} fails: {status.sentence}")
                elif state is Level.DONE:
                    sentences.append(f"{run.name} has finished")
        self._states = states
        return sentences

    def vanish(self, snapshot: ClusterSnapshot) -> list[str]:
        """Return sentences about runs that are gone since the last call, and that no verb of l2rtui destroyed."""
        before, self._runs = self._runs, snapshot.runs
        if snapshot.silent_since is not None or before.keys() <= snapshot.runs.keys():
            return []
        gone = [run for uid, run in before.items() if uid not in snapshot.runs]
        return [
            f"{run.name} was deleted without l2rtui: {_cause(run, snapshot)}"
            for run in gone
            # A destroy says so before it deletes; a run that cannot be read any more is not gone.
            if run.namespace and run.owner == self._owner and not run.is_terminating and run.reason != UNSEEN
        ]

    def learn(self, snapshot: ClusterSnapshot, states: Mapping[str, LearningState]) -> list[str]:
        """Return sentences about learning that stopped or resumed since the last call; none for new runs."""
        sentences: list[str] = []
        for uid, learning in states.items():
            run, before = snapshot.runs.get(uid), self._learning.get(uid)
            if run is None or run.owner != self._owner or before in (None, Learning.UNKNOWN, learning.state):
                continue
            if learning.has_stopped:  # a failure is reported with its pod
                sentences.append(f"{run.name} is {learning.state}: {learning.reason}")
                self._reported.add(uid)
            elif uid in self._reported and learning.state in (Learning.LIVE, Learning.SLOW):
                sentences.append(f"{run.name} learns again")
                self._reported.discard(uid)
        self._reported &= states.keys()
        # While a run cannot be seen, or starts again, its last state counts: it may be back in the same one.
        settled = {
            uid: state.state for uid, state in states.items() if state.has_stopped or state.state in _SETTLED
        }
        self._learning = {
            uid: settled.get(uid, self._learning.get(uid, state.state)) for uid, state in states.items()
        }
        return sentences
