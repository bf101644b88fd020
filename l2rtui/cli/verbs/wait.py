"""wait: block until runs reach a condition, for scripts; the exit code tells the outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing

from l2rtui.cli.listings import RUNS
from l2rtui.cli.selection import RowSelection
from l2rtui.cli.session import Session
from l2rtui.domain.selection.filter_language import is_pattern
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.domain.status import Level
from l2rtui.errors import EXIT_DONE, EXIT_OUT_OF_REACH, EXIT_TIMEOUT, NotFoundError, UsageError
from l2rtui.services import metrics
from l2rtui.services.launcher import SETTLE_SECONDS
from l2rtui.services.run_waiting import Goal, RunWaiter, Verdict, WaitCondition, WaitOutcome
from l2rtui.tables.cluster import format_age
from l2rtui.tables.column import Column, Document, View

_LEVELS = {WaitOutcome.REACHED: Level.OK, WaitOutcome.WAITING: Level.WARN, WaitOutcome.OUT_OF_REACH: Level.BAD}
_VIEW = View(
    "run",
    (
        Column("RUN", "run"),
        Column("FOR", "condition"),
        Column("OUTCOME", "outcome", level=lambda document: _LEVELS.get(document["outcome"])),
        Column("SECONDS", "seconds", is_number=True),
        Column("WHAT", "reason"),
    ),
)
_LEAST_SECONDS = 10.0
"""Time for the first check, also if ``--timeout`` is shorter."""
_NOTE_SECONDS = 30.0
"""Time after which the pending runs are reported again in a pipe."""


async def run_wait(session: Session) -> int:
    """Wait; return 0 if the runs reached the condition, 5 if one no longer can, 124 on timeout."""
    word, value = session.args.condition
    goal = Goal(WaitCondition(word), value or 0.0)
    snapshot = await session.backend.snapshot()
    runs = _chosen(session, snapshot, goal)
    if goal.condition is WaitCondition.LEARNED:
        for run in runs:
            if not metrics.has_learner(snapshot, run.name):
                raise UsageError(f"{run.name} has no learner, and no return.", "Wait --for=done.")
    with session.interruption("the runs go on."):
        return await _Wait(session, goal, runs).run(snapshot)


def _chosen(session: Session, snapshot: ClusterSnapshot, goal: Goal) -> list[RunView]:
    """Return the named runs.

    Raises:
        NotFoundError: a name matches nothing; for ``gone`` that is the condition itself.
    """
    selection, every = RowSelection(session.args, RUNS), RUNS.documents(snapshot)
    if goal.condition is not WaitCondition.GONE:
        selection.require_names(snapshot, every)
    chosen = [snapshot.runs[document["uid"]] for document in selection.choose(snapshot, every)]
    for name in session.args.names:
        if not is_pattern(name) and not snapshot.runs_matching(name):
            session.talk.say(f"There is no run {name!r}: that counts as gone.")
    if not chosen and goal.condition is not WaitCondition.GONE:
        raise NotFoundError(f"No run matches {' '.join(session.args.names)}.", "See `l2rtui runs`.")
    return chosen


class _Wait:
    """One wait, with its progress."""

    def __init__(self, session: Session, goal: Goal, runs: Sequence[RunView]) -> None:
        self._session = session
        self._goal = goal
        self._runs = runs
        self._began = time.monotonic()
        self._seconds: dict[str, float] = {}
        self._noted = self._began
        value = f"={goal.value:g}" if goal.condition is WaitCondition.LEARNED else ""
        self._condition = f"{goal.condition}{value}"

    async def run(self, snapshot: ClusterSnapshot) -> int:
        """Wait and print the verdicts."""
        timeout: float | None = self._session.args.timeout
        # A single check cannot see that pods keep running, and has no time to follow a log.
        settle_seconds = 0.0 if timeout == 0 else SETTLE_SECONDS
        waiter = RunWaiter(
            self._session.backend,
            self._runs,
            self._goal,
            settle_seconds=settle_seconds,
            adoption_failure=self._session.adoption_failure,
        )
        if timeout == 0:
            await waiter.read_once(snapshot)
        code: int | None = None if self._runs else EXIT_DONE
        unheard = Verdict(WaitOutcome.WAITING, "nothing answers")
        verdicts: Mapping[str, Verdict] = dict.fromkeys((run.uid for run in self._runs), unheard)
        async with aclosing(waiter.verdicts()) as looks:
            while code is None:
                try:
                    # A server that fell silent since the names were looked up must not outlast the time.
                    async with asyncio.timeout(None if timeout is None else max(_LEAST_SECONDS, timeout)):
                        verdicts = await anext(looks)
                except TimeoutError:
                    code = EXIT_TIMEOUT
                    break
                code = self._code(verdicts)
                if code is None and timeout is not None and time.monotonic() - self._began >= timeout:
                    code = EXIT_TIMEOUT
                self._tell(verdicts, waiter.monitor.error)
        self._print(verdicts)
        if code == EXIT_TIMEOUT:
            self._session.talk.say(f"Not {self._condition} within {timeout:g} s.")
        return code

    def _code(self, verdicts: Mapping[str, Verdict]) -> int | None:
        """Return the exit code if the verdicts decide it; None to continue."""
        outcomes = [verdict.outcome for verdict in verdicts.values()]
        if self._session.args.any:
            if WaitOutcome.REACHED in outcomes:
                return EXIT_DONE
            return None if WaitOutcome.WAITING in outcomes else EXIT_OUT_OF_REACH
        if WaitOutcome.OUT_OF_REACH in outcomes:
            return EXIT_OUT_OF_REACH
        return None if WaitOutcome.WAITING in outcomes else EXIT_DONE

    def _tell(self, verdicts: Mapping[str, Verdict], trouble: str) -> None:
        """Report decided runs, and on a terminal the runs that are still pending."""
        talk, now = self._session.talk, time.monotonic()
        for run in self._runs:
            verdict = verdicts[run.uid]
            if verdict.outcome is not WaitOutcome.WAITING and run.uid not in self._seconds:
                self._seconds[run.uid] = now - self._began
                if not talk.is_live and len(self._runs) > 1:
                    talk.say(f"{run.name}: {verdict.outcome}, {verdict.reason}")
        waiting = [run for run in self._runs if verdicts[run.uid].outcome is WaitOutcome.WAITING]
        if not waiting:
            return
        first = waiting[0]
        count = len(self._runs)
        done = f"{count - len(waiting)} of {count} runs, " if count > 1 else ""
        lost = f"; {trouble}" if trouble else ""
        head = f"{self._condition}: {done}{format_age(now - self._began)}"
        text = f"{head}: {first.name} {verdicts[first.uid].reason}{lost}"
        talk.live(text)
        if not talk.is_live and now - self._noted >= _NOTE_SECONDS:
            self._noted = now
            talk.say(text)

    def _print(self, verdicts: Mapping[str, Verdict]) -> None:
        documents: list[Document] = []
        elapsed = time.monotonic() - self._began
        for run in self._runs:
            verdict = verdicts[run.uid]
            documents.append(
                {
                    "run": run.name,
                    "uid": run.uid,
                    "condition": self._condition,
                    "outcome": str(verdict.outcome),
                    "reached": verdict.outcome is WaitOutcome.REACHED,
                    "seconds": round(self._seconds.get(run.uid, elapsed), 1),
                    "reason": verdict.reason,
                }
            )
        self._session.talk.clear()
        self._session.out.show_all(_VIEW, documents)
