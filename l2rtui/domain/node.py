"""Nodes, their GPUs, and the slots of each device.

A slot is room for one worker on a GPU or on the CPU of a node. (Determined AI calls a whole device a slot; NVIDIA's
time-slicing calls the shares of a device replicas.) The CPU is a device as well. On a node without GPUs it is the
only device, with index 0; on other nodes it has the index ``CPU``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from msgspec import Struct

CPU: Final = -1
"""Index of the cpu device of a node that has GPUs, written ``cpu``: the driver counts GPUs from 0."""
_SLOT = re.compile(
    r"(?P<node>[a-z0-9]([-.a-z0-9]*[a-z0-9])?)/(?P<gpu>[0-9]+|cpu)\.(?P<slot>[0-9]+)", re.IGNORECASE | re.ASCII
)


def device_name(index: int) -> str:
    """Format a device index as in slots, labels and names: ``3``, or ``cpu``."""
    return "cpu" if index == CPU else str(index)


def device_index(text: str) -> int | None:
    """Parse the output of ``device_name``; None for any other text."""
    if text.lower() == "cpu":
        return CPU
    return int(text) if text.isascii() and text.isdigit() else None


def natural_key(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Sort key that puts ``phortx2`` before ``phortx10``."""
    # The flag keeps numbers and texts comparable: at one position one name may have a number, another a text.
    parts = re.findall(r"[0-9]+|[^0-9]+", name, re.ASCII)
    return tuple((not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts)


class SlotId(Struct, frozen=True, order=True):
    """Address of a slot, written ``node/gpu.slot``, for example ``phortx1/3.2`` or ``phortx1/cpu.2``."""

    node: str
    gpu: int
    slot: int

    @classmethod
    def parse(cls, text: str) -> SlotId:
        """Read ``node/gpu.slot``.

        Raises:
            ValueError: The text has another form; the message shows the right form.
        """
        match = _SLOT.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a slot: write node/gpu.slot, such as phortx1/3.2")
        gpu = CPU if match["gpu"].lower() == "cpu" else int(match["gpu"])
        return cls(match["node"], gpu, int(match["slot"]))

    def __str__(self) -> str:
        return f"{self.node}/{device_name(self.gpu)}.{self.slot}"


@lru_cache(maxsize=8192)
def _slot_ids(node: str, gpu: int, slots: int) -> tuple[SlotId, ...]:
    """Ids of the slots of one device; cached, as a ledger is built several times a second."""
    return tuple(SlotId(node, gpu, slot) for slot in range(slots))


class Gpu(Struct, frozen=True):
    """One physical device of a node: a GPU, or its ``cpu`` device.

    Attributes:
        index: As the driver counts, from 0. A cpu device has 0 on a node without GPUs, otherwise ``CPU``.
        uuid: The driver's unique id (``GPU-…``); empty for the cpu device.
        slots: Number of workers that it can carry.
        resource: Extended resource through which its plugin hands it out, such as ``amd.com/gpu``; empty for NVIDIA
            GPUs. If it is set, the index is assigned by this program, as the driver's index is not visible.
        numa: NUMA node of the host that it is attached to; None if unknown.
        is_healthy: False if the program that hands it out reports a fault: it gets no new workers.
    """

    node: str
    index: int
    uuid: str = ""
    model: str = ""
    memory_bytes: int = 0
    slots: int = 4
    is_cpu: bool = False
    resource: str = ""
    numa: int | None = None
    is_healthy: bool = True

    def slot_ids(self) -> tuple[SlotId, ...]:
        """All slots of this device, lowest first."""
        return _slot_ids(self.node, self.index, self.slots)

    @property
    def label(self) -> str:
        """Name on screens: ``GPU3`` or ``cpu``."""
        return "cpu" if self.is_cpu else f"GPU{self.index}"


class Resource(Struct, frozen=True):
    """Extended resource of a node: units that a device plugin hands out and the scheduler counts.

    Attributes:
        capacity: Units that the plugin has registered. allocatable: Healthy units.
        device: ``Gpu.resource`` of the devices that it counts; empty for NVIDIA GPUs, whole or shared.
        is_share: A unit is a share of a GPU (one slot), not a whole device.
    """

    name: str
    capacity: int
    allocatable: int
    device: str = ""
    is_share: bool = False

    @property
    def health(self) -> str:
        """``7 of 8 GPUs healthy`` if the plugin has withdrawn some; otherwise empty."""
        if self.allocatable >= self.capacity:
            return ""
        kind = "shares of GPUs" if self.is_share else self.device or "GPUs"
        return f"{self.allocatable} of {self.capacity} {kind} healthy"


class GpuShare(Struct, frozen=True):
    """Part of a GPU's utilisation that the processes of one pod cause.

    Attributes:
        percent: Share of time in which one of their kernels ran, 0 to 100; None if unknown.
        memory_bytes: Memory that they have allocated; None if unknown.
    """

    pod_uid: str
    percent: float | None = None
    memory_bytes: int | None = None


class GpuUse(Struct, frozen=True):
    """Utilisation of a GPU, if it is measured. Separate from Gpu, as it changes often and never affects slots.

    Attributes:
        percent: Share of time in which a kernel ran, 0 to 100, as in nvidia-smi; None if unknown.
        memory_used_bytes: None if unknown. memory_bytes: Its total memory; 0 if unknown.
        watts: Power draw, None if unknown. celsius: Temperature of the chip, None if unknown.
        shares: Parts of single pods, where their processes can be identified. A pod without a part may still use
            the GPU.
    """

    gpu: int
    percent: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int = 0
    watts: float | None = None
    celsius: float | None = None
    shares: tuple[GpuShare, ...] = ()

    def share(self, pod_uid: str) -> GpuShare | None:
        """Part of one pod; None if unknown."""
        return next((share for share in self.shares if share.pod_uid == pod_uid), None)


class Taint(Struct, frozen=True):
    """Taint of a node: pods that do not tolerate it are not scheduled there."""

    key: str
    value: str
    effect: str


class SlotReservation(Struct, frozen=True):
    """Reservation of one slot of a node for one person. Backends leave out expired reservations.

    Attributes:
        gpu, slot: Device and number of the slot on its node, as in ``SlotId``.
        until: End, in seconds since the epoch.
        is_mine: The user of this program has made it.
    """

    gpu: int
    slot: int
    owner: str
    until: float
    note: str = ""
    is_mine: bool = False

    @property
    def end(self) -> str:
        """Its end as text, the same in every time zone."""
        return datetime.fromtimestamp(self.until, UTC).strftime("%Y-%m-%d %H:%M UTC")

    @property
    def text(self) -> str:
        """Text for use after "is": ``reserved by anna until 2026-03-01 18:00 UTC (demo)``."""
        return f"reserved by {self.owner} until {self.end}{f' ({self.note})' if self.note else ''}"


class Node(Struct, frozen=True):
    """A Kubernetes Node, or this machine.

    Attributes:
        gpus: The GPUs; on a node without GPUs, only its cpu device.
        cpu: The cpu device of a node with GPUs; None on a node without GPUs, or if it has no slots.
        ready: The node reports that it can run pods.
        is_schedulable: False if it is cordoned.
        is_use_known: False if the pods on it cannot all be listed, so that a slot that looks free may be in use.
        cpu_cores, memory_bytes: Allocatable amounts in the sense of Kubernetes.
        cpu_used, memory_used_bytes: Current use; None if it is not measured.
        gpu_use: Current use of its GPUs; GPUs without a measurement are left out.
        ip: Its address in the cluster; empty if unknown.
        kubelet_version: Version of its kubelet; empty if it has no kubelet.
        runtimes: Names of the handlers of its container runtime, if it reports them.
        context: Name of its context if several contexts are shown; otherwise empty.
        created: Time at which it joined the cluster, or this machine was started, in seconds since the epoch; 0 if
            unknown.
        reservations: Reservations of its slots, in the order of the slots.
        resources: Extended resources that its plugins hand out; None if they are not counted.
    """

    name: str
    gpus: tuple[Gpu, ...] = ()
    ready: bool = True
    is_schedulable: bool = True
    is_use_known: bool = True
    cpu_cores: float = 0.0
    memory_bytes: int = 0
    cpu_used: float | None = None
    memory_used_bytes: int | None = None
    gpu_use: tuple[GpuUse, ...] = ()
    taints: tuple[Taint, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    message: str = ""
    cpu: Gpu | None = None
    ip: str = ""
    kubelet_version: str = ""
    runtimes: tuple[str, ...] = ()
    context: str = ""
    created: float = 0.0
    reservations: tuple[SlotReservation, ...] = ()
    resources: tuple[Resource, ...] | None = None

    @property
    def devices(self) -> tuple[Gpu, ...]:
        """All devices that carry slots: the GPUs, then the cpu device."""
        return self.gpus if self.cpu is None else (*self.gpus, self.cpu)

    def gpu(self, index: int) -> Gpu | None:
        """The device with this index, or None."""
        return next((gpu for gpu in self.devices if gpu.index == index), None)

    def gpu_memory_bytes(self, gpu: Gpu) -> int:
        """Total memory of one of its GPUs, from its labels or a measurement; 0 if unknown."""
        use = self.use(gpu.index)
        return gpu.memory_bytes or (use.memory_bytes if use is not None else 0)

    def use(self, index: int) -> GpuUse | None:
        """Utilisation of the device with this index, or None without a measurement."""
        return next((use for use in self.gpu_use if use.gpu == index), None)
