"""Whether there is room for a plan, and what it refers to: Secrets, accounts, storage, quotas, the nodes' CPU."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.domain.plan import LaunchPlan
from l2rtui.domain.preflight import Finding, Weight
from l2rtui.domain.quantity import format_bytes, format_cores, parse_quantity
from l2rtui.domain.sidecar import sidecar_of
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.workload import Resources

_MANY_NODES: Final = ("ReadWriteMany", "ReadOnlyMany")
_ONE_POD: Final = "ReadWriteOncePod"
_COUNTED: Final = {
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "Service": "services",
    "Job": "jobs.batch",
    "ReplicaSet": "replicasets.apps",
}
Manifest = dict[str, Any]


async def secrets_and_accounts(api: Api, objects: Sequence[Manifest], namespace: str) -> Iterable[Finding]:
    """Whether the Secrets and ServiceAccounts that pods name are there."""
    wanted: dict[tuple[str, str], str] = {}
    for _, spec in _templates(objects):
        wanted |= _named(spec)
    return [await _named_object(api, namespace, kind, name, why) for (kind, name), why in wanted.items()]


def _named(spec: Manifest) -> dict[tuple[str, str], str]:
    """Kind and name of what a pod refers to, and what for."""
    found = {("Secret", str(one.get("name"))): "to pull its image" for one in spec.get("imagePullSecrets") or ()}
    for container in spec["containers"]:
        for source in container.get("envFrom") or ():
            if name := (source.get("secretRef") or {}).get("name"):
                found["Secret", str(name)] = "for its variables"
    if spec.get("serviceAccountName"):
        found["ServiceAccount", str(spec["serviceAccountName"])] = "as its account"
    return found


async def _named_object(api: Api, namespace: str, kind: str, name: str, why: str) -> Finding:
    subject = f"{kind} {name}"
    try:
        await api.read(kind, namespace, name)
    except ApiError as error:
        if error.is_not_found:
            sentence = f"there is no {subject} in {namespace}, which the pods need {why}"
            return Finding(Weight.REFUSAL, subject, sentence, "Create it, or correct its name.")
        if error.is_forbidden:
            return Finding(Weight.WARNING, subject, "you may not read it: nobody knows whether it is there")
        raise
    return Finding(Weight.OK, subject, f"it is there {why}")


async def volumes(api: Api, objects: Sequence[Manifest], namespace: str) -> Iterable[Finding]:
    """Whether the claims are there, bound, and fit for as many nodes and pods as would use them."""
    users: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for manifest, spec in _templates(objects):
        node = str((spec.get("nodeSelector") or {}).get(labels.HOSTNAME, ""))
        for volume in spec.get("volumes") or ():
            if name := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
                users[str(name)][node] += _replicas(manifest)
    return [finding for name, nodes in users.items() for finding in await _volume(api, namespace, name, nodes)]


async def _volume(api: Api, namespace: str, name: str, nodes: Mapping[str, int]) -> Iterable[Finding]:
    subject = f"claim {name}"
    try:
        claim = await api.read("PersistentVolumeClaim", namespace, name)
    except ApiError as error:
        if error.is_not_found:
            hint = "Create it with kubectl, or correct the name."
            return [
                Finding(Weight.REFUSAL, subject, f"there is no PersistentVolumeClaim {name} in {namespace}", hint)
            ]
        if error.is_forbidden:
            return [Finding(Weight.WARNING, subject, "you may not read it: nobody knows whether it is there")]
        raise
    modes = (claim.get("spec") or {}).get("accessModes") or ()
    phase = str((claim.get("status") or {}).get("phase", ""))
    pods = sum(nodes.values())
    if _ONE_POD in modes and pods > 1:
        return [Finding(Weight.REFUSAL, subject, f"it is {_ONE_POD}, and {pods} pods would mount it")]
    if len(nodes) > 1 and not set(modes) & set(_MANY_NODES):
        shown = ", ".join(sorted(filter(None, nodes))) or "several nodes"
        sentence = (
            f"it is {', '.join(modes)}, and pods on {shown} would mount it: all but one node would wait for ever"
        )
        return [Finding(Weight.REFUSAL, subject, sentence, "Use a claim that is ReadWriteMany, or one node.")]
    if phase != "Bound":
        sentence = f"it is {phase or 'not bound'}: pods wait until it gets a volume"
        return [Finding(Weight.WARNING, subject, sentence, f"`kubectl describe pvc {name}` says why.")]
    return [Finding(Weight.OK, subject, f"bound, {', '.join(modes)}")]


async def quotas(api: Api, objects: Sequence[Manifest], namespace: str) -> Iterable[Finding]:
    """Whether the namespace's ResourceQuotas leave room for all of it."""
    try:
        found = await api.list("ResourceQuota", namespace)
    except ApiError as error:
        if error.is_forbidden:
            return [Finding(Weight.WARNING, "quota", f"you may not list the quotas of {namespace}")]
        raise
    needed = _needed(objects)
    findings = []
    for quota in found:
        name, status = quota["metadata"]["name"], quota.get("status") or {}
        if (quota.get("spec") or {}).get("scopes") or (quota.get("spec") or {}).get("scopeSelector"):
            continue  # for some pods only: the dry run of a pod tells
        hard, used = status.get("hard") or {}, status.get("used") or {}
        for resource, limit in hard.items():
            left = parse_quantity(limit) - parse_quantity(used.get(resource, 0))
            if needed.get(resource, 0.0) > left:
                asked = _shown(resource, needed[resource])
                sentence = f"it leaves {_shown(resource, max(0.0, left))} of {resource}, and the plan needs {asked}"
                findings.append(Finding(Weight.REFUSAL, f"quota {name}", sentence, "Launch less, or ask for more."))
    if found and not findings:
        findings.append(Finding(Weight.OK, "quota", f"the quotas of {namespace} leave room"))
    return findings


def _needed(objects: Sequence[Manifest]) -> dict[str, float]:
    needed: defaultdict[str, float] = defaultdict(float)
    for manifest in objects:
        if plural := _COUNTED.get(manifest["kind"]):
            needed[f"count/{plural}"] += 1
            needed[plural.partition(".")[0]] += 1
    for manifest, spec in _templates(objects):
        count = _replicas(manifest)
        needed["pods"] += count
        needed["count/pods"] += count
        for container in _running(spec):
            resources = container.get("resources") or {}
            limits = resources.get("limits") or {}
            requests = {**limits, **(resources.get("requests") or {})}  # as the server fills them in
            for name, value in requests.items():
                needed[f"requests.{name}"] += count * parse_quantity(value)
                needed[name] += count * parse_quantity(value)
            for name, value in limits.items():
                needed[f"limits.{name}"] += count * parse_quantity(value)
    return dict(needed)


async def room(api: Api, plan: LaunchPlan, snapshot: ClusterSnapshot) -> Iterable[Finding]:
    """Whether the nodes have the CPU and memory left that the pods request, as the scheduler counts."""
    cores: defaultdict[str, float] = defaultdict(float)
    memory: defaultdict[str, int] = defaultdict(int)
    for run in plan.runs:
        for pod in run.pods:
            if pod.node:
                own, beside = pod.set_spec.resources, sidecar_of(run.spec, pod.set_spec) or Resources()
                cores[pod.node] += (own.cpu_cores or 0.0) + (beside.cpu_cores or 0.0)
                memory[pod.node] += (own.memory_bytes or 0) + (beside.memory_bytes or 0)
    names = [name for name in sorted(cores) if (cores[name] or memory[name]) and name in snapshot.nodes]
    if not names or not await api.can("list", "Pod", None):
        return []
    requested = await asyncio.gather(*(_requested(api, name) for name in names))
    found = []
    for name, (used_cores, used_memory) in zip(names, requested, strict=True):
        node = snapshot.nodes[name]
        left_cores, left_memory = node.cpu_cores - used_cores, node.memory_bytes - used_memory
        if cores[name] > left_cores:
            asked, left = format_cores(cores[name]), format_cores(max(0.0, left_cores))
            found.append(_no_room(name, f"{asked} CPU cores are requested, and {left} are not spoken for"))
        if memory[name] > left_memory:
            asked, left = format_bytes(memory[name]), format_bytes(max(0, left_memory))
            found.append(_no_room(name, f"{asked} of memory are requested, and {left} are not spoken for"))
    return found or [Finding(Weight.OK, "room", f"{', '.join(names)}: CPU and memory for all that is requested")]


def _no_room(node: str, sentence: str) -> Finding:
    return Finding(
        Weight.REFUSAL, node, f"{node}: {sentence}: pods would stay Pending", "Ask for less, or --on another."
    )


async def _requested(api: Api, node: str) -> tuple[float, float]:
    fields = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
    cores = memory = 0.0
    for pod in await api.list("Pod", None, fields=fields):
        for container in _running(pod.get("spec") or {}):
            requests = (container.get("resources") or {}).get("requests") or {}
            cores += parse_quantity(requests.get("cpu", 0))
            memory += parse_quantity(requests.get("memory", 0))
    return cores, memory


def _running(spec: Manifest) -> list[Manifest]:
    """The containers that run side by side: those of the pod, and its sidecars."""
    first = spec.get("initContainers") or ()
    return [*(spec.get("containers") or ()), *(one for one in first if one.get("restartPolicy") == "Always")]


def _templates(objects: Iterable[Manifest]) -> Iterable[tuple[Manifest, Manifest]]:
    for manifest in objects:
        if template := (manifest.get("spec") or {}).get("template"):
            yield manifest, template["spec"]


def _replicas(manifest: Manifest) -> int:
    return int(manifest["spec"]["replicas" if manifest["kind"] == "ReplicaSet" else "parallelism"])


def _shown(resource: str, number: float) -> str:
    if "memory" in resource or "storage" in resource:
        return format_bytes(number)
    return format_cores(number) if "cpu" in resource else f"{number:g}"
