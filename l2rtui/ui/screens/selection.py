"""What is selected, and what follows from it: the log to show, the lines about it, the targets of keys. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from l2rtui.domain.node import SlotId
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import Role
from l2rtui.services.metrics import RunMetrics
from l2rtui.ui.feeds import NO_SUBJECT, Subject
from l2rtui.ui.text import Line
from l2rtui.ui.widgets.metric_strip import about_pod, about_run, about_slot


class Pane(StrEnum):
    """The panes that have a cursor, and the log; values are the ids of their widgets."""

    SLOTS = "slots"
    RUNS = "runs"
    PODS = "pods"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class Selection:
    """Where the cursors stand, and which of them was moved last.

    Attributes:
        pane: The last of slots, runs and pods that had the focus.
        run_uid, pod_uid, slot: None where a pane is empty.
    """

    pane: Pane = Pane.RUNS
    run_uid: str | None = None
    pod_uid: str | None = None
    slot: SlotId | None = None

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

    def set_name(self, snapshot: ClusterSnapshot) -> str:
        """The selected pod's set; of a run its only set of workers; else empty."""
        pod = self.pod(snapshot)
        if pod is not None:
            return pod.set_name
        run = self.run(snapshot)
        workers = [one.name for one in run.sets if one.role is Role.WORKER] if run else []
        return workers[0] if len(workers) == 1 else ""

    def subject(self, snapshot: ClusterSnapshot, marked: Collection[str] = ()) -> Subject:
        """Whose log to show: the marked pods, the selected pod, or all pods of the selected run."""
        pods = tuple(pod for uid, pod in snapshot.pods.items() if uid in marked)
        if pods:
            key = "marked " + " ".join(sorted(pod.uid for pod in pods))
            return Subject(key, f"{len(pods)} marked pods", "", pods, is_merged=True)
        pod = self.pod(snapshot)
        if pod is not None:
            return Subject(f"pod {pod.uid}", pod.name, pod.run, (pod,))
        run = self.run(snapshot)
        if run is None:
            return NO_SUBJECT
        pods = snapshot.pods_of(run.name)
        return Subject(f"run {run.uid}", run.name, run.name, pods, is_merged=True)

    def about(
        self, snapshot: ClusterSnapshot, metrics: RunMetrics | None, now: float, width: int
    ) -> tuple[Line, ...]:
        """Lines about what is selected; the first is its sentence."""
        if self.pane is Pane.SLOTS and self.slot is not None:
            held = snapshot.ledger.slots.get(self.slot)
            if held is not None:
                return about_slot(held, snapshot.nodes.get(self.slot.node), self.pod(snapshot), now)
        pod, run = self.pod(snapshot), self.run(snapshot)
        if pod is not None:
            return about_pod(pod, now)
        return about_run(run, snapshot.pods_of(run.name), metrics, now, width) if run is not None else ()
