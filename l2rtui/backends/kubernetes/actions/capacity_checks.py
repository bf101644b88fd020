"""Capacity checks of a plan: quotas, CPU and memory of nodes; and referenced Secrets, accounts and claims."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.manifests import gpu_binding, import_fields, pod_parts, pod_patch, podspec, sidecars
from l2rtui.backends.kubernetes.manifests.render import replicas_of
from l2rtui.domain.node import Node
from l2rtui.domain.plan import LaunchPlan
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.quantity import format_bytes, format_cores, parse_quantity
from l2rtui.domain.sidecar import sidecar_of
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.workload import Resources

_MOST_FIELDS: Final = 8
"""Maximum number of patched fields that a sentence names; the manifests show all."""
_OWN_CONTAINERS: Final = (podspec.CONTAINER, sidecars.CONTAINER)
Manifest = dict[str, Any]


def check_templates(plan: LaunchPlan, objects: Sequence[Manifest]) -> Iterable[Finding]:
    """Report the fields that ``pod.template`` sets, and warn of containers that would keep a Job from ending."""
    sentences: dict[str, None] = {}
    for run in plan.runs:
        for part in run.spec.sets:
            fields = pod_patch.changed_fields(part.pod)
            more = f" and {len(fields) - _MOST_FIELDS} more" if len(fields) > _MOST_FIELDS else ""
            sentence = f"pod.template sets {', '.join(fields[:_MOST_FIELDS])}{more}"
            # Seeds of an experiment share their sets: once is enough.
            if fields and sentence not in sentences:
                sentences[sentence] = None
                yield Finding(Severity.OK, f"{run.spec.name}/{part.name}", sentence)
    patched = {(run.spec.name, part.name) for run in plan.runs for part in run.spec.sets if part.pod.templates}
    for manifest in objects:
        own_labels = manifest["metadata"]["labels"]
        set_name = own_labels.get(labels.SET, "")
        if manifest["kind"] == "Job" and (own_labels[labels.RUN], set_name) in patched:
            yield from _endless(manifest, set_name, sentences)


def _endless(job: Manifest, set_name: str, reported: dict[str, None]) -> Iterable[Finding]:
    names = (container["name"] for container in job["spec"]["template"]["spec"]["containers"][1:])
    if added := [name for name in names if name not in _OWN_CONTAINERS]:
        sentence = f"{set_name}: its Job ends when {', '.join(added)} ends as well, not with the set's own process"
        if sentence not in reported:
            reported[sentence] = None
            hint = "Make it an init container with restartPolicy: Always (Kubernetes 1.29 and later)."
            yield Finding(Severity.WARNING, job["metadata"]["labels"][labels.RUN], sentence, hint)


def check_host_ports(plan: LaunchPlan, objects: Sequence[Manifest]) -> Iterable[Finding]:
    """Refuse pods of one node that use the same host port: all but one of them would stay Pending."""
    templates = {
        (item["metadata"]["labels"][labels.RUN], item["metadata"]["labels"][labels.SET]): item["spec"]["template"]
        for item in objects
        if item["kind"] in ("Job", "ReplicaSet")
    }
    ports = {key: set(import_fields.host_ports(template["spec"])) for key, template in templates.items()}
    users: dict[tuple[str, int, str], list[str]] = {}
    for run in plan.runs:
        for pod in run.pods:
            used = {(port, protocol) for port, protocol, _ in ports.get((run.spec.name, pod.set_spec.name), ())}
            for port, protocol in sorted(used) if pod.node else ():
                users.setdefault((pod.node, port, protocol), []).append(pod.name)
    for (node, port, protocol), names in users.items():
        if len(names) > 1:
            who = ", ".join(names[:4])
            sentence = f"{len(names)} pods are to take port {port}/{protocol} of {node}, and one can: {who}"
            hint = "Place them on nodes of their own: --on NODE1/0,NODE2/0, or take hostPort out of the file."
            yield Finding(Severity.REFUSAL, node, sentence, hint)


def explain_runtime(
    plan: LaunchPlan, nodes: Mapping[str, Node], server: podspec.ServerFacts, setting: str
) -> Iterable[Finding]:
    """Report which RuntimeClass pods with a GPU get, and why; warn if a required one may be missing."""
    used = {pod.node for run in plan.runs for pod in run.pods if podspec.uses_nvidia(pod) and pod.node in nodes}
    sentences: dict[tuple[str, str], list[str]] = {}
    for name in sorted(used):
        if runtime := server.runtime_classes.get(name, ""):
            sentences.setdefault((runtime, gpu_binding.reason(nodes[name], setting)), []).append(name)
    for (runtime, reason), names in sentences.items():
        sentence = f"pods with a GPU get runtimeClassName {runtime} on {', '.join(names)}: {reason}"
        yield Finding(Severity.OK, "runtime", sentence)
    missing = [name for name in sorted(used) if name not in server.runtime_classes]
    unserved = [name for name in missing if gpu_binding.leaves_gpus_to_class(nodes[name])]
    if unserved and setting == gpu_binding.AUTO:
        sentence = (
            f"{', '.join(unserved)}: the default runtime of k3s and RKE2 has no GPU, and no RuntimeClass "
            f"{gpu_binding.CLASS} can be seen: pods may run without their GPU"
        )
        hint = "Set runtime_class to its name, or ask for the right to get runtimeclasses."
        yield Finding(Severity.WARNING, "runtime", sentence, hint)


def explain_host_folders(plan: LaunchPlan) -> Iterable[Finding]:
    """Report how node folders become writable for pods that run as an ordinary user."""
    users: dict[tuple[str, int], str] = {}
    for run in plan.runs:
        for part in run.spec.sets:
            if not part.template:
                folders = (mount.host_path for mount in pod_parts.new_folders(part.pod))
                users |= {(folder, part.pod.user): run.spec.name for folder in folders}
    for (folder, user), name in users.items():
        sentence = (
            f"where {folder} is new or empty on a node and belongs to root, an init container gives it to user "
            f"{user}; an older one stays as it is, and that user must be able to write there"
        )
        # A root container deserves a warning, even for a single chown: users should not discover it by chance.
        yield Finding(Severity.WARNING, name, sentence)


def explain_claims(plan: LaunchPlan, *, admits_root: bool) -> Iterable[Finding]:
    """Say what is done with new volumes of claims, or what keeps the pods' user from writing there."""
    users: dict[tuple[str, str, int], None] = {}
    for run in plan.runs:
        for part in run.spec.sets:
            if not part.template:
                mounts = pod_parts.new_claims(part.pod)
                users |= dict.fromkeys((mount.claim, mount.path, part.pod.user) for mount in mounts)
    for claim, path, user in users:
        if admits_root:
            sentence = (
                f"where its volume is empty and belongs to root, an init container gives {path} to user {user}; "
                "another one stays as it is, and that user must be able to write there"
            )
            yield Finding(Severity.OK, f"claim {claim}", sentence)
        else:
            sentence = (
                f"its volume must let user {user} write to {path}: this namespace admits no init container of root "
                "that could give a new one to that user, and fsGroup does not apply to NFS, EFS and hostPath"
            )
            hint = f"As root on the volume: chown {user}:{user}, or set pod.user to its owner."
            yield Finding(Severity.WARNING, f"claim {claim}", sentence, hint)


def check_dropped(subject: str, sent: Manifest, created: Mapping[str, Any]) -> Finding | None:
    """Return a warning if the server dropped fields of a pod that was sent as a dry run."""
    if sent["kind"] != "Pod":
        return None
    dropped = [f"spec.{path}" for path in pod_patch.dropped_fields(sent["spec"], created.get("spec"))]
    if not dropped:
        return None
    sentence = f"the server does not know {', '.join(dropped[:_MOST_FIELDS])}, and leaves it out"
    return Finding(Severity.WARNING, subject, sentence, "Correct the name, or ask for a newer server.")


def check_changed(
    subject: str, sent: Manifest, created: Mapping[str, Any], nodes: Iterable[Node]
) -> Iterable[Finding]:
    """Yield what policies changed of a pod that was sent as a dry run, as far as its place depends on it."""
    if sent["kind"] != "Pod":
        return
    before, after = sent["spec"], created.get("spec") or {}
    sent_selector, selector = before.get("nodeSelector") or {}, after.get("nodeSelector") or {}
    node = next((node for node in nodes if labels.host_name(node) == sent_selector.get(labels.HOSTNAME)), None)
    own = dict(node.labels) if node is not None else {}
    added = {key: value for key, value in selector.items() if sent_selector.get(key) != value}
    unmet = [f"{key}={value}" for key, value in added.items() if own.get(key) != value]
    if node is not None and own and unmet:  # labels that cannot be read say nothing
        sentence = (
            f"a policy of the cluster adds the node selector {', '.join(unmet)}, which {node.name} does not meet"
        )
        yield Finding(
            Severity.REFUSAL, subject, sentence, "Choose another node with --on, or ask an administrator."
        )
    changes = []
    if before.get("schedulerName", _SCHEDULER) != (scheduler := after.get("schedulerName", _SCHEDULER)):
        changes.append(f"sends its pods to the scheduler {scheduler}")
    containers = {container.get("name"): container for container in after.get("containers") or ()}
    for container in before["containers"]:
        values = _device_variables(containers.get(container["name"], container))
        for name, value in _device_variables(container).items():
            if values.get(name) != value:
                changes.append(f"sets {name} of {container['name']} to {values.get(name)!r} instead of {value!r}")
    marks = (created.get("metadata") or {}).get("labels") or {}
    for key, value in (sent["metadata"].get("labels") or {}).items():
        if key.startswith(labels.PREFIX) and marks.get(key) != value:
            changes.append(f"changes the label {key}")
    if changes:
        sentence = f"a policy of the cluster {', '.join(changes)}: its pods may not get what the plan says"
        yield Finding(Severity.WARNING, subject, sentence, "Ask an administrator to exempt the namespace.")


_SCHEDULER: Final = "default-scheduler"


def _device_variables(container: Manifest) -> dict[str, Any]:
    return {
        item["name"]: item.get("value")
        for item in container.get("env") or ()
        if item.get("name") in gpu_binding.DEVICE_VARIABLES
    }


_MANY_NODES: Final = ("ReadWriteMany", "ReadOnlyMany")
_ONE_POD: Final = "ReadWriteOncePod"
_COUNTED: Final = {
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "Service": "services",
    "Job": "jobs.batch",
    "ReplicaSet": "replicasets.apps",
}


async def secrets_and_accounts(api: Api, objects: Sequence[Manifest], namespace: str) -> Iterable[Finding]:
    """Check that the Secrets and ServiceAccounts that pods name exist."""
    references: dict[tuple[str, str], str] = {}
    for _, spec in _templates(objects):
        references |= _named(spec)
    return [await _named_object(api, namespace, kind, name, why) for (kind, name), why in references.items()]


def _named(spec: Manifest) -> dict[tuple[str, str], str]:
    """Return kind and name of the objects that a pod refers to, with their purpose."""
    references = {
        ("Secret", str(reference.get("name"))): "to pull its image"
        for reference in spec.get("imagePullSecrets") or ()
    }
    for container in spec["containers"]:
        for source in container.get("envFrom") or ():
            if name := (source.get("secretRef") or {}).get("name"):
                references["Secret", str(name)] = "for its variables"
    if spec.get("serviceAccountName"):
        references["ServiceAccount", str(spec["serviceAccountName"])] = "as its account"
    return references


async def _named_object(api: Api, namespace: str, kind: str, name: str, why: str) -> Finding:
    subject = f"{kind} {name}"
    sentence = f"there is no {subject} in {namespace}, which the pods need {why}"
    missing = Finding(Severity.REFUSAL, subject, sentence, "Create it, or correct its name.")
    result = await _read(api, namespace, kind, name, missing)
    return result if isinstance(result, Finding) else Finding(Severity.OK, subject, f"it is there {why}")


async def _read(api: Api, namespace: str, kind: str, name: str, missing: Finding) -> Manifest | Finding:
    """Return an object, ``missing`` if it does not exist, or a warning if the user may not read it."""
    try:
        return await api.read(kind, namespace, name)
    except ApiError as error:
        if error.is_not_found:
            return missing
        if error.is_forbidden:
            sentence = "you may not read it: its existence is not checked"
            return Finding(Severity.WARNING, missing.subject, sentence)
        raise


async def volumes(api: Api, objects: Sequence[Manifest], namespace: str) -> Iterable[Finding]:
    """Check that volume claims exist, are bound, and allow the planned number of nodes and pods."""
    users: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for manifest, spec in _templates(objects):
        node = str((spec.get("nodeSelector") or {}).get(labels.HOSTNAME, ""))
        for volume in spec.get("volumes") or ():
            if name := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
                users[str(name)][node] += replicas_of(manifest)
    return [finding for name, nodes in users.items() for finding in await _volume(api, namespace, name, nodes)]


async def _volume(api: Api, namespace: str, name: str, nodes: Mapping[str, int]) -> Iterable[Finding]:
    subject, kind = f"claim {name}", "PersistentVolumeClaim"
    hint = f"`l2rtui volume create {name} --size 50Gi` makes one; or correct the name."
    missing = Finding(Severity.REFUSAL, subject, f"there is no {kind} {name} in {namespace}", hint)
    claim = await _read(api, namespace, kind, name, missing)
    if isinstance(claim, Finding):
        return [claim]
    modes = (claim.get("spec") or {}).get("accessModes") or ()
    phase = str((claim.get("status") or {}).get("phase", ""))
    pods = sum(nodes.values())
    if _ONE_POD in modes and pods > 1:
        return [Finding(Severity.REFUSAL, subject, f"it is {_ONE_POD}, and {pods} pods would mount it")]
    if len(nodes) > 1 and not set(modes) & set(_MANY_NODES):
        node_list = ", ".join(sorted(filter(None, nodes))) or "several nodes"
        sentence = (
            f"it is {', '.join(modes)}, and pods on {node_list} would mount it: "
            "all but one node would wait for ever"
        )
        return [Finding(Severity.REFUSAL, subject, sentence, "Use a claim that is ReadWriteMany, or one node.")]
    if phase != "Bound":
        return [await _unbound(api, namespace, claim, phase)]
    return [Finding(Severity.OK, subject, f"bound, {', '.join(modes)}")]


async def _unbound(api: Api, namespace: str, claim: Manifest, phase: str) -> Finding:
    """Return when a claim without a volume gets one, as far as its StorageClass says it."""
    name, class_name = str(claim["metadata"]["name"]), str((claim.get("spec") or {}).get("storageClassName") or "")
    subject, hint = f"claim {name}", f"`kubectl -n {namespace} describe pvc {name}` says why."
    sentence = f"it is {phase or 'not bound'}: pods wait until it gets a volume"
    if phase == "Lost":
        sentence, hint = "its volume no longer exists: pods wait for ever", "Make another claim."
    elif class_name:
        try:
            storage = await api.read("StorageClass", None, class_name)
        except ApiError as error:
            if error.is_not_found:
                sentence = f"its StorageClass {class_name} does not exist: pods wait until it is given a volume"
                hint = "Make the claim again with a class of `kubectl get storageclass`, or ask an administrator."
        else:
            if storage.get("volumeBindingMode") == "WaitForFirstConsumer":
                if storage.get("provisioner") != _NO_PROVISIONER:
                    return Finding(Severity.OK, subject, "it gets its volume when its first pod has a node")
                sentence = f"pods wait unless a free volume of the class {class_name} is on their node"
                hint = "`kubectl get pv` lists the volumes."
    return Finding(Severity.WARNING, subject, sentence, hint)


_NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"


async def quotas(api: Api, objects: Sequence[Manifest], namespace: str) -> Iterable[Finding]:
    """Check that the namespace's ResourceQuotas leave room for the whole plan."""
    items = await _quotas_of(api, namespace)
    if items is None:
        return [Finding(Severity.WARNING, "quota", f"you may not list the quotas of {namespace}")]
    needed = _needed(objects)
    findings = []
    for quota in items:
        name, status = quota["metadata"]["name"], quota.get("status") or {}
        if _is_scoped(quota):
            continue  # for some pods only: the server's dry run of a pod reports it if it applies
        hard, used = status.get("hard") or {}, status.get("used") or {}
        for resource, limit in hard.items():
            left = parse_quantity(limit) - parse_quantity(used.get(resource, 0))
            if needed.get(resource, 0.0) > left:
                amount, room = _shown(resource, needed[resource]), _shown(resource, max(0.0, left))
                sentence = f"it leaves {room} of {resource}, and the plan needs {amount}"
                hint = "Launch less, or ask for more."
                findings.append(Finding(Severity.REFUSAL, f"quota {name}", sentence, hint))
    if items and not findings:
        findings.append(Finding(Severity.OK, "quota", f"the quotas of {namespace} leave room"))
    return findings


async def quota_usage(api: Api, namespace: str) -> list[Finding]:
    """Return the usage of each quota of the namespace; empty if quotas may not be read."""
    findings = []
    for quota in await _quotas_of(api, namespace) or ():
        status = quota.get("status") or {}
        hard, used = status.get("hard") or {}, status.get("used") or {}
        parts, full = [], []
        for resource, limit in sorted(hard.items()):
            most, amount = parse_quantity(limit), parse_quantity(used.get(resource, 0))
            parts.append(f"{resource} {_shown(resource, amount)} of {_shown(resource, most)}")
            if 0 < most <= amount:  # a limit of 0 forbids a resource, so it is not used up
                full.append(resource)
        for_some = ", for some pods only" if _is_scoped(quota) else ""
        sentence = f"{', '.join(parts)} used in {namespace}{for_some}" if parts else "limits nothing yet"
        severity = Severity.WARNING if full else Severity.OK
        hint = f"No {' or '.join(full)} left: destroy runs, or ask for more." if full else ""
        findings.append(Finding(severity, f"quota {quota['metadata']['name']}", sentence, hint))
    return findings


async def _quotas_of(api: Api, namespace: str) -> list[Manifest] | None:
    """Return the ResourceQuotas of the namespace; None if they may not be listed."""
    try:
        return list(await api.list("ResourceQuota", namespace))
    except ApiError as error:
        if error.is_forbidden:
            return None
        raise


def _is_scoped(quota: Manifest) -> bool:
    """Return True for a quota that applies to some pods only."""
    spec = quota.get("spec") or {}
    return bool(spec.get("scopes") or spec.get("scopeSelector"))


def _needed(objects: Sequence[Manifest]) -> dict[str, float]:
    """Sum up the amounts that the objects count for in a quota, under every name that a quota may use."""
    needed: defaultdict[str, float] = defaultdict(float)
    for manifest in objects:
        if plural := _COUNTED.get(manifest["kind"]):
            # Object count quota has two spellings: ``count/configmaps`` and the older ``configmaps``.
            needed[f"count/{plural}"] += 1
            needed[plural.partition(".")[0]] += 1
    for manifest, spec in _templates(objects):
        count = replicas_of(manifest)
        needed["pods"] += count
        needed["count/pods"] += count
        for container in _running(spec):
            resources = container.get("resources") or {}
            limits = resources.get("limits") or {}
            # A container without a request gets its limit as the request (LimitRanger and defaulting).
            requests = {**limits, **(resources.get("requests") or {})}
            for name, value in requests.items():
                needed[f"requests.{name}"] += count * parse_quantity(value)
                needed[name] += count * parse_quantity(value)
            for name, value in limits.items():
                needed[f"limits.{name}"] += count * parse_quantity(value)
    return dict(needed)


async def room(api: Api, plan: LaunchPlan, snapshot: ClusterSnapshot) -> Iterable[Finding]:
    """Check that nodes have enough CPU and memory left for the pods' requests, counted as the scheduler does."""
    cores: defaultdict[str, float] = defaultdict(float)
    memory: defaultdict[str, int] = defaultdict(int)
    for run in plan.runs:
        for pod in run.pods:
            if pod.node:
                own, sidecar = pod.set_spec.pod_resources, sidecar_of(run.spec, pod.set_spec) or Resources()
                cores[pod.node] += (own.cpu_cores or 0.0) + (sidecar.cpu_cores or 0.0)
                memory[pod.node] += (own.memory_bytes or 0) + (sidecar.memory_bytes or 0)
    names = [name for name in sorted(cores) if (cores[name] or memory[name]) and name in snapshot.nodes]
    # Without the pods of all namespaces the sum would be too small, and a wrong OK is worse than no result.
    if not names or not await api.can("list", "Pod", None):
        return []
    requested = await asyncio.gather(*(_requested(api, name) for name in names))
    findings = []
    for name, (used_cores, used_memory) in zip(names, requested, strict=True):
        node = snapshot.nodes[name]
        left_cores, left_memory = node.cpu_cores - used_cores, node.memory_bytes - used_memory
        if cores[name] > left_cores:
            amount, left = format_cores(cores[name]), format_cores(max(0.0, left_cores))
            findings.append(_no_room(name, f"{amount} CPU cores are requested, and {left} are not spoken for"))
        if memory[name] > left_memory:
            amount, left = format_bytes(memory[name]), format_bytes(max(0, left_memory))
            findings.append(_no_room(name, f"{amount} of memory are requested, and {left} are not spoken for"))
    sentence = f"{', '.join(names)}: CPU and memory for all that is requested"
    return findings or [Finding(Severity.OK, "room", sentence)]


def _no_room(node: str, sentence: str) -> Finding:
    hint = "Ask for less, or --on another."
    return Finding(Severity.REFUSAL, node, f"{node}: {sentence}: pods would stay Pending", hint)


async def _requested(api: Api, node: str) -> tuple[float, float]:
    # Ended pods keep their requests in the spec but use nothing; the scheduler skips them as well.
    fields = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
    cores = memory = 0.0
    for pod in await api.list("Pod", None, fields=fields):
        for container in _running(pod.get("spec") or {}):
            requests = (container.get("resources") or {}).get("requests") or {}
            cores += parse_quantity(requests.get("cpu", 0))
            memory += parse_quantity(requests.get("memory", 0))
    return cores, memory


def _running(spec: Manifest) -> list[Manifest]:
    """Return the containers that run at the same time: the pod's containers and its sidecars."""
    first = spec.get("initContainers") or ()
    sidecars = (container for container in first if container.get("restartPolicy") == "Always")
    return [*(spec.get("containers") or ()), *sidecars]


def _templates(objects: Iterable[Manifest]) -> Iterable[tuple[Manifest, Manifest]]:
    for manifest in objects:
        if template := (manifest.get("spec") or {}).get("template"):
            yield manifest, template["spec"]


def _shown(resource: str, number: float) -> str:
    if "memory" in resource or "storage" in resource:
        return format_bytes(number)
    return format_cores(number) if "cpu" in resource else f"{number:g}"
