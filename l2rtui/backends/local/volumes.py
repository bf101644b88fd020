"""The only mount that this backend supports: a volume that a spec mounts at /l2r becomes L2R_DIR.

A volume claim is a folder of its name in the state folder, and a hostPath is the folder itself. So a run of several
steps finds files of its earlier runs, as on a cluster. Other mounts would need containers.
"""

from __future__ import annotations

from pathlib import Path

from l2rtui.backends.local.paths import StateFolder
from l2rtui.domain.containers import Mount
from l2rtui.domain.workload import RunSpec, SetSpec

DATA_DIR = "/l2r"
"""Path of L2R_DIR in containers."""


def prepare(root: StateFolder, spec: RunSpec) -> str:
    """Create and return the folder for /l2r of a run; empty if the spec mounts none there.

    Raises:
        OSError: It cannot be created.
    """
    mount = next((mount for mount in map(_data_mount, spec.sets) if mount is not None), None)
    if mount is None:
        return ""
    folder = Path(mount.host_path) if mount.host_path else root.volumes / mount.claim
    # As kubelet does with a subPath: it is created if it does not exist.
    folder /= mount.sub_path
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(folder)


def not_mounted(spec: SetSpec) -> list[str]:
    """Return the paths of the mounts of a set that this backend ignores."""
    return [mount.path for mount in spec.pod.mounts if mount != _data_mount(spec)]


def _data_mount(spec: SetSpec) -> Mount | None:
    mounts = (mount for mount in spec.pod.mounts if mount.claim or mount.host_path)
    return next((mount for mount in mounts if mount.path.rstrip("/") == DATA_DIR), None)
