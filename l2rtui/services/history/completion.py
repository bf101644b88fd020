"""Completion of records: the next command that sees a run that ended unattended records its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from l2rtui.domain.history import Ending, HistoryEntry, HistoryRecord, RunOutcome
from l2rtui.errors import L2RError
from l2rtui.services.history import recorder
from l2rtui.services.history.contexts import context_of, parts_of
from l2rtui.services.history.store import HistoryFilter, HistoryStore, history_path

if TYPE_CHECKING:
    from l2rtui.backends.base import Backend
    from l2rtui.domain.snapshot import ClusterSnapshot

LOST_SECONDS: Final = 600.0
"""Age from which a missing run counts as lost: a launch in waves writes its record long before its runs."""
GONE_SECONDS: Final = 30.0
"""The same where the server itself says so: a launch makes the object of each run before anything else."""
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
    backend: Backend,
    snapshot: ClusterSnapshot | None = None,
    place_seconds: float | None = None,
    last_look: float = 0.0,
) -> int:
    """Record the ends of runs that the history lists as running; return their number. Never raises.

    Args:
        snapshot: Of the backend; None takes one where some run is open. Of several contexts each takes its own.
        place_seconds: Longest wait for the place for records; None for that of a command.
        last_look: Time at which the runs were last seen, in seconds since the epoch; 0 if unknown.
    """
    if not recorder.is_recorded(backend) or not history_path().exists():
        return 0
    parts = parts_of(backend)
    if len(parts) == 1:
        return await _complete_ended(backend, snapshot, place_seconds, last_look)
    return sum(await asyncio.gather(*(_complete_in_time(part, place_seconds, last_look) for part in parts)))


async def _complete_in_time(backend: Backend, place_seconds: float | None, last_look: float) -> int:
    try:
        async with asyncio.timeout(CONTEXT_SECONDS):
            return await _complete_ended(backend, None, place_seconds, last_look)
    except TimeoutError:
        _log.warning("history: the context %s gave no answer within %g s", context_of(backend), CONTEXT_SECONDS)
        return 0


async def _complete_ended(
    backend: Backend, snapshot: ClusterSnapshot | None, place_seconds: float | None, last_look: float
) -> int:
    ends: dict[str, Ending] = {}
    try:
        open_runs = await asyncio.to_thread(_open_entries, backend.name, context_of(backend))
        if not open_runs:
            return 0
        snapshot = await backend.snapshot() if snapshot is None else snapshot
        ends = await _ends(backend, snapshot, open_runs, last_look)
        records = await asyncio.to_thread(_put, ends)
        if records and recorder.is_shared(backend):
            from l2rtui.services.history.sharing import share

            await share(backend, records, place_seconds)
    except L2RError as error:
        _log.warning("history: %s", error)
    return len(ends)


async def _ends(
    backend: Backend, snapshot: ClusterSnapshot, open_runs: Collection[HistoryEntry], last_look: float
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
        elif await _is_lost(backend, entry, sees_all=sees_all):
            ends[entry.run_id] = Ending(RunOutcome.LOST, time.time(), note=_note_of_lost(entry, last_look))

    async with asyncio.TaskGroup() as group:
        for entry in open_runs:
            group.create_task(end(entry))
    return ends


async def _is_lost(backend: Backend, entry: HistoryEntry, *, sees_all: bool) -> bool:
    """Return whether a run that is not among those of a snapshot is gone."""
    age = time.time() - entry.started
    if sees_all and age > LOST_SECONDS:
        return True
    # A list of one namespace proves nothing of another; the server is asked for the run itself.
    if backend.records is None or not entry.namespace or age < GONE_SECONDS:
        return False
    from l2rtui.backends.base import RunPlace  # where a run is missing, which most looks back never see

    return await backend.records.is_gone(RunPlace(entry.run, entry.run_id, entry.namespace))


def _note_of_lost(entry: HistoryEntry, last_look: float) -> str:
    moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(max(entry.started, last_look)))
    return f"it was deleted without l2rtui; last seen {moment}"


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
