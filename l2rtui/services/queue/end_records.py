"""Ends of runs, written by the keeper in the same way as by any command that reads the history."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Final

import msgspec

from l2rtui.backends.base import Backend
from l2rtui.backends.queue_store import QueueFile, QueueStore
from l2rtui.domain.history.record import RunOutcome
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.errors import L2RError
from l2rtui.services.history.completion import LOST_SECONDS, complete_ended
from l2rtui.services.history.endings import outcome_of
from l2rtui.services.history.store import HistoryFilter, HistoryStore
from l2rtui.services.monitor import Monitor

LOOK_SECONDS: Final = 1.0
"""Period at which the rows of the watch are checked."""
PLACE_SECONDS: Final = 60.0
"""Longest wait for the place for records: the keeper delays no user."""
_PAUSE_SECONDS: Final = 30.0
"""Time after which a failed recording of an end is tried again."""
_log = logging.getLogger(__name__)


class EndRecords:
    """Records the ends of the runs listed in a queue's file, and removes them from it."""

    def __init__(self, store: QueueStore, backend: Backend, monitor: Monitor) -> None:
        self._store = store
        self._backend = backend
        self._monitor = monitor
        self._missing_since: dict[str, float] = {}
        self._paused_until = 0.0

    async def run(self) -> None:
        """Check repeatedly, until cancelled."""
        while True:
            try:
                if time.monotonic() >= self._paused_until:
                    await self.look()
            except L2RError as error:
                _log.warning("%s", error)
                self._paused_until = time.monotonic() + _PAUSE_SECONDS
            except Exception:  # noqa: BLE001  (an unseen failure would keep the keeper running forever)
                _log.exception("the ends of runs could not be recorded")
                self._paused_until = time.monotonic() + _PAUSE_SECONDS
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Record the ends of runs that have ended.

        Raises:
            L2RError: the history or the queue cannot be read or written.
        """
        file = self._store.read()
        if not file.unrecorded or self._monitor.error or self._monitor.heard_at is None:
            return
        snapshot = self._monitor.snapshot
        waiting = {ticket.uid for ticket in file.queue.tickets}
        gone = {uid for uid in file.unrecorded if uid not in snapshot.runs and uid not in waiting}
        over = {uid for uid in file.unrecorded if _is_over(snapshot, uid)}
        now = time.monotonic()
        self._missing_since = {uid: self._missing_since.get(uid, now) for uid in gone}
        if not (gone or over):
            return
        lost = {uid for uid, since in self._missing_since.items() if now - since > LOST_SECONDS}
        if over or lost:
            await complete_ended(self._backend, place_seconds=PLACE_SECONDS)
        # A destroy has written the ends of the runs it deleted; a run that never appeared has no record, or is
        # finally lost.
        unfinished = await asyncio.to_thread(_unfinished, gone | over)
        if over & unfinished:
            self._paused_until = now + _PAUSE_SECONDS
        await asyncio.to_thread(self._forget, ((gone | over) - unfinished) | lost)

    def _forget(self, uids: Collection[str]) -> None:
        def changed(file: QueueFile) -> QueueFile:
            left = tuple(uid for uid in file.unrecorded if uid not in uids)
            return msgspec.structs.replace(file, unrecorded=left)

        if uids:
            self._store.change(changed)


def _is_over(snapshot: ClusterSnapshot, uid: str) -> bool:
    run = snapshot.runs.get(uid)
    return run is not None and outcome_of(run, snapshot.pods_of(run.name)) is not None


def _unfinished(uids: Collection[str]) -> set[str]:
    """Return the ids of runs that the own history lists as running."""
    with HistoryStore() as history:
        selection = HistoryFilter(names=tuple(uids), states=(RunOutcome.RUNNING,))
        return {entry.run_id for entry in history.entries(selection)}
