"""Selection: positions of the cursors, and the run, pods, log and lines derived from them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from types import MappingProxyType

from msgspec import Struct

from l2rtui.domain.metrics import PodMetrics, RunMetrics
from l2rtui.domain.node import SlotId
from l2rtui.domain.quantity import counted
from l2rtui.domain.runstatus import LearningState
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import Role
from l2rtui.ui.home.log_stream import NO_LOG, LogSelection
from l2rtui.ui.text import Line
from l2rtui.ui.widgets.metric_strip import about_pod, about_run, about_slot

PodsOf = Callable[[str, str], tuple[PodView, ...]]
"""Pods of a run, or of one of its sets, learners first."""


class Pane(StrEnum):
    """Views that have a number key; values are the ids of their widgets."""

    SLOTS = "slots"
    RUNS = "runs"
    PODS = "pods"
    NODES = "nodes"
    LOG = "log"
    EVENTS = "events"
    LEAKS = "leaks"
    CHARTS = "charts"


class Selection(Struct, frozen=True):
    """Positions of the cursors, and the list that had the focus last.

    Attributes:
        pane: The last of slots, runs and pods that had the focus.
        run_uid, pod_uid, slot: None if a pane is empty.
        cell: Name of the set whose cell in the matrix has the cursor; empty for the whole run.
    """

    pane: Pane = Pane.RUNS
    run_uid: str | None = None
    pod_uid: str | None = None
    slot: SlotId | None = None
    cell: str = ""

    def run(self, snapshot: ClusterSnapshot) -> RunView | None:
        """Return the selected run, or the run of the selected pod or slot."""
        if self.pane is Pane.RUNS:
            return snapshot.runs.get(self.run_uid or "")
        pod = self.pod(snapshot)
        return snapshot.run_named(pod.run) if pod is not None and pod.run else None

    def pod(self, snapshot: ClusterSnapshot) -> PodView | None:
        """Return the selected pod, or the one on the selected slot; None while a run is selected."""
        if self.pane is Pane.PODS:
            return snapshot.pods.get(self.pod_uid or "")
        if self.pane is Pane.SLOTS and self.slot is not None:
            entry = snapshot.ledger.slots.get(self.slot)
            return snapshot.pods.get(entry.pod_uid) if entry else None
        return None

    def pods(self, snapshot: ClusterSnapshot) -> tuple[PodView, ...]:
        """Return the selected pod, or the pods of the selected cell."""
        run = self.run(snapshot)
        if self.pane is Pane.RUNS and run is not None and self.cell:
            return snapshot.pods_of(run.name, self.cell)
        pod = self.pod(snapshot)
        return (pod,) if pod is not None else ()

    def set_name(self, snapshot: ClusterSnapshot) -> str:
        """Return the set of the selected cell or pod, or the only set of workers of a run; otherwise empty."""
        run = self.run(snapshot)
        if self.pane is Pane.RUNS and self.cell:
            return self.cell if run and run.set_named(self.cell) else ""
        pod = self.pod(snapshot)
        if pod is not None:
            return pod.set_name
        workers = [view.name for view in run.sets if view.role is Role.WORKER] if run else []
        return workers[0] if len(workers) == 1 else ""

    def target(self, snapshot: ClusterSnapshot) -> str:
        """Return the selection as a CLI target: ``RUN``, ``RUN/SET``, or a pod; empty if nothing is selected."""
        run, pod = self.run(snapshot), self.pod(snapshot)
        if pod is not None:
            return pod.name
        return f"{run.name}/{self.cell}" if run and self.cell else run.name if run else ""

    def log(
        self,
        snapshot: ClusterSnapshot,
        marked: Collection[str] = (),
        marked_runs: Collection[str] = (),
        *,
        pods_of: PodsOf | None = None,
    ) -> LogSelection:
        """Return the pods whose log to show: the marked pods, the pods of marked runs, or those of the
        selection.
        """
        pods_of = pods_of or snapshot.pods_of  # without an index the snapshot searches all pods
        # The keys distinguish logs, and content.show_log reads "run UID/SET" to add pods that come later.
        pods = tuple(pod for uid, pod in snapshot.pods.items() if uid in marked) if marked else ()
        if pods:
            key = "marked " + " ".join(sorted(pod.uid for pod in pods))
            return LogSelection(key, f"{len(pods)} marked pods", "", pods, is_merged=True)
        runs = [run for uid, run in snapshot.runs.items() if uid in marked_runs] if marked_runs else []
        if runs and self.pane is Pane.RUNS:
            pods = tuple(pod for run in runs for pod in pods_of(run.name, self.cell))
            key = f"runs {' '.join(sorted(marked_runs))}/{self.cell}"
            return LogSelection(key, f"{counted(len(runs), 'marked run')}", "", pods, is_merged=True)
        pod = self.pod(snapshot)
        if pod is not None:
            return LogSelection(f"pod {pod.uid}", pod.name, pod.run, (pod,))
        run = self.run(snapshot)
        if run is None:
            return NO_LOG
        title = f"{run.name}/{self.cell}" if self.cell else run.name
        pods = pods_of(run.name, self.cell)
        return LogSelection(f"run {run.uid}/{self.cell}", title, run.name, pods, is_merged=True)

    def about(
        self,
        snapshot: ClusterSnapshot,
        metrics: RunMetrics | None,
        now: float,
        width: int,
        records: Mapping[str, PodMetrics] = MappingProxyType({}),
        *,
        pods_of: PodsOf | None = None,
        old: Mapping[str, str] = MappingProxyType({}),
        learning: LearningState | None = None,
        is_single: bool = False,
    ) -> tuple[Line, ...]:
        """Return lines about the selection; the first is a complete sentence.

        Args:
            old: Ages of outdated records of runs and pods, by uid.
            learning: State of the learning of the selected run.
            is_single: Only the first line is shown.
        """
        mismatches = snapshot.ledger.mismatches
        if self.pane is Pane.SLOTS and self.slot is not None:
            entry = snapshot.ledger.slots.get(self.slot)
            if entry is not None:
                record = records.get(entry.pod_uid)
                node, holder = snapshot.nodes.get(self.slot.node), self.pod(snapshot)
                facts = (record, metrics, old.get(entry.pod_uid, ""), mismatches.get(entry.pod_uid, ()))
                shares = snapshot.gpu_shares(holder) if holder is not None else {}
                unseen = snapshot.ledger.nodes[entry.id.node].unseen
                return about_slot(entry, node, holder, now, *facts, shares, unseen)
        pod, run = self.pod(snapshot), self.run(snapshot)
        if pod is not None:
            facts = (records.get(pod.uid), metrics, old.get(pod.uid, ""), mismatches.get(pod.uid, ()))
            return about_pod(pod, now, *facts, snapshot.gpu_shares(pod))
        pods = (pods_of or snapshot.pods_of)(run.name, "") if run is not None else ()
        if run is None:
            return ()
        return about_run(run, pods, metrics, now, width, old.get(run.uid, ""), learning, is_single=is_single)
