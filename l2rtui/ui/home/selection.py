"""What is selected, and what follows from it: the log to show, the lines about it, the targets of keys. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from l2rtui.domain.node import SlotId
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import Role
from l2rtui.services.metrics import RunMetrics
from l2rtui.services.podnews import PodNews
from l2rtui.ui.feeds import NO_SUBJECT, Subject
from l2rtui.ui.text import Line
from l2rtui.ui.widgets.metric_strip import about_pod, about_run, about_slot

PodsOf = Callable[[str, str], tuple[PodView, ...]]
"""Pods of a run, or of one of its sets, learners first."""


class Pane(StrEnum):
    """All views that have a key; values are the ids of their widgets."""

    SLOTS = "slots"
    RUNS = "runs"
    PODS = "pods"
    NODES = "nodes"
    LOG = "log"
    EVENTS = "events"
    LEAKS = "leaks"
    CHARTS = "charts"


@dataclass(frozen=True, slots=True)
class Selection:
    """Where the cursors stand, and which of them was moved last.

    Attributes:
        pane: The last of slots, runs and pods that had the focus.
        run_uid, pod_uid, slot: None where a pane is empty.
        cell: Name of the set whose cell the cursor of the matrix stands on; empty for the whole run.
    """

    pane: Pane = Pane.RUNS
    run_uid: str | None = None
    pod_uid: str | None = None
    slot: SlotId | None = None
    cell: str = ""

    def run(self, snapshot: ClusterSnapshot) -> RunView | None:
        """The selected run, or that of the selected pod or slot."""
        if self.pane is Pane.RUNS:
            return snapshot.runs.get(self.run_uid or "")
        pod = self.pod(snapshot)
        return snapshot.run_named(pod.run) if pod is not None and pod.run else None

    def pod(self, snapshot: ClusterSnapshot) -> PodView | None:
        """The selected pod, or the one that holds the selected slot; None while a run is selected."""
        if self.pane is Pane.PODS:
            return snapshot.pods.get(self.pod_uid or "")
        if self.pane is Pane.SLOTS and self.slot is not None:
            held = snapshot.ledger.slots.get(self.slot)
            return snapshot.pods.get(held.pod_uid) if held else None
        return None

    def pods(self, snapshot: ClusterSnapshot) -> tuple[PodView, ...]:
        """The selected pod, or those of the selected cell."""
        run = self.run(snapshot)
        if self.pane is Pane.RUNS and run is not None and self.cell:
            return snapshot.pods_of(run.name, self.cell)
        pod = self.pod(snapshot)
        return (pod,) if pod is not None else ()

    def set_name(self, snapshot: ClusterSnapshot) -> str:
        """The selected cell's or pod's set; of a run its only set of workers; else empty."""
        run = self.run(snapshot)
        if self.pane is Pane.RUNS and self.cell:
            return self.cell if run and any(one.name == self.cell for one in run.sets) else ""
        pod = self.pod(snapshot)
        if pod is not None:
            return pod.set_name
        workers = [one.name for one in run.sets if one.role is Role.WORKER] if run else []
        return workers[0] if len(workers) == 1 else ""

    def target(self, snapshot: ClusterSnapshot) -> str:
        """The selection as verbs name it: ``RUN``, ``RUN/SET``, or the name of a pod; empty when there is none."""
        run, pod = self.run(snapshot), self.pod(snapshot)
        if pod is not None:
            return pod.name
        return f"{run.name}/{self.cell}" if run and self.cell else run.name if run else ""

    def subject(
        self,
        snapshot: ClusterSnapshot,
        marked: Collection[str] = (),
        marked_runs: Collection[str] = (),
        *,
        pods_of: PodsOf | None = None,
    ) -> Subject:
        """Whose log to show: the marked pods, those of the marked runs, or those of the selection.

        Args:
            pods_of: Knows the pods of a run; without it the snapshot looks for them among all.
        """
        pods_of = pods_of or snapshot.pods_of
        pods = tuple(pod for uid, pod in snapshot.pods.items() if uid in marked) if marked else ()
        if pods:
            key = "marked " + " ".join(sorted(pod.uid for pod in pods))
            return Subject(key, f"{len(pods)} marked pods", "", pods, is_merged=True)
        runs = [run for uid, run in snapshot.runs.items() if uid in marked_runs] if marked_runs else []
        if runs and self.pane is Pane.RUNS:
            pods = tuple(pod for run in runs for pod in pods_of(run.name, self.cell))
            key = f"runs {' '.join(sorted(marked_runs))}/{self.cell}"
            return Subject(key, f"{len(runs)} marked runs", "", pods, is_merged=True)
        pod = self.pod(snapshot)
        if pod is not None:
            return Subject(f"pod {pod.uid}", pod.name, pod.run, (pod,))
        run = self.run(snapshot)
        if run is None:
            return NO_SUBJECT
        title = f"{run.name}/{self.cell}" if self.cell else run.name
        pods = pods_of(run.name, self.cell)
        return Subject(f"run {run.uid}/{self.cell}", title, run.name, pods, is_merged=True)

    def about(
        self,
        snapshot: ClusterSnapshot,
        metrics: RunMetrics | None,
        now: float,
        width: int,
        records: Mapping[str, PodNews] = MappingProxyType({}),
        *,
        pods_of: PodsOf | None = None,
    ) -> tuple[Line, ...]:
        """Lines about what is selected; the first is its sentence."""
        if self.pane is Pane.SLOTS and self.slot is not None:
            held = snapshot.ledger.slots.get(self.slot)
            if held is not None:
                record = records.get(held.pod_uid)
                return about_slot(held, snapshot.nodes.get(self.slot.node), self.pod(snapshot), now, record)
        pod, run = self.pod(snapshot), self.run(snapshot)
        if pod is not None:
            return about_pod(pod, now, records.get(pod.uid))
        pods = (pods_of or snapshot.pods_of)(run.name, "") if run is not None else ()
        return about_run(run, pods, metrics, now, width) if run is not None else ()
