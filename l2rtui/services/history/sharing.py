"""Records that travel with their runs: bounded, without secrets, and read into the history of whoever sees the run.

A record comes from outside when it is read: its size is bounded before it is decoded, it counts only for the run
that it is attached to, and it never changes what this machine's own history knows.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from l2rtui.backends.base import Backend, RunPlace
from l2rtui.domain.history.record import Ending, HistoryRecord, RunOutcome
from l2rtui.errors import L2RError
from l2rtui.services.history.launch_facts import context_of
from l2rtui.services.history.store import HistoryFilter, HistoryStore

MAX_RECORD_BYTES: Final = 64 << 10
"""Compressed size of a travelling record: beside the spec, far from the 1 MiB of a ConfigMap."""
MAX_DECODED_BYTES: Final = 4 << 20
SHARE_SECONDS: Final = 3.0
"""Time for which a launch waits until its records travel."""
_AT_ONCE: Final = 8
_GZIP: Final = 16 + zlib.MAX_WBITS
_log = logging.getLogger(__name__)


# --- form ------------------------------------------------------------------------------------------------------
def encode(record: HistoryRecord) -> bytes:
    """Return a record as gzipped JSON of at most `MAX_RECORD_BYTES`; what is longest goes first, with a sentence.

    Returns:
        Empty where even the rest is too large.
    """
    for smaller in _smaller(record):
        packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        packed = packer.compress(msgspec.json.encode(smaller)) + packer.flush()
        if len(packed) <= MAX_RECORD_BYTES:
            return packed
    return b""


def _smaller(record: HistoryRecord) -> Iterable[HistoryRecord]:
    yield record
    if record.launch.source.diff:
        problem = "its changes were too long to travel with the run"
        source = replace(record.launch.source, diff="", problem=problem)
        record = replace(record, launch=replace(record.launch, source=source))
        yield record
    if record.ending is not None:
        note = "its curve and log lines were too long to travel with the run"
        record = replace(record, ending=replace(record.ending, curve=(), logs=(), note=note))
        yield record


def decode(place: RunPlace, packed: bytes) -> HistoryRecord | None:
    """Return the record of a run; None for what is none, is too large, or is that of another run."""
    if len(packed) > MAX_RECORD_BYTES:
        return None
    unpacker = zlib.decompressobj(_GZIP)
    try:
        text = unpacker.decompress(packed, MAX_DECODED_BYTES)
        record = msgspec.json.decode(text, type=HistoryRecord)
    except (zlib.error, msgspec.MsgspecError):
        return None
    is_its_own = (record.entry.run, record.entry.run_id) == (place.run, place.run_id)
    return record if is_its_own and place.run_id else None


# --- to the runs -----------------------------------------------------------------------------------------------
async def share(backend: Backend, records: Iterable[HistoryRecord]) -> None:
    """Attach records to their runs. Never fails: who may not write there has them in the own history."""
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
    """Add the records of visible runs to the history of this machine, and the ends that others have seen.

    Returns:
        Number of runs that are new or have ended.

    Raises:
        L2RError: they cannot be listed, or the history cannot be written.
    """
    if backend.records is None:
        return 0
    packed = await backend.records.list()
    if not packed:
        return 0
    return await asyncio.to_thread(_received, backend.name, context_of(backend), packed)


def _received(backend: str, context: str, packed: Mapping[RunPlace, bytes]) -> int:
    with HistoryStore() as store:
        present = store.has([place.run_id for place in packed])
        open_runs = {entry.run_id for entry in store.entries(HistoryFilter(states=(RunOutcome.RUNNING,)))}
        unfinished = (place for place in packed if place.run_id not in present - open_runs)
        records = {place: record for place in unfinished if (record := decode(place, packed[place]))}
        new = [
            # Our name of the context: the colleague's may be another.
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
