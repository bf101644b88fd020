"""Admission of a run as a whole: what a queue or a gang scheduler reads on its pods; pure.

Kueue holds back the pods of a group by a scheduling gate until its quota takes all of them. Volcano and the
scheduler plugin `coscheduling` place the pods of a PodGroup when as many can be placed as its ``minMember``: here
all of them.

Sources: kueue.sigs.k8s.io, "Run Plain Pods", groups of pods; volcano.sh, PodGroup;
kubernetes-sigs/scheduler-plugins, pkg/coscheduling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.domain.plan import RunPlan
from l2rtui.domain.workload import QueueSystem

GATES_SINCE: Final = (1, 27)
"""First version whose pods have scheduling gates by default, which Kueue needs for groups of pods."""
API_GROUPS: Final = {
    QueueSystem.KUEUE: "kueue.x-k8s.io",
    QueueSystem.VOLCANO: "scheduling.volcano.sh",
    QueueSystem.COSCHEDULING: "scheduling.x-k8s.io",
}
_SCHEDULERS: Final = {
    QueueSystem.KUEUE: "",
    QueueSystem.VOLCANO: "volcano",
    # The name that the project's Helm chart gives it as a second scheduler.
    QueueSystem.COSCHEDULING: "scheduler-plugins-scheduler",
}
_POD_GROUPS: Final = {QueueSystem.VOLCANO: "v1beta1", QueueSystem.COSCHEDULING: "v1alpha1"}


@dataclass(frozen=True, slots=True)
class GangFields:
    """Fields that every pod of a run gets; empty for a run without a queue."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    scheduler: str = ""


NO_FIELDS: Final = GangFields()


def fields(run: RunPlan) -> GangFields:
    """Return the fields by which the pods of a run are queued together."""
    queue, name = run.spec.queue, group_name(run)
    if queue is None:
        return NO_FIELDS
    scheduler = queue.scheduler or _SCHEDULERS[queue.by]
    match queue.by:
        case QueueSystem.KUEUE:
            pod_labels = {labels.KUEUE_QUEUE: queue.name, labels.KUEUE_GROUP: name}
            return GangFields(pod_labels, {labels.KUEUE_COUNT: str(len(run.pods))}, scheduler)
        case QueueSystem.VOLCANO:
            return GangFields({}, {labels.VOLCANO_GROUP: name}, scheduler)
        case QueueSystem.COSCHEDULING:
            return GangFields({labels.COSCHEDULING_GROUP: name}, {}, scheduler)


def group_name(run: RunPlan) -> str:
    """Return the name of a run's group: another for each launch, as a finished group keeps its name for a while."""
    return f"{labels.run_object(run.spec.name)}-{run.uid[:8]}"


def pod_groups(run: RunPlan) -> list[dict[str, Any]]:
    """Return the PodGroup of a run; none where the pods themselves say all, or for a run without a queue."""
    queue = run.spec.queue
    if queue is None or queue.by not in _POD_GROUPS:
        return []
    spec: dict[str, Any] = {"minMember": len(run.pods)}
    if queue.by is QueueSystem.VOLCANO and queue.name:
        spec["queue"] = queue.name
    version = f"{API_GROUPS[queue.by]}/{_POD_GROUPS[queue.by]}"
    return [{"apiVersion": version, "kind": "PodGroup", "metadata": {"name": group_name(run)}, "spec": spec}]
