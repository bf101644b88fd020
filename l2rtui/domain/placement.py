"""Placement of replicas on slots: in order, by named slots, packed or spread.

A set that needs no GPU goes to CPU slots, any other set to GPU slots; on a node without GPUs, the CPU takes both.
Slots that the user names are used regardless of their kind.

Where pods request units of an extended resource, the node's counts decide, as in kube-scheduler, and the plugin
chooses the device. The slots of such a seat represent units: they keep two launches apart.

Nodes whose labels or taints would keep a set's pods Pending are left out, even if the user names them.

A conflict is a value for screens, not an exception: ``Placement.conflicts`` has a sentence for the replicas that
got no slot.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.domain.containers import PodSettings
from l2rtui.domain.counts import CLOSED, NVIDIA_GPU, Counts, counted_resource, counted_units
from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import Ledger, NodeLedger, Slot, SlotState
from l2rtui.domain.node import CPU, Gpu, Node, SlotId, device_index, device_name
from l2rtui.domain.quantity import counted
from l2rtui.domain.workload import MAX_SEED, RunSpec, SetSpec, pod_name


class PlacementPolicy(StrEnum):
    """Order in which free slots are used.

    Device after device, round-robin over all devices, or by measurement: most free memory first, or least busy
    device first. Each replica is then counted as a load in proportion to its slots, so that a plan does not pile up
    on one idle device. Devices without a measurement come last, emptiest first.
    """

    PACK = "pack"
    SPREAD = "spread"
    FREE_MEMORY = "free-memory"
    LEAST_BUSY = "least-busy"

    @property
    def is_measured(self) -> bool:
        """True if the seats depend on measurements, so that a later call may give other seats."""
        return self in (PlacementPolicy.FREE_MEMORY, PlacementPolicy.LEAST_BUSY)


class Seat(Struct, frozen=True):
    """One replica and its slots: slots of one device, all slots of several whole GPUs of a node, or none.

    Attributes:
        resource: Extended resource that its pod requests; empty if resources are not counted.
        units: Number of units that it requests.
    """

    run: str
    set_name: str
    index: int
    slots: tuple[SlotId, ...]
    resource: str = ""
    units: int = 0

    @property
    def pod(self) -> str:
        """Name of the replica's pod."""
        return pod_name(self.run, self.set_name, self.index)


class Placement(Struct, frozen=True):
    """Seats in the order of runs, sets and indices, and conflicts for replicas without a slot.

    Attributes:
        overcommitted: Slots that were assigned although another pod holds them, because the caller allowed it.
    """

    seats: tuple[Seat, ...] = ()
    conflicts: tuple[str, ...] = ()
    overcommitted: tuple[SlotId, ...] = ()


class Pin(Struct, frozen=True):
    """Slots that the user named: a whole device, or one slot of it. ``CPU`` is the cpu device of any node."""

    node: str
    gpu: int
    slot: int | None = None

    def __str__(self) -> str:
        device = f"{self.node}/{device_name(self.gpu)}"
        return device if self.slot is None else f"{device}.{self.slot}"


_PIN = re.compile(r"(?P<node>[^/,\s]+)/(?P<gpus>cpu|\d+(-\d+)?)(\.(?P<slots>\d+(-\d+)?))?", re.ASCII)


def parse_pins(text: str) -> tuple[Pin, ...]:
    """Parse ``node/gpu[.slot]``, with ranges and commas: ``phortx1/0-3,phortx2/5.0-1,phortx1/cpu``.

    Raises:
        ValueError: One part has another form; the message names it and shows the right form.
    """
    pins: list[Pin] = []
    for part in text.split(","):
        match = _PIN.fullmatch(part.strip())
        if match is None:
            sentence = f"{part.strip()!r} names no slot: write node/gpu or node/gpu.slot, such as n1/0-3 or n1/3.2"
            raise ValueError(sentence)
        gpus = (CPU,) if device_index(match["gpus"]) == CPU else _span(match["gpus"])
        for gpu in gpus:
            slots: Iterable[int | None] = _span(match["slots"]) if match["slots"] else (None,)
            pins.extend(Pin(match["node"], gpu, slot) for slot in slots)
    return tuple(pins)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse seeds: ``0-11``, ``1,5,7``, ``0-3,8``; without duplicates, in the given order.

    Raises:
        ValueError: The text is not a list of whole numbers and ranges.
    """
    seeds: dict[int, None] = {}
    for part in text.split(","):
        if not re.fullmatch(r"\d+(-\d+)?", part.strip(), re.ASCII):
            raise ValueError(
                f"{part.strip()!r} is not a seed: write whole numbers and ranges, such as 0-11 or 1,5,7"
            )
        span = _span(part.strip())
        if span[-1] > MAX_SEED:
            raise ValueError(f"{part.strip()!r} is not a seed: the largest is {MAX_SEED}")
        seeds.update(dict.fromkeys(span))
    return tuple(seeds)


def _span(text: str) -> range:
    first, _, last = text.partition("-")
    low, high = int(first), int(last or first)
    # The bound keeps a typing mistake such as 0-99999999 from filling the memory.
    if high < low or high - low > 4096:
        raise ValueError(f"{text!r} is not a range: write the lower number first, at most 4096 apart")
    return range(low, high + 1)


def bound_to_cpu(
    specs: Sequence[RunSpec], ledger: Ledger, pins: Sequence[Pin] = (), *, overcommit: bool = False
) -> tuple[RunSpec, ...]:
    """Return the specs with ``binding: cpu`` in each set that may run on CPU slots, if there are any.

    If the user names devices without a CPU among them, nothing changes: the pods then see those GPUs.
    """
    if not _has_cpu(ledger, pins, overcommit=overcommit):
        return tuple(specs)

    def bound(part: SetSpec) -> SetSpec:
        is_chosen = part.may_use_cpu and part.needs_device
        return replace(part, pod=replace(part.pod, binding=Binding.CPU), may_use_cpu=False) if is_chosen else part

    return tuple(replace(spec, sets=tuple(map(bound, spec.sets))) for spec in specs)


def _has_cpu(ledger: Ledger, pins: Sequence[Pin], *, overcommit: bool) -> bool:
    """True if there are CPU slots for sets without a GPU; with pins, only named slots count."""
    if pins:
        cpus = [slot for slot in ledger.slots.values() if slot.is_cpu]
        return any(_matches(pin, slot) for pin in pins for slot in cpus)
    return ledger.has_cpu_slots(is_use_known=not overcommit)


class Obstacle(Struct, frozen=True):
    """Reason why the scheduler would not send any pod of a set to a node, and the remedy."""

    reason: str
    hint: str

    def sentence(self, nodes: Sequence[str]) -> str:
        """Return a sentence on the nodes that this obstacle applies to."""
        names = ", ".join(nodes) if len(nodes) <= _MAX_NAMES else f"{len(nodes)} nodes"
        subject = names if len(nodes) > 1 else f"node {names}"
        return f"{subject} {'have' if len(nodes) > 1 else 'has'} {self.reason}"


_MAX_NAMES: Final = 3
_NO_NODE_HAS: Final = "no node has"
_NO_NODE_OFFERS: Final = "no node offers it"
_NO_OPEN_NODE: Final = "no node that its pods may use offers it"
_BLOCKING: Final = ("NoSchedule", "NoExecute")
_CONDITIONS: Final = "node.kubernetes.io/"
"""Prefix of Kubernetes' own taints, which only repeat that a node is not ready or is cordoned."""
_NAME_FIELD: Final = "metadata.name"
"""Node field that affinity may match in addition to labels (matchFields)."""


_SYSTEM: Final = "kubernetes.io/os"
_LINUX: Final = "linux"


def obstacle(part: SetSpec, name: str, node: Node | NodeLedger) -> Obstacle | None:
    """Return why no pod of a set could run on a node; None if it can, or if the node's labels are unknown."""
    scheduling = part.pod.scheduling
    # Every node of a cluster has labels: a node without any is not readable, or the backend has no labels.
    is_asked = node.labels and any(scheduling.alternatives)
    unmet = scheduling.unmet({**dict(node.labels), _NAME_FIELD: name}) if is_asked else ()
    if unmet:
        text = " and ".join(map(str, unmet))
        is_plain = len(unmet) == 1 and unmet[0].operator in ("In", "Exists")
        kind = "label" if is_plain else "labels that match"
        hint = "Correct pod.node_selector or pod.template, or choose another node with --on."
        return Obstacle(f"no {kind} {text}, which the set {part.name} needs", hint)
    system = dict(node.labels).get(_SYSTEM, _LINUX)
    if system != _LINUX and not any(rule.key == _SYSTEM for rules in scheduling.alternatives for rule in rules):
        hint = (
            f"Choose another node with --on; a set of {system} names it in pod.node_selector: {_SYSTEM}: {system}."
        )
        return Obstacle(
            f"the operating system {system}, and the image of the set {part.name} is one of Linux", hint
        )
    for taint in node.taints:
        is_blocking = taint.effect in _BLOCKING and not taint.key.startswith(_CONDITIONS)
        if is_blocking and not any(toleration.tolerates(taint) for toleration in scheduling.tolerations):
            text = f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
            reason = f"the taint {text}, which the set {part.name} does not tolerate"
            return Obstacle(reason, "Write it under pod.tolerations.")
    if node.devices and part.gpu_wish and not any(map(part.suits, node.devices)):
        reason = f"no {part.gpu_wish}, which the set {part.name} needs"
        return Obstacle(reason, "`l2rtui nodes -o wide` lists the models.")
    return None


def obstacles(part: SetSpec, ledger: Ledger) -> dict[str, Obstacle]:
    """Return the nodes that are closed to a set, with the reason for each."""
    reasons = ((name, obstacle(part, name, node)) for name, node in ledger.nodes.items())
    return {name: reason for name, reason in reasons if reason is not None}


Device = tuple[str, int]
"""Node and index of a device."""


class _Room(Struct, frozen=True):
    """Slots for one replica, and the units that its pod requests; without slots there is no room."""

    slots: tuple[SlotId, ...] = ()
    resource: str = ""
    units: int = 0


class _Load(Struct, frozen=True):
    """Load of a device: its utilisation, or minus its free memory in bytes; and the load that one more slot
    adds.
    """

    now: float
    per_slot: float


def _loads(policy: PlacementPolicy, nodes: Iterable[Node]) -> dict[Device, _Load]:
    """Return the measured load of each device in the unit that the policy compares."""
    loads: dict[Device, _Load] = {}
    for node in nodes if policy.is_measured else ():
        for gpu in node.devices:
            use = node.use(gpu.index)
            used: float | None
            if policy is PlacementPolicy.LEAST_BUSY:
                percent = use.percent if use is not None else None
                used, total = (node.cpu_used, node.cpu_cores) if gpu.is_cpu else (percent, 100.0)
            elif gpu.is_cpu:
                used, total = node.memory_used_bytes, node.memory_bytes
            else:
                # Not every backend knows the memory of a device; then the size from the measurement is used.
                used = use.memory_used_bytes if use is not None else None
                total = gpu.memory_bytes or (use.memory_bytes if use is not None else 0)
            if used is not None and total and gpu.slots:
                # Fractions in use and free bytes can be compared between devices, but not bytes in use.
                is_share = policy is PlacementPolicy.LEAST_BUSY
                now, total_size = (used / total, 1.0) if is_share else (used - total, total)
                loads[node.name, gpu.index] = _Load(now, total_size / gpu.slots)
    return loads


@dataclass(slots=True)
class _Pool:
    """Slots to choose from, by device, in order; used by one call of place() only.

    Attributes:
        sizes: Number of all slots of each device, free or not.
        cpus: The cpu devices among them.
        resources: Extended resource of devices that only a plugin hands out.
        order: Rank of each slot. With pins: the order of the pins. Without pins: 0, or no entry, on devices that
            the run uses already, 1 elsewhere.
        is_exact: The pins name single slots: each replica gets the next of them, regardless of its kind.
        has_pins: The user named the slots.
        is_shared: Its slots may already have other pods.
        used: Number of slots assigned by this call, by device.
        closed: Nodes on which the set whose replicas are being seated cannot run.
        loads: Measured loads, if the policy uses them.
        counts: Units of counted resources, shared by all pools of a call.
        unsure: Slots of unknown use on nodes that count: they represent units, as free slots do.
    """

    devices: dict[Device, list[SlotId]]
    sizes: Mapping[Device, int]
    cpus: Collection[Device]
    counts: Counts
    unsure: dict[Device, list[SlotId]] = field(default_factory=dict)
    resources: Mapping[Device, str] = field(default_factory=dict)
    order: dict[SlotId, int] = field(default_factory=dict)
    is_exact: bool = False
    has_pins: bool = False
    is_shared: bool = False
    used: dict[Device, int] = field(default_factory=dict)
    closed: Collection[str] = ()
    loads: Mapping[Device, _Load] = field(default_factory=dict)

    def assign(self, worker_set: SetSpec, policy: PlacementPolicy, *, on_cpu: bool) -> _Room:
        """Assign slots to one replica; return an empty room if no device, or no node, has enough left."""
        if not on_cpu and (worker_set.pod.binding.is_counted or worker_set.gpus or worker_set.gpu_wish):
            return self._assign_gpus(worker_set, policy)
        devices = self.devices
        if self.closed:  # rare, and the loop below runs for each replica over all devices
            devices = {key: slots for key, slots in devices.items() if key[0] not in self.closed}
        fitting = [
            key
            for key, slots in devices.items()
            if self.suits(key, on_cpu=on_cpu)
            and (self.has_pins or on_cpu or self.resources.get(key, "") == worker_set.pod.device)
            and len(slots) >= worker_set.slots
        ]
        if not fitting:
            return _Room()
        # min() is stable: without an order, devices fill in the order of the ledger.
        if policy is PlacementPolicy.PACK:  # the same order as _rank(), for each replica over all devices
            cpus, order, is_exact = self.cpus, self.order, self.is_exact
            key = min(
                fitting,
                key=lambda key: (not is_exact and (key in cpus) != on_cpu, order.get(devices[key][0], 0)),
            )
        else:
            key = min(fitting, key=lambda key: self._rank(key, self.devices[key][0], policy, on_cpu=on_cpu))
        slots, count = self.devices[key], worker_set.slots
        chosen, self.devices[key] = tuple(slots[:count]), slots[count:]
        self.used[key] = self.used.get(key, 0) + count
        return _Room(chosen)

    def _rank(
        self, key: Device, slot: SlotId, policy: PlacementPolicy, *, on_cpu: bool
    ) -> tuple[bool, bool, float]:
        # For a set that uses a GPU, prefer GPUs to the CPU of a node without GPUs.
        is_other_kind = not self.is_exact and (key in self.cpus) != on_cpu
        if policy is PlacementPolicy.PACK:
            return is_other_kind, False, self.order.get(slot, 0)
        used, load = self.used.get(key, 0), self.loads.get(key)
        if load is None or not policy.is_measured:
            return is_other_kind, True, used
        return is_other_kind, False, load.now + used * load.per_slot

    def _assign_gpus(self, worker_set: SetSpec, policy: PlacementPolicy) -> _Room:
        """Assign whole GPUs of one node, units of a resource, or slots of a GPU of a certain model."""
        rooms = []
        for node, offered in self._offers(is_counted=worker_set.pod.binding.is_counted).items():
            ranks = {key: self._rank(key, slots[0], policy, on_cpu=False) for key, slots in offered.items()}
            ordered = {key: offered[key] for key in sorted(offered, key=ranks.__getitem__)}
            if (room := self._room_on(worker_set, node, ordered)).slots:
                rooms.append((ranks[room.slots[0].node, room.slots[0].gpu], room))
        room = min(rooms, key=lambda pair: pair[0], default=((), _Room()))[1]
        chosen = set(room.slots)
        for key in {(slot.node, slot.gpu) for slot in room.slots}:
            for offer in (self.devices, self.unsure):
                if key in offer:
                    offer[key] = [slot for slot in offer[key] if slot not in chosen]
            self.used[key] = self.used.get(key, 0) + sum(slot.gpu == key[1] for slot in room.slots)
        if room.resource:
            self.counts.take(room.slots[0].node, room.resource, room.units)
        return room

    def _offers(self, *, is_counted: bool) -> dict[str, dict[Device, list[SlotId]]]:
        """Return the slots of each GPU by node; if units are counted, include slots of unknown use."""
        by_node: dict[str, dict[Device, list[SlotId]]] = {}
        for key in {**self.devices, **self.unsure} if is_counted else self.devices:
            if key[0] in self.closed or not self.suits(key, on_cpu=False):
                continue
            slots = self.devices.get(key, [])
            if is_counted and key in self.unsure:
                slots = sorted([*slots, *self.unsure[key]], key=lambda slot: (self.order.get(slot, 0), slot.slot))
            if slots:
                by_node.setdefault(key[0], {})[key] = slots
        return by_node

    def _room_on(self, part: SetSpec, node: str, offered: Mapping[Device, list[SlotId]]) -> _Room:
        """Return the room of a node for one replica.

        Args:
            offered: Slots of its devices, in the order of preference.
        """
        ledger = self.counts.ledger_of(node)
        gpus = {gpu.index: gpu for gpu in ledger.devices}
        is_plugin = part.pod.binding is Binding.DEVICE_PLUGIN
        if not self.counts.is_counted(part, node):
            suiting = [
                slots
                for key, slots in offered.items()
                if (self.has_pins or self.resources.get(key, "") == part.pod.device) and part.suits(gpus[key[1]])
            ]
            number = part.whole_gpus
            return _Room(self._whole(suiting, gpus, number) if number else _first(suiting, part.slots))
        names = [counted_resource(part, ledger)]
        if self.has_pins and is_plugin and not part.pod.device:  # the user named devices of some plugin
            names += [gpus[index].resource for _, index in offered]
        units = counted_units(part)
        for name in dict.fromkeys(names):
            count = (ledger.counts or {}).get(name)
            if count is None or self.counts.left(node, name) < units:
                continue
            suiting = [
                slots
                for key, slots in offered.items()
                if gpus[key[1]].resource == count.resource.device and part.suits(gpus[key[1]])
            ]
            if not (self.has_pins or self.is_shared or part.pod.binding is Binding.HAMI):
                open_slots = self.counts.open_slots(node, count)
                suiting = [[slot for slot in slots if slot in open_slots] for slots in suiting]
            if part.pod.binding is Binding.HAMI:
                slots = self._whole(suiting, gpus, part.gpus) if part.gpus else _first(suiting, part.slots)
            elif count.resource.is_share:
                slots = tuple(slot for slots in suiting for slot in slots)[:units]
                slots = slots if len(slots) == units else ()
            else:
                slots = self._whole(suiting, gpus, units)
            if slots:
                return _Room(slots, name, units)
        return _Room()

    def _whole(
        self, devices: Iterable[Sequence[SlotId]], gpus: Mapping[int, Gpu], number: int
    ) -> tuple[SlotId, ...]:
        """Return all slots of ``number`` whole devices of a node, near each other; empty if there are fewer."""
        complete: Sequence[Sequence[SlotId]] = [
            slots for slots in devices if slots and len(slots) == self.sizes[slots[0].node, slots[0].gpu]
        ]
        if number > 1 and not self.has_pins:  # pins have the order that the user chose
            complete = _near(complete, gpus, number)
        return tuple(slot for slots in complete[:number] for slot in slots) if len(complete) >= number else ()

    def suits(self, key: Device, *, on_cpu: bool) -> bool:
        """Return True for a device whose kind suits a set, and for every device that the user named."""
        # The CPU of a node without GPUs has index 0 and takes every set, as it is the node's only device.
        return self.has_pins or (key in self.cpus if on_cpu else key[1] != CPU)


def _near(devices: Sequence[Sequence[SlotId]], gpus: Mapping[int, Gpu], number: int) -> Sequence[Sequence[SlotId]]:
    """Return those devices of one NUMA node that are at least ``number``; all devices if none has so many.

    Of several NUMA nodes it is the one with the fewest, so that the others keep room for larger sets.
    """
    by_numa: dict[int, list[Sequence[SlotId]]] = {}
    for slots in devices:
        if (numa := gpus[slots[0].gpu].numa) is not None:
            by_numa.setdefault(numa, []).append(slots)
    return min((near for near in by_numa.values() if len(near) >= number), key=len, default=devices)


def _first(devices: Iterable[Sequence[SlotId]], number: int) -> tuple[SlotId, ...]:
    """Return ``number`` slots of the first device that has them."""
    return next((tuple(slots[:number]) for slots in devices if len(slots) >= number), ())


class _ClosedNodes:
    """Nodes that are closed to sets; computed once for equal settings, as the sets of many seeds share them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._nodes: dict[tuple[str, PodSettings], dict[str, Obstacle]] = {}

    def of(self, part: SetSpec) -> Mapping[str, Obstacle]:
        """Return the nodes that are closed to a set, with the reason for each."""
        key = (part.name, part.pod)
        if key not in self._nodes:
            self._nodes[key] = obstacles(part, self._ledger)
        return self._nodes[key]


class _Shared:
    """Slots that a launch may share with other pods, the slots with the fewest pods first.

    At level n, slots with at most n pods are offered; the level of a kind rises when no device has room left.
    """

    def __init__(self, pool: _Pool, ledger: Ledger) -> None:
        self._pool = pool
        self._slots = {key: tuple(slots) for key, slots in pool.devices.items()}
        self._level = {False: 0, True: 0}  # of sets on GPUs, of sets on the CPU
        # Includes the pods of this plan, wherever its replicas are seated.
        self._pods = Counter({slot.id: bool(slot.pod) + len(slot.sharing) for slot in ledger.slots.values()})
        self._open(on_cpu=False)
        self._open(on_cpu=True)

    def assign(self, worker_set: SetSpec, policy: PlacementPolicy, *, on_cpu: bool) -> _Room:
        """Assign slots like ``_Pool``; return an empty room if no device can ever hold that many."""
        room = self._pool.assign(worker_set, policy, on_cpu=on_cpu)
        most = 0 if room.slots else max(self._pods.values(), default=0)
        while not room.slots and self._level[on_cpu] <= most:
            self._level[on_cpu] += 1
            self._open(on_cpu=on_cpu)
            room = self._pool.assign(worker_set, policy, on_cpu=on_cpu)
        self._pods.update(room.slots)
        return room

    def count(self, slots: Sequence[SlotId]) -> None:
        """Count a pod on free slots that it was given, so that they no longer rank as the emptiest."""
        self._pods.update(slots)
        for slot in slots:
            offered = self._pool.devices.get((slot.node, slot.gpu), [])
            if slot in offered:
                offered.remove(slot)

    def _open(self, *, on_cpu: bool) -> None:
        """Offer every slot of one kind whose pods do not exceed the level."""
        for key, slots in self._slots.items():
            if self._pool.suits(key, on_cpu=on_cpu):
                self._pool.devices[key] = [slot for slot in slots if self._pods[slot] <= self._level[on_cpu]]


def place(
    runs: Sequence[RunSpec],
    ledger: Ledger,
    *,
    policy: PlacementPolicy = PlacementPolicy.PACK,
    pins: Sequence[Pin] = (),
    existing: Iterable[Seat] = (),
    overcommit: bool = False,
    nodes: Iterable[Node] = (),
) -> Placement:
    """Seat every replica of the runs on slots.

    Args:
        pins: Only these devices and slots are used, in this order; empty means every free slot.
        existing: Seats of running pods, for a scale-up; they are not part of the result. PACK starts with the
            devices that they use.
        overcommit: If no free slot is left, share slots that are busy or unknown, with as many pods per slot as
            necessary. Slots of a node that is off are never used.
        nodes: Nodes with their measured loads, for the policies that use them.
    """
    existing = tuple(existing)
    existing_pods = {seat.pod for seat in existing}
    counts = Counts(ledger)
    free = _pool(ledger, (SlotState.FREE,), pins, counts)
    counting = _counting_nodes(runs, ledger)
    free.unsure = _pool(ledger, (SlotState.UNKNOWN,) if counting else (), pins, counts, counting).devices
    if not pins and (own := {(slot.node, slot.gpu) for seat in existing for slot in seat.slots}):
        free.order = {slot: 1 for slot in ledger.free() if (slot.node, slot.gpu) not in own}
    free.used = dict(Counter((slot.node, slot.gpu) for seat in existing for slot in seat.slots))
    sharable = _pool(ledger, _SHARABLE if overcommit else (), pins, counts)
    sharable.is_shared = True
    free.loads = sharable.loads = _loads(policy, nodes)
    shared = _Shared(sharable, ledger)
    over: list[SlotId] = []
    conflicts = [
        *_pin_conflicts(ledger, pins, overcommit=overcommit, is_counted=bool(counting)),
        *_closed_pins(runs, ledger, pins),
    ]
    closed_nodes = _ClosedNodes(ledger)
    seats: list[Seat] = []
    has_cpu = _has_cpu(ledger, pins, overcommit=overcommit)
    for run in bound_to_cpu(runs, ledger, pins, overcommit=overcommit):
        for worker_set in run.sets:
            on_cpu = worker_set.pod.binding is Binding.CPU
            # If no CPU slots are visible or named, the cluster chooses the node of a set that needs no GPU.
            needs_slots = worker_set.slots > 0 and (has_cpu or not on_cpu)
            # Each GPU of an elastic job takes one process (NCCL), so its nodes are spread over GPUs whatever the
            # policy.
            is_elastic = worker_set.bounds is not None and not on_cpu and not free.is_exact
            order = PlacementPolicy.SPREAD if is_elastic else policy
            missing, closed = 0, closed_nodes.of(worker_set)
            free.closed = sharable.closed = closed
            for index in range(worker_set.num_pods):
                if pod_name(run.name, worker_set.name, index) in existing_pods:
                    continue
                if not needs_slots:
                    seats.append(Seat(run.name, worker_set.name, index, ()))
                    continue
                room = free.assign(worker_set, order, on_cpu=on_cpu)
                if room.slots:  # free slots first, even of a device that fits worse
                    shared.count(room.slots)
                else:
                    room = shared.assign(worker_set, order, on_cpu=on_cpu)
                    over.extend(room.slots)
                if not room.slots:
                    missing += 1
                    continue
                seats.append(Seat(run.name, worker_set.name, index, room.slots, room.resource, room.units))
            if missing:
                conflicts.append(_no_room(run, worker_set, missing, ledger, pins, closed, counts))
    return Placement(tuple(seats), tuple(conflicts), tuple(dict.fromkeys(over)))


def _counting_nodes(runs: Iterable[RunSpec], ledger: Ledger) -> frozenset[str]:
    """Return the nodes on which some set is placed by count, and all of whose pods can be listed."""
    if not any(part.pod.binding.is_counted for run in runs for part in run.sets):
        return frozenset()
    return frozenset(name for name, part in ledger.nodes.items() if part.counts is not None and part.is_use_known)


_SHARABLE: Final = tuple(state for state in SlotState if state not in CLOSED)


def _pool(
    ledger: Ledger,
    states: Collection[SlotState],
    pins: Sequence[Pin],
    counts: Counts,
    nodes: Collection[str] | None = None,
) -> _Pool:
    """The slots in these states by device; with pins only those, in the order of the pins.

    Args:
        nodes: Only slots of these nodes; None for all nodes.
    """
    is_shared = SlotState.BUSY in states
    slots = [
        # A slot that another user has reserved is not shared either.
        slot
        for slot in ledger.slots.values()
        if slot.state in states and not (is_shared and slot.is_withheld)
        if nodes is None or slot.id.node in nodes
    ]
    if pins:
        # dict.fromkeys twice: a pin may be named twice, and two pins may name the same slot.
        named = (slot.id for pin in dict.fromkeys(pins) for slot in slots if _matches(pin, slot))
        ids = list(dict.fromkeys(named))
    else:
        ids = [slot.id for slot in slots]
    devices: dict[Device, list[SlotId]] = {}
    for slot_id in ids:
        devices.setdefault((slot_id.node, slot_id.gpu), []).append(slot_id)
    return _Pool(
        devices,
        Counter((slot.node, slot.gpu) for slot in ledger.slots),
        {(slot.id.node, slot.id.gpu) for slot in slots if slot.is_cpu},
        counts,
        {},
        {(slot.id.node, slot.id.gpu): slot.resource for slot in slots if slot.resource},
        {slot: number for number, slot in enumerate(ids)} if pins else {},
        is_exact=bool(pins) and all(pin.slot is not None for pin in pins),
        has_pins=bool(pins),
    )


def _matches(pin: Pin, slot: Slot) -> bool:
    is_device = pin.gpu == slot.id.gpu or (pin.gpu == CPU and slot.is_cpu)
    return is_device and pin.node == slot.id.node and pin.slot in (None, slot.id.slot)


def pinned(ledger: Ledger, pins: Iterable[Pin]) -> list[SlotId]:
    """Return the slots that these pins name, in the order of the pins."""
    return [slot.id for pin in pins for slot in ledger.slots.values() if _matches(pin, slot)]


def _pin_conflicts(ledger: Ledger, pins: Sequence[Pin], *, overcommit: bool, is_counted: bool) -> list[str]:
    conflicts = []
    # If units are counted, it does not matter which slots they use.
    allowed = tuple(SlotState) if overcommit else (SlotState.FREE, *((SlotState.UNKNOWN,) if is_counted else ()))
    for pin in pins:
        named = [slot for slot in ledger.slots.values() if _matches(pin, slot)]
        if not named:
            conflicts.append(f"no slot {pin} is known; `l2rtui slots` lists them")
        elif pin.slot is not None and (named[0].state not in allowed or named[0].state in CLOSED):
            conflicts.append(f"slot {pin} is {named[0].use}")
    return conflicts


def _closed_pins(runs: Iterable[RunSpec], ledger: Ledger, pins: Sequence[Pin]) -> list[str]:
    """Return a sentence for each named node that no set can run on, with the reason for the last set."""
    sets = [part for run in runs for part in run.sets if part.slots]
    sentences = []
    for name in dict.fromkeys(pin.node for pin in pins if pin.node in ledger.nodes):
        reasons = [obstacle(part, name, ledger.nodes[name]) for part in sets]
        if reasons and (last := reasons[-1]) is not None and all(reasons):
            sentences.append(last.sentence([name]))
    return sentences


def can_wait(conflict: str) -> bool:
    """Return False for a conflict that no waiting resolves: it asks for a device that no node has."""
    return _NO_NODE_HAS not in conflict and _NO_NODE_OFFERS not in conflict


def _no_room(
    run: RunSpec,
    worker_set: SetSpec,
    missing: int,
    ledger: Ledger,
    pins: Sequence[Pin],
    closed: Mapping[str, Obstacle],
    counts: Counts,
) -> str:
    where, other = f" among {', '.join(map(str, pins))}" if pins else "", ""
    number = worker_set.workers_in_pod
    amount = f"{counted(worker_set.num_pods, 'pod')} of {number} workers"
    amount = amount if number > 1 else counted(worker_set.replicas, "replica")
    left_out = _left_out(closed, pins)
    nodes = [name for name in ledger.nodes if not pins or any(pin.node == name for pin in pins)]
    if by_count := [name for name in nodes if counts.is_counted(worker_set, name)]:
        sentence = f"{run.name}/{worker_set.name}: {missing} of {amount} {'lacks' if missing == 1 else 'lack'}"
        return f"{sentence} {_lacking_units(worker_set, by_count, closed, counts)}{where}{left_out}"
    if worker_set.pod.device and not any(slot.resource == worker_set.pod.device for slot in ledger.slots.values()):
        other = _other_devices(ledger.slots.values(), worker_set.pod.device)
        return f"{run.name}/{worker_set.name}: {_NO_NODE_HAS} {worker_set.pod.device}{other}{left_out}"
    size = f" of {worker_set.slots} slots on one device" if worker_set.slots > 1 else ""
    number = worker_set.whole_gpus
    size = f" of {number} whole GPUs of one node" if number > 1 else " of a whole device" if number else size
    kind = "slot"
    if pins:
        slots = [slot for slot in ledger.slots.values() if any(_matches(pin, slot) for pin in pins)]
        other = _holders(slots)
    else:
        # Free slots of the other kind do not help: they are not counted.
        on_cpu = worker_set.pod.binding is Binding.CPU
        device = worker_set.pod.device
        kind = "CPU slot" if on_cpu else f"{device} slot".lstrip()
        other = "" if on_cpu else _other_devices(ledger.slots.values(), device)
        slots = [
            slot
            for slot in ledger.slots.values()
            if (slot.is_cpu if on_cpu else slot.id.gpu != CPU and slot.resource == device)
        ]
    free = sum(slot.state is SlotState.FREE for slot in slots)
    lacking = f"{missing} of {amount}{size} {'does' if missing == 1 else 'do'} not fit{where}"
    verb = "is" if free == 1 else "are"
    total = f"{free} of {counted(len(slots), kind)} {verb} free for the whole plan{_reserved(slots)}"
    unseen = "" if worker_set.pod.binding is Binding.CPU else _unseen(ledger, nodes)
    return f"{run.name}/{worker_set.name}: {lacking} ({total}{other}{_off(slots)}{left_out}{unseen})"


def _lacking_units(part: SetSpec, nodes: Sequence[str], closed: Collection[str], counts: Counts) -> str:
    """Return the number of units that a replica lacks, and the number that each node has left for it."""
    units = counted_units(part)
    offers: dict[str, list[str]] = {}
    names, pinned, has_closed = [], [], False
    for node in nodes:
        ledger = counts.ledger_of(node)
        name = counted_resource(part, ledger)
        if not name or ledger.counts is None:
            continue
        if node in closed:
            has_closed = True
            continue
        names.append(name)
        left, count = counts.left(node, name), ledger.counts[name]
        offers.setdefault(f"{left} of {count.resource.allocatable}", []).append(node)
        if left >= units:
            pinned.append(node)
    resource = " or ".join(dict.fromkeys(names)) or part.pod.device or NVIDIA_GPU
    what = f"{units} {resource} on one node" if units > 1 else resource
    if not offers:
        return f"{what}: {_NO_OPEN_NODE if has_closed else _NO_NODE_OFFERS}"
    parts = [
        f"{count} on {', '.join(where) if len(where) <= _MAX_NAMES else f'{len(where)} nodes'}"
        for count, where in offers.items()
    ]
    text = f"{what} (free for the whole plan: {', '.join(parts)})"
    if pinned:
        # The scheduler would bind the pod, and the plugin would give it another user's GPU.
        names_of = ", ".join(pinned[:_MAX_NAMES])
        text += f"; pods on {names_of} use GPUs of which the device plugin does not know: --overcommit shares them"
    return text


def _unseen(ledger: Ledger, nodes: Iterable[str]) -> str:
    """Return clauses on slots of unknown use, and on how to request GPUs of their nodes by count."""
    clauses = []
    for name in nodes:
        part = ledger.nodes[name]
        if part.unseen and any(slot.state is SlotState.UNKNOWN for slot in part.slots.values()):
            has_free = any(count.free for count in (part.counts or {}).values() if not count.resource.device)
            way = ", though --binding device-plugin takes one by count" if has_free else ""
            clauses.append(f"; on {name} {part.unseen}: which ones is not known{way}")
    more = f"; and {counted(len(clauses) - _MAX_NAMES, 'more node')}" if len(clauses) > _MAX_NAMES else ""
    return "".join(clauses[:_MAX_NAMES]) + more


def _holders(slots: Iterable[Slot]) -> str:
    """Return clauses on the pods that hold these slots, and whose they are."""
    clauses = [f"{slot.id} is {slot.use}{f' ({slot.owner})' if slot.owner else ''}" for slot in slots if slot.pod]
    rest = len(clauses) - _MAX_NAMES
    more = f" and {rest} more {'is' if rest == 1 else 'are'} held" if rest > 0 else ""
    return "".join(f"; {clause}" for clause in clauses[:_MAX_NAMES]) + more


def _off(slots: Iterable[Slot]) -> str:
    """Return a clause on the nodes whose slots are off."""
    nodes = list(dict.fromkeys(slot.id.node for slot in slots if slot.state is SlotState.OFF))
    more = f" and {len(nodes) - _MAX_NAMES} more" if len(nodes) > _MAX_NAMES else ""
    verb = "is" if len(nodes) == 1 else "are"
    return f"; {', '.join(nodes[:_MAX_NAMES])}{more} {verb} cordoned or not ready" if nodes else ""


def _reserved(slots: Iterable[Slot]) -> str:
    """Return a clause on slots that others have reserved."""
    owners = Counter(
        slot.reservation.owner
        for slot in slots
        if slot.state is SlotState.RESERVED and slot.reservation is not None
    )
    return "".join(f", {number} reserved by {owner}" for owner, number in sorted(owners.items()))


def _left_out(closed: Mapping[str, Obstacle], pins: Sequence[Pin]) -> str:
    """Return clauses on the nodes that are closed to a set; with pins, only on named nodes."""
    names: dict[Obstacle, list[str]] = {}
    for name, reason in closed.items():
        if not pins or any(pin.node == name for pin in pins):
            names.setdefault(reason, []).append(name)
    return "".join(f"; {reason.sentence(nodes)}" for reason, nodes in names.items())


def _other_devices(slots: Iterable[Slot], device: str) -> str:
    """Return a clause on free devices of other plugins: a set gets such a device only by its name."""
    free = {slot.resource for slot in slots if slot.resource and slot.state is SlotState.FREE} - {device}
    return f"; set pod.device for {' or '.join(sorted(free))}" if free else ""
