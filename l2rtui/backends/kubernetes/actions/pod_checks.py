"""Checks of the fields that a spec adds to pods, and findings on fields that l2rtui adds automatically. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.manifests import (
    gpu_binding,
    host_folders,
    import_fields,
    pod_patch,
    podspec,
    sidecars,
)
from l2rtui.domain.node import Node
from l2rtui.domain.plan import LaunchPlan
from l2rtui.domain.preflight import Finding, Severity

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
                folders = (mount.host_path for mount in host_folders.new_folders(part.pod))
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
                mounts = host_folders.new_claims(part.pod)
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
