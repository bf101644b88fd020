"""GPUs of pods: how a pod gets the GPU of its seat, and the RuntimeClass that makes it visible. Pure.

``env``: two variables name the device. If the GPU's UUID is known, both contain it, which works whether or not the
container runtime hides the other GPUs. If it is unknown, ``NVIDIA_VISIBLE_DEVICES`` is the index, and
``CUDA_VISIBLE_DEVICES`` depends on the cluster: the same index if all GPUs stay visible (the lab's recipe), or 0
if the runtime hides the others and renumbers the remaining one. The setting ``cuda_index`` selects this; `l2rtui
check` probes it.

The device plugin, DRA and HAMi set the variables themselves, so these modes write none.

On most clusters the default container runtime provides GPUs. On k3s and RKE2 it is runc: a pod without
``runtimeClassName: nvidia`` runs there but sees no GPU. The class is chosen if it exists and is safe: on a node
that reports a handler of its name (Kubernetes 1.31 and later), or whose kubelet is from k3s or RKE2.

Source of this rule: docs.k3s.io/advanced, "Alternative Container Runtime Support"; NodeRuntimeHandler in
k8s.io/api.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct, field

from l2rtui.backends.kubernetes.extended_resources import SHARED, WHOLE
from l2rtui.backends.kubernetes.labels import HAMI_GPU_UUID, slot_lease
from l2rtui.domain.kinds import Binding
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.plan import PodPlan, RunPlan
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.errors import RefusedError

NVIDIA: Final = "NVIDIA_VISIBLE_DEVICES"
CUDA: Final = "CUDA_VISIBLE_DEVICES"
DEVICE_VARIABLES: Final = (NVIDIA, CUDA)
WHOLE_GPU: Final = WHOLE
HAMI_MEMORY: Final = "nvidia.com/gpumem-percentage"
DEVICE_CLASS: Final = "gpu.nvidia.com"
CLAIM_NAME: Final = "gpu"
NO_GPU: Final = ((NVIDIA, "none"), (CUDA, ""))
_DRA_VERSIONS: Final = (((1, 34), "v1"), ((1, 33), "v1beta2"), ((1, 32), "v1beta1"))


class CudaIndex(StrEnum):
    """Value of ``CUDA_VISIBLE_DEVICES`` if only the index of a GPU is known: the same index, or 0."""

    SAME = "same"
    ZERO = "zero"


class GpuBinding(Struct, frozen=True):
    """Additions of a binding mode to a pod.

    Attributes:
        env: Variables of the first container, in order.
        limits: Extended resources of the first container.
        annotations: Annotations of the pod.
        claim: Name of the ResourceClaim that the pod refers to; empty for none.
    """

    env: tuple[tuple[str, str], ...] = ()
    limits: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    claim: str = ""


def bind(run: RunPlan, pod: PodPlan, cuda: CudaIndex) -> GpuBinding:
    """Return the additions to the pod of a seat; RefusedError if the mode needs a UUID that is unknown."""
    gpu = pod.gpu
    mode = pod.set_spec.pod.binding
    if gpu is None or gpu.is_cpu or not pod.seat.slots or mode is Binding.CPU:
        # Set even without a GPU: CUDA images request all devices by default.
        return GpuBinding(env=NO_GPU)
    if mode is Binding.DEVICE_PLUGIN:
        units = pod.seat.units or pod.set_spec.gpus or 1
        return GpuBinding(
            limits={pod.seat.resource or gpu.resource or pod.set_spec.pod.device or WHOLE: str(units)}
        )
    if gpu.resource == WHOLE:
        raise RefusedError(
            f"{gpu.node}/{gpu.index} is a slice of a card (MIG strategy single), and a variable names cards, not "
            f"slices ({pod.name}).",
            "Choose --binding device-plugin, which gets a slice by count.",
        )
    if gpu.resource:
        raise RefusedError(
            f"{gpu.node}/{gpu.index} is of {gpu.resource}, which only its device plugin allocates ({pod.name}).",
            f"Write `device: {gpu.resource}` under pod, or choose --binding device-plugin.",
        )
    if mode is Binding.SHARED:
        return GpuBinding(limits={pod.seat.resource or SHARED: str(len(pod.seat.slots))})
    if mode is Binding.HAMI:
        # HAMi counts memory in percent of one GPU; a seat gets the share that its slots have.
        share = max(1, 100 * len(pod.seat.slots) // max(1, gpu.slots * len(pod.devices)))
        uuids = ",".join(_uuid(item, mode, pod) for item in pod.devices)
        return GpuBinding(
            limits={WHOLE: str(len(pod.devices)), HAMI_MEMORY: str(share)}, annotations={HAMI_GPU_UUID: uuids}
        )
    if mode is Binding.DRA:
        for item in pod.devices:
            _uuid(item, mode, pod)
        return GpuBinding(claim=claim_name(run.spec.name, pod.devices))
    return GpuBinding(env=device_variables(pod.devices, cuda))


def device_variables(gpus: Sequence[Gpu], cuda: CudaIndex) -> tuple[tuple[str, str], ...]:
    """Return both variables for the GPUs of a pod."""
    if all(gpu.uuid for gpu in gpus):  # by index if one UUID is unknown: CUDA does not accept a mix of both
        uuids = ",".join(gpu.uuid for gpu in gpus)
        return ((NVIDIA, uuids), (CUDA, uuids))
    indices = ",".join(str(gpu.index) for gpu in gpus)
    return ((NVIDIA, indices), (CUDA, indices if cuda is CudaIndex.SAME else ",".join(map(str, range(len(gpus))))))


def claim_name(run: str, gpus: Sequence[Gpu]) -> str:
    """Return the name of the ResourceClaim that the pods of one run share on the same GPUs."""
    device = slot_lease(gpus[0].node, gpus[0].index).removeprefix("l2r-claim-")
    return "-".join([f"{run}-{device}", *(str(gpu.index) for gpu in gpus[1:])])[:253].rstrip("-.")


def resource_claim(name: str, gpus: Sequence[Gpu], version: tuple[int, int]) -> dict[str, Any]:
    """Return the ResourceClaim on GPUs by their UUIDs, in the newest API version that the server has.

    Raises:
        RefusedError: The server has no DRA.
    """
    api = next((name for since, name in _DRA_VERSIONS if version >= since), "")
    if not api:
        raise RefusedError(
            f"Binding mode dra needs Kubernetes 1.32 or newer; this server is {version[0]}.{version[1]}.",
            "Choose another with --binding.",
        )
    requests = []
    for number, gpu in enumerate(gpus):
        expression = f'device.attributes["{DEVICE_CLASS}"].uuid == "{gpu.uuid}"'
        device = {"deviceClassName": DEVICE_CLASS, "selectors": [{"cel": {"expression": expression}}]}
        # v1beta1 has the fields in the request itself; later versions put them under ``exactly``.
        request_name = f"{CLAIM_NAME}-{number}" if number else CLAIM_NAME
        requests.append({"name": request_name, **(device if api == "v1beta1" else {"exactly": device})})
    return {
        "apiVersion": f"resource.k8s.io/{api}",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": requests}},
    }


def explain(run: RunPlan, cuda: CudaIndex) -> tuple[Finding, ...]:
    """Return findings on how the pods of a run get their GPUs, one for each binding mode."""
    with_gpu = (pod for pod in run.pods if pod.gpu is not None and not pod.gpu.is_cpu and pod.seat.slots)
    pods = [pod for pod in with_gpu if pod.set_spec.pod.binding is not Binding.CPU]
    modes = dict.fromkeys(pod.set_spec.pod.binding for pod in pods)
    return tuple(
        _explained(run.spec.name, mode, [pod for pod in pods if pod.set_spec.pod.binding is mode], cuda)
        for mode in modes
    )


def _explained(subject: str, mode: Binding, pods: list[PodPlan], cuda: CudaIndex) -> Finding:
    if mode is not Binding.ENV:
        how = {
            Binding.DEVICE_PLUGIN: _by_plugin(pods),
            Binding.SHARED: f"shares by {_resources(pods, SHARED)}; the cluster chooses the GPU",
            Binding.HAMI: "HAMi, by the GPU's UUID",
            Binding.DRA: "claims by UUID that the pods of a GPU share",
        }[mode]
        return Finding(Severity.OK, subject, f"binding {mode}: {how}")
    if all(gpu.uuid for pod in pods for gpu in pod.devices):
        return Finding(Severity.OK, subject, f"binding env: {NVIDIA} and {CUDA} carry the GPU's UUID")
    if cuda is CudaIndex.ZERO:
        why = f"{NVIDIA} is the GPU's index and {CUDA} is 0: cuda_index says that the runtime hides the other GPUs"
        return Finding(Severity.OK, subject, f"binding env: {why}")
    why = f"{NVIDIA} and {CUDA} are the GPU's index, since its UUID is not known here"
    hint = "Where the runtime hides the other GPUs, set cuda_index to zero; `l2rtui check` probes it."
    return Finding(Severity.WARNING, subject, f"binding env: {why}", hint)


def _by_plugin(pods: list[PodPlan]) -> str:
    numbers = sorted({pod.seat.units for pod in pods if pod.seat.units > 1})
    of_each = f" ({' or '.join(map(str, numbers))} a pod)" if numbers else ""
    return f"{_resources(pods, 'whole GPUs')} by the device plugin, which chooses them{of_each}"


def _resources(pods: list[PodPlan], otherwise: str) -> str:
    names = (pod.seat.resource or (pod.gpu.resource if pod.gpu is not None else "") for pod in pods)
    return " and ".join(dict.fromkeys(name for name in names if name not in ("", WHOLE))) or otherwise


def _uuid(gpu: Gpu, mode: Binding, pod: PodPlan) -> str:
    if not gpu.uuid:
        raise RefusedError(
            f"Binding mode {mode} names a GPU by its UUID, and the UUID of {gpu.node}/{gpu.index} is not known "
            f"({pod.name}).",
            "Choose --binding env.",
        )
    return gpu.uuid


CLASS: Final = "nvidia"
AUTO: Final = "auto"
NONE: Final = "none"
_DISTRIBUTIONS: Final = ("+k3s", "+rke2")
"""Suffixes of the kubelet version in distributions that provide GPUs through a RuntimeClass."""


def may_need_class(nodes: Iterable[Node]) -> bool:
    """Return True if a node could need the class, so that requesting it is worthwhile."""
    return any(_has_nvidia(node) and (leaves_gpus_to_class(node) or CLASS in node.runtimes) for node in nodes)


def by_node(nodes: Iterable[Node], setting: str, runtime_class: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the RuntimeClass of pods with a GPU, by node; nodes whose default runtime suffices are left out.

    Args:
        setting: ``auto``, ``none``, or the name of a class for every node with GPUs.
        runtime_class: The class ``nvidia``; None if it does not exist or may not be read.
    """
    if setting == NONE:
        return {}
    with_gpus = [node for node in nodes if _has_nvidia(node)]
    if setting != AUTO:
        return {node.name: setting for node in with_gpus}
    if runtime_class is None:
        return {}
    handler = str(runtime_class.get("handler", ""))
    # A node that lists its handlers is authoritative: without the handler no pod of the class would start there.
    return {
        node.name: CLASS
        for node in with_gpus
        if (handler in node.runtimes if node.runtimes else leaves_gpus_to_class(node))
    }


def reason(node: Node, setting: str) -> str:
    """Return why pods with a GPU on a node get their class."""
    if setting != AUTO:
        return "the setting runtime_class says so"
    if leaves_gpus_to_class(node):
        return f"the default runtime of {node.kubelet_version} has no GPU"
    return f"{node.name} has a runtime of that name"


def leaves_gpus_to_class(node: Node) -> bool:
    """Return True for a node of a distribution whose default runtime provides no GPU."""
    return any(mark in node.kubelet_version for mark in _DISTRIBUTIONS)


def _has_nvidia(node: Node) -> bool:
    return any(not gpu.is_cpu and not gpu.resource.startswith(("amd.", "gpu.intel.")) for gpu in node.gpus)
