"""GPU usage of any pod, our own or foreign, read from its spec and annotations. Pure.

Pods get GPUs in two independent ways: by an environment variable that the NVIDIA container runtime obeys
(NVIDIA_VISIBLE_DEVICES) and no scheduler sees, and by a resource of the device plugin, whose allocation does not
appear in the pod. The rules are:

- A pod counts as one worker: a GPU that it pins costs one slot, however many of its containers name it.
- A requested GPU costs all slots of one GPU, a share costs one slot. The index of the GPU is unknown, unless HAMi's
  annotation, dcgm-exporter or a resource claim reveals it.
- A MIG slice, or a device of another vendor, costs one of the devices that its plugin hands out.
- CUDA_VISIBLE_DEVICES counts the GPUs that a container has: with a request it names no GPU of the node.
- If the two variables contradict each other, either may apply, depending on the container runtime. Their GPUs are
  unknown.
- Containers add up, as in Kubernetes; init containers count if they need more than all others together.
- A possible GPU use that cannot be read counts as an unknown GPU: variables from a Secret, a fraction in an
  annotation, memory of a GPU as a resource.
- A pod that mentions no GPU uses none, although its image may see all: most pods of a cluster are like that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.structs import Container, EnvVar, PodStruct, Quantities
from l2rtui.backends.kubernetes.extended_resources import MIG, NEURON, WHOLE, Unit, is_device, unit_of
from l2rtui.backends.kubernetes.state.node_devices import NodeDevices, quantity
from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.node import device_index, device_name
from l2rtui.domain.quantity import whole_number

NVIDIA = "NVIDIA_VISIBLE_DEVICES"
CUDA = "CUDA_VISIBLE_DEVICES"
_NAMES = (NVIDIA, CUDA)
_NOTHING = ("none", "void", "")
_UUID_PREFIXES = ("GPU-", "MIG-")
_HAMI_UUID = re.compile(r"GPU-[0-9a-fA-F-]+")
_MOUNT: Final = re.compile(r"/var/run/nvidia-container-devices(?:/(?P<token>[^/]*))?/?|/dev/nvidia(?P<index>\d+)")
_CDI: Final = "cdi.k8s.io/"
_INDICES: Final = ("ALIYUN_COM_GPU_MEM_IDX", "volcano.sh/gpu-index", "tencent.com/predicate-gpu-idx-0")
"""Annotations with the indices of the GPUs that a share scheduler chose."""
_FRACTIONS: Final = (
    "gpu-fraction",
    "gpu-memory",
    "runai-gpu",
    "run.ai/",
    "runai.ai/",
    "volcano.sh/vgpu-",
    "hami.io/vgpu-",
)
"""Prefixes of annotations on a pod that uses part of a GPU, if nothing else identifies the GPU."""
_KEYS: Final = (_CDI, *_INDICES, *_FRACTIONS)
_GPU_KEYS: Final = (*_KEYS, labels.HAMI_ALLOCATED, labels.HAMI_GPU_UUID)
_PATHS: Final = ("/var/run/nvidia", "/dev/nvidia")
ConfigMaps = Mapping[tuple[str, str], Mapping[str, str] | None]
"""ConfigMaps by namespace and name, as far as they were read; None for an unreadable one."""


class PodGpuUsage(Struct, frozen=True):
    """GPU usage of a pod, and its inconsistencies as sentences without the pod's name.

    Attributes:
        requests: Units of extended resources that the scheduler counts.
        config_maps: ConfigMaps that may contain a variable but were not read yet.
    """

    devices: tuple[DeviceUsage, ...] = ()
    flags: tuple[str, ...] = ()
    requests: tuple[tuple[str, int], ...] = ()
    config_maps: tuple[tuple[str, str], ...] = ()


NO_GPU_USAGE = PodGpuUsage()


class _Pin(Struct, frozen=True):
    """Value of one variable; ``tokens`` are indices and UUIDs as written."""

    is_set: bool = False
    is_all: bool = False
    is_hidden: bool = False
    tokens: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        return self.is_set and not (self.is_all or self.is_hidden or self.tokens)


_UNSET = _Pin()
_HIDDEN = _Pin(is_set=True, is_hidden=True)
_UNREAD = _Pin(is_set=True, is_hidden=True, tokens=("?",))
"""Value of a variable that a ConfigMap or Secret may or may not contain."""


def read_gpu_usage(
    pod: PodStruct,
    devices: NodeDevices,
    planned_slots: Sequence[int] | None = None,
    allocated: tuple[DeviceUsage, ...] | None = None,
    *,
    measured: Sequence[int] = (),
    config_maps: ConfigMaps | None = None,
) -> PodGpuUsage:
    """Read the GPU usage of a pod on its node.

    Args:
        planned_slots: Slots from our own plan; None for a foreign pod, or if its replica index is unknown.
        allocated: Allocations of its resource claims; None if they cannot be read.
        measured: Indices of the GPUs on which it was measured.
        config_maps: ConfigMaps that were read for it.
    """
    spec = pod.spec
    has_requests, may_name_gpu, annotations = _has_requests(pod), _may_name_gpu(pod), _gpu_annotations(pod)
    is_ours = labels.RUN_ID in (pod.metadata.labels or {})
    if not (has_requests or may_name_gpu or annotations or spec.resource_claims or is_ours):
        return NO_GPU_USAGE
    flags: dict[str, None] = {}
    unread: dict[tuple[str, str], None] = {}
    pinned: tuple[DeviceUsage, ...] = ()
    if may_name_gpu:
        pinned = _pinned(pod, devices, config_maps or {}, flags, unread, has_requests=has_requests)
    if annotations:
        pinned = _distinct([*pinned, *_annotated(annotations, devices, flags, has_requests=has_requests)])
    requests = _requests(pod) if has_requests else {}
    requested = _requested(pod, devices) if has_requests else 0
    if pinned and requested and not spec.resource_claims:
        flags["names a GPU and requests one too: it may hold two"] = None
    if spec.resource_claims or annotations or measured:
        pinned, requested = _exact_usage(pod, devices, pinned, requested, allocated, measured)
    usages = pinned + ((DeviceUsage(None, None, requested),) if requested else ())
    if has_requests:
        usages += _plugin_usage(requests, devices)
    if is_ours:
        usages = _own_pod_usage(pod, devices, usages, planned_slots, flags)
    if not (flags or requests or unread):
        return PodGpuUsage(usages) if usages else NO_GPU_USAGE
    return PodGpuUsage(usages, tuple(flags), tuple(requests.items()), tuple(unread))


def _exact_usage(
    pod: PodStruct,
    devices: NodeDevices,
    pinned: tuple[DeviceUsage, ...],
    requested: int,
    allocated: tuple[DeviceUsage, ...] | None,
    measured: Sequence[int],
) -> tuple[tuple[DeviceUsage, ...], int]:
    """Return the GPUs of a pod, and its requested slots on unknown ones, from claims, HAMi and measurements."""
    if pod.spec.resource_claims and allocated is None:
        return pinned, requested + len(pod.spec.resource_claims)
    if allocated:
        placed = [usage for usage in allocated if usage.gpu is not None]
        return _distinct([*pinned, *placed]), requested + len(allocated) - len(placed)
    # HAMi's requests name its own resources or none: its annotation is exact, so it replaces the others.
    if by_hami := _by_hami(pod, devices):
        return by_hami, 0
    if on_measured := _measured_usage(measured, requested, devices):
        return _distinct([*pinned, *on_measured]), 0
    return pinned, requested


def _gpu_annotations(pod: PodStruct) -> Mapping[str, str]:
    """Return the annotations of a pod if one of them may concern a GPU."""
    annotations = pod.metadata.annotations or {}
    for key in annotations:  # no generator: this runs for every pod
        if key.startswith(_GPU_KEYS):
            return annotations
    return {}


def _may_name_gpu(pod: PodStruct) -> bool:
    """Return True if a container may name a GPU: few pods of a cluster do, and this runs for every pod."""
    spec = pod.spec
    if spec.ephemeral_containers:
        return True
    for containers in (spec.containers, spec.init_containers):
        for container in containers or ():
            if container.env_from:
                return True
            for variable in container.env or ():
                if variable.name in _NAMES:
                    return True
            for mount in container.volume_mounts or ():
                if mount.mount_path.startswith(_PATHS):
                    return True
    return False


def _pinned(
    pod: PodStruct,
    devices: NodeDevices,
    config_maps: ConfigMaps,
    flags: dict[str, None],
    unread: dict[tuple[str, str], None],
    *,
    has_requests: bool,
) -> tuple[DeviceUsage, ...]:
    """Return the GPUs that containers name by variables and mounts."""
    usages: list[DeviceUsage] = []
    for container in _all_containers(pod):
        if container.env or container.env_from:
            nvidia, cuda = _pins(pod, container, devices, config_maps, unread, has_requests=has_requests)
            if nvidia is not _UNSET or cuda is not _UNSET:
                usages += _pinned_gpus(nvidia, cuda, devices, flags)
        for mount in container.volume_mounts or ():
            if mount.mount_path.startswith(_PATHS):
                usages += _mounted(mount.mount_path, devices, flags)
    return _distinct(usages)


def _distinct(usages: list[DeviceUsage]) -> tuple[DeviceUsage, ...]:
    """Remove duplicates, keeping the order; most pods have one usage, which needs no hash."""
    return tuple(dict.fromkeys(usages) if len(usages) > 1 else usages)


def _all_containers(pod: PodStruct) -> Sequence[Container]:
    """Return the containers that may use a GPU: all except ephemeral ones that have ended."""
    spec = pod.spec
    if not (spec.init_containers or spec.ephemeral_containers):
        return spec.containers or ()
    statuses = pod.status.ephemeral_container_statuses or ()  # those stay in the spec permanently
    ended = {item.name for item in statuses if item.state is not None and item.state.terminated is not None}
    ephemeral = (item for item in spec.ephemeral_containers or () if item.name not in ended)
    return [*(spec.containers or ()), *(spec.init_containers or ()), *ephemeral]


def _measured_usage(measured: Sequence[int], requested: int, devices: NodeDevices) -> list[DeviceUsage]:
    """Return the requested slots on GPUs where the pod was measured; empty if it was not measured on all of
    them.
    """
    if not (measured and requested):
        return []
    if devices.counts_shares:
        return [DeviceUsage(measured[0], None, requested)] if len(measured) == 1 else []
    size = devices.slots_per_gpu
    return [DeviceUsage(index, None, size) for index in measured] if len(measured) * size == requested else []


def _own_pod_usage(
    pod: PodStruct,
    devices: NodeDevices,
    usages: tuple[DeviceUsage, ...],
    planned_slots: Sequence[int] | None,
    flags: dict[str, None],
) -> tuple[DeviceUsage, ...]:
    """Return the planned slots of one of our pods, if it is where its plan put it; otherwise its usage as read."""
    host, label = pod.metadata.label(labels.HOST), pod.metadata.label(labels.GPU)
    node = pod.spec.node_name or ""
    if host and node and host != labels.label_value(node):
        flags[f"is on {node}, its plan says {host}"] = None
        return usages
    if "_" in label:  # several whole GPUs
        gpus = [devices.gpu(index) for index in labels.gpu_indices(label)]
        slots = (DeviceUsage(item.index, slot) for item in gpus if item is not None for slot in range(item.slots))
        return tuple(slots) or usages
    gpu = device_index(label)
    if gpu is None:
        return usages
    others = sorted({usage.gpu for usage in usages if usage.gpu is not None} - {gpu})
    if others and devices.has_gpus:
        flags[f"names device {', '.join(map(str, others))}, its plan says {device_name(gpu)}"] = None
        return usages
    if not usages and gpu >= 0 and devices.has_gpus and pod.metadata.annotation(labels.BINDING) == Binding.ENV:
        flags[f"names no device, its plan says {device_name(gpu)}"] = None  # a policy took its variables away
    if planned_slots:
        return tuple(DeviceUsage(gpu, slot) for slot in planned_slots)
    return (DeviceUsage(gpu),)


# --- by variable ------------------------------------------------------------------------------------------------
def _pins(
    pod: PodStruct,
    container: Container,
    devices: NodeDevices,
    config_maps: ConfigMaps,
    unread: dict[tuple[str, str], None],
    *,
    has_requests: bool,
) -> tuple[_Pin, _Pin]:
    """Read both variables of a container; of two with the same name the last one counts, as in the kubelet."""
    if not container.env_from and not has_requests and not pod.spec.resource_claims:
        return _plain_pins(pod, container.env or (), config_maps, unread)
    pins = {NVIDIA: _UNSET, CUDA: _UNSET}
    is_hidden_claim = devices.has_gpus and not _is_of_daemon_set(pod)
    for source in container.env_from or () if is_hidden_claim and not _requests_gpu(container) else ():
        prefix = source.prefix or ""
        names = [name for name in pins if name.startswith(prefix)]
        if source.config_map_ref is None:
            pins.update(dict.fromkeys(names[:1], _UNREAD) if source.secret_ref is not None else {})
            continue
        key = (pod.metadata.namespace, source.config_map_ref.name)
        data = config_maps.get(key)
        if data is None:
            if key not in config_maps:
                unread[key] = None
            pins.update(dict.fromkeys(names[:1], _UNREAD))
            continue
        pins |= {name: _pin(name, data[part]) for name in names if (part := name.removeprefix(prefix)) in data}
    for variable in container.env or ():
        if variable.name in pins:
            value = _value(pod, variable, config_maps, unread)
            pins[variable.name] = _HIDDEN if value is None else _pin(variable.name, value)
    if pins[CUDA].is_set and (_requests_gpu(container) or (pod.spec.resource_claims and not pins[NVIDIA].is_set)):
        pins[CUDA] = _UNSET  # it counts the container's own devices
    return pins[NVIDIA], pins[CUDA]


def _plain_pins(
    pod: PodStruct, variables: Sequence[EnvVar], config_maps: ConfigMaps, unread: dict[tuple[str, str], None]
) -> tuple[_Pin, _Pin]:
    """Read both variables of a container that only has plain variables, as nearly all have."""
    nvidia = cuda = _UNSET
    for variable in variables:
        if variable.name in _NAMES:
            value = variable.value or ""
            if variable.value_from is None:
                pin = _read_pin(value, variable.name == CUDA)
            else:
                text = _value(pod, variable, config_maps, unread)
                pin = _HIDDEN if text is None else _read_pin(text, variable.name == CUDA)
            nvidia, cuda = (nvidia, pin) if variable.name == CUDA else (pin, cuda)
    return nvidia, cuda


def _pin(name: str, value: str) -> _Pin:
    return _read_pin(value, name == CUDA)


def _is_of_daemon_set(pod: PodStruct) -> bool:
    """Return True for a pod that runs on every node: its variables configure a service, and name no GPU."""
    owner = pod.metadata.controller
    return owner is not None and owner.kind == "DaemonSet"


def _value(
    pod: PodStruct, variable: EnvVar, config_maps: ConfigMaps, unread: dict[tuple[str, str], None]
) -> str | None:
    """Return the value of a variable; None if only the container knows it."""
    source = variable.value_from
    if source is None:
        return variable.value or ""
    if (reference := source.config_map_key_ref) is not None:
        key = (pod.metadata.namespace, reference.name)
        if key not in config_maps:
            unread[key] = None
        data = config_maps.get(key)
        return None if data is None else data.get(reference.key, "")
    if source.field_ref is not None and (match := _FIELD.fullmatch(source.field_ref.field_path)):
        of_pod = pod.metadata.annotations if match[1] == "annotations" else pod.metadata.labels
        return (of_pod or {}).get(match[2])  # also None if the scheduler will write it later
    return None


_FIELD: Final = re.compile(r"metadata\.(annotations|labels)\['([^']+)'\]")


@lru_cache(maxsize=1024)  # ten thousand pods have the same few values
def _read_pin(text: str, is_cuda: bool) -> _Pin:
    value = text.strip()
    if "$(" in value:  # $(NAME) is expanded in the container
        return _HIDDEN
    if value in _NOTHING:
        return _Pin(is_set=True)
    if value == "all":
        return _Pin(is_set=True, is_all=True)
    tokens = [token.strip() for token in value.split(",")]
    invalid = [number for number, token in enumerate(tokens) if not _TOKEN.fullmatch(token)]
    if is_cuda and invalid:  # CUDA ignores the first invalid entry and all later ones
        tokens = tokens[: invalid[0]]
    return _Pin(is_set=True, tokens=tuple(dict.fromkeys(token for token in tokens if token)))


_TOKEN: Final = re.compile(r"\d+|(GPU|MIG)-[-0-9a-zA-Z/]+", re.ASCII)


def _pinned_gpus(nvidia: _Pin, cuda: _Pin, devices: NodeDevices, flags: dict[str, None]) -> tuple[DeviceUsage, ...]:
    """Combine the two variables of one container; NVIDIA_VISIBLE_DEVICES (runtime) limits what CUDA can see."""
    if nvidia.is_hidden or (cuda.is_hidden and not nvidia.is_set):
        if nvidia is not _UNREAD:
            flags["takes its GPU from a value that only the container knows"] = None
        return (DeviceUsage(None),)
    if nvidia.is_none:
        if cuda.tokens or cuda.is_all:
            flags[f"hides all GPUs by {NVIDIA}, but {CUDA} names {_written(cuda)}"] = None
        return ()
    if nvidia.is_all:
        flags[f"sees all GPUs by {NVIDIA}=all"] = None
        return _usage_of_cuda(cuda.tokens, devices, flags) if cuda.tokens else _all_gpus(devices)
    if nvidia.tokens:
        if cuda.is_set and not cuda.is_hidden and not _is_consistent(nvidia.tokens, cuda):
            flags[f"has {NVIDIA}={_written(nvidia)}, but {CUDA}={_written(cuda)}"] = None
            if cuda.tokens:
                # If the runtime hides no GPUs the second one applies, and the runtime is unknown here.
                both = _usage_of_tokens((*nvidia.tokens, *cuda.tokens), devices, flags)
                return tuple(replace(usage, is_unsure=True) for usage in both)
        return _usage_of_tokens(nvidia.tokens, devices, flags)
    return _usage_of_cuda(cuda.tokens, devices, flags) if not cuda.is_all else _all_gpus(devices)


def _is_consistent(nvidia: tuple[str, ...], cuda: _Pin) -> bool:
    """Return True if the second variable can refer to devices of the first.

    It names the same devices, or counts the devices that the first one exposes: 0 for the only one.
    """
    if cuda.is_all or cuda.tokens == nvidia:
        return True
    indices = [whole_number(token) for token in cuda.tokens]
    are_indices = all(index is not None and index < len(nvidia) for index in indices)
    return bool(cuda.tokens) and (are_indices or set(cuda.tokens) <= set(nvidia))


def _usage_of_cuda(
    tokens: tuple[str, ...], devices: NodeDevices, flags: dict[str, None]
) -> tuple[DeviceUsage, ...]:
    """Return the GPUs of a CUDA list, which ends at the first index that the node does not have."""
    indices = (whole_number(token) for token in tokens)
    most = devices.num_nvidia if devices.has_gpus else None
    ends = (at for at, index in enumerate(indices) if index is not None and most is not None and index >= most)
    if (end := next(ends, None)) is not None:
        flags[f"names device {tokens[end]} of {devices.node}, which has no such device"] = None
        tokens = tokens[:end]
    return _usage_of_tokens(tokens, devices, flags)


def _usage_of_tokens(
    tokens: tuple[str, ...], devices: NodeDevices, flags: dict[str, None]
) -> tuple[DeviceUsage, ...]:
    usages: list[DeviceUsage] = []
    for token in tokens:
        index = whole_number(token)
        if index is not None:
            if devices.gpus and (not devices.has_gpus or index >= devices.num_nvidia):
                flags[f"names device {index} of {devices.node}, which has no such device"] = None
                if not devices.has_gpus:  # device 0 of such a node is its CPU, which was not meant
                    continue
        elif token.startswith(_UUID_PREFIXES):
            index = _index_of_uuid(token, devices)
        elif ":" in token:  # a MIG device: card and instance
            index = whole_number(token.partition(":")[0])
        usages.append(_gpu_device_usage(index))
    return _distinct(usages)


def _index_of_uuid(token: str, devices: NodeDevices) -> int | None:
    """Return the index of a UUID, or of a unique prefix of one."""
    if token in devices.uuids:
        return devices.uuids[token]
    matches = {index for uuid, index in devices.uuids.items() if uuid.startswith(token)}
    return next(iter(matches)) if len(matches) == 1 else None


@lru_cache(maxsize=256)
def _gpu_device_usage(index: int | None) -> DeviceUsage:
    """Return a shared value for one GPU: ten thousand pods use a few hundred GPUs."""
    return DeviceUsage(index)


def _all_gpus(devices: NodeDevices) -> tuple[DeviceUsage, ...]:
    return tuple(DeviceUsage(gpu.index) for gpu in devices.nvidia if not gpu.is_cpu) or (DeviceUsage(None),)


def _written(pin: _Pin) -> str:
    return "all" if pin.is_all else ",".join(pin.tokens) or "nothing"


# --- by mount and annotation ------------------------------------------------------------------------------------
def _mounted(path: str, devices: NodeDevices, flags: dict[str, None]) -> tuple[DeviceUsage, ...]:
    """Return the GPUs of a mount that is a device, or that NVIDIA's runtime reads as a list of devices."""
    match = _MOUNT.fullmatch(path)
    if match is None:
        return ()
    name = match["index"] or match["token"] or ""
    if name == "all":
        return _all_gpus(devices)
    return _usage_of_tokens((name,), devices, flags) if name else (DeviceUsage(None),)


def _annotated(
    annotations: Mapping[str, str], devices: NodeDevices, flags: dict[str, None], *, has_requests: bool
) -> Iterator[DeviceUsage]:
    """Yield the GPUs that annotations name, and an unknown GPU for a fraction that names none."""
    has_index = False
    for key, value in annotations.items():
        if key.startswith(_CDI):
            for device in value.split(","):
                kind, _, name = device.strip().rpartition("=")
                if kind.partition("/")[0].endswith("nvidia.com"):
                    yield from _all_gpus(devices) if name == "all" else _usage_of_tokens((name,), devices, flags)
        elif key in _INDICES and devices.has_gpus:
            indices = tuple(token.strip() for token in value.split(",") if whole_number(token.strip()) is not None)
            has_index = has_index or bool(indices)
            yield from _usage_of_tokens(indices, devices, flags)
    is_part = any(key.startswith(_FRACTIONS) and value not in ("", "0") for key, value in annotations.items())
    if is_part and devices.has_gpus and not has_index and not has_requests:
        yield DeviceUsage(None)


# --- by request -------------------------------------------------------------------------------------------------
def _has_requests(pod: PodStruct) -> bool:
    """Return True if a container requests any device: most pods of a cluster do not, and this runs for each."""
    for containers in (pod.spec.containers, pod.spec.init_containers):
        for container in containers or ():
            if (resources := container.resources) is not None:
                for amounts in (resources.limits, resources.requests):
                    for name in amounts or ():
                        if "/" in name and is_device(name):  # cpu and memory are not devices
                            return True
    return False


def _requests_gpu(container: Container) -> bool:
    """Return True for a container that gets its GPUs from a plugin."""
    amounts = _amounts(container)
    return any(unit_of(name) is not Unit.NONE and quantity(amounts, name) >= 1 for name in amounts)


def _requests(pod: PodStruct) -> dict[str, int]:
    """Return the units of each extended GPU resource that the scheduler counts for a pod."""
    every = (*(pod.spec.containers or ()), *(pod.spec.init_containers or ()))
    names = dict.fromkeys(name for item in every for name in _amounts(item) if is_device(name))
    units = {name: _summed(pod, partial(_count_of, name)) for name in names}
    return {name: count for name, count in units.items() if count}


def _requested(pod: PodStruct, devices: NodeDevices) -> int:
    """Return the slots of NVIDIA GPUs that the pod requests from the scheduler."""
    return _summed(pod, lambda container: _slots(container, devices))


def _summed(pod: PodStruct, amount: Callable[[Container], int]) -> int:
    """Sum an amount over the containers as Kubernetes does (resource helpers, PodRequests)."""
    sidecars = most = 0
    for container in pod.spec.init_containers or ():
        count = amount(container)
        # A sidecar keeps running alongside all containers that start after it.
        if container.restart_policy == "Always":
            sidecars += count
            count = 0
        most = max(most, sidecars + count)
    return max(most, sidecars + sum(map(amount, pod.spec.containers or ())))


def _plugin_usage(requests: Mapping[str, int], devices: NodeDevices) -> tuple[DeviceUsage, ...]:
    """Return the devices of other vendors, and MIG slices, that the pod requests from plugins of its node."""
    # On a node that does not (or no longer) offer it, a MIG slice is a part of some GPU there.
    own = [
        name
        for name in requests
        if name in devices.plugin_only or (unit_of(name) is Unit.PLUGIN and not name.startswith(MIG))
    ]
    usages = []
    for name in sorted(own, key=lambda name: name.startswith(MIG)):
        units = devices.units_per_device.get(name)
        if units is None:
            usages.append(DeviceUsage(None, None, requests[name], name))
        elif NEURON not in requests:  # it would be the same devices again
            usages.append(DeviceUsage(None, None, -(-requests[name] // units), NEURON))
    return tuple(usages)


def _count_of(name: str, container: Container) -> int:
    return int(quantity(_amounts(container), name))


def _amounts(container: Container) -> Quantities:
    """Return the resources of a container; extended ones have equal requests and limits, or only limits."""
    resources = container.resources
    return {} if resources is None else {**(resources.requests or {}), **(resources.limits or {})}


def _slots(container: Container, devices: NodeDevices) -> int:
    """Return the slots of GPUs, shares, and MIG slices that are not devices of the node."""
    slots, has_part = 0, False
    amounts, own = _amounts(container), devices.plugin_only
    for name in amounts:
        unit, count = unit_of(name), int(quantity(amounts, name))
        if unit is Unit.NONE or not count or name in own:
            continue
        if unit is Unit.WHOLE:
            slots += count if devices.counts_shares and name == WHOLE else count * devices.slots_per_gpu
        elif unit is Unit.SHARE or name.startswith(MIG):
            slots += count
        has_part = has_part or unit is Unit.PART
    # Only memory or cores: the share scheduler puts the container on some GPU.
    return slots or int(has_part and not any(name in own for name in amounts))


def _by_hami(pod: PodStruct, devices: NodeDevices) -> tuple[DeviceUsage, ...]:
    """Return the GPUs that HAMi has allocated, or the only GPU that the pod accepts."""
    annotation = pod.metadata.annotation(labels.HAMI_ALLOCATED) or pod.metadata.annotation(labels.HAMI_GPU_UUID)
    if not annotation:
        return ()
    uuids = dict.fromkeys(_HAMI_UUID.findall(annotation))
    if not uuids or (len(uuids) > 1 and not pod.metadata.annotation(labels.HAMI_ALLOCATED)):
        return ()
    return tuple(dict.fromkeys(DeviceUsage(devices.uuids.get(uuid)) for uuid in uuids))
