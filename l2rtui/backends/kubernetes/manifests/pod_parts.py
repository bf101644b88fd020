"""Parts of pod specs that several manifests share: resources, Pod Security, l2rtui's own pods, a set's program.

A program is mounted from the run's ConfigMap, or fetched by an init container.

New folders of nodes and claims are given to the user of the pod before its processes start. A container runtime
creates a missing folder of a hostPath volume as root, with mode 0755, and ``fsGroup`` does not apply to such
volumes: a pod of an ordinary user could never write there, and would restart forever. An init container therefore
gives the folder to the pod's user, with only the capability that this needs. It only changes a folder that is
empty and belongs to root: older content is left alone.

It needs no further rights: only a namespace that admits containers of root admits hostPath volumes at all (Pod
Security Standards, baseline). Nor does ``fsGroup`` apply to the volumes of many claims: NFS, EFS, hostPath. Their
folders are prepared in the same way where the namespace admits it; elsewhere the volume must let the user write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.domain.containers import Mount, PodSettings, Security
from l2rtui.domain.plan import RunPlan
from l2rtui.domain.quantity import format_cores
from l2rtui.domain.workload import PROGRAM_WORD, Resources, RunSpec, SetSpec

PREPARING_CONTAINER: Final = "prepare"
PREPARING_SCRIPT: Final = """\
user=$1; shift
for folder; do
  [ -d "$folder" ] || continue
  [ "$(stat -c %u "$folder")" = 0 ] || continue
  [ -z "$(ls -A "$folder" | grep -vx lost+found)" ] || continue
  chown "$user:$user" "$folder" && echo "$folder is new: it belongs to user $user now"
done
exit 0
"""
"""Shell script that gives new folders to a user. If a folder cannot be changed it is left, and the process reports
its failure. Pods of one node that start together may run this at the same time.
"""


def new_folders(settings: PodSettings) -> tuple[Mount, ...]:
    """Return the mounts of node folders that an ordinary user must be able to write to."""
    # At other security levels the image chooses the user, which is unknown here and may be root.
    if settings.security is not Security.RESTRICTED:
        return ()
    return tuple(mount for mount in settings.mounts if mount.host_path and not mount.read_only)


def new_claims(settings: PodSettings) -> tuple[Mount, ...]:
    """Return the mounts of claims that a plain user is to write to."""
    if settings.security is not Security.RESTRICTED:
        return ()
    return tuple(mount for mount in settings.mounts if mount.claim and not mount.read_only)


def preparing(set_spec: SetSpec, container: dict[str, Any], *, admits_root: bool) -> list[dict[str, Any]]:
    """Return the init container that prepares folders; none where a set mounts none for writing.

    Args:
        container: The set's own container, of which it has the image and the mounts of those folders.
        admits_root: The namespace admits it for claims, too.
    """
    mounts = (*new_folders(set_spec.pod), *(new_claims(set_spec.pod) if admits_root else ()))
    paths = [mount.path for mount in mounts]
    if not paths:
        return []
    init: dict[str, Any] = {
        "name": PREPARING_CONTAINER,
        "image": container["image"],
        "command": ["/bin/sh", "-c", PREPARING_SCRIPT, "l2r-prepare", str(set_spec.pod.user), *paths],
        "volumeMounts": [mount for mount in container["volumeMounts"] if mount["mountPath"] in paths],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": preparing_security(),
    }
    if policy := container.get("imagePullPolicy"):
        init["imagePullPolicy"] = policy
    return [init]


def preparing_security() -> dict[str, Any]:
    """Return the security context of the init container: root with the capability to give folders away, alone."""
    return {
        "runAsUser": 0,
        "runAsGroup": 0,
        "runAsNonRoot": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        # DAC_READ_SEARCH or the like is not needed: root owns the only folders that it touches.
        "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
    }


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
