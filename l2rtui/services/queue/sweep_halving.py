"""Halving of sweeps by the keeper: reads the records of their runs, and destroys trials that are not promising."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Final

import msgspec
from msgspec.structs import replace

from l2rtui.backends.base import Backend
from l2rtui.backends.queue_store import QueueFile, QueueStore
from l2rtui.domain.curves.chart import RETURN
from l2rtui.domain.curves.run_curve import Axis
from l2rtui.domain.queue import finish
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.domain.sweeps import Points, SweepWatch, next_reports
from l2rtui.errors import L2RError
from l2rtui.services import launcher
from l2rtui.services import sweeps as results
from l2rtui.services.curves import seed_curve
from l2rtui.services.history import journal
from l2rtui.services.history.endings import curve_columns, outcome_of

_log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""Period at which records are read: work that a trial does in it beyond its rung is lost when it is stopped."""
_LAUNCH_SECONDS: Final = 120.0
"""Time after which a run that never appeared is no longer expected: its launch was undone."""


class SweepHalving:
    """Stops the worst trials of the sweeps in a queue's file; the file has all state that a successor needs."""

    def __init__(self, store: QueueStore, backend: Backend) -> None:
        self._store = store
        self._backend = backend
        self._seen: set[str] = set()
        """Ids of runs that have been seen; if one is now missing, it was destroyed."""
        self._missing_since: dict[str, float] = {}
        self._final: dict[str, Points] = {}
        """Records of ended runs, which need not be read again."""

    async def run(self) -> None:
        """Check repeatedly, until cancelled."""
        while True:
            try:
                await self.look()
            except L2RError as error:  # no decision is made without data, and nothing is lost
                _log.warning("%s", error)
            except Exception:  # noqa: BLE001  (a task that ended unseen would let every trial go on)
                _log.exception("the trials of sweeps could not be looked at")
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Read the records of all watched sweeps once, and stop the trials that Optuna gives up.

        Raises:
            L2RError: the backend does not answer, or the queue cannot be written.
        """
        for watch in self._store.read().sweeps:
            await self._look_at(watch, await self._backend.snapshot())

    async def _look_at(self, watch: SweepWatch, snapshot: ClusterSnapshot) -> None:
        views = {uid: snapshot.runs[uid] for uid, _ in watch.runs if uid in snapshot.runs}
        waiting = {ticket.uid for ticket in self._store.read().queue.tickets}
        self._seen.update(views)
        over = {uid for uid, run in views.items() if outcome_of(run, snapshot.pods_of(run.name)) is not None}
        points = {uid: await self._points(run, snapshot, is_over=uid in over) for uid, run in views.items()}
        gone = {uid for uid, _ in watch.runs if uid not in views and uid not in waiting}
        ended = over | {uid for uid in gone if self._has_gone(uid)}
        reports = (*watch.reports, *next_reports(watch, points, ended))
        stopped = watch.stopped
        if len(reports) > len(watch.reports):
            stopped = tuple(sorted(await asyncio.to_thread(results.pruned_trials, watch.halving, reports)))
            # On the disk before anything is destroyed: a successor completes it.
            await self._put(replace(watch, reports=reports, stopped=stopped))
        uids = watch.runs_of(stopped)
        await self._cancel(uids)
        await asyncio.gather(*(self._stop(views[uid]) for uid in uids if uid in views and uid not in over))
        if all(uid in ended or (uid in uids and uid in gone) for uid, _ in watch.runs):
            await self._forget(watch.experiment)

    def _has_gone(self, uid: str) -> bool:
        """Return True for a run that was deleted, not one that has not appeared yet: a sweep is watched first."""
        since = self._missing_since.setdefault(uid, time.monotonic())
        return uid in self._seen or time.monotonic() - since > _LAUNCH_SECONDS

    async def _points(self, run: RunView, snapshot: ClusterSnapshot, *, is_over: bool) -> Points:
        if run.uid in self._final:
            return self._final[run.uid]
        columns = dict(curve_columns((await seed_curve(self._backend, snapshot, run)).curve))
        pairs = zip(columns.get(Axis.ENV_STEPS, ()), columns.get(RETURN, ()), strict=False)
        points = [(steps, value) for steps, value in pairs if steps is not None and value is not None]
        if is_over:
            self._final[run.uid] = points
        return points

    async def _stop(self, run: RunView) -> None:
        _log.info("%s: its trial is not among the best, and is stopped", run.name)
        journal.record("sweep", run.name, "stopped")
        try:
            async for _ in launcher.destroy(self._backend, run):
                pass
        except L2RError as error:  # the next look tries again
            _log.warning("%s: %s", run.name, error)

    # --- file --------------------------------------------------------------------------------------------------
    async def _put(self, watch: SweepWatch) -> None:
        def changed(file: QueueFile) -> QueueFile:
            # It may have got more runs in the meantime.
            sweeps = (
                replace(item, reports=watch.reports, stopped=watch.stopped)
                if item.experiment == watch.experiment
                else item
                for item in file.sweeps
            )
            return msgspec.structs.replace(file, sweeps=tuple(sweeps))

        await asyncio.to_thread(self._store.change, changed)

    async def _cancel(self, uids: Collection[str]) -> None:
        """Remove further seeds of stopped trials from the queue."""
        if any(ticket.uid in uids for ticket in self._store.read().queue.tickets):
            await asyncio.to_thread(self._store.change_queue, lambda queue: finish(queue, uids))

    async def _forget(self, experiment: str) -> None:
        def changed(file: QueueFile) -> QueueFile:
            waiting = any(ticket.spec.experiment == experiment for ticket in file.queue.tickets)
            sweeps = tuple(item for item in file.sweeps if item.experiment != experiment or waiting)
            return msgspec.structs.replace(file, sweeps=sweeps)

        await asyncio.to_thread(self._store.change, changed)
