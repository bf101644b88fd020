"""Preflight checks by the cluster: permissions, a dry run of every object, images, storage, quotas, free capacity.

Nothing is created: objects are sent with ``dryRun=All``. One pod of each set is sent too, since quotas, limit
ranges and Pod Security apply to pods, not to the controllers that create them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import capacity_checks, network_policies, slot_races, workdirs
from l2rtui.backends.kubernetes.actions.diagnose import missing_rights
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.resources import kind_of
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.backends.kubernetes.extended_resources import is_countable
from l2rtui.backends.kubernetes.manifests import gpu_binding, render, scheduling, sidecars
from l2rtui.backends.kubernetes.rights import Right, role_hint
from l2rtui.domain.kinds import Binding
from l2rtui.domain.node import Node
from l2rtui.domain.placement import obstacle
from l2rtui.domain.plan import LaunchPlan, RunPlan
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.quantity import counted
from l2rtui.domain.sidecar import sidecar_of, socket_problem
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.workload import Queue, QueueSystem, SetSpec, name_problem
from l2rtui.errors import RefusedError

_AT_ONCE: Final = 8
_MAX_DRY_RUNS: Final = 3
"""Maximum number of runs of one launch whose objects are all sent as a dry run; with more, the first and the
last.
"""
_PLUGINS: Final = (Binding.DEVICE_PLUGIN, Binding.SHARED, Binding.HAMI)
_IMAGE: Final = re.compile(
    r"([a-zA-Z0-9][-a-zA-Z0-9.]*(:\d+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
Manifest = dict[str, Any]


async def check_queues(api: Api, plan: LaunchPlan, namespace: str) -> Iterable[Finding]:
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
    if not scheduling.is_job_set(run.spec):
        return
    for set_spec in run.spec.sets:
        if render.controller_kind(set_spec) != "Job":
            sentence = "a JobSet consists of Jobs, and this set is always restarted"
            hint = f"Write `restart: OnFailure` for {set_spec.name}, or leave out queue."
            yield Finding(Severity.REFUSAL, f"{run.spec.name}/{set_spec.name}", sentence, hint)


async def _problem(api: Api, queue: Queue, namespace: str) -> Finding | None:
    group = scheduling.QUEUE_API_GROUPS[queue.by]
    has_local_queue = queue.by in (QueueSystem.KUEUE, QueueSystem.JOBSET)
    leave_out = "Leave out queue"
    if has_local_queue:
        leave_out += f" (in Kubernetes YAML the label {labels.KUEUE_QUEUE})"
    if queue.by is QueueSystem.KUEUE and api.server_version < scheduling.GATES_SINCE:
        needed, present = (".".join(map(str, version)) for version in (scheduling.GATES_SINCE, api.server_version))
        sentence = f"Kueue holds pods back by scheduling gates, of Kubernetes {needed}; this server is {present}"
        return Finding(Severity.REFUSAL, "queue", sentence, f"{leave_out}, or choose volcano or coscheduling.")
    versions = await api.group_versions(group)
    if not versions:
        sentence = f"this cluster has no {queue.by}: it serves nothing of {group}"
        return Finding(Severity.REFUSAL, "queue", sentence, f"{leave_out}, or ask an administrator for it.")
    if not queue.name or not has_local_queue:
        return None
    try:
        await api.read("LocalQueue", namespace, queue.name)
    except ApiError as error:
        if error.is_not_found:
            hint = "`kubectl get localqueues` lists them; a LocalQueue belongs to one namespace."
            return Finding(Severity.REFUSAL, "queue", f"there is no LocalQueue {queue.name} in {namespace}", hint)
        if error.is_forbidden:
            sentence = f"you may not read the LocalQueue {queue.name}: its existence is not checked"
            return Finding(Severity.WARNING, "queue", sentence)
        raise
    return None


def _explained(plan: LaunchPlan, queue: Queue) -> Iterator[Finding]:
    for run in plan.runs:
        if run.spec.queue == queue:
            name = f" through {queue.name}" if queue.name else ""
            sentence = f"all {len(run.pods)} pods start together, when {queue.by} admits them{name}"
            if scheduling.is_job_set(run.spec):
                sentence = f"its Jobs are made as one JobSet{f', when Kueue admits it{name}' if name else ''}"
            yield Finding(Severity.OK, run.spec.name, sentence)


async def check_plan(context: ClusterContext, plan: LaunchPlan) -> tuple[Finding, ...]:
    """Check a plan against the cluster; creates nothing.

    Raises:
        ApiError: The server does not respond.
    """
    api, namespace = context.api, context.namespace
    snapshot = await context.recent_snapshot()
    server = await context.server_facts([run.spec for run in plan.runs])
    findings = [finding for run in plan.runs for finding in gpu_binding.explain(run, server.cuda)]
    findings += workdirs.check(plan)
    findings += _images(plan)
    findings += _security(plan)
    findings += _simulators(plan, server.version)
    findings += _nodes(plan, snapshot)
    try:
        rendered = [render.run_objects(run, namespace=namespace, token="", server=server) for run in plan.runs]
    except RefusedError as error:
        return (*findings, Finding(Severity.REFUSAL, "binding", error.message.rstrip("."), error.hint))
    objects = [manifest for manifests in rendered for manifest in manifests]
    # A name that the rules of every backend refuse: the server would say the same of every object.
    if any(name_problem(run.spec.name) for run in plan.runs):
        return tuple(findings)
    sent = [
        manifest
        for run, manifests in zip(plan.runs, rendered, strict=True)
        for manifest in render.as_sent(run, manifests)
    ]
    findings += capacity_checks.check_templates(plan, objects)
    findings += capacity_checks.check_host_ports(plan, objects)
    findings += capacity_checks.explain_runtime(plan, snapshot.nodes, server, context.settings.runtime_class)
    findings += capacity_checks.explain_host_folders(plan)
    findings += capacity_checks.explain_claims(plan, admits_root=server.admits_root)
    parts: list[Awaitable[Iterable[Finding]]] = [
        _rights(api, sent, namespace),
        _dry_run(api, sent, list(_pods(objects)), namespace, snapshot),
        _claims(context, plan),
        network_policies.check(context, plan),
        _devices(api, plan),
        capacity_checks.secrets_and_accounts(api, objects, namespace),
        capacity_checks.volumes(api, objects, namespace),
        capacity_checks.quotas(api, objects, namespace),
        capacity_checks.room(api, plan, snapshot),
        check_queues(api, plan, namespace),
    ]
    for part_findings in await asyncio.gather(*parts):
        findings += part_findings
    return tuple(findings)


# --- checks of the plan itself ------------------------------------------------------------------------------
def _images(plan: LaunchPlan) -> Iterable[Finding]:
    images: dict[str, str] = {}
    for run in plan.runs:
        for set_spec in run.spec.sets:
            images.setdefault(set_spec.pod.image or run.spec.image, f"{run.spec.name}/{set_spec.name}")
            if (sidecar := sidecar_of(run.spec, set_spec)) is not None and sidecar.image:
                images.setdefault(sidecar.image, f"{run.spec.name}/{set_spec.name}: simulator")
    for image, subject in images.items():
        if not image:
            hint = "Write `image:` in the spec, or --set image=NAME."
            yield Finding(Severity.REFUSAL, subject, "it names no image, and pods are made from one", hint)
        elif not _IMAGE.fullmatch(image):
            hint = "Such as registry.example/l2r:1."
            yield Finding(Severity.REFUSAL, subject, f"{image!r} is no image name", hint)
        else:
            yield Finding(Severity.OK, subject, f"image {image}")


def _security(plan: LaunchPlan) -> Iterable[Finding]:
    reported: set[tuple[str, ...]] = set()
    for run in plan.runs:
        for set_spec in run.spec.sets:
            # Once for each list of reasons: many sets of many seeds share one. The import has already reported
            # templates.
            reasons = () if set_spec.template else set_spec.pod.loosenings()
            if reasons and reasons not in reported:
                reported.add(reasons)
                sentence = f"its pods do not meet Pod Security restricted: {', '.join(reasons)}"
                yield Finding(Severity.WARNING, f"{run.spec.name}/{set_spec.name}", sentence)


def _simulators(plan: LaunchPlan, version: tuple[int, int]) -> Iterable[Finding]:
    """Check the simulators that run as sidecars of workers."""
    for run in plan.runs:
        for set_spec in run.spec.sets:
            if problem := socket_problem(run.spec, set_spec):
                hint = "--set train.environment_options.simulator.kind=sidecar, or reference."
                yield Finding(Severity.REFUSAL, f"{run.spec.name}/{set_spec.name}", problem, hint)
    for run in plan.runs:
        with_sidecar = [pod for pod in run.pods if sidecar_of(run.spec, pod.set_spec) is not None]
        if not with_sidecar:
            continue
        is_native = version >= sidecars.NATIVE_SINCE
        how = "as sidecars" if is_native else "in second containers, which end with the workers"
        number = len(with_sidecar)
        verb = "stands beside its worker" if number == 1 else "stand beside their workers"
        sentence = f"{counted(number, 'simulator')} {verb} {how}"
        yield Finding(Severity.OK, run.spec.name, sentence)
        blind = [pod for pod in with_sidecar if pod.gpu is not None and pod.set_spec.pod.binding in _PLUGINS]
        if blind:
            mode = blind[0].set_spec.pod.binding
            sentence = f"binding {mode} gives the GPU to the worker's container, so its simulator has none"
            hint = "Choose env or dra, with which both see it, where the simulator renders on the GPU."
            yield Finding(Severity.WARNING, run.spec.name, sentence, hint)


def _nodes(plan: LaunchPlan, snapshot: ClusterSnapshot) -> Iterable[Finding]:
    reported: set[str] = set()
    for run in plan.runs:
        for pod in run.pods:
            node = snapshot.nodes.get(pod.node)
            if node is None:
                continue
            for sentence, hint in _node_problems(node, pod.set_spec):
                if sentence not in reported:
                    reported.add(sentence)
                    yield Finding(Severity.REFUSAL, node.name, sentence, hint)
    names = sorted({pod.node for run in plan.runs for pod in run.pods if pod.node})
    nodes = [node for name in names if (node := snapshot.nodes.get(name)) is not None]
    kinds = sorted({dict(node.labels).get(labels.ARCHITECTURE, "") for node in nodes} - {""})
    if len(kinds) > 1:
        sentence = f"the pods go to nodes of {' and '.join(kinds)}: the image must have a build for each"
        hint = "`docker manifest inspect IMAGE` lists its builds; --on chooses nodes."
        yield Finding(Severity.WARNING, "architecture", sentence, hint)
    if names and not reported:
        yield Finding(Severity.OK, "nodes", f"{', '.join(names)}: ready, and open to these pods")


def _node_problems(node: Node, set_spec: SetSpec) -> Iterable[tuple[str, str]]:
    if not node.ready:
        yield f"node {node.name} is not ready: {node.message or 'no reason given'}", "Choose another with --on."
    if not node.is_schedulable:
        yield f"node {node.name} is cordoned", f"`kubectl uncordon {node.name}`, or choose another with --on."
    if (reason := obstacle(set_spec, node.name, node)) is not None:
        yield reason.sentence([node.name]), reason.hint


# --- checks by the server -----------------------------------------------------------------------------------
async def _rights(api: Api, objects: Sequence[Manifest], namespace: str) -> Iterable[Finding]:
    """Check the permissions for this launch (refusals) and for managing the run later (warnings)."""
    kinds = dict.fromkeys(kind_of(manifest) for manifest in objects)
    needed = [Right("create", kind) for kind in kinds]
    later = [Right("get", "ConfigMap"), Right("list", "Pod"), *(Right("delete", kind) for kind in kinds)]
    findings = [
        Finding(
            Severity.REFUSAL if right in needed else Severity.WARNING,
            f"right to {right}",
            f"{api.user or 'you'} may not {right} in {namespace}",
            role_hint([right]),
        )
        for right in await missing_rights(api, [*needed, *later], namespace)
    ]
    return findings or [Finding(Severity.OK, "rights", f"all that this launch needs in {namespace}")]


async def _dry_run(
    api: Api, objects: Sequence[Manifest], pods: Sequence[Manifest], namespace: str, snapshot: ClusterSnapshot
) -> Iterable[Finding]:
    """Send every object, and one pod of each set, as a dry run."""
    existing_runs = {run.name for run in snapshot.runs.values()}
    may_try = await api.can("create", "Pod", namespace)
    pods = pods if may_try else []
    slots = asyncio.Semaphore(_AT_ONCE)

    async def send(manifest: Manifest) -> list[Finding]:
        async with slots:
            return await _dry_run_object(api, manifest, snapshot)

    # The domain's preflight reports a name that is taken; each object would only repeat it.
    new = [item for item in objects if item["metadata"]["labels"][labels.RUN] not in existing_runs]
    runs = list(dict.fromkeys(item["metadata"]["labels"][labels.RUN] for item in new))
    tried = runs if len(runs) <= _MAX_DRY_RUNS else [runs[0], runs[-1]]  # seeds differ only in names and slots
    others = [item for item in new if item["metadata"]["labels"][labels.RUN] not in tried]
    new = [item for item in new if item["metadata"]["labels"][labels.RUN] in tried]
    results, name_findings = await asyncio.gather(
        asyncio.gather(*map(send, (*new, *pods))), _name_conflicts(api, others, namespace)
    )
    findings: dict[str, Finding] = {item.sentence: item for items in (*results, name_findings) for item in items}
    if findings:
        return list(findings.values())
    # A plan without placed replicas has no pods, whatever the rights are.
    also = " and a pod of each set" if pods else "" if may_try else ", without pods: you may not create them"
    whose = f"all {len(new)} objects" if tried == runs else f"all objects of {tried[0]} and {tried[-1]}"
    return [Finding(Severity.OK, "dry run", f"the server accepts {whose}{also}")] if new else []


async def _name_conflicts(api: Api, objects: Sequence[Manifest], namespace: str) -> list[Finding]:
    """Return a refusal for each name that is taken, using one list per kind."""
    names_by_kind: dict[str, list[str]] = {}
    for item in objects:
        names_by_kind.setdefault(kind_of(item), []).append(item["metadata"]["name"])
    findings = []
    for kind, names in names_by_kind.items():
        try:
            existing = {item["metadata"]["name"]: item for item in await api.list(kind, namespace)}
        except ApiError as error:
            # Mostly Secrets, which have the name of the run's ConfigMap: that name is checked anyway.
            if not error.is_forbidden:
                raise
            continue
        findings += [_name_taken(kind, name, existing[name]) for name in names if name in existing]
    return findings


def _name_taken(kind: str, name: str, existing: Manifest) -> Finding:
    subject, hint = f"{kind} {name}", "Choose another name with --name, or remove it."
    entries = (existing.get("metadata") or {}).get("managedFields") or ()
    managers = dict.fromkeys(str(entry.get("manager", "")) for entry in entries)
    whose = f", written by {' and '.join(filter(None, managers))}" if any(managers) else ""
    return Finding(Severity.REFUSAL, subject, f"{subject} is there already{whose}", hint)


async def _dry_run_object(api: Api, manifest: Manifest, snapshot: ClusterSnapshot) -> list[Finding]:
    name = manifest["metadata"].get("name") or manifest["metadata"]["generateName"].rstrip("-")
    subject = f"{manifest['kind']} {name}"
    try:
        created = await api.create(manifest, dry_run=True)
    except ApiError as error:
        if error.is_taken:
            existing = None
            with suppress(ApiError):  # the writer is optional information, not a reason to fail
                existing = await api.find(
                    manifest["kind"], manifest["metadata"].get("namespace") or api.namespace, name
                )
            return [_name_taken(manifest["kind"], name, existing or {})]
        if error.is_not_found and manifest["kind"] in scheduling.GANG_KINDS:
            group, _, version = str(manifest["apiVersion"]).rpartition("/")
            if version not in await api.group_versions(group):
                return []  # the cluster does not serve this kind, which check_queues() reports
        # A webhook that does not support dry runs reports that; it says nothing about the object.
        if "dry run" in error.detail or error.is_unreachable or error.status >= 500:
            return [Finding(Severity.WARNING, subject, f"{manifest['kind']}s could not be tried: {error.detail}")]
        detail = "" if error.missing else error.detail  # a missing permission has its own, shorter sentence
        return [Finding(Severity.REFUSAL, subject, (detail or error.message).rstrip("."), error.hint)]
    dropped = capacity_checks.check_dropped(subject, manifest, created)
    changed = capacity_checks.check_changed(subject, manifest, created, snapshot.nodes.values())
    return [*([dropped] if dropped is not None else []), *changed]


def _pods(objects: Iterable[Manifest]) -> Iterable[Manifest]:
    """Yield one pod of each set, as its controller would create it."""
    yielded: set[tuple[str, str]] = set()
    for manifest in objects:
        template = manifest.get("spec", {}).get("template")
        if not template:
            continue
        own_labels = manifest["metadata"]["labels"]
        key = (own_labels["l2rtui.io/experiment"], own_labels["l2rtui.io/set"])
        if key in yielded:
            continue
        yielded.add(key)
        meta = manifest["metadata"]
        pod_meta = {**template["metadata"], "generateName": f"{meta['name']}-", "namespace": meta["namespace"]}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": pod_meta, "spec": template["spec"]}


async def _claims(context: ClusterContext, plan: LaunchPlan) -> Iterable[Finding]:
    if not any(pod.seat.slots for run in plan.runs for pod in run.pods):
        return []
    return [await slot_races.protection(context)]


async def _devices(api: Api, plan: LaunchPlan) -> Iterable[Finding]:
    """Check that nodes offer the extended resources that some binding modes use to assign GPUs."""
    requests: dict[tuple[str, str], RunPlan] = {}
    for run in plan.runs:
        for pod in run.pods:
            limits = gpu_binding.bind(run, pod, gpu_binding.CudaIndex.SAME).limits
            # HAMi's own scheduler counts parts of a GPU: no node offers them.
            requests |= {(pod.node, name): run for name in limits if is_countable(name)}
    return [
        finding
        for (node, name), run in requests.items()
        for finding in await _offers(api, node, name, run.spec.name)
    ]


async def _offers(api: Api, node: str, resource: str, subject: str) -> Iterable[Finding]:
    try:
        status = (await api.read("Node", None, node)).get("status") or {}
    except ApiError as error:
        if error.is_forbidden or error.is_not_found:
            return []
        raise
    if str((status.get("allocatable") or {}).get(resource, "0")) != "0":
        return []
    hint = "Choose another mode with --binding."
    sentence = f"node {node} offers no {resource}, which the binding mode asks for"
    return [Finding(Severity.REFUSAL, subject, sentence, hint)]
