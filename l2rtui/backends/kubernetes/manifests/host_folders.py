"""Folders of nodes and claims that are new: given to the user of the pod before its processes start.

A container runtime creates a missing folder of a hostPath volume as root, with mode 0755, and ``fsGroup`` does not
apply to such volumes: a pod of an ordinary user could never write there, and would restart forever. An init
container therefore gives the folder to the pod's user, with only the capability that this needs. It only changes a
folder that is empty and belongs to root: older content is left alone.

It needs no further rights: only a namespace that admits containers of root admits hostPath volumes at all (Pod
Security Standards, baseline). Nor does ``fsGroup`` apply to the volumes of many claims: NFS, EFS, hostPath. Their
folders are prepared in the same way where the namespace admits it; elsewhere the volume must let the user write.
"""

from __future__ import annotations

from typing import Any, Final

from l2rtui.domain.containers import Mount, PodSettings, Security
from l2rtui.domain.workload import SetSpec

CONTAINER: Final = "prepare"
SCRIPT: Final = """\
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
        "name": CONTAINER,
        "image": container["image"],
        "command": ["/bin/sh", "-c", SCRIPT, "l2r-prepare", str(set_spec.pod.user), *paths],
        "volumeMounts": [mount for mount in container["volumeMounts"] if mount["mountPath"] in paths],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": security(),
    }
    if policy := container.get("imagePullPolicy"):
        init["imagePullPolicy"] = policy
    return [init]


def security() -> dict[str, Any]:
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
