"""Notices: events since the app was last open on this machine, as counts for a while and all of them on a screen;
and notifications, with a bell, when a run of the user fails, finishes, stops learning or learns again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from l2rtui.domain.quantity import age
from l2rtui.domain.runstatus import Learning, LearningState, run_status
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import UNSEEN, ClusterSnapshot, RunView
from l2rtui.domain.status import Level
from l2rtui.ui.text import Line, Span, TextStyle, status_text, style_of_level

if TYPE_CHECKING:
    from l2rtui.backends.base import Backend
    from l2rtui.domain.history import Departure, Happening
    from l2rtui.ui.state.background import Background


NOTE_SECONDS: Final = 60.0
"""Period in which the time is noted; after the app was killed, events of at most this period are shown again."""
NOTICE_SECONDS: Final = 20.0
NOT_NOTED: Final = "replay"
"""Backend that shows another user's past."""


class AbsenceNotice:
    """Time of the departure before this visit to a context; created for each connection."""

    def __init__(self, background: Background, backend: Backend, clock: Callable[[], float]) -> None:
        self._background = background
        self._backend = backend
        self._clock = clock
        self._departure: Departure | None = None
        self._noted_at: float | None = None
        self._shown_until = 0.0
        self._snapshot: ClusterSnapshot | None = None

    def take_snapshot(self, snapshot: ClusterSnapshot) -> None:
        """Look back at the first snapshot of a connection, and note the time every minute from then on."""
        if self._backend.name == NOT_NOTED:
            return
        is_first, self._snapshot = self._snapshot is None, snapshot
        now = time.monotonic()
        if self._noted_at is None or now - self._noted_at >= NOTE_SECONDS:
            self._noted_at = now
            work = self._look_back(snapshot) if is_first else self.note()
            self._background.start(work, group="absence", what="what happened since you left")

    async def _look_back(self, snapshot: ClusterSnapshot) -> None:
        from l2rtui.services.history.absence import departure

        # Read before the time is noted; otherwise the notice would always be empty.
        self._departure = await asyncio.to_thread(departure, self._backend)
        try:
            items = await self._happenings(snapshot)
        finally:
            await self.note()
        if items and self._departure is not None:
            from l2rtui.domain.history import summary

            away = age(self._clock() - self._departure.left)
            self._background.notice(
                f"{summary(items)}.\n`:since` lists them, esc takes this away.",
                title=f"Since you left, {away} ago",
                seconds=NOTICE_SECONDS,
            )
            self._shown_until = time.monotonic() + NOTICE_SECONDS

    async def _happenings(self, snapshot: ClusterSnapshot) -> Sequence[Happening]:
        from l2rtui.services.history.absence import since

        return await since(self._backend, snapshot, self._departure) if self._departure is not None else ()

    async def note(self) -> None:
        """Note that the app is open now."""
        from l2rtui.services.history.absence import note_departure

        if self._snapshot is not None:
            await asyncio.to_thread(note_departure, self._backend, self._snapshot, self._clock())

    def take_away(self) -> bool:
        """Remove the notice; return False if none is shown."""
        is_shown = time.monotonic() < self._shown_until
        if is_shown:
            self._shown_until = 0.0
            self._background.clear()
        return is_shown

    async def lines(self) -> tuple[str, Sequence[Line]]:
        """Return title and lines of the screen for the current time."""
        departure = self._departure
        if departure is None or self._snapshot is None:
            return "Since you left", [(Span("The app was not open here before."),)]
        now = self._clock()
        items = await self._happenings(self._snapshot)
        self.take_away()
        title = f"Since you left, {age(now - departure.left)} ago"
        return title, [_line(item, now) for item in items] or [(Span("No run of yours started or ended."),)]


def _line(item: Happening, now: float) -> Line:
    when = "" if item.time is None else age(now - item.time)
    return (
        Span(f" {when:>7}  ", TextStyle.DIM),
        Span(f"{status_text(item.word, item.level):<13}", style_of_level(item.level)),
        Span(f"{sanitize(item.name)}  ", TextStyle.STRONG),
        Span(sanitize(item.sentence), TextStyle.DIM),
    )


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
