"""Imported objects: kinds that can be parts of a run, and fields that are dropped, each with the reason.

``leaves`` measures the completeness of an import: each leaf of a file ends in a rendered object or in a finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.extended_resources import WHOLE, is_countable
from l2rtui.domain.quantity import parse_quantity
from l2rtui.errors import SpecError

SERVER_METADATA: Final = frozenset(
    {
        "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "selfLink",
        "managedFields", "deletionGracePeriodSeconds", "ownerReferences", "generateName",
    }
)  # fmt: skip
"""Metadata that identifies an exported object; the API server sets or computes it."""
SERVER_LABELS: Final = frozenset(
    {
        "pod-template-hash", "controller-revision-hash", "pod-template-generation", "controller-uid", "job-name",
        "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "statefulset.kubernetes.io/pod-name",
        "batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index",
    }
)  # fmt: skip
_SERVER_ANNOTATIONS: Final = (
    "kubectl.kubernetes.io/last-applied-configuration", "deployment.kubernetes.io/", "cni.projectcalico.org/",
    "k8s.v1.cni.cncf.io/network-status", "kubernetes.io/config.", "batch.kubernetes.io/job-tracking",
    "batch.kubernetes.io/job-completion-index", "kubernetes.io/psp",
)  # fmt: skip
"""Annotations that controllers, kubectl and network plugins write; a name that ends in a punctuation mark is a
prefix.
"""
_TOKEN_VOLUME: Final = re.compile(r"kube-api-access-[a-z0-9]{5}|.*-token-[a-z0-9]{5}")
"""Volume with the service account token, which admission adds to each pod."""
PLACEHOLDER: Final = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_NODE_KEYS: Final = (labels.HOSTNAME, "metadata.name")
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_ACCELERATOR: Final = re.compile(
    r"[ghintvx]pu|nvidia|cuda|neuron|habana|gaudi|ascend|mlu|dcu|gcu|fpga|accelerator"
    r"|(biren|cerebras|enflame|furiosa|graphcore|groq|iluvatar|kunlunxin|qualcomm|rebellions|tenstorrent|vastai)",
    re.IGNORECASE,
)
CONTAINERS: Final = ("initContainers", "containers")

Document = dict[str, Any]


def mapping(value: Any, key: str) -> Document:
    """Return a field that should be a mapping; empty if it is anything else."""
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def items(value: Any, key: str) -> list[Document]:
    """Return the mappings in a field that should be a list of mappings."""
    inner = value.get(key) if isinstance(value, dict) else None
    return [item for item in inner if isinstance(item, dict)] if isinstance(inner, list) else []


def containers(pod_spec: Mapping[str, Any]) -> list[Document]:
    """Return all containers of a pod, init containers first."""
    return [container for part in CONTAINERS for container in items(pod_spec, part)]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of each leaf: ``spec.ports[0].nodePort``. Empty values are skipped."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{number}]")
    elif value is not None and value != "":
        yield path, value


def named(value: Any, path: str = "") -> str:
    """Format the leaves of a value as one clause: ``spec.suspend: true, spec.paused: false``."""
    parts = []
    for where, leaf in leaves(value, path):
        text = str(leaf).lower() if isinstance(leaf, bool) else " ".join(str(leaf).split())
        parts.append(f"{where}: {text if len(text) <= 60 else f'{text[:59]}…'}")
    return ", ".join(parts)


# --- fields of the API server -------------------------------------------------------------------------------
def pop_server_fields(document: Document) -> list[str]:
    """Remove the fields that the API server, its controllers and kubectl have set; return their paths.

    Only an exported object has them: without server fields, a priority is the user's own choice.
    """
    gone = ["status"] if document.pop("status", None) else []
    meta, spec = mapping(document, "metadata"), mapping(document, "spec")
    # ``kubectl create --dry-run`` writes ``creationTimestamp: null`` and ``status: {}`` into users' files.
    is_exported = bool(gone or any(meta.get(key) is not None for key in SERVER_METADATA - {"generateName"}))
    if document.get("kind") == "Job" and spec.get("manualSelector") is not True and is_exported:
        gone += _popped(spec, ("selector",), "spec.")
    gone += _server_metadata(meta, "metadata", has_name="name" in meta)
    template = mapping(spec, "template")
    gone += _server_metadata(mapping(template, "metadata"), "spec.template.metadata", has_name=True)
    if not is_exported:
        return gone
    path, pod = (
        ("spec", spec) if document.get("kind") == "Pod" else ("spec.template.spec", mapping(template, "spec"))
    )
    if document.get("kind") == "Pod":
        # Computed by admission and by the scheduler; a template with them is refused, or bound to that node.
        gone += _popped(pod, ("nodeName", "priority", "overhead", "ephemeralContainers"), f"{path}.")
        if "ownerReferences" in " ".join(gone):  # the names that a StatefulSet or a Job gave to this pod
            gone += _popped(pod, ("hostname",), f"{path}.")
    return gone + _token_volumes(pod, path)


def _server_metadata(meta: Document, path: str, *, has_name: bool) -> list[str]:
    gone = _popped(
        meta, [key for key in meta if key in SERVER_METADATA and (has_name or key != "generateName")], f"{path}."
    )
    own = mapping(meta, "labels")
    gone += _popped(own, [key for key in own if key in SERVER_LABELS], f"{path}.labels.")
    notes = mapping(meta, "annotations")
    written = [key for key in notes if str(key).startswith(_SERVER_ANNOTATIONS)]
    return gone + _popped(notes, written, f"{path}.annotations.")


def _popped(value: Document, keys: Iterable[str], path: str) -> list[str]:
    return [f"{path}{key}" for key in keys if value.pop(key, None) is not None]


def _token_volumes(pod: Document, path: str) -> list[str]:
    names = {
        str(volume.get("name")) for volume in items(pod, "volumes")
        if _TOKEN_VOLUME.fullmatch(str(volume.get("name"))) and ("projected" in volume or "secret" in volume)
    }  # fmt: skip
    if not names:
        return []
    pod["volumes"] = [volume for volume in items(pod, "volumes") if volume.get("name") not in names]
    for container in containers(pod):
        if "volumeMounts" in container:
            mounts = items(container, "volumeMounts")
            container["volumeMounts"] = [mount for mount in mounts if mount.get("name") not in names]
    return [f"{path}.volumes {', '.join(sorted(names))} with its mounts"]


# --- fields that bind a node --------------------------------------------------------------------------------
def node_fields(pod_spec: Mapping[str, Any]) -> str:
    """Return the fields by which a pod template chooses one node, as one clause; empty without any.

    Kubernetes requires all of them: a node name with a selector of another node creates pods that the kubelet
    refuses, and a ReplicaSet replaces those without end (kubernetes/kubernetes#120160).
    """
    selector = {key: value for key, value in mapping(pod_spec, "nodeSelector").items() if names_node(key, value)}
    name = pod_spec.get("nodeName")
    bound = [f"node selector ({named(selector)})"] if selector else []
    bound += [f"nodeName {name}"] if name else []
    terms = items(mapping(mapping(mapping(pod_spec, "affinity"), "nodeAffinity"), _REQUIRED), "nodeSelectorTerms")
    for term in terms:
        for part in ("matchExpressions", "matchFields"):
            rules = (rule for rule in items(term, part) if rule.get("key") in _NODE_KEYS)
            bound += [
                " ".join(
                    ["node affinity", rule["key"], str(rule.get("operator")), *map(str, rule.get("values") or ())]
                )
                for rule in rules
            ]
    return ", ".join(bound)


def names_node(key: str, value: object, node: str = "") -> bool:
    """Return True if an entry of a node selector means one node: by host name, or by a placeholder for its name.

    Args:
        node: The node whose name placeholders have become; empty before they are filled in.
    """
    return key in _NODE_KEYS or bool(PLACEHOLDER.search(str(value))) or (bool(node) and str(value) == node)


def bind_node(pod_spec: Document, node: str, hostname: str) -> None:
    """Bind a pod template to the node of its slot, replacing its own choice of nodes by name."""
    pod_spec.pop("nodeName", None)
    pod_spec["nodeSelector"] = {**_labels_of_nodes(pod_spec, node), labels.HOSTNAME: hostname}
    _drop_affinity_to_nodes(pod_spec)


def without_hostnames(pod_spec: Document) -> None:
    """Remove requirements on node names from the node selector and the node affinity of a pod template."""
    if pod_spec.get("nodeSelector"):
        pod_spec["nodeSelector"] = _labels_of_nodes(pod_spec)
        if not pod_spec["nodeSelector"]:
            del pod_spec["nodeSelector"]
    _drop_affinity_to_nodes(pod_spec)


def _labels_of_nodes(pod_spec: Mapping[str, Any], node: str = "") -> Document:
    """Return the entries of a node selector that more than one node can meet."""
    selector = mapping(pod_spec, "nodeSelector")
    return {key: value for key, value in selector.items() if not names_node(key, value, node)}


def _drop_affinity_to_nodes(pod_spec: Document) -> None:
    node = mapping(mapping(pod_spec, "affinity"), "nodeAffinity")
    terms = items(mapping(node, _REQUIRED), "nodeSelectorTerms")
    if not terms:
        return
    for term in terms:
        for part in ("matchExpressions", "matchFields"):
            if part in term:
                term[part] = [rule for rule in items(term, part) if rule.get("key") not in _NODE_KEYS]
                if not term[part]:
                    del term[part]
    # Terms are alternatives: a term that only named nodes now allows every node, and so does the whole list.
    if not all(terms):
        del node[_REQUIRED]
    if not node:
        del pod_spec["affinity"]["nodeAffinity"]
    if not pod_spec["affinity"]:
        del pod_spec["affinity"]


def host_ports(pod_spec: Mapping[str, Any]) -> Iterator[tuple[int, str, str]]:
    """Yield port, protocol and container of each host port that a pod uses; only one pod per node can have it."""
    for container in containers(pod_spec):
        for port in items(container, "ports"):
            # In the host network, each container port is a host port.
            number = port.get("hostPort") or (pod_spec.get("hostNetwork") and port.get("containerPort"))
            if isinstance(number, int) and number:
                yield number, str(port.get("protocol") or "TCP"), str(container.get("name"))


# --- devices ------------------------------------------------------------------------------------------------
def requested(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the amounts that a container requests; a limit takes precedence over a request, as for devices."""
    resources = mapping(container, "resources")
    return {**mapping(resources, "requests"), **mapping(resources, "limits")}


def device_requests(pod_spec: Mapping[str, Any]) -> dict[str, int]:
    """Return the devices that a pod requests, by resource.

    Init containers run one after the other and before the main containers, whose requests add up.

    Raises:
        ValueError: An amount is not a whole number; the message names container and resource.
    """
    first: dict[str, int] = {}
    together: dict[str, int] = {}
    for part, counted in (("initContainers", first), ("containers", together)):
        for container in items(pod_spec, part):
            for name, amount in requested(container).items():
                if "/" not in str(name) or not (name == WHOLE or is_countable(name) or _ACCELERATOR.search(name)):
                    continue
                if number := _whole(amount, f"{container.get('name')}: {name}"):
                    counted[name] = (
                        max(counted.get(name, 0), number) if counted is first else counted.get(name, 0) + number
                    )
    return {name: max(first.get(name, 0), together.get(name, 0)) for name in dict.fromkeys((*together, *first))}


def _whole(amount: Any, name: str) -> int:
    try:
        number = parse_quantity(amount)
    except (ValueError, TypeError):
        number = -1.0
    if number < 0 or number != int(number):
        raise ValueError(f"{name} is {amount!r}: devices are counted in whole numbers")
    return int(number)


def claims_devices(pod_spec: Mapping[str, Any]) -> bool:
    """Return True for a pod with its own requests or claims for devices."""
    try:
        return bool(device_requests(pod_spec) or items(pod_spec, "resourceClaims"))
    except ValueError:  # of a patch; the server refuses the amount
        return True


PARTS: Final = {
    "ReplicaSet": ("apps", "extensions"),
    "Deployment": ("apps", "extensions"),
    "StatefulSet": ("apps",),
    "ReplicationController": ("",),
    "Pod": ("",),
    "Service": ("",),
    "List": ("",),
    "Job": ("batch",),
    "JobSet": ("jobset.x-k8s.io",),
}
"""Kinds that can be parts of a run, with the API groups that define them."""
_REPLACED: Final = {
    "CronJob": "a run starts when it is launched; write its jobTemplate as a Job",
    "DaemonSet": "write `replicas` and `--on NODE/GPU,…` (docs/kubernetes.md)",
    "PersistentVolumeClaim": "make it with `l2rtui volume create` (docs/storage.md)",
    "Secret": "make it with `l2rtui secret create` (docs/secrets.md)",
    "ConfigMap": "apply it with kubectl first; the spec can contain a program (docs/kinds.md)",
    "ResourceClaimTemplate": "apply it with kubectl first; a spec of l2rtui's own makes one: `binding: dra`",
    "PodGroup": "write `queue: {by: volcano}` or `--queue` (docs/kubernetes.md)",
    "MPIJob": "write `kind: elastic` for torchrun, or `kind: job` with `replicas` (docs/kinds.md)",
    "XGBoostJob": "write `kind: job` with `replicas` (docs/kinds.md)",
    "PaddleJob": "write `kind: job` with `replicas` (docs/kinds.md)",
    "MXJob": "write `kind: parameter-server` (docs/kinds.md)",
    "RayJob": "write `kind: learner-workers` or `kind: job` (README.md, docs/kinds.md)",
    "RayCluster": "write `kind: learner-workers` or `kind: job` (README.md, docs/kinds.md)",
    "RayService": "a run does not serve requests; manage it with kubectl",
    "Workflow": "write `kind: job` with `steps` (docs/kinds.md)",
    "WorkflowTemplate": "write `kind: job` with `steps` (docs/kinds.md)",
    "CronWorkflow": "a run starts when it is launched; write `kind: job` with `steps` (docs/kinds.md)",
    "Kustomization": "build it first: `kubectl kustomize FOLDER | l2rtui plan -f -`",
    "JAXJob": "write `kind: job` with `replicas` (docs/kinds.md)",
    "Queue": "name it with `queue: {by: volcano, name: NAME}` (docs/kubernetes.md)",
    "LocalQueue": "name it with `queue: {by: kueue, name: NAME}` (docs/kubernetes.md)",
    "Job": "Volcano's Job is `kind: job` with `queue: {by: volcano}` (docs/kubernetes.md)",
}
"""Replacements for other kinds."""


def objects(documents: Iterable[Any], source: str) -> Iterable[dict[str, Any]]:
    """Yield the objects of a file that can be parts of a run, including items of its Lists.

    Raises:
        SpecError: A document has another kind; the message names the replacement.
    """
    for number, document in enumerate(documents):
        if document is None:
            continue
        where = f"{source}: document {number + 1}"
        if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
            raise SpecError(f"{where} is not a Kubernetes object.", "Each has apiVersion, kind and metadata.")
        kind, group = document["kind"], _group(document)
        if kind == "List" and not group:
            yield from objects(document.get("items") or (), source)
            continue
        # A pod spec under ``kind: Service``, which the API server would refuse, is certainly meant as a Pod.
        if kind == "Service" and not group and mapping(document, "spec").get("containers"):
            document = {**document, "kind": "Pod"}  # noqa: PLW2901  (as a Pod from here on)
        elif not group and kind in PARTS and kind != "JobSet":
            pass  # a common slip in files: ``v1`` has neither Jobs nor Deployments
        elif group not in PARTS.get(kind, ()):
            groups = PARTS.get(kind)
            called = f"{kind} of {document.get('apiVersion')}" if groups else kind
            own = f" It is not the {kind} of {groups[0] or 'v1'}." if groups else ""
            instead = _REPLACED.get(kind, "")
            if kind == "Job" and group != "batch.volcano.sh":
                instead = ""
            hint = f"In its place {instead}." if instead else ""
            article = "an" if called[0] in "AEIOU" else "a"
            sentence = f"{where} is {article} {called}, which cannot be a part of a run"
            raise SpecError(
                f"{sentence}: a run is removed with all that it owns.{own}",
                hint or f"Apply the {kind} with kubectl first, and take it out of this file.",
            )
        yield document


def _group(document: Mapping[str, Any]) -> str:
    """Return the API group of an object; empty for the core group, and for an object without a version."""
    version = document.get("apiVersion")
    if not isinstance(version, str):  # items of a typed list, and files that were edited by hand
        return PARTS.get(str(document.get("kind")), ("",))[0]
    return version.rpartition("/")[0]
