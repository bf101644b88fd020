"""Parts of pod specs that several manifests share: resources, Pod Security, and pods of l2rtui's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.domain.quantity import format_cores
from l2rtui.domain.workload import Resources

Manifest = dict[str, Any]


def new_object(kind: str, name: str, *, meta: Mapping[str, Any] | None = None, **fields: Any) -> Manifest:
    """Return a manifest in the kind's usual API version, with additional metadata and fields such as ``spec``."""
    return {
        "apiVersion": KINDS[kind].api_version,
        "kind": kind,
        "metadata": {"name": name, **(meta or {})},
        **fields,
    }


def resource_requirements(resources: Resources, limits: Mapping[str, str]) -> Manifest:
    """Return requests and limits of a container; ``limits`` are extended resources, such as device plugins
    offer.
    """
    requests: dict[str, str] = {}
    limits = dict(limits)
    if resources.cpu_cores is not None:
        # No CPU limit: CFS quotas throttle a process even when its node is idle.
        requests["cpu"] = format_cores(resources.cpu_cores)
    if resources.memory_bytes is not None:
        # Memory cannot be reclaimed, so its limit equals its request.
        requests["memory"] = limits["memory"] = str(resources.memory_bytes)
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def restricted_pod(user: int, *, owns_volumes: bool = True) -> Manifest:
    """Return the pod's securityContext under Pod Security ``restricted``.

    Args:
        owns_volumes: Give volumes to the group of the user, so that it can write to them.
    """
    group = {"runAsGroup": user, "fsGroup": user} if owns_volumes else {}
    return {"runAsNonRoot": True, "runAsUser": user, **group, "seccompProfile": {"type": "RuntimeDefault"}}


def restricted_container() -> Manifest:
    """Return a container's securityContext under Pod Security ``restricted``."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def helper_pod(
    name: str,
    namespace: str,
    component: str,
    container: Manifest,
    *,
    user: int,
    deadline_seconds: int,
    owns_volumes: bool = True,
) -> Manifest:
    """Return a helper pod for l2rtui itself: without permissions, restricted, and with a deadline.

    Args:
        component: Value of its label ``app.kubernetes.io/component``.
        container: Its only container, without a securityContext.
        deadline_seconds: Time after which the kubelet ends it, even if l2rtui was killed.
    """
    own_labels = {labels.APP_MANAGED_BY: labels.MANAGED_BY, labels.APP_COMPONENT: component}
    spec = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": deadline_seconds,
        "automountServiceAccountToken": False,
        "securityContext": restricted_pod(user, owns_volumes=owns_volumes),
        "containers": [{**container, "securityContext": restricted_container()}],
    }
    return new_object("Pod", name, meta={"namespace": namespace, "labels": own_labels}, spec=spec)
