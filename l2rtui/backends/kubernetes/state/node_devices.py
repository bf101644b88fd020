"""The devices of a node: how many GPUs, which UUIDs, how many slots each; pure.

Kubernetes counts resources and not devices, so this puts together what several programs write on a node: the device
plugin (``nvidia.com/gpu``), GPU feature discovery (labels), HAMi (an annotation), and our own labels where none of
them runs. Slots of a GPU: the node's own label, else the product's setting, else the shares that the device plugin
makes of it, else the setting for all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.structs import Meta, NodeStruct, Quantities
from l2rtui.config import Settings
from l2rtui.domain.node import Gpu
from l2rtui.domain.quantity import parse_quantity

WHOLE = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
MIG = "nvidia.com/mig-"
_UUID = re.compile(r"(GPU|MIG)-[0-9a-fA-F-]{8,}")
_MOST_GPUS = 64
_MOST_SLOTS = 64


@dataclass(frozen=True, slots=True)
class SlotRule:
    """How many slots a device has; see the settings of the same names."""

    per_gpu: int = 4
    by_product: Mapping[str, int] = field(default_factory=dict)
    per_core: int = 4
    most_on_cpu: int = 64

    @classmethod
    def of(cls, settings: Settings) -> SlotRule:
        """The rule that the settings make."""
        pairs = (one.rpartition("=") for one in settings.slots_by_product)
        by_product = {product: int(count) for product, _, count in pairs if product and count.isdigit()}
        return cls(settings.slots_per_gpu, by_product, settings.slots_per_core, settings.max_cpu_slots)


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """What the claims of pods on a node are read against.

    Attributes:
        gpus: The GPUs, or the one ``cpu`` device of a node without any.
        uuids: UUID → index, as far as they are known.
        counts_shares: ``nvidia.com/gpu`` counts shares of GPUs here, not whole ones.
    """

    node: str
    gpus: tuple[Gpu, ...]
    uuids: Mapping[str, int] = field(default_factory=dict)
    counts_shares: bool = False

    @property
    def has_gpus(self) -> bool:
        """Whether there is a GPU at all."""
        return bool(self.gpus) and not self.gpus[0].is_cpu

    @property
    def slots_per_gpu(self) -> int:
        """Slots of one device; all of a node have as many."""
        return self.gpus[0].slots if self.gpus else 1


def read_devices(node: NodeStruct, rule: SlotRule) -> NodeDevices:
    """Read the devices of a node."""
    meta, name = node.metadata, node.metadata.name
    capacity = node.status.capacity or node.status.allocatable
    uuids = dict(_uuids(meta))
    replicas = _number(meta.label(labels.GPU_REPLICAS), 1)
    count = _count(meta, capacity, replicas, len(uuids))
    if not count:
        cores = quantity(node.status.allocatable or capacity, "cpu")
        slots = min(max(1, int(cores * rule.per_core)), rule.most_on_cpu)
        return NodeDevices(name, (Gpu(name, 0, slots=slots, is_cpu=True),))
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
    is_sliced = replicas > 1 and not quantity(capacity, SHARED)
    return NodeDevices(name, gpus, uuids, is_sliced)


def quantity(found: Quantities | None, name: str) -> float:
    """One of several quantities; 0 when it is missing or no number."""
    try:
        return parse_quantity((found or {}).get(name, 0))
    except ValueError:
        return 0.0


def _count(meta: Meta, capacity: Quantities | None, replicas: int, known: int) -> int:
    """How many GPUs: what says it most exactly wins."""
    told = _number(meta.label(labels.GPUS), 0) or _number(meta.label(labels.GPU_COUNT), 0)
    shares = int(quantity(capacity, WHOLE)) or int(quantity(capacity, SHARED))
    return min(told or known or -(-shares // max(1, replicas)), _MOST_GPUS)


def _uuids(meta: Meta) -> Iterator[tuple[str, int]]:
    """UUIDs and indices that an annotation of the node tells."""
    if own := meta.annotation(labels.GPU_UUIDS):
        yield from ((uuid.strip(), index) for index, uuid in enumerate(own.split(",")) if uuid.strip())
        return
    text = meta.annotation(labels.HAMI_NODE)
    if text.startswith("["):
        try:
            found = json.loads(text)
        except ValueError:
            return
        for place, one in enumerate(found):
            if isinstance(one, dict) and isinstance(one.get("id"), str):
                index = one.get("index")
                yield one["id"], index if isinstance(index, int) else place
        return
    parts = [part.partition(",")[0] for part in text.split(":")]  # before HAMi 2.5: UUID,shares,memory,…:UUID,…
    yield from ((uuid, place) for place, uuid in enumerate(one for one in parts if _UUID.fullmatch(one)))


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() else otherwise
