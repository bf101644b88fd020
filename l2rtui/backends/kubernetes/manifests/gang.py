"""Gang admission of a run: the fields on its pods that a queue or a gang scheduler reads. Pure.

Kueue holds back the pods of a group with a scheduling gate until its quota allows all of them. Volcano and the
scheduler plugin `coscheduling` place the pods of a PodGroup once its ``minMember`` can be placed: here all of them.
A JobSet creates all Jobs of a run, ends them together, and is suspended as a whole by Kueue.

Sources: kueue.sigs.k8s.io, "Run Plain Pods", groups of pods; volcano.sh, PodGroup;
kubernetes-sigs/scheduler-plugins, pkg/coscheduling; jobset.sigs.k8s.io, API reference v1alpha2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from l2rtui.backends.kubernetes import labels
from l2rtui.domain.plan import RunPlan
from l2rtui.domain.workload import QueueSystem, Role, RunSpec

GATES_SINCE: Final = (1, 27)
"""First version whose pods have scheduling gates by default, which Kueue needs for groups of pods."""
API_GROUPS: Final = {
    QueueSystem.KUEUE: "kueue.x-k8s.io",
    QueueSystem.VOLCANO: "scheduling.volcano.sh",
    QueueSystem.COSCHEDULING: "scheduling.x-k8s.io",
    QueueSystem.JOBSET: "jobset.x-k8s.io",
}
KINDS: Final = ("PodGroup", "JobSet")
"""Kinds of these API groups that a run has."""
_SCHEDULERS: Final = {
    QueueSystem.KUEUE: "",
    QueueSystem.JOBSET: "",
    QueueSystem.VOLCANO: "volcano",
    # The name that the project's Helm chart gives it as a second scheduler.
    QueueSystem.COSCHEDULING: "scheduler-plugins-scheduler",
}
_POD_GROUPS: Final = {QueueSystem.VOLCANO: "v1beta1", QueueSystem.COSCHEDULING: "v1alpha1"}


class GangFields(Struct, frozen=True):
    """Fields that every pod of a run gets; empty for a run without a queue."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    scheduler: str = ""


NO_FIELDS: Final = GangFields()


def fields(run: RunPlan) -> GangFields:
    """Return the fields that queue the pods of a run together."""
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
        case QueueSystem.JOBSET:
            return GangFields({}, {}, scheduler)


def group_name(run: RunPlan) -> str:
    """Return the name of a run's group. Each launch has another, as a finished group keeps its name for a while."""
    return f"{labels.run_object(run.spec.name)}-{run.uid[:8]}"


def pod_groups(run: RunPlan) -> list[dict[str, Any]]:
    """Return the PodGroup of a run; empty if pod fields suffice, or for a run without a queue."""
    queue = run.spec.queue
    if queue is None or queue.by not in _POD_GROUPS:
        return []
    spec: dict[str, Any] = {"minMember": len(run.pods)}
    if queue.by is QueueSystem.VOLCANO and queue.name:
        spec["queue"] = queue.name
    version = f"{API_GROUPS[queue.by]}/{_POD_GROUPS[queue.by]}"
    return [{"apiVersion": version, "kind": "PodGroup", "metadata": {"name": group_name(run)}, "spec": spec}]


# --- JobSet -------------------------------------------------------------------------------------------------
def is_job_set(spec: RunSpec) -> bool:
    """Return True if a JobSet creates the Jobs of a run."""
    return spec.queue is not None and spec.queue.by is QueueSystem.JOBSET


def folded(run: RunPlan, objects: Sequence[dict[str, Any]], run_labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the objects of a run as they are created: with its Jobs in one JobSet, if the run asks for that."""
    if not is_job_set(run.spec):
        return list(objects)
    jobs = [manifest for manifest in objects if manifest["kind"] == "Job"]
    others = [manifest for manifest in objects if manifest["kind"] != "Job"]
    return [*others, _job_set(run, jobs, run_labels)] if jobs else others


def _job_set(run: RunPlan, jobs: Sequence[dict[str, Any]], run_labels: Mapping[str, str]) -> dict[str, Any]:
    name = run.spec.name
    parts = [_part(job, name) for job in jobs]
    learners = [
        part["name"]
        for part, job in zip(parts, jobs, strict=True)
        if job["metadata"]["labels"][labels.ROLE] == Role.LEARNER
    ]
    spec: dict[str, Any] = {
        # Pods have our own host names, under our own Service.
        "network": {"enableDNSHostnames": False},
        "replicatedJobs": parts,
    }
    if learners:
        # The others end with the learner; without a learner, all have to end.
        spec["successPolicy"] = {"operator": "All", "targetReplicatedJobs": learners}
    meta: dict[str, Any] = {"name": name, "namespace": jobs[0]["metadata"]["namespace"]}
    meta["labels"] = dict(run_labels)
    if run.spec.queue is not None and run.spec.queue.name:
        meta["labels"][labels.KUEUE_QUEUE] = run.spec.queue.name
    version = f"{API_GROUPS[QueueSystem.JOBSET]}/v1alpha2"
    return {"apiVersion": version, "kind": "JobSet", "metadata": meta, "spec": spec}


def _part(job: dict[str, Any], run: str) -> dict[str, Any]:
    """Return a Job as an entry of a JobSet, which names it like the plain Job plus ``-0``."""
    meta, spec = job["metadata"], job["spec"]
    # Explicit, since JobSet defaults to Indexed, which gives pods other host names.
    spec = {**spec, "completionMode": "NonIndexed", "completions": spec.get("completions", spec["parallelism"])}
    template = {"metadata": {key: meta[key] for key in ("labels", "annotations")}, "spec": spec}
    return {"name": meta["name"].removeprefix(f"{run}-"), "replicas": 1, "template": template}
