"""Transfer format of a record: gzipped JSON with a size limit, checked before anything is decoded."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import msgspec

from l2rtui.domain.history.record import HistoryRecord
from runtime.base import bounded_json

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
