"""A planned pod to the body of ``POST /containers/create``, and to the files that it finds (pure).

The container is as narrow as a pod under Kubernetes' ``restricted``: a plain user, no capabilities, no way to more
rights. The token is a file that only that user reads; it stands in no variable, label or command line.
"""

from __future__ import annotations

import io
import math
import tarfile
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from l2rtui.backends.docker import labels
from l2rtui.backends.peers import joined_variables, peer_variables
from l2rtui.domain.containers import Binding, Mount, Security
from l2rtui.domain.plan import PodPlan, RunPlan
from l2rtui.domain.sidecar import sidecar_of, socket_problem
from l2rtui.domain.workload import PROGRAM_WORD, RestartPolicy, Role, RunSpec, SetSpec, pod_name
from runtime import contract

TOKEN_FILE: Final = "/run/l2r/token"  # noqa: S105  (a path)
DATA_DIR: Final = "/l2r"
"""L2R_DIR: a mount of the spec at this path, or a folder that goes with the container."""
PROGRAM_DIR: Final = "/run/l2r/program"
_HOME: Final = "/tmp"  # noqa: S108  (the container's own)
_RESTARTS: Final = {
    # Not `always`: that would start again what was stopped by hand when the Engine starts anew.
    RestartPolicy.ALWAYS: "unless-stopped",
    RestartPolicy.ON_FAILURE: "on-failure",
    RestartPolicy.NEVER: "no",
}
_LOG: Final = {"Type": "json-file", "Config": {"max-size": "50m", "max-file": "2"}}


def problems(spec: RunSpec) -> Iterator[str]:
    """Why this backend cannot run a spec, a sentence for each reason."""
    for one in spec.sets:
        if one.template:
            yield f"the set {one.name} is a pod template in Kubernetes' words: it needs the kubernetes backend"
        elif sidecar_of(spec, one) is not None:
            yield f"the set {one.name} has a simulator in a container beside it: it needs the kubernetes backend"
        elif problem := socket_problem(spec, one):
            yield f"the set {one.name}: {problem}; use the local backend, or simulator.kind reference"
        if one.program is not None and one.program.url:
            yield f"the program of {one.name} is fetched from an address: put it into the image, or give a file"
        if one.pod.secrets:
            yield f"the set {one.name} takes variables from Kubernetes secrets: it needs the kubernetes backend"
        if one.needs_device and one.pod.binding not in (Binding.ENV, Binding.CPU):
            yield f"the set {one.name} is bound by {one.pod.binding}: an Engine binds by device alone"
        for mount in one.pod.mounts:
            if mount.sub_path:
                yield f"the mount {mount.path} of {one.name} takes a part of a volume, which an Engine cannot do"


def container(run: RunPlan, pod: PodPlan, uid: str) -> dict[str, Any]:
    """The body that creates one pod; the uid marks this incarnation of it."""
    settings = pod.set_spec.pod
    words = [f"{PROGRAM_DIR}/{_program(pod.set_spec)}" if w == PROGRAM_WORD else w for w in pod.set_spec.command]
    network = labels.network_name(run.spec.name)
    body: dict[str, Any] = {
        "Image": image_of(run.spec, pod.set_spec),
        "Entrypoint": words[:1],
        "Cmd": words[1:],
        "Env": [f"{key}={value}" for key, value in _variables(run, pod, uid).items()],
        "Hostname": pod.name[:63],
        "StopTimeout": math.ceil(pod.set_spec.grace_seconds),
        "Labels": {
            labels.RUN: run.spec.name,
            labels.RUN_ID: run.uid,
            labels.OWNER: run.owner,
            labels.POD: msgspec.json.encode(pod).decode(),
        },
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


def files(pod: PodPlan, token: bytes, handed_over: Iterable[str] = ()) -> bytes:
    """What a container finds before its first start, as a tar archive for its root.

    Args:
        handed_over: Folders that are there and shall belong to the container's user from now on.
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
        if all(mount.path.rstrip("/") != DATA_DIR for mount in settings.mounts):
            _add(archive, DATA_DIR.lstrip("/"), None, 0o700, user)
        for path in handed_over:
            _add(archive, path.strip("/"), None, 0o770, user)
    return packed.getvalue()


def user_of(pod: PodPlan) -> int:
    """Number of the user as whom a container runs; 0 where that is the image's affair."""
    settings = pod.set_spec.pod
    return settings.user if settings.security is Security.RESTRICTED else 0


def volumes_of(pod: PodPlan) -> tuple[str, ...]:
    """Where the Engine's volumes are mounted to be written to; it makes new ones root's."""
    mounts = pod.set_spec.pod.mounts
    return tuple(one.path for one in mounts if not (one.host_path or one.in_memory or one.read_only))


def image_of(spec: RunSpec, one: SetSpec) -> str:
    """The image of a set."""
    return one.pod.image or spec.image


def _variables(run: RunPlan, pod: PodPlan, uid: str) -> dict[str, str]:
    """What every process is told, the others' addresses, then the spec's and the device's; later ones win."""
    is_learner = pod.set_spec.role is Role.LEARNER
    learner = next((one for one in run.spec.sets if one.role is Role.LEARNER), None)
    host = pod_name(run.spec.name, learner.name, 0) if learner else ""
    found = {
        "HOME": _HOME,
        "PYTHONUNBUFFERED": "1",
        **peer_variables(
            run.spec,
            pod.set_spec,
            pod.index,
            endpoint=lambda one, index: f"tcp://{pod_name(run.spec.name, one.name, index)}:{one.port}",
            tcp=lambda one, index: f"{pod_name(run.spec.name, one.name, index)}:{one.port}",
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
        contract.ENV_TOKEN_FILE: TOKEN_FILE,
        contract.ENV_DIR: DATA_DIR,
        contract.ENV_CONFIG: run.spec.train,
    }
    if learner is not None:
        found[contract.ENV_ENDPOINT] = f"tcp://{'*' if is_learner else host}:{contract.DATA_PORT}"
    if pod.set_spec.resources.cpu_cores is not None:
        found[contract.ENV_CPUS] = f"{pod.set_spec.resources.cpu_cores:g}"
    return found


def _limits(pod: PodPlan) -> dict[str, Any]:
    asked, shm = pod.set_spec.resources, pod.set_spec.pod.shm_bytes
    found: dict[str, Any] = {}
    if asked.cpu_cores is not None:
        found["CpuShares"] = max(2, round(asked.cpu_cores * 1024))  # a share where cores are short, no ceiling
    if asked.memory_bytes is not None:
        found["Memory"] = asked.memory_bytes
    if shm is not None:
        found["ShmSize"] = shm
    return found


def _devices(pod: PodPlan) -> dict[str, Any]:
    gpu = pod.gpu
    if gpu is None or gpu.is_cpu:
        return {}
    return {"DeviceRequests": [{"DeviceIDs": [gpu.uuid or str(gpu.index)], "Capabilities": [["gpu"]]}]}


def _mount(mount: Mount) -> dict[str, Any]:
    found: dict[str, Any] = {"Target": mount.path, "ReadOnly": mount.read_only}
    if mount.claim:
        return found | {"Type": "volume", "Source": mount.claim}
    if mount.host_path:
        return found | {"Type": "bind", "Source": mount.host_path}
    if mount.in_memory:
        size = {"SizeBytes": mount.size_bytes} if mount.size_bytes is not None else {}
        return found | {"Type": "tmpfs", "TmpfsOptions": {"Mode": 0o1777, **size}}
    return found | {"Type": "volume"}  # without a name: removed with the container


def _program(one: SetSpec) -> str:
    return one.program.name if one.program is not None else ""


def _add(archive: tarfile.TarFile, name: str, content: bytes | None, mode: int, user: int) -> None:
    info = tarfile.TarInfo(name)
    info.mode, info.uid, info.gid = mode, user, user
    if content is None:
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
        return
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))
