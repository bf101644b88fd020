"""Owners: who holds slots and GPUs now, and GPU-hours of each owner from the recorded history of runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Final

import msgspec

from l2rtui.config import state_dir
from l2rtui.domain.history import HistoryEntry, LaunchFacts
from l2rtui.domain.node import CPU, SlotId
from l2rtui.domain.owners import IdleGpus, IdleSpan
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.services.history.store import HistoryFilter, HistoryStore, history_path
from runtime.base import bounded_json
from runtime.base.atomic_files import write_private

MAX_GAP_SECONDS: Final = 900.0
"""Longest gap between two looks that counts as continuous: ``cron`` looks every few minutes."""
MAX_BYTES: Final = 8 << 20
_MAX_PLACES: Final = 32


class _Span(msgspec.Struct, frozen=True):
    """One idle GPU, the uids of the pods on it, and the start time."""

    node: str
    gpu: int
    holders: list[str]
    since: float
    is_least: bool = True


class _Look(msgspec.Struct, frozen=True):
    """Look at one cluster."""

    time: float
    spans: list[_Span]


_Looks = Annotated[dict[str, _Look], msgspec.Meta(max_length=_MAX_PLACES)]


def idle_gpus(place: str, now: float) -> IdleGpus:
    """Return a tracker that continues from the last look at a place, unless that is too old.

    Args:
        place: Backend or context.
        now: Seconds since the epoch.
    """
    look = _read().get(place)
    if look is None or not 0.0 <= now - look.time <= MAX_GAP_SECONDS:
        return IdleGpus()
    spans = {
        (span.node, span.gpu): IdleSpan(frozenset(span.holders), span.since, span.is_least) for span in look.spans
    }
    return IdleGpus(spans)


def remember(place: str, idle: IdleGpus, now: float) -> None:
    """Save a look for the next one; errors are ignored."""
    spans = [_Span(*key, sorted(span.holders), span.since, span.is_least) for key, span in idle.spans.items()]
    looks = {name: look for name, look in _read().items() if now - look.time <= MAX_GAP_SECONDS}
    looks.pop(place, None)
    newest = dict(sorted(looks.items(), key=lambda item: -item[1].time)[: _MAX_PLACES - 1])
    text = msgspec.json.encode({**newest, place: _Look(now, spans)}).decode()
    try:
        # With two parallel commands the later look stays, and each is complete.
        write_private(state_dir() / "gpu-idle.json", text)
    except OSError:
        return


def _read() -> dict[str, _Look]:
    try:
        with (state_dir() / "gpu-idle.json").open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        return bounded_json.decode(data, _Looks) if len(data) <= MAX_BYTES else {}
    except (OSError, ValueError):
        return {}


DAYS: Final = 30
"""Number of days in which a run must have been launched to count."""


def gpu_hours(snapshot: ClusterSnapshot, backend: str, now: float) -> Mapping[str, float]:
    """Return the GPU-hours of each owner whose runs are in the history; empty without a history.

    A GPU counts in full for each run on it, from the launch to the end, or until now while the run exists. A run
    whose end is unknown does not count.

    Args:
        backend: Name of the backend whose runs count.
        now: Seconds since the epoch.

    Raises:
        HistoryError: the file cannot be read.
    """
    if not history_path().is_file():  # opening it would create one
        return {}
    cpus = {(node.name, gpu.index) for node in snapshot.nodes.values() for gpu in node.devices if gpu.is_cpu}
    there = {run.name for run in snapshot.runs.values()}
    hours: dict[str, float] = {}
    with HistoryStore() as history:
        for entry in history.entries(HistoryFilter(backend=backend, since=now - DAYS * 86_400.0)):
            seconds = _seconds(entry, there, now)
            if seconds:
                number = _num_gpus(history.get(entry.run_id).launch, cpus)
                hours[entry.owner] = hours.get(entry.owner, 0.0) + number * seconds / 3600.0
    return hours


def _seconds(entry: HistoryEntry, there: Collection[str], now: float) -> float:
    if entry.ended is not None:
        return max(0.0, entry.ended - entry.started)
    return max(0.0, now - entry.started) if entry.run in there else 0.0


def _num_gpus(launch: LaunchFacts, cpus: Collection[tuple[str, int]]) -> int:
    """Return the number of GPUs of a run; a device of a node that is no longer listed counts as a GPU."""
    devices: set[tuple[str, int]] = set()
    for _, slots in launch.placement:
        for text in slots:
            try:
                slot = SlotId.parse(text)
            except ValueError:  # written by a later version, or edited by hand
                continue
            devices.add((slot.node, slot.gpu))
    return sum(index != CPU and (node, index) not in cpus for node, index in devices)
