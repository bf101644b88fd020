"""The one mount that this backend keeps: what a spec mounts at /l2r becomes L2R_DIR.

A claim is a folder of the state folder by its name, and a folder of the node is that folder: so a run of several
steps finds what an earlier run of it has left, as on a cluster. Other mounts would need containers.
"""

from __future__ import annotations

from pathlib import Path

from l2rtui.backends.local.layout import Root
from l2rtui.domain.containers import Mount
from l2rtui.domain.workload import RunSpec, SetSpec

DATA_DIR = "/l2r"
"""Where L2R_DIR is in containers."""


def prepare(root: Root, spec: RunSpec) -> str:
    """The folder that stands at /l2r for a run, made where it is a claim; empty where the spec names none.

    Raises:
        OSError: it cannot be made.
    """
    mount = next((found for one in spec.sets if (found := _data(one)) is not None), None)
    if mount is None:
        return ""
    folder = Path(mount.host_path) if mount.host_path else root.volumes / mount.claim
    folder /= mount.sub_path
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(folder)


def not_mounted(one: SetSpec) -> list[str]:
    """Paths of the mounts of a set that are left aside."""
    return [mount.path for mount in one.pod.mounts if mount != _data(one)]


def _data(one: SetSpec) -> Mount | None:
    return next(
        (
            mount
            for mount in one.pod.mounts
            if mount.path.rstrip("/") == DATA_DIR and (mount.claim or mount.host_path)
        ),
        None,
    )
