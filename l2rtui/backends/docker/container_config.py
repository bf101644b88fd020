"""Converts a planned pod to the body of ``POST /containers/create`` and to its initial files. Pure.

The container has the restrictions of a pod under Kubernetes' ``restricted``: an unprivileged user, no capabilities,
no privilege escalation. The token is a file that only that user can read; it is in no variable, label or command
line.
"""

from __future__ import annotations

import io
import math
import tarfile
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from l2rtui.backends.common import workdirs
from l2rtui.backends.common.run_specs import joined_variables, peer_variables, watch_variables
from l2rtui.backends.docker import views
from l2rtui.domain.containers import Mount, Security
from l2rtui.domain.kinds import Binding
from l2rtui.domain.plan import PodPlan, RunPlan
from l2rtui.domain.sidecar import sidecar_of, socket_problem
from l2rtui.domain.workload import PROGRAM_WORD, RestartPolicy, Role, RunSpec, SetSpec, Workdir, pod_name
from runtime.base import contract

TOKEN_FILE: Final = "/run/l2r/token"  # noqa: S105  (a path)
DATA_DIR: Final = "/l2r"
"""L2R_DIR: a mount of the spec at this path, or a folder that is deleted with the container."""
PROGRAM_DIR: Final = "/run/l2r/program"
WORKDIR: Final = "/run/l2r/workdir"
_HOME: Final = "/tmp"  # noqa: S108  (the container's own)
_RESTARTS: Final = {
    # Not `always`: that would restart containers that were stopped by hand when the Engine restarts.
    RestartPolicy.ALWAYS: "unless-stopped",
    RestartPolicy.ON_FAILURE: "on-failure",
    RestartPolicy.NEVER: "no",
}
_LOG: Final = {"Type": "json-file", "Config": {"max-size": "50m", "max-file": "2"}}


def unsupported(spec: RunSpec) -> Iterator[str]:
    """Yield a sentence for each field of a spec that this backend does not implement."""
    for set_spec in spec.sets:
        name = set_spec.name
        if set_spec.template:
            yield f"the set {name} is a pod template in Kubernetes' words: it needs the kubernetes backend"
        elif sidecar_of(spec, set_spec) is not None:
            yield f"the set {name} has a simulator in a sidecar container: it needs the kubernetes backend"
        elif problem := socket_problem(spec, set_spec):
            yield f"the set {name}: {problem}; use the local backend, or simulator.kind reference"
        if set_spec.program is not None and set_spec.program.url:
            yield f"the program of {name} is fetched from an address: put it into the image, or give a file"
        if set_spec.pod.secrets:
            yield f"the set {name} takes variables from Kubernetes secrets: it needs the kubernetes backend"
        if set_spec.needs_device and set_spec.pod.binding not in (Binding.ENV, Binding.CPU):
            yield f"the set {name} is bound by {set_spec.pod.binding}: an Engine can only bind by device"
        for mount in set_spec.pod.mounts:
            if mount.sub_path:
                yield f"the mount {mount.path} of {name} takes a part of a volume, which an Engine cannot do"


def container_body(run: RunPlan, pod: PodPlan, uid: str) -> dict[str, Any]:
    """Return the body that creates one pod; the uid identifies this container."""
    settings = pod.set_spec.pod
    program = f"{PROGRAM_DIR}/{_program(pod.set_spec)}"
    argv = [program if argument == PROGRAM_WORD else argument for argument in pod.set_spec.command]
    if (workdir := workdirs.workdir_of(run.spec, pod.set_spec)) is not None:
        argv = workdirs.starting(WORKDIR, argv, workdir.setup)
    network = views.network_name(run.spec.name)
    body: dict[str, Any] = {
        "Image": image_of(run.spec, pod.set_spec),
        "Entrypoint": argv[:1],
        "Cmd": argv[1:],
        "Env": [f"{key}={value}" for key, value in _variables(run, pod, uid).items()],
        "Hostname": pod.name[:63],  # a DNS label
        "StopTimeout": math.ceil(pod.set_spec.grace_seconds),
        "Labels": {**views.of_plan(run), views.POD: msgspec.json.encode(pod).decode()},
        "HostConfig": {
            "NetworkMode": "host" if settings.host_network else network,
            "RestartPolicy": {"Name": _RESTARTS[pod.set_spec.restart]},
            "LogConfig": _LOG,
            "Mounts": [_mount(mount) for mount in settings.mounts],
            **_limits(pod),
            **_devices(pod),
        },
    }
    if settings.security is Security.RESTRICTED:
        body["User"] = str(settings.user)
        body["HostConfig"] |= {"CapDrop": ["ALL"], "SecurityOpt": ["no-new-privileges"]}
    elif settings.security is Security.PRIVILEGED:
        body["HostConfig"]["Privileged"] = True
    if not settings.host_network:
        body["NetworkingConfig"] = {"EndpointsConfig": {network: {"Aliases": [pod.name]}}}
    return body


def initial_files(
    pod: PodPlan, token: bytes, owned_folders: Iterable[str] = (), workdir: Workdir | None = None
) -> bytes:
    """Return the files of a container before its first start, as a tar archive for its root folder.

    ``owned_folders`` already exist and will be owned by the container's user.

    Raises:
        BackendError: The own code of the run is not stored on this machine any more.
    """
    settings, user = pod.set_spec.pod, user_of(pod)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        _add(archive, "run/l2r", None, 0o755, user)
        _add(archive, TOKEN_FILE.lstrip("/"), token, 0o400, user)
        if pod.set_spec.program is not None:
            _add(archive, PROGRAM_DIR.lstrip("/"), None, 0o755, user)
            name = f"{PROGRAM_DIR}/{_program(pod.set_spec)}".lstrip("/")
            _add(archive, name, pod.set_spec.program.text.encode(), 0o644, user)
        if workdir is not None:
            root = WORKDIR.lstrip("/")
            for folder in (root, f"{root}/{workdirs.TREE}", f"{root}/{workdirs.PACKAGES}"):
                _add(archive, folder, None, 0o755, user)
            for name, mode, content in workdirs.members(workdir):
                _add(archive, f"{root}/{workdirs.TREE}/{name}", content, mode, user)
        if all(mount.path.rstrip("/") != DATA_DIR for mount in settings.mounts):
            _add(archive, DATA_DIR.lstrip("/"), None, 0o700, user)
        for path in owned_folders:
            _add(archive, path.strip("/"), None, 0o770, user)
    return packed.getvalue()


def user_of(pod: PodPlan) -> int:
    """Return the user id of a container; 0 if the image decides."""
    settings = pod.set_spec.pod
    return settings.user if settings.security is Security.RESTRICTED else 0


def volumes_of(pod: PodPlan) -> tuple[str, ...]:
    """Return the mount paths of writable Engine volumes."""
    mounts = pod.set_spec.pod.mounts
    return tuple(mount.path for mount in mounts if not (mount.host_path or mount.in_memory or mount.read_only))


def image_of(spec: RunSpec, set_spec: SetSpec) -> str:
    """Return the image of a set."""
    return set_spec.pod.image or spec.image


def _variables(run: RunPlan, pod: PodPlan, uid: str) -> dict[str, str]:
    """Return the environment: common variables, peer addresses, the spec's, the device's; later ones win."""
    learner = next((row for row in run.spec.sets if row.role is Role.LEARNER), None)
    variables = {
        "HOME": _HOME,
        "PYTHONUNBUFFERED": "1",
        **peer_variables(
            run.spec,
            pod.set_spec,
            pod.index,
            endpoint=lambda peer, index: f"tcp://{pod_name(run.spec.name, peer.name, index)}:{peer.port}",
            tcp=lambda peer, index: f"{pod_name(run.spec.name, peer.name, index)}:{peer.port}",
            ip=pod.name,
        ),
        **dict(pod.env),
        contract.ENV_RUN: run.spec.name,
        contract.ENV_RUN_ID: run.uid,
        contract.ENV_POD: pod.name,
        contract.ENV_POD_ID: uid,
        contract.ENV_ROLE: str(pod.set_spec.role),
        contract.ENV_SET: pod.set_spec.name,
        contract.ENV_INDEX: str(pod.index),
        contract.ENV_SEED: str(run.spec.seed),
        **joined_variables(run.spec, pod.set_spec),
        **watch_variables(run.spec, pod.set_spec, run.pods),
        contract.ENV_TOKEN_FILE: TOKEN_FILE,
        contract.ENV_DIR: DATA_DIR,
        contract.ENV_CONFIG: run.spec.train,
    }
    if learner is not None:
        host = "*" if pod.set_spec.role is Role.LEARNER else pod_name(run.spec.name, learner.name, 0)
        variables[contract.ENV_ENDPOINT] = f"tcp://{host}:{contract.DATA_PORT}"
    if pod.set_spec.resources.cpu_cores is not None:
        variables[contract.ENV_CPUS] = f"{pod.set_spec.resources.cpu_cores:g}"
    return variables


def _limits(pod: PodPlan) -> dict[str, Any]:
    resources, shm = pod.set_spec.resources, pod.set_spec.pod.shm_bytes
    limits: dict[str, Any] = {"Memory": resources.memory_bytes, "ShmSize": shm}
    if resources.cpu_cores is not None:
        limits["CpuShares"] = max(2, round(resources.cpu_cores * 1024))  # relative share, not a limit
    return {name: value for name, value in limits.items() if value is not None}


def _devices(pod: PodPlan) -> dict[str, Any]:
    gpu = pod.gpu
    if gpu is None or gpu.is_cpu:
        return {}
    ids = [item.uuid or str(item.index) for item in pod.devices]
    return {"DeviceRequests": [{"DeviceIDs": ids, "Capabilities": [["gpu"]]}]}


def _mount(mount: Mount) -> dict[str, Any]:
    body: dict[str, Any] = {"Target": mount.path, "ReadOnly": mount.read_only}
    if mount.claim:
        return body | {"Type": "volume", "Source": mount.claim}
    if mount.host_path:
        return body | {"Type": "bind", "Source": mount.host_path}
    if mount.in_memory:
        size = {"SizeBytes": mount.size_bytes} if mount.size_bytes is not None else {}
        return body | {"Type": "tmpfs", "TmpfsOptions": {"Mode": 0o1777, **size}}
    return body | {"Type": "volume"}  # without a name: removed with the container


def _program(set_spec: SetSpec) -> str:
    return set_spec.program.name if set_spec.program is not None else ""


def _add(archive: tarfile.TarFile, name: str, content: bytes | None, mode: int, user: int) -> None:
    info = tarfile.TarInfo(name)
    info.mode, info.uid, info.gid = mode, user, user
    info.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
    info.size = len(content or b"")
    archive.addfile(info, io.BytesIO(content or b""))
