"""Completion of records: the next command that sees a run that ended unattended records its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from l2rtui.domain.history.record import Ending, HistoryEntry, HistoryRecord, RunOutcome
from l2rtui.errors import L2RError
from l2rtui.services.history import recorder
from l2rtui.services.history.contexts import context_of, parts_of
from l2rtui.services.history.store import HistoryFilter, HistoryStore, history_path

if TYPE_CHECKING:
    from l2rtui.backends.base import Backend
    from l2rtui.domain.snapshot import ClusterSnapshot

LOST_SECONDS: Final = 600.0
"""Age from which a vanished run counts as lost: a launch in waves writes its record long before its runs."""
CONTEXT_SECONDS: Final = 8.0
"""Longest wait for one of several contexts."""
_AT_ONCE: Final = 4
_log = logging.getLogger(__name__)


def has_open_runs() -> bool:
    """Return True if the history lists a running run of any backend."""
    if not history_path().exists():
        return False
    with HistoryStore() as store:
        return bool(store.entries(HistoryFilter(states=(RunOutcome.RUNNING,), limit=1)))


async def complete_ended(
    backend: Backend, snapshot: ClusterSnapshot | None = None, place_seconds: float | None = None
) -> int:
    """Record the ends of runs that the history lists as running; return their number. Never raises.

    Args:
        snapshot: Of the backend; None takes one if some run is open. Each of several contexts takes its own.
        place_seconds: Longest wait for the place for records; None for a command's default.
    """
    if not recorder.is_recorded(backend) or not history_path().exists():
        return 0
    parts = parts_of(backend)
    if len(parts) == 1:
        return await _complete_ended(backend, snapshot, place_seconds)
    return sum(await asyncio.gather(*(_complete_in_time(part, place_seconds) for part in parts)))


async def _complete_in_time(backend: Backend, place_seconds: float | None) -> int:
    try:
        async with asyncio.timeout(CONTEXT_SECONDS):
            return await _complete_ended(backend, None, place_seconds)
    except TimeoutError:
        _log.warning("history: the context %s gave no answer within %g s", context_of(backend), CONTEXT_SECONDS)
        return 0


async def _complete_ended(backend: Backend, snapshot: ClusterSnapshot | None, place_seconds: float | None) -> int:
    ends: dict[str, Ending] = {}
    try:
        open_runs = await asyncio.to_thread(_open_entries, backend.name, context_of(backend))
        if not open_runs:
            return 0
        ends = await _ends(backend, await backend.snapshot() if snapshot is None else snapshot, open_runs)
        records = await asyncio.to_thread(_put, ends)
        if records and recorder.is_shared(backend):
            from l2rtui.services.history.sharing import share

            await share(backend, records, place_seconds)
    except L2RError as error:
        _log.warning("history: %s", error)
    return len(ends)


async def _ends(
    backend: Backend, snapshot: ClusterSnapshot, open_runs: Collection[HistoryEntry]
) -> dict[str, Ending]:
    # Curves and logs are read only if a run has ended, which most lists of the history do not find.
    from l2rtui.services.history.endings import gather_ending, outcome_of

    limit = asyncio.Semaphore(_AT_ONCE)
    ends: dict[str, Ending] = {}
    # A run that is not seen is deleted only if all runs are visible: a namespace may be hidden from us.
    sees_all = backend.location is None and not snapshot.problems and snapshot.silent_since is None

    async def end(entry: HistoryEntry) -> None:
        run = snapshot.runs.get(entry.run_id)
        if run is not None:
            outcome = outcome_of(run, snapshot.pods_of(run.name))
            if outcome is not None:
                async with limit:
                    ends[entry.run_id] = await gather_ending(backend, snapshot, run, outcome)
        elif sees_all and time.time() - entry.started > LOST_SECONDS:
            ends[entry.run_id] = Ending(RunOutcome.LOST, time.time(), note="it is gone, and nobody saw its end")

    async with asyncio.TaskGroup() as group:
        for entry in open_runs:
            group.create_task(end(entry))
    return ends


# --- in a thread -----------------------------------------------------------------------------------------------
def _open_entries(backend: str, context: str) -> list[HistoryEntry]:
    with HistoryStore() as store:
        return store.entries(HistoryFilter(states=(RunOutcome.RUNNING,), backend=backend, context=context))


def _put(ends: dict[str, Ending]) -> list[HistoryRecord]:
    """Write ends, and return the complete records."""
    if not ends:
        return []
    with HistoryStore() as store:
        return [store.get(run_id) for run_id, ending in ends.items() if store.complete(run_id, ending)]
