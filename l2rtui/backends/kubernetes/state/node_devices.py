"""Devices of a node: number of GPUs, their UUIDs, and the slots of each; pure.

Devices of other makers, and MIG profiles, follow the GPUs of NVIDIA: each one that its plugin hands out is a device
of one slot.

Kubernetes counts resources and not devices, so this combines what several programs publish on a node: the device
plugin (``nvidia.com/gpu``), GPU feature discovery (labels), HAMi (an annotation), and our own labels where none of
them runs. Slots of a GPU: the node's own label, else the setting for the product, else the replicas of the device
plugin's time-slicing, else the setting for all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.structs import NodeStruct, ObjectMeta, Quantities
from l2rtui.backends.kubernetes.extended_resources import MIG, SHARED, WHOLE, plugin_only
from l2rtui.config import Settings
from l2rtui.domain.node import CPU, Gpu
from l2rtui.domain.quantity import parse_quantity, whole_number

_UUID = re.compile(r"(GPU|MIG)-[0-9a-fA-F-]{8,}")
# Labels are set by anybody who may edit nodes: a typing error must not make a million slots.
MOST_GPUS = 64
_MOST_SLOTS = 64


@dataclass(frozen=True, slots=True)
class SlotRule:
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


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """Devices of a node, against which the GPU usage of its pods is read.

    Attributes:
        gpus: The GPUs, those of NVIDIA first, or the single ``cpu`` device of a node without any. cpu: that device
            beside GPUs.
        uuids: UUID → index, as far as known.
        counts_shares: ``nvidia.com/gpu`` counts time-sliced shares of GPUs here.
    """

    node: str
    gpus: tuple[Gpu, ...]
    uuids: Mapping[str, int] = field(default_factory=dict)
    counts_shares: bool = False
    cpu: Gpu | None = None

    @property
    def has_gpus(self) -> bool:
        """True if the node has a GPU."""
        return bool(self.gpus) and not self.gpus[0].is_cpu

    @property
    def nvidia(self) -> tuple[Gpu, ...]:
        """The GPUs that variables can name, or the single cpu device."""
        return tuple(gpu for gpu in self.gpus if not gpu.resource)

    @property
    def plugin_only(self) -> frozenset[str]:
        """Extended resources whose devices are listed here."""
        return frozenset(gpu.resource for gpu in self.gpus if gpu.resource)

    @property
    def slots_per_gpu(self) -> int:
        """Slots of one GPU of NVIDIA, or of the cpu device; all of them have the same number."""
        return self.gpus[0].slots if self.gpus else 1


def read_devices(node: NodeStruct, rule: SlotRule) -> NodeDevices:
    """Read the devices of a node."""
    meta, name = node.metadata, node.metadata.name
    capacity = node.status.capacity or node.status.allocatable
    uuids = dict(_uuids(meta))
    replicas = _number(meta.label(labels.GPU_REPLICAS), 1)
    count = _count(meta, capacity, replicas, len(uuids))
    cores = quantity(node.status.allocatable or capacity, "cpu")
    cpu_slots = max(1, int(min(cores * rule.per_core, rule.most_on_cpu)))
    others = tuple(_plugin_devices(name, meta, node.status.allocatable or capacity, count))
    cpu = Gpu(name, CPU if count or others else 0, slots=cpu_slots, is_cpu=True)
    if not count:
        return NodeDevices(name, others, cpu=cpu if cores else None) if others else NodeDevices(name, (cpu,))
    # GPU feature discovery appends -SHARED to the product of a time-sliced GPU.
    product = meta.label(labels.GPU_PRODUCT)
    slots = (
        _number(meta.label(labels.SLOTS_PER_GPU), 0)
        or rule.by_product.get(product, 0)
        or rule.by_product.get(product.removesuffix("-SHARED"), 0)
        or (replicas if replicas > 1 else 0)
        or rule.per_gpu
    )
    memory = _number(meta.label(labels.GPU_MEMORY), 0) << 20  # the label is in MiB
    by_index = {index: uuid for uuid, index in uuids.items()}
    gpus = tuple(
        Gpu(name, index, by_index.get(index, ""), product, memory, min(slots, _MOST_SLOTS))
        for index in range(count)
    )
    # With renameByDefault the device plugin calls shares nvidia.com/gpu.shared, and nvidia.com/gpu stays exact.
    is_sliced = replicas > 1 and not quantity(capacity, SHARED)
    # No cores to count: a node that has just joined, whose kubelet has not reported yet.
    return NodeDevices(name, (*gpus, *others), uuids, is_sliced, cpu if cores else None)


def quantity(quantities: Quantities | None, name: str) -> float:
    """Parse one quantity; 0 if it is missing or malformed."""
    try:
        return parse_quantity((quantities or {}).get(name, 0))
    except ValueError:
        return 0.0


def _count(meta: ObjectMeta, capacity: Quantities | None, replicas: int, uuid_count: int) -> int:
    """Return the number of GPUs; the most exact source wins: label, UUIDs, then the shares divided by replicas."""
    # With MIG profiles feature discovery counts the cards in MIG mode as well, which nobody can have whole.
    has_mig = any(name.startswith(MIG) and quantity(capacity, name) for name in capacity or ())
    discovered = 0 if has_mig else _number(meta.label(labels.GPU_COUNT), 0)
    labelled = _number(meta.label(labels.GPUS), 0) or discovered
    shares = int(quantity(capacity, WHOLE)) or int(quantity(capacity, SHARED))
    return min(labelled or uuid_count or -(-shares // max(1, replicas)), MOST_GPUS)


def _plugin_devices(node: str, meta: ObjectMeta, quantities: Quantities | None, first: int) -> Iterator[Gpu]:
    """Yield devices that a plugin alone hands out; ``first`` is the index of the first."""
    index = first
    for resource in plugin_only(quantities or {}):
        model = meta.label(labels.AMD_PRODUCT) if resource == "amd.com/gpu" else ""
        for _ in range(min(int(quantity(quantities, resource)), MOST_GPUS)):
            yield Gpu(node, index, model=model or resource.rpartition("/")[2], slots=1, resource=resource)
            index += 1


def _uuids(meta: ObjectMeta) -> Iterator[tuple[str, int]]:
    """Yield UUIDs and indices from an annotation of the node."""
    if own := meta.annotation(labels.GPU_UUIDS):
        yield from ((uuid.strip(), index) for index, uuid in enumerate(own.split(",")) if uuid.strip())
        return
    text = meta.annotation(labels.HAMI_NODE)
    if text.startswith("["):
        try:
            devices = json.loads(text)
        except (ValueError, RecursionError):
            return
        for position, device in enumerate(devices):
            if isinstance(device, dict) and isinstance(device.get("id"), str):
                index = device.get("index")
                yield device["id"], index if isinstance(index, int) else position
        return
    parts = [part.partition(",")[0] for part in text.split(":")]  # before HAMi 2.5: UUID,shares,memory,…:UUID,…
    yield from ((uuid, position) for position, uuid in enumerate(filter(_UUID.fullmatch, parts)))


def _number(text: str, otherwise: int) -> int:
    number = whole_number(text)
    return otherwise if number is None else number
