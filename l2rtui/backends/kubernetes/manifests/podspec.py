"""Pod templates: conversion of one replica to its variables, mounts, security context and node.

Pods that l2rtui generates meet Pod Security ``restricted``: an ordinary user, no capabilities, no privilege
escalation, the runtime's seccomp profile, a read-only root file system. Imported templates stay as they are, except
for names, the node and the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from l2rtui.backends.common.run_variables import has_peers, joined_variables, peer_variables, watch_variables
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.extended_resources import MIG, WHOLE
from l2rtui.backends.kubernetes.manifests import (
    gpu_binding,
    import_fields,
    import_services,
    import_yaml,
    pod_parts,
    pod_patch,
    scheduling,
    sidecars,
    workdirs,
)
from l2rtui.backends.kubernetes.manifests.gpu_binding import DEVICE_VARIABLES, WHOLE_GPU, CudaIndex, GpuBinding
from l2rtui.backends.kubernetes.manifests.pod_parts import (
    new_object,
    resource_requirements,
    restricted_container,
    restricted_pod,
)
from l2rtui.domain.containers import GPU_TOLERATION, Mount, PodSettings, Security
from l2rtui.domain.kinds import Binding
from l2rtui.domain.node import CPU
from l2rtui.domain.plan import PodPlan, RunPlan
from l2rtui.domain.sidecar import sidecar_of
from l2rtui.domain.workload import Role, RunSpec, SetSpec, pod_name
from runtime.base import bounded_json, contract

CONTAINER: Final = "main"
TOKEN_DIR: Final = "/run/l2r"  # noqa: S105  (a folder)
DATA_DIR: Final = "/l2r"
"""L2R_DIR in the container: a mount of the spec at this path, or an empty folder that is deleted with the pod."""
_SUPERVISOR_SECONDS: Final = 2
_HOME: Final = "/tmp"  # noqa: S108  (the container's own, an emptyDir)


class ServerFacts(Struct, frozen=True):
    """Facts about a cluster that manifests depend on.

    Attributes:
        version: (major, minor) of the server.
        cuda: Value of ``CUDA_VISIBLE_DEVICES`` where a GPU's UUID is not known.
        hostnames: ``kubernetes.io/hostname`` of nodes where it is not the node's name.
        runtime_classes: RuntimeClass of pods with a GPU of NVIDIA, by node; see ``runtime_class``.
        admits_root: The namespace admits an init container of root, which gives new volumes to a plain user.
    """

    version: tuple[int, int] = (1, 20)
    cuda: CudaIndex = CudaIndex.SAME
    hostnames: Mapping[str, str] = field(default_factory=dict)
    runtime_classes: Mapping[str, str] = field(default_factory=dict)
    admits_root: bool = False

    def hostname(self, node: str) -> str:
        """Value of the node's label ``kubernetes.io/hostname``."""
        return self.hostnames.get(node, node)


def pod_template(
    run: RunPlan,
    pods: Sequence[PodPlan],
    server: ServerFacts,
    own_labels: Mapping[str, str],
    annotations: Mapping[str, str],
) -> dict[str, Any]:
    """Return the pod template of one controller, whose pods are all alike.

    Raises:
        RefusedError: The binding mode is not available, or the spec's own pod fields cannot be merged.
    """
    pod = pods[0]
    bound = gpu_binding.bind(run, pod, server.cuda)
    together = scheduling.gang_fields(run)
    own_labels = {**own_labels, **together.labels}
    annotations = {**annotations, **bound.annotations, **together.annotations}
    if pod.set_spec.template:
        template = _imported(run, pod, bound, server, own_labels, annotations)
    else:
        meta = {"labels": dict(own_labels), "annotations": dict(annotations)}
        template = {"metadata": meta, "spec": _own_spec(run, pods, bound, server)}
    if together.scheduler:
        template["spec"]["schedulerName"] = together.scheduler
    return pod_patch.patched(template, pod.set_spec.pod, bound.env)


# --- pods of l2rtui ------------------------------------------------------------------------------
def _own_spec(run: RunPlan, pods: Sequence[PodPlan], bound: GpuBinding, server: ServerFacts) -> dict[str, Any]:
    pod, settings = pods[0], pods[0].set_spec.pod
    volumes, mounts = _volumes(run, settings)
    for added in (pod_parts.volume(run, pod.set_spec), workdirs.volumes(run, pod.set_spec)):
        for own, parts in zip((volumes, mounts), added, strict=True):
            own.extend(parts)
    container = _container(run, pods, bound, mounts)
    # A supervisor ends after its workers, which have the grace of the set.
    supervision = _SUPERVISOR_SECONDS if pod.set_spec.workers_in_pod > 1 else 0
    spec: dict[str, Any] = {
        **hostname(run, pod),
        "containers": [container],
        "volumes": volumes,
        "terminationGracePeriodSeconds": math.ceil(pod.set_spec.grace_seconds) + supervision,
        # Otherwise every Service of the namespace would add seven variables to every container.
        "enableServiceLinks": False,
        **_placement(pod, settings, server),
        **_account(settings),
        **_pod_security(settings),
        **_runtime(pod, server),
    }
    prepare = pod_parts.preparing(pod.set_spec, container, admits_root=server.admits_root)
    own_code = workdirs.preparing(run, pod.set_spec, container)
    if init := [*prepare, *pod_parts.fetching(pod.set_spec, container), *own_code]:
        spec["initContainers"] = init
    if settings.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.pull_secrets]
    if settings.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if bound.claim:
        spec["resourceClaims"] = [{"name": gpu_binding.CLAIM_NAME, "resourceClaimName": bound.claim}]
    if (simulator := sidecar_of(run.spec, pod.set_spec)) is not None:
        claims = [{"name": gpu_binding.CLAIM_NAME}] if bound.claim else []
        simulator_env = {**_spec_variables(pod), **_identity(run, pods), **dict(bound.env)}
        # The simulator is not the worker: a command that reads its role must not mistake it for one.
        simulator_env.pop(contract.ENV_ROLE)
        sidecars.add(spec, pod.set_spec, simulator, version=server.version, variables=simulator_env, claims=claims)
    return spec


def _container(
    run: RunPlan, pods: Sequence[PodPlan], bound: GpuBinding, mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    pod, settings = pods[0], pods[0].set_spec.pod
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": settings.image or run.spec.image,
        "command": workdirs.command(run, pod.set_spec, pod_parts.command(pod.set_spec)),
        "env": _variables(run, pods, bound),
        "volumeMounts": mounts,
        # The last lines of the log become the message of the ended container, which `kubectl` and l2rtui show.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if workdirs.is_used(run, pod.set_spec):
        container["workingDir"] = workdirs.TREE_DIR
    if settings.pull_policy:
        container["imagePullPolicy"] = settings.pull_policy
    if settings.secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in settings.secrets]
    if resources := _resources(pod, bound):
        container["resources"] = resources
    if pod.set_spec.role is Role.LEARNER:
        ports = (contract.DATA_PORT, contract.DATA_PORT + 1, *settings.ports)
        container["ports"] = [{"containerPort": port, "protocol": "TCP"} for port in ports]
    elif settings.ports:
        container["ports"] = [{"containerPort": port, "protocol": "TCP"} for port in settings.ports]
    return container | _container_security(settings)


def _variables(run: RunPlan, pods: Sequence[PodPlan], bound: GpuBinding) -> list[dict[str, Any]]:
    """Return the contract's variables, then the spec's, then the device's; a later one overrides its name."""
    pod = pods[0]
    plain = {
        "HOME": _HOME,
        "PYTHONUNBUFFERED": "1",
        **variables(run, pod),
        **_spec_variables(pod),
        **_identity(run, pods),
        contract.ENV_TOKEN_FILE: f"{TOKEN_DIR}/token",
        contract.ENV_DIR: DATA_DIR,
        contract.ENV_CONFIG: run.spec.train,
    }
    learner = next((item for item in run.spec.sets if item.role is Role.LEARNER), None)
    if learner is not None:
        host = labels.learner_service(run.spec.name, learner.name)
        listens = pod.set_spec.role is Role.LEARNER
        plain[contract.ENV_ENDPOINT] = f"tcp://{'*' if listens else host}:{contract.DATA_PORT}"
    if (cores := pod.set_spec.resources.cpu_cores) is not None:
        plain[contract.ENV_CPUS] = f"{cores:g}"
    return [
        *({"name": key, "value": value} for key, value in {**plain, **dict(bound.env)}.items()),
        *_from_pod(),
        *own_address(run.spec),
    ]


def _spec_variables(pod: PodPlan) -> dict[str, str]:
    """Return the spec's variables, without those that the binding mode sets."""
    return {key: value for key, value in pod.env if key not in DEVICE_VARIABLES}


def _identity(run: RunPlan, pods: Sequence[PodPlan]) -> dict[str, str]:
    pod = pods[0]
    variables = {
        contract.ENV_RUN: run.spec.name,
        contract.ENV_RUN_ID: run.uid,
        contract.ENV_ROLE: str(pod.set_spec.role),
        contract.ENV_SET: pod.set_spec.name,
        contract.ENV_SEED: str(run.spec.seed),
        **joined_variables(run.spec, pod.set_spec),
        **watch_variables(run.spec, pod.set_spec, run.pods),
    }
    if len(pods) == 1 and pod.set_spec.bounds is None:  # elastic nodes have no fixed index
        variables[contract.ENV_INDEX] = str(pod.index)
    return variables


def _from_pod() -> list[dict[str, Any]]:
    fields = {contract.ENV_POD: "metadata.name", contract.ENV_POD_ID: "metadata.uid"}
    return [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()]


def _resources(pod: PodPlan, bound: GpuBinding) -> dict[str, Any]:
    requirements = resource_requirements(pod.set_spec.pod_resources, bound.limits)
    if bound.claim:
        requirements["claims"] = [{"name": gpu_binding.CLAIM_NAME}]
    return requirements


def _volumes(run: RunPlan, settings: PodSettings) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return volumes of the pod and their mounts: the spec's, then those that every process needs."""
    paths = {mount.path.rstrip("/") for mount in settings.mounts}
    # The root file system is read-only, so home and run directory need a volume.
    own = [Mount(path) for path in (DATA_DIR, _HOME) if path not in paths]
    if settings.shm_bytes is not None and "/dev/shm" not in paths:  # noqa: S108  (the container's)
        own.append(Mount("/dev/shm", in_memory=True, size_bytes=settings.shm_bytes))  # noqa: S108
    volumes: list[dict[str, Any]] = [
        {"name": "token", "secret": {"secretName": labels.run_object(run.spec.name), "defaultMode": 0o440}}
    ]
    mounts: list[dict[str, Any]] = [{"name": "token", "mountPath": TOKEN_DIR, "readOnly": True}]
    named: dict[str, str] = {}  # one volume for each claim, however often it is mounted
    for number, mount in enumerate((*settings.mounts, *own)):
        name = named.get(mount.claim, f"mount-{number}")
        if mount.claim:
            named[mount.claim] = name
        if not any(volume["name"] == name for volume in volumes):
            volumes.append({"name": name, **_volume(mount)})
        volume_mount: dict[str, Any] = {"name": name, "mountPath": mount.path}
        volume_mount |= {"readOnly": True} if mount.read_only else {}
        volume_mount |= {"subPath": mount.sub_path} if mount.sub_path else {}
        mounts.append(volume_mount)
    return volumes, mounts


def _volume(mount: Mount) -> dict[str, Any]:
    if mount.claim:
        return {"persistentVolumeClaim": {"claimName": mount.claim}}
    if mount.host_path:
        return {"hostPath": {"path": mount.host_path}}
    empty: dict[str, Any] = {"medium": "Memory"} if mount.in_memory else {}
    if mount.size_bytes is not None:
        empty["sizeLimit"] = str(mount.size_bytes)
    return {"emptyDir": empty}


def _placement(pod: PodPlan, settings: PodSettings, server: ServerFacts) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    selector = dict(settings.node_selector)
    tolerations = [*settings.tolerations]
    if pod.node:
        selector[labels.HOSTNAME] = server.hostname(pod.node)
    # A worker on the CPU of a GPU node also needs to tolerate the taint that keeps other pods away.
    is_beside_gpus = pod.gpu is not None and (not pod.gpu.is_cpu or pod.gpu.index == CPU)
    if is_beside_gpus and GPU_TOLERATION not in tolerations:
        tolerations.append(GPU_TOLERATION)
    if selector:
        fields["nodeSelector"] = selector
    if tolerations:
        fields["tolerations"] = [scheduling.toleration(item) for item in tolerations]
    return fields


def _runtime(pod: PodPlan, server: ServerFacts) -> dict[str, Any]:
    # DRA's driver passes the device into the container by CDI, whatever the runtime.
    needs_gpu = uses_nvidia(pod) and pod.set_spec.pod.binding is not Binding.DRA
    name = server.runtime_classes.get(pod.node, "") if needs_gpu else ""
    return {"runtimeClassName": name} if name else {}


def uses_nvidia(pod: PodPlan) -> bool:
    """Return True for a pod that gets an NVIDIA GPU, or a part of one."""
    gpu, binding = pod.gpu, pod.set_spec.pod.binding
    is_gpu = gpu is not None and not gpu.is_cpu and (gpu.resource in ("", WHOLE) or gpu.resource.startswith(MIG))
    return is_gpu and binding is not Binding.CPU and bool(pod.seat.slots)


def _account(settings: PodSettings) -> dict[str, Any]:
    if settings.service_account:
        return {"serviceAccountName": settings.service_account, "automountServiceAccountToken": True}
    return {"automountServiceAccountToken": False}


def _pod_security(settings: PodSettings) -> dict[str, Any]:
    if settings.security is not Security.RESTRICTED:
        return {}
    return {"securityContext": restricted_pod(settings.user)}


def _container_security(settings: PodSettings) -> dict[str, Any]:
    if settings.security is Security.PRIVILEGED:
        return {"securityContext": {"privileged": True}}
    if settings.security is Security.BASELINE:
        return {"securityContext": {"allowPrivilegeEscalation": False}}
    return {"securityContext": {**restricted_container(), "readOnlyRootFilesystem": True}}


# --- imported templates --------------------------------------------------------------------------------------
def _imported(
    run: RunPlan,
    pod: PodPlan,
    bound: GpuBinding,
    server: ServerFacts,
    own_labels: Mapping[str, str],
    annotations: Mapping[str, str],
) -> dict[str, Any]:
    """Return an imported template with our labels, and with the node and the device of the seat."""
    values = {
        "seed": str(run.spec.seed),
        "run": run.spec.name,
        "node": pod.node,
        "gpu": ",".join(str(gpu.index) for gpu in pod.devices),
    }
    template: dict[str, Any] = import_yaml.filled(bounded_json.loads(pod.set_spec.template), values)
    spec, controller = template["spec"], template.get("controller") or {}
    added = {**_identity(run, [pod]), "SEED": str(run.spec.seed), **dict(run.spec.env), **dict(pod.set_spec.env)}
    if not pod.set_spec.stable:
        added.pop(contract.ENV_INDEX)  # one template for all replicas
    extras = bounded_json.loads(run.spec.extras)
    if extras:
        added["L2R_LEARNER_HOST"] = import_services.service_name(run.spec.name, extras[0])
    for extra in extras:
        if extra.get("names_pod") and extra["set"] == pod.set_spec.name:
            spec.setdefault("hostname", import_services.service_name(run.spec.name, extra))
    meta = template.get("metadata") or {}
    if "hosts" in controller:
        own, marks = _indexed(controller, pod.index)
        added |= own
        meta["annotations"] = {**(meta.get("annotations") or {}), **marks}
        spec.setdefault("hostname", _host(controller["hosts"], pod.index))
    import_services.follow(spec, run.spec.name, extras)
    _bind_imported(spec, pod, bound, added)
    if run.spec.image:
        for container in spec["containers"]:
            container["image"] = run.spec.image
    if pod.node:
        import_fields.bind_node(spec, pod.node, server.hostname(pod.node))
    return {
        "metadata": {
            "labels": {**(meta.get("labels") or {}), **own_labels},
            "annotations": {**(meta.get("annotations") or {}), **annotations},
        },
        "spec": spec,
    }


def _bind_imported(spec: dict[str, Any], pod: PodPlan, bound: GpuBinding, added: Mapping[str, str]) -> None:
    """Write variables, limits and claims of a seat into the containers of an imported template."""
    binding = pod.set_spec.pod.binding
    # If the cluster assigns a device requested by the file, our variables would take it away again.
    is_theirs = bound.env == gpu_binding.NO_GPU and import_fields.claims_devices(spec)
    device_env = {} if is_theirs else dict(bound.env)
    every = import_fields.containers(spec)
    # With a request, CUDA's variable counts the container's own devices.
    names = {variable.get("name") for container in every for variable in container.get("env") or []}
    is_relative = binding is Binding.DEVICE_PLUGIN and gpu_binding.NVIDIA not in names
    replaced = () if is_theirs or is_relative else DEVICE_VARIABLES
    for container in every:
        theirs = [variable for variable in container.get("env") or [] if variable.get("name") not in replaced]
        names = {variable.get("name") for variable in theirs}
        plain = {key: value for key, value in added.items() if key not in names}
        own = [{"name": key, "value": value} for key, value in {**plain, **device_env}.items()]
        container["env"] = [*theirs, *own, *(item for item in _from_pod() if item["name"] not in names)]
    if pod.gpu is not None and binding not in (Binding.DEVICE_PLUGIN, Binding.HAMI) and not is_theirs:
        for container in every:  # another binding was chosen for a file that requests whole GPUs
            for part in ("limits", "requests"):
                import_fields.mapping(import_fields.mapping(container, "resources"), part).pop(WHOLE_GPU, None)
    for name, amount in bound.limits.items():
        # A container that requests the device already gets it by its own request.
        if not any(name in import_fields.requested(container) for container in every):
            resources = spec["containers"][0].setdefault("resources", {})
            resources["limits"] = {**(resources.get("limits") or {}), name: amount}
    if bound.claim:
        resources = spec["containers"][0].setdefault("resources", {})
        resources["claims"] = [*(resources.get("claims") or []), {"name": gpu_binding.CLAIM_NAME}]
        claim = {"name": gpu_binding.CLAIM_NAME, "resourceClaimName": bound.claim}
        spec["resourceClaims"] = [*(spec.get("resourceClaims") or []), claim]


_INDEX: Final = "batch.kubernetes.io/job-completion-index"


def _indexed(controller: Mapping[str, Any], index: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return variables and annotations that tell a pod of an Indexed Job or a JobSet its index."""
    pods = int(controller.get("indices") or 0)
    own = index % pods if pods else index
    marks = {_INDEX: str(own)}
    if pods:
        marks["jobset.sigs.k8s.io/job-index"] = str(index // pods)
    return {"JOB_COMPLETION_INDEX": str(own)}, marks


def _host(hosts: Any, index: int) -> str:
    return str(hosts[index]) if isinstance(hosts, list) and index < len(hosts) else f"{hosts}-{index}"


def imported_controller(run: RunPlan, set_spec: SetSpec) -> dict[str, Any]:
    """Return the fields that the controllers of an imported set keep from the file: metadata and spec of a Job."""
    if not set_spec.template:
        return {}
    controller = bounded_json.loads(set_spec.template).get("controller") or {}
    fields: dict[str, Any] = import_yaml.filled(controller, {"seed": str(run.spec.seed), "run": run.spec.name})
    return fields


_POD_IP: Final = {"name": contract.ENV_POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def service(run: RunPlan) -> list[dict[str, Any]]:
    """Return the headless Service of a run whose processes are found by name; empty for other runs."""
    ports = sorted({set_spec.port for set_spec in run.spec.sets if set_spec.port})
    if not ports:
        return []
    spec = {
        "clusterIP": "None",
        "selector": {labels.RUN_ID: run.uid, labels.STABLE: "true"},
        "ports": [{"name": f"port-{port}", "port": port, "protocol": "TCP", "targetPort": port} for port in ports],
        # Peers connect while a process is still starting, before it reports ready.
        "publishNotReadyAddresses": True,
    }
    return [new_object("Service", labels.peers_service(run.spec.name), spec=spec)]


def hostname(run: RunPlan, pod: PodPlan) -> dict[str, str]:
    """Return the fields that give the pod of a stable replica its DNS name under the Service."""
    if not pod.set_spec.port:
        return {}
    return {"hostname": pod.name, "subdomain": labels.peers_service(run.spec.name)}


def variables(run: RunPlan, pod: PodPlan) -> dict[str, str]:
    """Return the variables that name the peers of a pod."""

    def tcp(set_spec: SetSpec, index: int) -> str:
        # Short form: the pod's search path adds namespace and cluster domain.
        host = f"{pod_name(run.spec.name, set_spec.name, index)}.{labels.peers_service(run.spec.name)}"
        return f"{host}:{set_spec.port}"

    return peer_variables(run.spec, pod.set_spec, pod.index, tcp=tcp)


def own_address(spec: RunSpec) -> list[dict[str, Any]]:
    """Return the variable with the pod's own address, if it has peers."""
    return [_POD_IP] if has_peers(spec) else []
