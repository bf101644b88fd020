"""Runs whose ends the keeper of their queue writes to the place for records, without any app or command running."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from l2rtui.backends.base import Backend
from l2rtui.backends.queue_store import QueueFile, ensure_keeper


async def watch_ends(backend: Backend, run_ids: Sequence[str]) -> None:
    """Let the keeper record the ends of these runs, if the settings name a place for records.

    Raises:
        BackendError: the queue cannot be written, or its keeper did not start.
    """
    store = backend.queue
    if store is None or not backend.history_to or not run_ids:
        return

    def added(file: QueueFile) -> QueueFile:
        return msgspec.structs.replace(file, unrecorded=tuple(dict.fromkeys((*file.unrecorded, *run_ids))))

    await asyncio.to_thread(store.change, added)
    await asyncio.to_thread(ensure_keeper, store)
