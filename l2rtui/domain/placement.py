"""Placement of replicas on slots: by cursor, by name, packed or spread.

A conflict is a value for screens, not an exception: ``Placement.conflicts`` says in sentences why some
replicas got no slot.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby

from l2rtui.domain.containers import Binding
from l2rtui.domain.ledger import Ledger, SlotState
from l2rtui.domain.node import SlotId
from l2rtui.domain.workload import MAX_SEED, RunSpec, SetSpec, pod_name


class PlacementPolicy(StrEnum):
    """Order in which free slots are used: device after device, or round all devices."""

    PACK = "pack"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class Seat:
    """One replica and its slots, all on one device; none for a replica that needs no device."""

    run: str
    set_name: str
    index: int
    slots: tuple[SlotId, ...]

    @property
    def pod(self) -> str:
        """Name of the replica's pod."""
        return pod_name(self.run, self.set_name, self.index)


@dataclass(frozen=True, slots=True)
class Placement:
    """Seats in the order of runs, sets and indices, and conflicts for replicas without a slot.

    Attributes:
        overcommitted: Slots that were assigned although another pod holds them, because the caller allowed it.
    """

    seats: tuple[Seat, ...] = ()
    conflicts: tuple[str, ...] = ()
    overcommitted: tuple[SlotId, ...] = ()


@dataclass(frozen=True, slots=True)
class Pin:
    """Slots that a person named: a whole device, or one slot of it."""

    node: str
    gpu: int
    slot: int | None = None

    def __str__(self) -> str:
        return f"{self.node}/{self.gpu}" if self.slot is None else f"{self.node}/{self.gpu}.{self.slot}"


_PIN = re.compile(r"(?P<node>[^/,\s]+)/(?P<gpus>\d+(-\d+)?)(\.(?P<slots>\d+(-\d+)?))?", re.ASCII)


def parse_pins(text: str) -> tuple[Pin, ...]:
    """Read ``node/gpu[.slot]``, with ranges and commas: ``phortx1/0-3,phortx2/5.0-1``.

    Raises:
        ValueError: one part has another form; the message names it and shows the right one.
    """
    pins: list[Pin] = []
    for part in text.split(","):
        match = _PIN.fullmatch(part.strip())
        if match is None:
            sentence = f"{part.strip()!r} names no slot: write node/gpu or node/gpu.slot, such as n1/0-3 or n1/3.2"
            raise ValueError(sentence)
        for gpu in _span(match["gpus"]):
            slots: Iterable[int | None] = _span(match["slots"]) if match["slots"] else (None,)
            pins.extend(Pin(match["node"], gpu, slot) for slot in slots)
    return tuple(pins)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read seeds: ``0-11``, ``1,5,7``, ``0-3,8``; each once, in the order given.

    Raises:
        ValueError: not a list of whole numbers and ranges.
    """
    seeds: dict[int, None] = {}
    for part in text.split(","):
        if not re.fullmatch(r"\d+(-\d+)?", part.strip(), re.ASCII):
            raise ValueError(f"{part.strip()!r} is no seed: write whole numbers and ranges, such as 0-11 or 1,5,7")
        span = _span(part.strip())
        if span[-1] > MAX_SEED:
            raise ValueError(f"{part.strip()!r} is no seed: the largest is {MAX_SEED}")
        seeds.update(dict.fromkeys(span))
    return tuple(seeds)


def _span(text: str) -> range:
    first, _, last = text.partition("-")
    low, high = int(first), int(last or first)
    # The bound keeps a typing mistake such as 0-99999999 from filling the memory.
    if high < low or high - low > 4096:
        raise ValueError(f"{text!r} is no range: write the lower number first, at most 4096 apart")
    return range(low, high + 1)


@dataclass(slots=True)
class _Free:
    """Slots that are still available, by device, in order; private to one call of place().

    Attributes:
        sizes: Number of all slots of each device, free or not.
        order: Rank of each slot. With pins: as the pins name it. Without: 0, or no entry, on devices that the run
            uses already, 1 elsewhere.
        used: Number of slots assigned by this call, by device.
    """

    devices: dict[tuple[str, int], list[SlotId]]
    sizes: dict[tuple[str, int], int]
    order: dict[SlotId, int] = field(default_factory=dict)
    used: dict[tuple[str, int], int] = field(default_factory=dict)

    def assign(self, worker_set: SetSpec, policy: PlacementPolicy) -> tuple[SlotId, ...]:
        """Assign slots of one device to one replica; empty when no device has that many left.

        A replica that gets its GPU from the device plugin needs the whole device.
        """
        if worker_set.pod.binding is Binding.DEVICE_PLUGIN:
            fitting = [key for key, slots in self.devices.items() if len(slots) == self.sizes[key]]
        else:
            fitting = [key for key, slots in self.devices.items() if len(slots) >= worker_set.slots]
        if not fitting:
            return ()
        if policy is PlacementPolicy.SPREAD:
            key = min(fitting, key=lambda device: self.used.get(device, 0))
        else:
            # min() is stable: without an order, devices fill in the order of the ledger.
            key = min(fitting, key=lambda device: self.order.get(self.devices[device][0], 0))
        slots = self.devices[key]
        count = len(slots) if worker_set.pod.binding is Binding.DEVICE_PLUGIN else worker_set.slots
        chosen, self.devices[key] = tuple(slots[:count]), slots[count:]
        self.used[key] = self.used.get(key, 0) + count
        return chosen


def place(
    runs: Sequence[RunSpec],
    ledger: Ledger,
    *,
    policy: PlacementPolicy = PlacementPolicy.PACK,
    pins: Sequence[Pin] = (),
    existing: Iterable[Seat] = (),
    overcommit: bool = False,
) -> Placement:
    """Seat every replica of the runs.

    Args:
        pins: Only these devices and slots are used, in this order; empty means every free slot.
        existing: Seats of pods that run already, for a scale-up; they are not part of the result. PACK begins with
            the devices that they use.
        overcommit: When no free slot is left, use slots that are busy or unknown. Slots of a node that is off are
            never used.
    """
    existing = tuple(existing)
    existing_pods = {seat.pod for seat in existing}
    sizes = Counter((slot.node, slot.gpu) for slot in ledger.slots)
    free = _devices(ledger.free(), pins, sizes)
    if not pins and (own := {(slot.node, slot.gpu) for seat in existing for slot in seat.slots}):
        free.order = {slot: 1 for slot in ledger.free() if (slot.node, slot.gpu) not in own}
    usable = (slot.id for slot in ledger.slots.values() if slot.state is not SlotState.OFF)
    occupied = _devices(tuple(usable) if overcommit else (), pins, sizes)
    over: list[SlotId] = []
    conflicts = _pin_conflicts(ledger, pins, overcommit=overcommit)
    seats: list[Seat] = []
    for run in runs:
        for worker_set in run.sets:
            missing = 0
            for index in range(worker_set.replicas):
                if pod_name(run.name, worker_set.name, index) in existing_pods:
                    continue
                if not worker_set.needs_device:
                    seats.append(Seat(run.name, worker_set.name, index, ()))
                    continue
                slots = free.assign(worker_set, policy)
                if not slots:  # free slots first, even of a device that fits worse
                    slots = occupied.assign(worker_set, policy)
                    over.extend(slots)
                if not slots:
                    missing += 1
                    continue
                seats.append(Seat(run.name, worker_set.name, index, slots))
            if missing:
                conflicts.append(_no_room(run, worker_set, missing, ledger, pins))
    return Placement(tuple(seats), tuple(conflicts), tuple(over))


def _devices(slots: tuple[SlotId, ...], pins: Sequence[Pin], sizes: dict[tuple[str, int], int]) -> _Free:
    """The slots by device; with pins only those, in the order of the pins."""
    if not pins:
        devices = {key: list(group) for key, group in groupby(slots, key=lambda slot: (slot.node, slot.gpu))}
        return _Free(devices, sizes)
    # dict.fromkeys twice: a pin may be named twice, and two pins may name the same slot.
    named = tuple(dict.fromkeys(slot for pin in dict.fromkeys(pins) for slot in slots if _matches(pin, slot)))
    devices = {}
    for slot in named:
        devices.setdefault((slot.node, slot.gpu), []).append(slot)
    return _Free(devices, sizes, {slot: number for number, slot in enumerate(named)})


def _matches(pin: Pin, slot: SlotId) -> bool:
    return (pin.node, pin.gpu) == (slot.node, slot.gpu) and pin.slot in (None, slot.slot)


def _pin_conflicts(ledger: Ledger, pins: Sequence[Pin], *, overcommit: bool) -> list[str]:
    conflicts = []
    allowed = tuple(SlotState) if overcommit else (SlotState.FREE,)
    for pin in pins:
        named = [slot for slot in ledger.slots.values() if _matches(pin, slot.id)]
        if not named:
            conflicts.append(f"there is no slot {pin}; `l2rtui slots` lists them")
        elif pin.slot is not None and (named[0].state not in allowed or named[0].state is SlotState.OFF):
            holder = f" by {named[0].pod}" if named[0].pod else ""
            conflicts.append(f"slot {pin} is {named[0].state}{holder}")
    return conflicts


def _no_room(run: RunSpec, worker_set: SetSpec, missing: int, ledger: Ledger, pins: Sequence[Pin]) -> str:
    where = f" among {', '.join(map(str, pins))}" if pins else ""
    size = f" of {worker_set.slots} slots on one device" if worker_set.slots > 1 else ""
    size = " of a whole device" if worker_set.pod.binding is Binding.DEVICE_PLUGIN else size
    return (
        f"{run.name}/{worker_set.name}: {missing} of {worker_set.replicas} replicas{size} find no free slot{where} "
        f"({len(ledger.free())} of {len(ledger.slots)} slots are free for the whole plan)"
    )
