"""Absence of the user: the time at which the app was last open, by context, and events since then.

The time is noted while the app is open and when it exits, so a killed app has a time as well.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from l2rtui.backends.base import Backend
from l2rtui.config import state_dir, user_name
from l2rtui.domain.history import Departure, Happening, HistoryEntry, happenings, is_evicted
from l2rtui.domain.snapshot import ClusterSnapshot, PodView
from l2rtui.domain.status import KubeEvent
from l2rtui.errors import L2RError
from l2rtui.services.history.completion import complete_ended
from l2rtui.services.history.contexts import context_of
from l2rtui.services.history.store import HistoryFilter, HistoryStore, history_path
from l2rtui.services.ownership import is_mine
from runtime.base import bounded_json
from runtime.base.atomic_files import write_private

MAX_EVICTED: Final = 1_000
EVENT_SECONDS: Final = 5.0
"""Longest wait for the events of the cluster; the rest is shown without them."""
_log = logging.getLogger(__name__)


class _DepartureFile(msgspec.Struct):
    left: float
    evicted: list[str] = []


def departure(backend: Backend) -> Departure | None:
    """Return when the app was last open in the context of a backend; None for never, or if unknown."""
    try:
        file = bounded_json.decode(_path(backend).read_bytes(), _DepartureFile)
    except (OSError, ValueError):
        return None
    return Departure(file.left, frozenset(file.evicted)) if math.isfinite(file.left) else None


def note_departure(backend: Backend, snapshot: ClusterSnapshot, now: float) -> None:
    """Note that the app is open now; a failed write is only logged, as nothing depends on it.

    Args:
        now: Seconds since the epoch.
    """
    evicted = [pod.uid for pod in _own_pods(snapshot) if is_evicted(pod)][:MAX_EVICTED]
    try:
        write_private(_path(backend), msgspec.json.encode(_DepartureFile(now, evicted)).decode())
    except OSError as error:
        _log.warning("%s was not written: %s", _path(backend), error.strerror)


async def since(backend: Backend, snapshot: ClusterSnapshot, left: Departure) -> tuple[Happening, ...]:
    """Return the events of the user's runs since a departure, after recording ends that were not recorded yet.

    Raises:
        HistoryError: the history cannot be read.
    """
    await complete_ended(backend, snapshot, last_look=left.left)
    entries = await asyncio.to_thread(entries_since, backend, left.left)
    return happenings(left, entries, _own_pods(snapshot), await _events(backend))


def entries_since(backend: Backend, left: float) -> list[HistoryEntry]:
    """Return the runs of the user that started or ended since a time, and running ones.

    Raises:
        HistoryError: the history cannot be read.
    """
    if not history_path().exists():
        return []
    context = context_of(backend)
    with HistoryStore() as store:
        entries = store.entries(HistoryFilter(backend=backend.name, touched_since=left))
    # A view of several contexts shows the runs of each of them.
    contexts = {context, *context.split(",")}
    return [entry for entry in entries if entry.context in contexts and entry.owner in ("", user_name())]


def _own_pods(snapshot: ClusterSnapshot) -> list[PodView]:
    me = user_name()
    return [pod for pod in snapshot.pods.values() if pod.run and is_mine(pod, me)]


async def _events(backend: Backend) -> Sequence[KubeEvent]:
    if backend.inspector is None:
        return ()
    try:
        async with asyncio.timeout(EVENT_SECONDS):
            return await backend.inspector.events()
    except (L2RError, TimeoutError):  # forbidden, or too many: the state of the pods is still available
        return ()


def _path(backend: Backend) -> Path:
    # The name of a context may be any text, and longer than a file name.
    digest = hashlib.blake2b(context_of(backend).encode(), digest_size=8).hexdigest()
    return state_dir() / "left" / f"{backend.name}-{digest}.json"
