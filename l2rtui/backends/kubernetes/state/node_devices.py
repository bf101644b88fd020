"""Devices of a node: number of GPUs, their UUIDs, and the slots of each. Pure.

Devices of other vendors, and MIG profiles, follow the NVIDIA GPUs: each device that its plugin hands out has one
slot. With MIG strategy ``single`` the slices are called ``nvidia.com/gpu`` and are devices of that plugin, since a
variable counts cards, not slices.

Kubernetes counts resources, not devices, so this combines the information that several programs publish on a node:
the device plugin (``nvidia.com/gpu``), GPU feature discovery (labels), HAMi (an annotation), managed clusters
(labels of their own for product, number and shares), and our own labels where none of them runs. The slots of a
GPU are the node's own label, else the setting for the product, else the shares into which the cluster divides a
GPU, else the setting for all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, field

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.structs import NodeStruct, ObjectMeta, Quantities
from l2rtui.backends.kubernetes.extended_resources import (
    MIG,
    NEURON,
    NEURON_OTHERS,
    SHARED,
    WHOLE,
    Unit,
    plugin_only,
    unit_of,
)
from l2rtui.config import Settings
from l2rtui.domain.node import CPU, Gpu, Resource
from l2rtui.domain.quantity import parse_quantity, whole_number
from runtime.base import bounded_json

_UUID = re.compile(r"(GPU|MIG)-[0-9a-fA-F-]{8,}")
# Anyone who may edit nodes can set labels: a typo must not create a million slots.
MOST_GPUS = 64
_MOST_SLOTS = 64


class SlotRule(Struct, frozen=True):
    """Rule for the number of slots of a device; see the settings of the same names."""

    per_gpu: int = 4
    by_product: Mapping[str, int] = field(default_factory=dict)
    per_core: int = 8
    most_on_cpu: int = 64

    @classmethod
    def of(cls, settings: Settings) -> SlotRule:
        """Make the rule from the settings."""
        pairs = (pair.rpartition("=") for pair in settings.slots_by_product)
        by_product = {product: int(count) for product, _, count in pairs if product and count.isdigit()}
        return cls(settings.slots_per_gpu, by_product, settings.slots_per_core, settings.max_cpu_slots)


class NodeDevices(Struct, frozen=True):
    """Devices of a node, used to interpret the GPU usage of its pods.

    Attributes:
        gpus: The GPUs, NVIDIA's first, or the single ``cpu`` device of a node without GPUs. cpu: The cpu device of
            a node with GPUs.
        uuids: UUID → index, as far as known.
        counts_shares: ``nvidia.com/gpu`` counts time-sliced shares of GPUs here.
        resources: Extended resources that plugins of the node hand out.
        units_per_device: Resources that count devices of another resource once more, with the units of one device.
    """

    node: str
    gpus: tuple[Gpu, ...]
    uuids: Mapping[str, int] = field(default_factory=dict)
    counts_shares: bool = False
    cpu: Gpu | None = None
    resources: tuple[Resource, ...] = ()
    units_per_device: Mapping[str, int] = field(default_factory=dict)

    @property
    def has_gpus(self) -> bool:
        """True if the node has a GPU."""
        return bool(self.gpus) and not self.gpus[0].is_cpu

    def gpu(self, index: int) -> Gpu | None:
        """The GPU with this index, or None."""
        return next((gpu for gpu in self.gpus if gpu.index == index), None)

    @property
    def nvidia(self) -> tuple[Gpu, ...]:
        """The GPUs that variables can name, or the single cpu device."""
        return tuple(gpu for gpu in self.gpus if not gpu.resource)

    @property
    def num_nvidia(self) -> int:
        """Number of ``nvidia``."""
        return sum(1 for gpu in self.gpus if not gpu.resource)

    @property
    def plugin_only(self) -> frozenset[str]:
        """Extended resources whose devices are listed here."""
        return frozenset(gpu.resource for gpu in self.gpus if gpu.resource)

    @property
    def slots_per_gpu(self) -> int:
        """Slots of one NVIDIA GPU, or of the cpu device; all have the same number."""
        return self.gpus[0].slots if self.gpus else 1


def read_devices(node: NodeStruct, rule: SlotRule) -> NodeDevices:
    """Read the devices of a node."""
    meta, name = node.metadata, node.metadata.name
    capacity, allocatable = (
        node.status.capacity or node.status.allocatable,
        node.status.allocatable or node.status.capacity,
    )
    named = list(_named_gpus(meta))
    uuids = {gpu.uuid: gpu.index for gpu in named}
    replicas = _replicas(meta, capacity)
    has_slices = bool(meta.label(labels.GKE_PARTITION)) or (
        meta.label(labels.MIG_STRATEGY) == "single"
        and ("-MIG-" in meta.label(labels.GPU_PRODUCT) or bool(meta.label(labels.MIG_SLICES)))
    )
    count = 0 if has_slices else _count(meta, capacity, replicas, len(uuids))
    cores = quantity(allocatable, "cpu")
    cpu_slots = max(1, int(min(cores * rule.per_core, rule.most_on_cpu)))
    # With renameByDefault the device plugin calls shares nvidia.com/gpu.shared, and nvidia.com/gpu stays exact.
    is_sliced = replicas > 1 and not quantity(capacity, SHARED)
    # HAMi and other share plugins report no number of replicas: more units than GPUs also means shares.
    is_sliced |= 0 < count < quantity(capacity, WHOLE) and not meta.label(labels.GPUS) and count < MOST_GPUS
    resources = tuple(_resources(capacity, allocatable, count, has_slices=has_slices, is_sliced=is_sliced))
    others = tuple(_plugin_devices(name, meta, resources, count))
    cpu = Gpu(name, CPU if count or others else 0, slots=cpu_slots, is_cpu=True)
    if not count:
        if not others:
            return NodeDevices(name, (cpu,), resources=resources)
        units = _units_per_device(capacity)
        return NodeDevices(name, others, cpu=cpu if cores else None, resources=resources, units_per_device=units)
    # GPU feature discovery appends -SHARED to the product of a time-sliced GPU.
    renamed = [item.name for item in resources if item.capacity and not item.device and item.name != WHOLE]
    model = renamed[0].rpartition("/")[2] if len(renamed) == 1 and not renamed[0].startswith(SHARED) else ""
    product = _product(meta)
    slots = (
        _number(meta.label(labels.SLOTS_PER_GPU), 0)
        or rule.by_product.get(product, 0)
        or rule.by_product.get(product.removesuffix("-SHARED"), 0)
        or (replicas if replicas > 1 else 0)
        or rule.per_gpu
    )
    memory = _memory(meta)
    by_index = {gpu.index: gpu for gpu in named}
    unnamed = _NamedGpu("", 0)
    gpus = tuple(
        Gpu(
            name,
            index,
            gpu.uuid,
            product or model,
            memory,
            min(slots, _MOST_SLOTS),
            numa=gpu.numa,
            is_healthy=gpu.is_healthy,
        )
        for index in range(count)
        for gpu in (by_index.get(index, unnamed),)
    )
    # No cores to count: a node that has just joined, whose kubelet has not reported yet.
    units = _units_per_device(capacity)
    return NodeDevices(name, (*gpus, *others), uuids, is_sliced, cpu if cores else None, resources, units)


def quantity(quantities: Quantities | None, name: str) -> float:
    """Parse one quantity; 0 if it is missing or malformed."""
    try:
        return parse_quantity((quantities or {}).get(name, 0))
    except ValueError:
        return 0.0


def _count(meta: ObjectMeta, capacity: Quantities | None, replicas: int, uuid_count: int) -> int:
    """Return the number of GPUs from the most exact source: label, UUIDs, then shares divided by replicas."""
    # With MIG profiles, feature discovery also counts cards in MIG mode, which no pod can get as a whole.
    has_mig = any(name.startswith(MIG) and quantity(capacity, name) for name in capacity or ())
    discovered = 0 if has_mig else _number(meta.label(labels.GPU_COUNT), 0)
    labelled = _number(meta.label(labels.GPUS), 0) or discovered
    shares = int(quantity(capacity, WHOLE)) or int(quantity(capacity, SHARED))
    renamed = (name for name in capacity or () if name != WHOLE and unit_of(name) is Unit.WHOLE)
    counted = -(-shares // max(1, replicas)) + sum(int(quantity(capacity, name)) for name in renamed)
    return min(labelled or uuid_count or counted, MOST_GPUS)


def _resources(
    capacity: Quantities | None, allocatable: Quantities | None, count: int, *, has_slices: bool, is_sliced: bool
) -> Iterator[Resource]:
    """Yield the resources whose units are devices or shares.

    Args:
        count: Number of GPUs that variables can name.
    """
    same_devices = _units_per_device(capacity)
    for name in sorted({*(capacity or ()), *(allocatable or ())}):
        unit = unit_of(name)
        if unit in (Unit.NONE, Unit.PART) or name in same_devices:
            continue
        # Shares of an unknown number of GPUs are devices of their own.
        is_own = unit is Unit.PLUGIN or not count
        numbers = int(quantity(capacity, name)), int(quantity(allocatable, name))
        is_share = not is_own and (unit is Unit.SHARE or (name == WHOLE and is_sliced))
        yield Resource(name, *numbers, name if is_own or has_slices else "", is_share)


def _units_per_device(capacity: Quantities | None) -> dict[str, int]:
    """Return resources that count devices of another resource once more, with the units of one device."""
    devices = int(quantity(capacity, NEURON))
    units = {name: int(quantity(capacity, name)) for name in NEURON_OTHERS}
    return {name: max(1, number // devices) for name, number in units.items() if devices and number}


def _plugin_devices(node: str, meta: ObjectMeta, resources: tuple[Resource, ...], first: int) -> Iterator[Gpu]:
    """Yield devices that only a plugin hands out; ``first`` is the index of the first."""
    index = first
    by_name = {item.name: item for item in resources if item.device}
    for resource in (*(name for name in by_name if unit_of(name) is not Unit.PLUGIN), *plugin_only(by_name)):
        model, memory = resource.rpartition("/")[2], 0
        if resource == "amd.com/gpu":
            model = meta.label(labels.AMD_PRODUCT) or model
        elif resource == WHOLE:
            model = " ".join(filter(None, (_product(meta), meta.label(labels.GKE_PARTITION)))) or model
            memory = 0 if meta.label(labels.GKE_PARTITION) else _memory(meta)
        for _ in range(min(by_name[resource].allocatable, MOST_GPUS)):
            yield Gpu(node, index, model=model, memory_bytes=memory, slots=1, resource=resource)
            index += 1


def _replicas(meta: ObjectMeta, capacity: Quantities | None) -> int:
    """Return the number of shares of each GPU; 1 if they are not shared, or by a program that says no number."""
    replicas = _number(meta.label(labels.GPU_REPLICAS) or meta.label(labels.GKE_CLIENTS), 0)
    if replicas or meta.annotation(labels.HAMI_NODE):
        return max(replicas, 1)
    units, cards = int(quantity(capacity, WHOLE)), _number(_first(meta, labels.CLOUD_GPU_COUNTS), 0)
    return units // cards if 0 < cards < units and units % cards == 0 else 1


def _product(meta: ObjectMeta) -> str:
    return meta.label(labels.GPU_PRODUCT) or _first(meta, labels.CLOUD_GPU_PRODUCTS)


def _memory(meta: ObjectMeta) -> int:
    """Return the memory of each GPU in bytes; 0 if unknown."""
    return _number(meta.label(labels.GPU_MEMORY) or _first(meta, labels.CLOUD_GPU_MEMORIES), 0) << 20  # MiB


def _first(meta: ObjectMeta, names: Iterable[str]) -> str:
    return next(filter(None, map(meta.label, names)), "")


class _NamedGpu(Struct, frozen=True):
    """UUID, index, NUMA node and health of a GPU, as an annotation of its node says them."""

    uuid: str
    index: int
    numa: int | None = None
    is_healthy: bool = True


def _named_gpus(meta: ObjectMeta) -> Iterator[_NamedGpu]:
    """Yield the GPUs that an annotation of the node names, our own or HAMi's."""
    if own := meta.annotation(labels.GPU_UUIDS):
        yield from (_NamedGpu(uuid.strip(), index) for index, uuid in enumerate(own.split(",")) if uuid.strip())
        return
    text = meta.annotation(labels.HAMI_NODE)
    if text.startswith("["):
        try:
            devices = bounded_json.loads(text)
        except ValueError:
            return
        for position, device in enumerate(devices):
            if isinstance(device, dict) and isinstance(device.get("id"), str):
                index, numa = device.get("index"), device.get("numa")
                index = index if isinstance(index, int) else position
                is_healthy = device.get("health") is not False
                yield _NamedGpu(device["id"], index, numa if type(numa) is int else None, is_healthy)
        return
    # Before HAMi 2.5: UUID,shares,memory,cores,type,numa,healthy:UUID,…
    parts = [part.split(",") for part in text.split(":")]
    parts = [part for part in parts if _UUID.fullmatch(part[0])]
    for position, part in enumerate(parts):
        numa = whole_number(part[5]) if len(part) > 5 else None
        yield _NamedGpu(part[0], position, numa, part[6:7] != ["false"])


def _number(text: str, otherwise: int) -> int:
    number = whole_number(text)
    return otherwise if number is None else number
