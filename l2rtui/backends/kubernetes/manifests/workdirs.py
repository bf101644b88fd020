"""Own code of a run in its pods: a ConfigMap that runs with the same files share, and an init container.

The ConfigMap is named by the hash of the files and has every run that uses it as an owner, so it goes with the last
of them. It lacks the label of l2rtui's objects: everybody who watches runs would read its bytes. An archive that is
too large for it comes from a volume of the spec, which also stores packages of pip. The init container checks the
hash, unpacks and runs the setup commands, with the image, the variables and the rights of the pod's own container.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

from l2rtui.backends.common import workdirs
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.manifests.pod_parts import Manifest, new_object
from l2rtui.domain.plan import RunPlan
from l2rtui.domain.workload import SetSpec, Workdir

MAX_BYTES: Final = 900 << 10
"""Largest archive in a ConfigMap, which may hold 1 MiB with its metadata."""
ROOT: Final = "/l2r-workdir"
"""Folder of the unpacked files and of installed packages in the container."""
TREE_DIR: Final = f"{ROOT}/{workdirs.TREE}"
"""Folder in which the processes start."""
VOLUME_FOLDER: Final = ".l2r-workdirs"
"""Folder of the archives in a volume."""
_PACKED_DIR: Final = "/run/l2r-workdir"
_KEY: Final = "workdir.tar.gz"
_VOLUME: Final = "workdir"
_PACKED: Final = "workdir-packed"
_STORE: Final = "workdir-store"
_STORE_DIR: Final = "/run/l2r-store"


def is_in_volume(workdir: Workdir) -> bool:
    """Return whether the archive is too large for a ConfigMap."""
    return workdir.packed_bytes > MAX_BYTES


def file_name(workdir: Workdir) -> str:
    """Return the name of the archive in a volume."""
    return f"{workdir.sha256}.tar.gz"


def config_map_name(workdir: Workdir) -> str:
    """Return the name of the ConfigMap; runs have no dot in theirs."""
    return f"l2r-workdir.{workdir.sha256[:20]}"


def config_map(workdir: Workdir, namespace: str, owners: Sequence[Manifest] = ()) -> Manifest:
    """Return the ConfigMap with an archive. Raises BackendError if this machine no longer stores it."""
    data = base64.b64encode(workdirs.packed(workdir)).decode()
    meta: Manifest = {
        "namespace": namespace,
        "labels": {labels.APP_NAME: "l2r", labels.APP_COMPONENT: labels.WORKDIR},
    }
    meta |= {"ownerReferences": [*owners]} if owners else {}
    return new_object("ConfigMap", config_map_name(workdir), meta=meta, binaryData={_KEY: data}, immutable=True)


def is_used(run: RunPlan, set_spec: SetSpec) -> bool:
    """Return whether the processes of a set start in own code."""
    return workdirs.workdir_of(run.spec, set_spec) is not None


def command(run: RunPlan, set_spec: SetSpec, argv: list[str]) -> list[str]:
    """Return the command of a pod's container: as given, or in the own code of the run."""
    return workdirs.starting(ROOT, argv) if is_used(run, set_spec) else argv


def volumes(run: RunPlan, set_spec: SetSpec) -> tuple[list[Manifest], list[Manifest]]:
    """Return the volumes of the archive and of its files, and the mount of the container."""
    workdir = workdirs.workdir_of(run.spec, set_spec)
    if workdir is None:
        return [], []
    # Without a volume preflight refuses the archive, and the server should have nothing to add.
    packed: Manifest = {"emptyDir": {}}
    if workdir.volume:
        packed = {"persistentVolumeClaim": {"claimName": workdir.volume}}
    if not is_in_volume(workdir):
        items = [{"key": _KEY, "path": file_name(workdir)}]
        packed = {"configMap": {"name": config_map_name(workdir), "items": items}}
    parts = [{"name": _VOLUME, "emptyDir": {}}, {"name": _PACKED, **packed}]
    if _packages_key(run, set_spec, workdir):
        parts.append({"name": _STORE, "persistentVolumeClaim": {"claimName": workdir.volume}})
    return parts, [{"name": _VOLUME, "mountPath": ROOT}]


def _packages_key(run: RunPlan, set_spec: SetSpec, workdir: Workdir) -> str:
    image = set_spec.pod.image or run.spec.image
    return workdirs.packages_key(workdir, image, (*run.spec.env, *set_spec.env)) if workdir.volume else ""


def preparing(run: RunPlan, set_spec: SetSpec, container: Manifest) -> list[Manifest]:
    """Return the init container that unpacks the archive and runs the setup commands."""
    workdir = workdirs.workdir_of(run.spec, set_spec)
    if workdir is None:
        return []
    # Ports and resources are not copied: a setup needs no GPU.
    parts: dict[str, Any] = {
        key: value for key, value in container.items() if key not in ("ports", "resources", "workingDir")
    }
    packed: Manifest = {"name": _PACKED, "mountPath": _PACKED_DIR, "readOnly": True}
    packed |= {"subPath": VOLUME_FOLDER} if is_in_volume(workdir) else {}
    key, store = _packages_key(run, set_spec, workdir), f"{_STORE_DIR}/{VOLUME_FOLDER}/packages"
    argv = workdirs.unpacking(ROOT, f"{_PACKED_DIR}/{file_name(workdir)}", workdir, store, key)
    mounts = [*container["volumeMounts"], packed]
    mounts += [{"name": _STORE, "mountPath": _STORE_DIR}] if key else []
    return [{**parts, "name": "workdir", "command": argv, "volumeMounts": mounts}]
