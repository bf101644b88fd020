"""Parts of pod specs that several manifests share: resources, Pod Security, l2rtui's own pods, a set's program.

A program is mounted from the run's ConfigMap, or fetched by an init container.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.domain.plan import RunPlan
from l2rtui.domain.quantity import format_cores
from l2rtui.domain.workload import PROGRAM_WORD, Resources, RunSpec, SetSpec

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


PROGRAM_DIR: Final = "/l2r-program"
"""Folder of the program in the container."""
_VOLUME: Final = "program"


def texts(spec: RunSpec) -> dict[str, str]:
    """Return keys and values of the run's ConfigMap with the texts of programs."""
    return {
        f"{labels.PROGRAM_KEY}{set_spec.name}": set_spec.program.text
        for set_spec in spec.sets
        if set_spec.program is not None and set_spec.program.text
    }


def command(set_spec: SetSpec) -> list[str]:
    """Return the command of a pod: the set's command with its program's path, or a supervisor of several
    workers.
    """
    path = f"{PROGRAM_DIR}/{set_spec.program.name}" if set_spec.program is not None else PROGRAM_WORD
    own = [path if word == PROGRAM_WORD else word for word in set_spec.command]
    if (workers := set_spec.workers_in_pod) == 1:
        return own
    options = (
        "--workers",
        str(workers),
        "--restart",
        str(set_spec.restart),
        "--grace",
        f"{set_spec.grace_seconds:g}",
    )
    return ["l2r-runtime", "supervise", *options, "--", *own]


def volume(run: RunPlan, set_spec: SetSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volume with the program, and its mount; empty without a program."""
    if set_spec.program is None:
        return [], []
    source: dict[str, Any] = {"emptyDir": {}}
    if set_spec.program.text:
        items = [{"key": f"{labels.PROGRAM_KEY}{set_spec.name}", "path": set_spec.program.name}]
        source = {"configMap": {"name": labels.run_object(run.spec.name), "items": items}}
    return [{"name": _VOLUME, **source}], [{"name": _VOLUME, "mountPath": PROGRAM_DIR, "readOnly": True}]


def fetching(set_spec: SetSpec, container: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the init container that fetches a program from its URL, with the container's variables and
    security.
    """
    if set_spec.program is None or not set_spec.program.url:
        return []
    # Ports and resources are not copied: a download needs no GPU.
    parts = {key: value for key, value in container.items() if key not in ("ports", "resources")}
    # Writable only here: the program cannot change its own file.
    mounts = [
        {"name": _VOLUME, "mountPath": PROGRAM_DIR} if mount["name"] == _VOLUME else mount
        for mount in container["volumeMounts"]
    ]
    argv = ["l2r-runtime", "fetch", set_spec.program.url, f"{PROGRAM_DIR}/{set_spec.program.name}"]
    return [{**parts, "name": "fetch", "command": argv, "volumeMounts": mounts}]
