"""GPU-hours of each owner, from the history of runs that this machine has recorded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from l2rtui.domain.history.record import HistoryEntry, LaunchFacts
from l2rtui.domain.node import CPU, SlotId
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.services.history.store import HistoryFilter, HistoryStore, history_path

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
