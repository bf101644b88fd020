"""GPU usage of any pod, our own or a foreign pod of another tool, read from its spec and annotations; pure.

Pods get GPUs in two independent ways: by an environment variable that the NVIDIA container runtime obeys
(NVIDIA_VISIBLE_DEVICES) and no scheduler sees, and by a resource of the device plugin, whose allocation does not
appear in the pod. The rules:

- A pod counts as one worker: a GPU that it pins costs one slot, however many of its containers name it.
- A requested GPU costs all slots of one GPU, a share costs one; which GPU it is, is unknown.
- A MIG slice, or a device of another maker, costs one of the devices that its plugin hands out.
- Of two variables that contradict each other both may count: it depends on the container runtime. Their GPUs are
  unknown.
- Containers add up, as in Kubernetes; init containers count if they need more than all others together.
- A variable whose value only the container knows (``valueFrom``) counts as an unknown GPU.
- A pod that mentions no GPU uses none, although its image may see all: most pods of a cluster are like that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.structs import Container, EnvVar, PodStruct, Quantities
from l2rtui.backends.kubernetes.extended_resources import MIG, SHARED, WHOLE, is_device, plugin_only
from l2rtui.backends.kubernetes.state.node_devices import NodeDevices, quantity
from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.node import device_index, device_name
from l2rtui.domain.quantity import whole_number

NVIDIA = "NVIDIA_VISIBLE_DEVICES"
CUDA = "CUDA_VISIBLE_DEVICES"
_NOTHING = ("none", "void", "")
_NO_DEVICE = ("none", "void", "", "-1", "NoDevFiles")
_UUID_PREFIXES = ("GPU-", "MIG-")
_HAMI_UUID = re.compile(r"GPU-[0-9a-fA-F-]+")


@dataclass(frozen=True, slots=True)
class PodGpuUsage:
    """GPU usage of a pod, and its inconsistencies as sentences without the pod's name."""

    devices: tuple[DeviceUsage, ...] = ()
    flags: tuple[str, ...] = ()


NO_GPU_USAGE = PodGpuUsage()


@dataclass(frozen=True, slots=True)
class _Pin:
    """Value of one variable; ``tokens`` are indices and UUIDs as written."""

    is_set: bool = False
    is_all: bool = False
    is_hidden: bool = False
    tokens: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        return self.is_set and not (self.is_all or self.is_hidden or self.tokens)


_UNSET = _Pin()


def read_gpu_usage(
    pod: PodStruct,
    devices: NodeDevices,
    planned_slots: Sequence[int] | None = None,
    allocated: tuple[DeviceUsage, ...] | None = None,
) -> PodGpuUsage:
    """Read the GPU usage of a pod on its node.

    Args:
        planned_slots: Slots that our own plan gave it; None for a foreign pod, or if its replica index is unknown.
        allocated: Allocations of its resource claims; None if they cannot be read.
    """
    spec = pod.spec
    flags: dict[str, None] = {}
    pinned: dict[DeviceUsage, None] = {}
    for container in (*(spec.containers or ()), *(spec.init_containers or ())):
        if container.env:
            # Identity check: nearly all containers have neither variable, and this runs for every pod.
            nvidia, cuda = _pins(container.env)
            if nvidia is not _UNSET or cuda is not _UNSET:
                pinned.update(dict.fromkeys(_pinned_gpus(nvidia, cuda, devices, flags)))
    has_requests = _has_requests(pod)
    requested = _requested(pod, devices) if has_requests else 0
    if pinned and requested:
        flags["names a GPU and requests one too: it may hold two"] = None
    if spec.resource_claims and allocated is None:
        requested += len(spec.resource_claims)
    elif allocated:
        pinned.update(dict.fromkeys(usage for usage in allocated if usage.gpu is not None))
        requested += sum(usage.gpu is None for usage in allocated)
    # HAMi's requests name its own resources or none: its annotation is exact, so it replaces the others.
    elif by_hami := _by_hami(pod, devices):
        pinned, requested = dict.fromkeys(by_hami), 0
    usages = tuple(pinned) + ((DeviceUsage(None, None, requested),) if requested else ())
    usages += _plugin_usage(pod, devices) if has_requests else ()
    if labels.RUN_ID in (pod.metadata.labels or {}):
        usages = _own_pod_usage(pod, devices, usages, planned_slots, flags)
    return PodGpuUsage(usages, tuple(flags)) if usages or flags else NO_GPU_USAGE


def _own_pod_usage(
    pod: PodStruct,
    devices: NodeDevices,
    usages: tuple[DeviceUsage, ...],
    planned_slots: Sequence[int] | None,
    flags: dict[str, None],
) -> tuple[DeviceUsage, ...]:
    """Return the planned slots of one of our pods, if it is where its plan put it; else what it was read to use."""
    host, label = pod.metadata.label(labels.HOST), pod.metadata.label(labels.GPU)
    node = pod.spec.node_name or ""
    if host and node and host != labels.label_value(node):
        flags[f"is on {node}, its plan says {host}"] = None
        return usages
    gpu = device_index(label)
    if gpu is None:
        return usages
    others = sorted({usage.gpu for usage in usages if usage.gpu is not None} - {gpu})
    if others and devices.has_gpus:
        flags[f"names device {', '.join(map(str, others))}, its plan says {device_name(gpu)}"] = None
        return usages
    if planned_slots:
        return tuple(DeviceUsage(gpu, slot) for slot in planned_slots)
    return (DeviceUsage(gpu),)


# --- by variable ------------------------------------------------------------------------------------------------
def _pins(variables: Sequence[EnvVar]) -> tuple[_Pin, _Pin]:
    nvidia = cuda = _UNSET
    for variable in variables:  # of two with the same name the last one counts, as in the kubelet
        if variable.name == NVIDIA:
            nvidia = _read_pin(variable.value or "", variable.value_from is not None, _NOTHING)
        elif variable.name == CUDA:
            cuda = _read_pin(variable.value or "", variable.value_from is not None, _NO_DEVICE)
    return nvidia, cuda


@lru_cache(maxsize=1024)  # ten thousand pods have the same few values
def _read_pin(text: str, is_hidden: bool, none: tuple[str, ...]) -> _Pin:
    value = text.strip()
    if is_hidden or "$(" in value:  # $(NAME) is expanded in the container
        return _Pin(is_set=True, is_hidden=True)
    if value in none:
        return _Pin(is_set=True)
    if value == "all":
        return _Pin(is_set=True, is_all=True)
    tokens = [token.strip() for token in value.split(",")]
    if "-1" in tokens:  # CUDA ignores everything after the first invalid index
        tokens = tokens[: tokens.index("-1")]
    return _Pin(is_set=True, tokens=tuple(dict.fromkeys(token for token in tokens if token)))


def _pinned_gpus(nvidia: _Pin, cuda: _Pin, devices: NodeDevices, flags: dict[str, None]) -> tuple[DeviceUsage, ...]:
    """Combine the two variables of one container; the runtime's NVIDIA_VISIBLE_DEVICES limits what CUDA can see."""
    if nvidia.is_hidden or (cuda.is_hidden and not nvidia.is_set):
        flags["takes its GPU from a value that only the container knows"] = None
        return (DeviceUsage(None),)
    if nvidia.is_none:
        if cuda.tokens or cuda.is_all:
            flags[f"hides all GPUs by {NVIDIA}, but {CUDA} names {_written(cuda)}"] = None
        return ()
    if nvidia.is_all:
        flags[f"sees all GPUs by {NVIDIA}=all"] = None
        return _usage_of_tokens(cuda.tokens, devices, flags) if cuda.tokens else _all_gpus(devices)
    if nvidia.tokens:
        if cuda.is_set and not cuda.is_hidden and not _is_consistent(nvidia.tokens, cuda):
            flags[f"has {NVIDIA}={_written(nvidia)}, but {CUDA}={_written(cuda)}"] = None
            if cuda.tokens:
                # Where the runtime hides nothing the second one counts, and nobody here knows the runtime.
                both = _usage_of_tokens((*nvidia.tokens, *cuda.tokens), devices, flags)
                return tuple(replace(usage, is_unsure=True) for usage in both)
        return _usage_of_tokens(nvidia.tokens, devices, flags)
    return _usage_of_tokens(cuda.tokens, devices, flags) if not cuda.is_all else _all_gpus(devices)


def _is_consistent(nvidia: tuple[str, ...], cuda: _Pin) -> bool:
    """Return True if the second variable can mean devices of the first.

    It names the same ones, or counts among those that the first lets through: 0 for the only one.
    """
    if cuda.is_all or cuda.tokens == nvidia:
        return True
    indices = [whole_number(token) for token in cuda.tokens]
    are_indices = all(index is not None and index < len(nvidia) for index in indices)
    return bool(cuda.tokens) and (are_indices or set(cuda.tokens) <= set(nvidia))


def _usage_of_tokens(
    tokens: tuple[str, ...], devices: NodeDevices, flags: dict[str, None]
) -> tuple[DeviceUsage, ...]:
    usages: dict[DeviceUsage, None] = {}
    for token in tokens:
        index = whole_number(token)
        if index is not None:
            if devices.gpus and (not devices.has_gpus or index >= len(devices.nvidia)):
                flags[f"names device {index} of {devices.node}, which has no such device"] = None
                if not devices.has_gpus:  # device 0 of such a node is its CPU, which nobody meant
                    continue
        elif token.startswith(_UUID_PREFIXES):
            index = devices.uuids.get(token)
        usages[_gpu_device_usage(index)] = None
    return tuple(usages)


@lru_cache(maxsize=256)
def _gpu_device_usage(index: int | None) -> DeviceUsage:
    """Return a shared value for one GPU: ten thousand pods use a few hundred of them."""
    return DeviceUsage(index)


def _all_gpus(devices: NodeDevices) -> tuple[DeviceUsage, ...]:
    return tuple(DeviceUsage(gpu.index) for gpu in devices.nvidia if not gpu.is_cpu) or (DeviceUsage(None),)


def _written(pin: _Pin) -> str:
    return "all" if pin.is_all else ",".join(pin.tokens) or "nothing"


# --- by request -------------------------------------------------------------------------------------------------
def _has_requests(pod: PodStruct) -> bool:
    """Return True if a container requests any device: most pods of a cluster do not, and this runs for each."""
    for container in (*(pod.spec.containers or ()), *(pod.spec.init_containers or ())):
        resources = container.resources
        if resources is not None:
            for name in (*(resources.limits or ()), *(resources.requests or ())):
                if is_device(name):
                    return True
    return False


def _requested(pod: PodStruct, devices: NodeDevices) -> int:
    """Return the slots of GPUs of NVIDIA that the pod requests from the scheduler."""
    return _summed(pod, lambda container: _slots(container, devices))


def _summed(pod: PodStruct, amount: Callable[[Container], int]) -> int:
    """Sum an amount of the containers as Kubernetes does."""
    main = sum(map(amount, pod.spec.containers or ()))
    init = [(container, amount(container)) for container in pod.spec.init_containers or ()]
    # Sidecars run beside the main containers, other init containers one after another before them.
    sidecars = sum(count for container, count in init if container.restart_policy == "Always")
    return max(main + sidecars, *(count for _, count in init), 0)


def _plugin_usage(pod: PodStruct, devices: NodeDevices) -> tuple[DeviceUsage, ...]:
    """Return the devices of other makers, and MIG slices, that the pod requests of the plugins of its node."""
    every = (*(pod.spec.containers or ()), *(pod.spec.init_containers or ()))
    names = {name for item in every if item.resources is not None for name in plugin_only(_amounts(item))}
    # On a node that does not offer it (any more), a MIG slice is a part of some GPU there.
    own = [name for name in plugin_only(names) if name in devices.plugin_only or not name.startswith(MIG)]
    counts = {name: _summed(pod, partial(_count_of, name)) for name in own}
    return tuple(DeviceUsage(None, None, count, name) for name, count in counts.items() if count)


def _count_of(name: str, container: Container) -> int:
    return int(quantity(_amounts(container), name))


def _amounts(container: Container) -> Quantities:
    """Return the resources of a container; of extended ones requests and limits are equal, or limits alone."""
    resources = container.resources
    return {} if resources is None else {**(resources.requests or {}), **(resources.limits or {})}


def _slots(container: Container, devices: NodeDevices) -> int:
    """Return the slots of GPUs and shares of a container, and of MIG slices that are no devices of the node."""
    if container.resources is None:
        return 0
    resources = _amounts(container)
    gpus = int(quantity(resources, WHOLE))
    slots = gpus if devices.counts_shares else gpus * devices.slots_per_gpu
    slots += int(quantity(resources, SHARED))
    slices = (name for name in resources if name.startswith(MIG) and name not in devices.plugin_only)
    return slots + sum(int(quantity(resources, name)) for name in slices)


def _by_hami(pod: PodStruct, devices: NodeDevices) -> tuple[DeviceUsage, ...]:
    """Return the GPUs that HAMi has allocated, or the only one that the pod accepts."""
    annotation = pod.metadata.annotation(labels.HAMI_ALLOCATED) or pod.metadata.annotation(labels.HAMI_GPU_UUID)
    if not annotation:
        return ()
    uuids = dict.fromkeys(_HAMI_UUID.findall(annotation))
    if not uuids or (len(uuids) > 1 and not pod.metadata.annotation(labels.HAMI_ALLOCATED)):
        return ()
    return tuple(dict.fromkeys(DeviceUsage(devices.uuids.get(uuid)) for uuid in uuids))
