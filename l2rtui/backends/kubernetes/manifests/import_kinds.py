"""Kinds of Kubernetes objects that can be parts of a run, by kind and API group, and replacements for other
kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from l2rtui.backends.kubernetes.manifests.import_fields import mapping
from l2rtui.errors import SpecError

_GROUPS: Final = {
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
        elif not group and kind in _GROUPS and kind != "JobSet":
            pass  # a common slip in files: ``v1`` has neither Jobs nor Deployments
        elif group not in _GROUPS.get(kind, ()):
            groups = _GROUPS.get(kind)
            called = f"{kind} of {document.get('apiVersion')}" if groups else kind
            own = f" It is not the {kind} of {groups[0] or 'v1'}." if groups else ""
            instead = _REPLACED.get(kind, "")
            if kind == "Job" and group != "batch.volcano.sh":
                instead = ""
            hint = f"In its place {instead}." if instead else ""
            sentence = f"{where} is a {called}, which cannot be a part of a run"
            raise SpecError(
                f"{sentence}: a run is removed with all that it owns.{own}",
                hint or f"Apply the {kind} with kubectl first, and take it out of this file.",
            )
        yield document


def _group(document: Mapping[str, Any]) -> str:
    """Return the API group of an object; empty for the core group, and for an object without a version."""
    version = document.get("apiVersion")
    if not isinstance(version, str):  # items of a typed list, and files that were edited by hand
        return _GROUPS.get(str(document.get("kind")), ("",))[0]
    return version.rpartition("/")[0]
