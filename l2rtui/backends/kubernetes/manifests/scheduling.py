"""Node selector, node affinity and tolerations of pods: written into a pod spec, and read from its patches.

Gang admission starts all pods of a run together, by fields on the pods that a queue or a gang scheduler reads.
Kueue holds back the pods of a group with a scheduling gate until its quota allows all of them. Volcano and the
scheduler plugin `coscheduling` place the pods of a PodGroup once its ``minMember`` can be placed: here all of
them. A JobSet creates all Jobs of a run, ends them together, and is suspended as a whole by Kueue.

Sources: kueue.sigs.k8s.io, "Run Plain Pods", groups of pods; volcano.sh, PodGroup;
kubernetes-sigs/scheduler-plugins, pkg/coscheduling; jobset.sigs.k8s.io, API reference v1alpha2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.manifests import pod_patch
from l2rtui.domain.containers import GPU_TOLERATION, LabelRule, PodSettings, Scheduling, Toleration
from l2rtui.domain.plan import RunPlan
from l2rtui.domain.workload import QueueSystem, Role, RunSpec
from runtime.base import bounded_json


class _Form(msgspec.Struct, rename="camel"):
    """Kubernetes object with types for the fields that are read here."""


class _Rule(_Form):
    key: str
    operator: str
    values: tuple[str, ...] | None = None


class _Term(_Form):
    match_expressions: tuple[_Rule, ...] | None = None
    match_fields: tuple[_Rule, ...] | None = None


class _Required(_Form):
    node_selector_terms: tuple[_Term, ...] | None = None


class _NodeAffinity(_Form):
    required: _Required | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class _Affinity(_Form):
    node_affinity: _NodeAffinity | None = None


class _Toleration(_Form):
    key: str | None = None
    value: str | None = None
    effect: str | None = None


class _PodSpec(_Form):
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    tolerations: tuple[_Toleration, ...] | None = None


def toleration(item: Toleration) -> dict[str, str]:
    """Return a toleration in the format of a pod spec."""
    fields = {"operator": "Equal" if item.value else "Exists"}
    parts = {"key": item.key, "value": item.value, "effect": item.effect}
    return fields | {key: value for key, value in parts.items() if value}


def patched(settings: PodSettings) -> Scheduling | None:
    """Return the scheduling of pods on a slot after the patches of a spec; None without patches.

    Raises:
        ValueError: A patch is malformed; the message names the field.
    """
    if not settings.templates:
        return None
    own: dict[str, Any] = {
        "nodeSelector": dict(settings.node_selector),
        "tolerations": [toleration(item) for item in (*settings.tolerations, GPU_TOLERATION)],
    }
    merged = {"spec": own}
    for text in settings.templates:
        merged = pod_patch.merge(merged, bounded_json.loads(text))
    return of_pod(merged.get("spec") or {})


def of_pod(fields: Mapping[str, Any]) -> Scheduling:
    """Return the scheduling of a pod with this spec.

    Raises:
        ValueError: A field has the wrong type; the message names it.
    """
    try:
        spec = bounded_json.convert(fields, _PodSpec)
    except msgspec.ValidationError as error:
        raise ValueError(str(error).replace("$", "spec", 1)) from None
    selected = tuple(LabelRule(key, values=(value,)) for key, value in (spec.node_selector or {}).items())
    alternatives = tuple((*selected, *_rules(term)) for term in _terms(spec))
    tolerations = tuple(
        Toleration(item.key or "", item.value or "", item.effect or "") for item in spec.tolerations or ()
    )
    return Scheduling(alternatives, tolerations)


def _terms(spec: _PodSpec) -> tuple[_Term, ...]:
    """Return the alternatives of the required node affinity; without one, a single empty alternative."""
    affinity = spec.affinity and spec.affinity.node_affinity
    required = affinity and affinity.required
    return (required and required.node_selector_terms) or (_Term(),)


def _rules(term: _Term) -> tuple[LabelRule, ...]:
    rules = (*(term.match_expressions or ()), *(term.match_fields or ()))
    return tuple(LabelRule(rule.key, rule.operator, rule.values or ()) for rule in rules)


GATES_SINCE: Final = (1, 27)
"""First version whose pods have scheduling gates by default, which Kueue needs for groups of pods."""
QUEUE_API_GROUPS: Final = {
    QueueSystem.KUEUE: "kueue.x-k8s.io",
    QueueSystem.VOLCANO: "scheduling.volcano.sh",
    QueueSystem.COSCHEDULING: "scheduling.x-k8s.io",
    QueueSystem.JOBSET: "jobset.x-k8s.io",
}
GANG_KINDS: Final = ("PodGroup", "JobSet")
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


def gang_fields(run: RunPlan) -> GangFields:
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
    version = f"{QUEUE_API_GROUPS[queue.by]}/{_POD_GROUPS[queue.by]}"
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
    version = f"{QUEUE_API_GROUPS[QueueSystem.JOBSET]}/v1alpha2"
    return {"apiVersion": version, "kind": "JobSet", "metadata": meta, "spec": spec}


def _part(job: dict[str, Any], run: str) -> dict[str, Any]:
    """Return a Job as an entry of a JobSet, which names it like the plain Job plus ``-0``."""
    meta, spec = job["metadata"], job["spec"]
    # Explicit, since JobSet defaults to Indexed, which gives pods other host names.
    spec = {**spec, "completionMode": "NonIndexed", "completions": spec.get("completions", spec["parallelism"])}
    template = {"metadata": {key: meta[key] for key in ("labels", "annotations")}, "spec": spec}
    return {"name": meta["name"].removeprefix(f"{run}-"), "replicas": 1, "template": template}
