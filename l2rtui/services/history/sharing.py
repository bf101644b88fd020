"""Records attached to runs: bounded, without secrets, and read into the history of each user who sees the run.

A record that is read is outside data: its size is checked before it is decoded, it is valid only for the run that
it is attached to, and it never changes known entries of this machine's history.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from l2rtui.backends.base import Backend, RunPlace
from l2rtui.domain.history import Ending, HistoryRecord, RunOutcome
from l2rtui.errors import BackendError, L2RError
from l2rtui.services.history.contexts import context_of, parts_of
from l2rtui.services.history.place import decode, encode
from l2rtui.services.history.store import HistoryFilter, HistoryStore

SHARE_SECONDS: Final = 3.0
"""Longest wait of a launch until its records are attached."""
CONTEXT_SECONDS: Final = 4.0
"""Longest wait for one of several contexts."""
_AT_ONCE: Final = 8
_log = logging.getLogger(__name__)


# --- to the runs -----------------------------------------------------------------------------------------------
async def share(backend: Backend, records: Sequence[HistoryRecord], place_seconds: float | None = None) -> None:
    """Attach records to their runs, and write them to the place for records at the same time.

    A user without write access to the runs has the records only in the own history.

    Args:
        place_seconds: Longest wait for the place; None for a command's default.

    Raises:
        BackendError: the place for records does not answer in time, or refuses.
    """
    if not backend.history_to:
        await _attach(backend, records)
        return
    from l2rtui.services.history.place import leave

    _, problem = await asyncio.gather(
        _attach(backend, records), leave(backend, records, place_seconds), return_exceptions=True
    )
    if isinstance(problem, BaseException):
        raise problem


async def _attach(backend: Backend, records: Sequence[HistoryRecord]) -> None:
    store = backend.records
    if store is None:
        return
    limit = asyncio.Semaphore(_AT_ONCE)

    async def put(record: HistoryRecord) -> None:
        packed = await asyncio.to_thread(encode, record)
        entry = record.entry
        async with limit:
            if packed:
                await store.put(RunPlace(entry.run, entry.run_id, entry.namespace), packed)

    try:
        async with asyncio.timeout(SHARE_SECONDS):
            results = await asyncio.gather(*map(put, records), return_exceptions=True)
    except TimeoutError:
        _log.info("history: records could not be attached to their runs within %g s", SHARE_SECONDS)
        return
    for error in results:
        if isinstance(error, L2RError):
            _log.info("history: a record does not travel with its run: %s", error)
        elif isinstance(error, BaseException):
            raise error


# --- from the runs ---------------------------------------------------------------------------------------------
async def receive(backend: Backend) -> int:
    """Add the records of visible runs, then those in the places for records, and the ends seen by others.

    Several contexts are asked in parallel, and a context that does not answer does not block the others.

    Returns:
        Number of runs that are new or have ended.

    Raises:
        L2RError: they cannot be listed, or the history cannot be written.
    """
    parts = parts_of(backend)
    receive_from = _receive_in_time if len(parts) > 1 else _receive_visible
    results = await asyncio.gather(*map(receive_from, parts), return_exceptions=True)
    places: dict[str, list[Backend]] = {}
    for part in parts:
        if part.history_to:
            places.setdefault(part.history_to, []).append(part)
    if places:
        from l2rtui.services.history.place import collect

        # Sequentially, after the runs: two parallel writes of the same run could undo its end.
        for url, backends in places.items():
            results += await asyncio.gather(collect(url, backends), return_exceptions=True)
    return _total(results)


def _total(results: Iterable[int | BaseException]) -> int:
    """Return the sum; raise the first error if there is one."""
    total = 0
    for result in results:
        if isinstance(result, BaseException):
            raise result
        total += result
    return total


async def _receive_in_time(backend: Backend) -> int:
    try:
        async with asyncio.timeout(CONTEXT_SECONDS):
            return await _receive_visible(backend)
    except TimeoutError:
        sentence = f"The context {context_of(backend)} gave no answer within {CONTEXT_SECONDS:g} s."
        raise BackendError(sentence) from None


async def _receive_visible(backend: Backend) -> int:
    if backend.records is None:
        return 0
    packed = await backend.records.list()
    if not packed:
        return 0
    return await asyncio.to_thread(_received, backend.name, context_of(backend), packed)


def record_of(place: RunPlace, packed: bytes) -> HistoryRecord | None:
    """Return the record of a run; None if it is invalid, too large, or belongs to another run."""
    record = decode(packed)
    if record is None or not place.run_id:
        return None
    return record if (record.entry.run, record.entry.run_id) == (place.run, place.run_id) else None


def _received(backend: str, context: str, packed: Mapping[RunPlace, bytes]) -> int:
    with HistoryStore() as store:
        present = store.has([place.run_id for place in packed])
        open_runs = {entry.run_id for entry in store.entries(HistoryFilter(states=(RunOutcome.RUNNING,)))}
        unfinished = (place for place in packed if place.run_id not in present - open_runs)
        records = {place: record for place in unfinished if (record := record_of(place, packed[place]))}
        new = [
            # Our name of the context: another user's may differ.
            replace(
                record,
                entry=replace(record.entry, backend=backend, context=context, namespace=place.namespace),
            )
            for place, record in records.items()
            if place.run_id not in present
        ]
        ends: dict[str, Ending] = {
            place.run_id: record.ending
            for place, record in records.items()
            if place.run_id in present and record.ending is not None
        }
        if new:
            store.put(new)
        for run_id, ending in ends.items():
            store.complete(run_id, ending)
    return len(new) + len(ends)
