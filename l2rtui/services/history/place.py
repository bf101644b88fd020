"""Records that outlive their runs, in a folder or a bucket shared by several users: the setting ``history_to``.

Each run has one object: ``ID.launched.json.gz``, replaced by ``ID.ended.json.gz`` after its end. All work is done
in threads, with short waits: a place that hangs or fails costs a sentence, and the next look adds the missing
records.
"""

from __future__ import annotations

import asyncio
import platform
import re
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from l2rtui.backends.base import Backend
from l2rtui.config import user_name
from l2rtui.domain.history import HistoryEntry, HistoryRecord, RunOutcome
from l2rtui.errors import BackendError
from l2rtui.services.history.contexts import context_of
from l2rtui.services.history.store import HistoryFilter, HistoryStore
from runtime.base import bounded_json
from runtime.base.object_store import ObjectStore, open_store
from runtime.base.processes import in_daemon_thread

PLACE_SECONDS: Final = 2.0
"""Longest time for which a launch, a destroy or a list waits for the place."""
MAX_MISSING: Final = 32
"""Maximum number of own records that one look adds to the place."""
_AT_ONCE: Final = 16
_NAME: Final = re.compile(r"([0-9a-f]{32})\.(launched|ended)\.json\.gz")
_OPEN_STATES: Final = (RunOutcome.RUNNING, RunOutcome.LOST)
"""States of which the place may know more."""
_T = TypeVar("_T")


async def leave(backend: Backend, records: Sequence[HistoryRecord], seconds: float | None = None) -> None:
    """Write records to the place of the backend's setting.

    Args:
        seconds: Longest wait; None for a command's default.

    Raises:
        BackendError: the place does not answer in time, or refuses.
    """
    url = backend.history_to
    if url and records:
        await _in_time(url, lambda: _put_all(_opened(url), records), seconds or PLACE_SECONDS)


async def collect(url: str, backends: Sequence[Backend]) -> int:
    """Add the place's records that this history lacks, and write the own runs' records that the place lacks.

    Args:
        backends: Backends whose setting names the place: several contexts may share it.

    Returns:
        Number of runs that are new or have ended.

    Raises:
        L2RError: the place does not answer in time or refuses, or the history cannot be written.
    """
    until = time.monotonic() + PLACE_SECONDS * 0.75
    contexts = [(backend.name, context_of(backend)) for backend in backends]
    return await _in_time(url, lambda: _exchanged(_opened(url), contexts, until), PLACE_SECONDS)


async def _in_time(url: str, work: Callable[[], _T], seconds: float) -> _T:
    """Return the result of work; BackendError if the place fails or takes longer."""
    try:
        async with asyncio.timeout(seconds):
            return await in_daemon_thread(work)
    except TimeoutError:
        raise BackendError(f"The place of history_to, {url}, did not answer within {seconds:g} s.") from None
    except OSError as error:
        raise BackendError(f"The place of history_to, {url}, cannot be used: {error}.") from error


# --- in a thread -----------------------------------------------------------------------------------------------
def _opened(url: str) -> ObjectStore:
    return open_store(url if "://" in url else str(Path(url).expanduser()))


def _put_all(store: ObjectStore, records: Iterable[HistoryRecord]) -> None:
    with tempfile.TemporaryDirectory(prefix="l2rtui-history-") as folder:
        source = Path(folder, "record")
        for record in records:
            if not (packed := encode(_with_host(record))):
                continue
            source.write_bytes(packed)
            uid = record.entry.run_id
            store.put(f"{uid}.{'launched' if record.ending is None else 'ended'}.json.gz", source)
            if record.ending is not None:
                store.remove(f"{uid}.launched.json.gz")


def _with_host(record: HistoryRecord) -> HistoryRecord:
    """Add the machine's name to a run without a context: elsewhere it must not look like a run of the reader's
    machine.
    """
    if record.entry.context:
        return record
    return replace(record, entry=replace(record.entry, context=platform.node()))


def _exchanged(place: ObjectStore, contexts: Sequence[tuple[str, str]], until: float) -> int:
    stored = {
        match[1]: match[2] for name in sorted(place.names(), reverse=True) if (match := _NAME.fullmatch(name))
    }
    # Reversed, `launched` comes before `ended`, so of both the end counts.
    with HistoryStore() as history:
        present = history.has(list(stored))
        unfinished = {entry.run_id for entry in history.entries(HistoryFilter(states=_OPEN_STATES))}
        news = [
            f"{uid}.{state}.json.gz"
            for uid, state in stored.items()
            if uid not in present or (state == "ended" and uid in unfinished)
        ]
        number = _received(place, history, news, present, until)
        missing = [
            entry.run_id
            for backend, context in contexts
            for entry in history.entries(
                HistoryFilter(owner=user_name(), backend=backend, context=context, limit=1000)
            )
            if _is_missing(entry, stored)
        ][:MAX_MISSING]
        records = [history.get(uid) for uid in missing]
    _put_all(place, records)
    return number


def _received(
    place: ObjectStore, history: HistoryStore, names: Sequence[str], present: set[str], until: float
) -> int:
    """Store the records of these names, as many as can be read in time; the next look continues."""
    number = 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for start in range(0, len(names), _AT_ONCE):
            if time.monotonic() > until:
                break
            for record in pool.map(lambda name: _read(place, name), names[start : start + _AT_ONCE]):
                if record is None:
                    continue
                number += 1
                if record.entry.run_id not in present:
                    history.put([record])
                elif record.ending is not None:
                    history.complete(record.entry.run_id, record.ending)
    return number


def _read(place: ObjectStore, name: str) -> HistoryRecord | None:
    """Return a record; None if it is invalid or belongs to another run."""
    try:
        record = decode(place.read(name, MAX_RECORD_BYTES + 1))
    except FileNotFoundError:  # its end has just replaced it
        return None
    return record if record is not None and record.entry.run_id == name.partition(".")[0] else None


def _is_missing(entry: HistoryEntry, stored: dict[str, str]) -> bool:
    if entry.state is RunOutcome.RUNNING:
        return entry.run_id not in stored
    return entry.state is not RunOutcome.LOST and stored.get(entry.run_id) != "ended"


MAX_RECORD_BYTES: Final = 64 << 10
"""Compressed size of a transferred record: together with the spec, far below the 1 MiB of a ConfigMap."""
MAX_DECODED_BYTES: Final = 4 << 20
_GZIP: Final = 16 + zlib.MAX_WBITS


def encode(record: HistoryRecord) -> bytes:
    """Return a record as gzipped JSON of at most `MAX_RECORD_BYTES`; the longest parts are dropped first, with a
    sentence.

    Returns:
        Empty if even the rest is too large.
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


def decode(packed: bytes) -> HistoryRecord | None:
    """Return a record; None if it is invalid or too large. The caller must check which run it belongs to."""
    if len(packed) > MAX_RECORD_BYTES:
        return None
    try:
        text = zlib.decompressobj(_GZIP).decompress(packed, MAX_DECODED_BYTES)
        return bounded_json.decode(text, HistoryRecord)
    except (zlib.error, ValueError):
        return None
