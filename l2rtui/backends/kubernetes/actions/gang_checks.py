"""Checks of the queue that admits a run as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.manifests import gang, render
from l2rtui.domain.plan import LaunchPlan, RunPlan
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.workload import Queue, QueueSystem


async def check(api: Api, plan: LaunchPlan, namespace: str) -> Iterable[Finding]:
    """Check that the cluster has the queues that runs name, and that the rest of the plan does not contradict
    them.
    """
    findings: list[Finding] = []
    for queue in dict.fromkeys(run.spec.queue for run in plan.runs if run.spec.queue is not None):
        problem = await _problem(api, queue, namespace)
        findings += [problem] if problem is not None else _explained(plan, queue)
        if plan.wave:
            sentence = f"{queue.by} starts all pods of a run together, and --wave starts them one after another"
            findings.append(Finding(Severity.REFUSAL, "queue", sentence, "Leave out one of the two."))
    for run in plan.runs:
        findings += _not_jobs(run)
    return findings


def _not_jobs(run: RunPlan) -> Iterator[Finding]:
    """Refuse the sets of a run with a JobSet that would not be Jobs."""
    if not gang.is_job_set(run.spec):
        return
    for set_spec in run.spec.sets:
        if render.controller_kind(set_spec) != "Job":
            sentence = "a JobSet has Jobs alone, and this set is restarted for ever"
            hint = f"Write `restart: OnFailure` for {set_spec.name}, or leave out queue."
            yield Finding(Severity.REFUSAL, f"{run.spec.name}/{set_spec.name}", sentence, hint)


async def _problem(api: Api, queue: Queue, namespace: str) -> Finding | None:
    group = gang.API_GROUPS[queue.by]
    if queue.by is QueueSystem.KUEUE and api.server_version < gang.GATES_SINCE:
        needed, present = (".".join(map(str, version)) for version in (gang.GATES_SINCE, api.server_version))
        sentence = f"Kueue holds pods back by scheduling gates, of Kubernetes {needed}; this server is {present}"
        return Finding(Severity.REFUSAL, "queue", sentence, "Leave out queue, or choose volcano or coscheduling.")
    versions = await api.group_versions(group)
    if not versions:
        sentence = f"this cluster has no {queue.by}: it serves nothing of {group}"
        return Finding(Severity.REFUSAL, "queue", sentence, "Leave out queue, or ask an administrator for it.")
    if not queue.name or queue.by not in (QueueSystem.KUEUE, QueueSystem.JOBSET):
        return None
    try:
        await api.read("LocalQueue", namespace, queue.name)
    except ApiError as error:
        if error.is_not_found:
            hint = "`kubectl get localqueues` lists them; a LocalQueue belongs to one namespace."
            return Finding(Severity.REFUSAL, "queue", f"there is no LocalQueue {queue.name} in {namespace}", hint)
        if error.is_forbidden:
            sentence = f"you may not read the LocalQueue {queue.name}: nobody knows whether it is there"
            return Finding(Severity.WARNING, "queue", sentence)
        raise
    return None


def _explained(plan: LaunchPlan, queue: Queue) -> Iterator[Finding]:
    for run in plan.runs:
        if run.spec.queue == queue:
            name = f" through {queue.name}" if queue.name else ""
            sentence = f"all {len(run.pods)} pods start together, when {queue.by} admits them{name}"
            if gang.is_job_set(run.spec):
                sentence = f"its Jobs are made as one JobSet{f', when Kueue admits it{name}' if name else ''}"
            yield Finding(Severity.OK, run.spec.name, sentence)
