"""Figures of the slot grid: rates of runs, idle holders, faults of learners, and the age of these data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from l2rtui.domain.metrics import PodMetrics, RunMetrics
from l2rtui.domain.owners import IdleGpus
from l2rtui.domain.quantity import age
from l2rtui.domain.runstatus import LearningState
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.status import Level
from l2rtui.domain.workload import Role
from l2rtui.ui.state.connection_status import ConnectionStatus
from l2rtui.ui.text import GLYPHS, Span, style_of_level
from l2rtui.ui.widgets.cluster_tables import old_contexts
from l2rtui.ui.widgets.gpu_grid import GpuGrid
from l2rtui.ui.widgets.grid.figures import GridFigures, RunFigure
from l2rtui.ui.widgets.run_table import is_learning

Fault = tuple[RunView, Sequence[PodView], LearningState]


class SlotFigures:
    """Source of the figures that the grid shows in addition to the slots.

    Attributes:
        idle: Idle GPUs; the time is shown with ``≥`` if they were already idle when this app started to watch.
    """

    def __init__(self, grid: GpuGrid) -> None:
        self._grid = grid
        self.idle = IdleGpus()

    def show(
        self,
        snapshot: ClusterSnapshot,
        metrics: Mapping[str, RunMetrics],
        records: Mapping[str, PodMetrics],
        old_records: Mapping[str, str],
        faults: Iterable[Fault],
        health: ConnectionStatus,
        pods_of: Callable[[str], Sequence[PodView]],
        now: float,
    ) -> None:
        """Update the figures; the grid draws the lines that differ."""
        faults = tuple(faults)
        if health.outage:  # without an answer nothing is known, including idleness
            self.idle.look_away()
        else:
            self.idle.take(snapshot, now)
        states = {run.uid: state for run, _, state in faults}
        old = old_contexts(snapshot.contexts, now)
        idle = {
            key: _short(time.text)
            for key, time in self.idle.long_idle(now).items()
            if not old or snapshot.nodes[key[0]].context not in old  # nothing is known of that time either
        }
        since = age(health.outage_seconds) if health.outage else ""
        # Runs without a record are left out: the grid shows nothing about them.
        runs = {
            run.name: _figure(
                metrics.get(run.uid), old_records.get(run.uid, ""), states.get(run.uid), pods_of(run.name)
            )
            for run in snapshot.runs.values()
            if run.uid in metrics or run.uid in states
        }
        silent = {name: _short(text) for name, text in old.items()}
        rates = _rates_of_workers(snapshot, records, old_records)
        self._grid.figures = GridFigures(runs, idle, rates, since, silent)
        self._grid.ghosts = {
            slot: Span(GLYPHS[state.level], style_of_level(state.level))
            for _, pods, state in faults
            for pod in pods
            if pod.role is Role.LEARNER and pod.ready
            for slot in pod.slots
        }


def _figure(record: RunMetrics | None, old: str, state: LearningState | None, pods: Sequence[PodView]) -> RunFigure:
    level, word = (state.level, str(state.state)) if state is not None else (Level.OK, "")
    # A learner that hangs or was deleted has no rate.
    is_live = record is not None and not old and is_learning(pods)
    rate = record.env_steps_per_second if record and is_live else None
    devices = frozenset() if rate is None else _collecting_devices(pods)
    return RunFigure(rate, old, level, word, devices)


def _collecting_devices(pods: Sequence[PodView]) -> frozenset[tuple[str, int]]:
    """Return node and index of the GPUs whose pods make the env steps of a run: its workers, else all of it."""
    workers = [pod for pod in pods if pod.role is Role.WORKER]
    return frozenset((slot.node, slot.gpu) for pod in workers or pods for slot in pod.slots)


def _rates_of_workers(
    snapshot: ClusterSnapshot, records: Mapping[str, PodMetrics], old: Mapping[str, str]
) -> dict[tuple[str, int], float]:
    """Return the env steps a second of each GPU whose workers all have a new record."""
    rates = {
        uid: record.rate
        for uid, record in records.items()
        if record.rate is not None and uid not in old and uid in snapshot.pods and not snapshot.pods[uid].is_down
    }
    devices = {(slot.node, slot.gpu) for uid in rates for slot in snapshot.pods[uid].slots}
    totals: dict[tuple[str, int], float] = {}
    for device in devices:
        holders = {slot.pod_uid for slot in snapshot.ledger.of_gpu(*device) if slot.pod_uid}
        workers = [uid for uid in holders if uid in snapshot.pods and snapshot.pods[uid].role is Role.WORKER]
        # A worker on several GPUs has no rate on one of them.
        if workers and all(uid in rates and len(snapshot.pods[uid].devices) == 1 for uid in workers):
            totals[device] = sum(rates[uid] for uid in workers)
    return totals


def _short(text: str) -> str:
    """Return the first part of a time span: ``3h`` of ``3h30m``."""
    return next(f"{text.partition(unit)[0]}{unit}" for unit in "dhms" if unit in text)
