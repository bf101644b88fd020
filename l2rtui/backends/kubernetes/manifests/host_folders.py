"""Node folders that do not exist yet: given to the user of the pod before its processes start.

A container runtime creates a missing folder of a hostPath volume as root, with mode 0755, and ``fsGroup`` does not
apply to such volumes: a pod of an ordinary user could never write there, and would restart forever. An init
container therefore gives the folder to the pod's user, with only the capability that this needs. It only changes a
folder that is empty and belongs to root: older content is left alone.

This needs no further permissions: only a namespace that admits root containers admits hostPath volumes at all (Pod
Security Standards, baseline).
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
  [ -z "$(ls -A "$folder")" ] || continue
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


def preparing(set_spec: SetSpec, container: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the init container that prepares node folders; empty if the set mounts none for writing.

    Args:
        container: The set's own container, whose image and folder mounts are used.
    """
    paths = [mount.path for mount in new_folders(set_spec.pod)]
    if not paths:
        return []
    init: dict[str, Any] = {
        "name": CONTAINER,
        "image": container["image"],
        "command": ["/bin/sh", "-c", SCRIPT, "l2r-prepare", str(set_spec.pod.user), *paths],
        "volumeMounts": [mount for mount in container["volumeMounts"] if mount["mountPath"] in paths],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "runAsNonRoot": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            # DAC_READ_SEARCH and the like are not needed: root owns the only folders that it touches.
            "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
        },
    }
    if policy := container.get("imagePullPolicy"):
        init["imagePullPolicy"] = policy
    return [init]
