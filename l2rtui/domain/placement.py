"""Placement of replicas on slots: by cursor, by name, packed or spread.

A set that computes on no GPU goes to slots of a CPU, any other to those of GPUs; on a node without GPUs its CPU
takes both. Slots that a person names are used whatever their kind.

Nodes whose labels or taints would keep a set's pods Pending are left out, also of those that a person names.

A conflict is a value for screens, not an exception: ``Placement.conflicts`` says in sentences why some
replicas got no slot.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from l2rtui.domain.containers import Binding, PodSettings
from l2rtui.domain.ledger import Ledger, NodeLedger, Slot, SlotState
from l2rtui.domain.node import CPU, Node, SlotId, device_index, device_name
from l2rtui.domain.workload import MAX_SEED, RunSpec, SetSpec, pod_name


class PlacementPolicy(StrEnum):
    """Order in which free slots are used.

    Device after device, round all devices, or by what was measured: first where most memory is free, or where the
    device is least busy. Each replica then counts as the share of the device that its slots are, so that a plan
    does not pile up on the device that is idle now. Devices without a measurement come last, emptiest first.
    """

    PACK = "pack"
    SPREAD = "spread"
    FREE_MEMORY = "free-memory"
    LEAST_BUSY = "least-busy"

    @property
    def is_measured(self) -> bool:
        """True when the seats depend on measurements, so that another moment gives others."""
        return self in (PlacementPolicy.FREE_MEMORY, PlacementPolicy.LEAST_BUSY)


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
    """Slots that a person named: a whole device, or one slot of it. ``CPU`` is the cpu device of any node."""

    node: str
    gpu: int
    slot: int | None = None

    def __str__(self) -> str:
        device = f"{self.node}/{device_name(self.gpu)}"
        return device if self.slot is None else f"{device}.{self.slot}"


_PIN = re.compile(r"(?P<node>[^/,\s]+)/(?P<gpus>cpu|\d+(-\d+)?)(\.(?P<slots>\d+(-\d+)?))?", re.ASCII)


def parse_pins(text: str) -> tuple[Pin, ...]:
    """Read ``node/gpu[.slot]``, with ranges and commas: ``phortx1/0-3,phortx2/5.0-1,phortx1/cpu``.

    Raises:
        ValueError: one part has another form; the message names it and shows the right one.
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


def bound_to_cpu(
    specs: Sequence[RunSpec], ledger: Ledger, pins: Sequence[Pin] = (), *, overcommit: bool = False
) -> tuple[RunSpec, ...]:
    """Return the specs with ``binding: cpu`` in each set that may have it and finds CPU slots.

    Nothing changes where a person names devices and no CPU among them: their pods then see those GPUs.
    """
    if not _has_cpu(ledger, pins, overcommit=overcommit):
        return tuple(specs)

    def bound(part: SetSpec) -> SetSpec:
        is_chosen = part.may_use_cpu and part.needs_device
        return replace(part, pod=replace(part.pod, binding=Binding.CPU), may_use_cpu=False) if is_chosen else part

    return tuple(replace(spec, sets=tuple(map(bound, spec.sets))) for spec in specs)


def _has_cpu(ledger: Ledger, pins: Sequence[Pin], *, overcommit: bool) -> bool:
    """True when there are CPU slots for sets without a GPU, among the named slots where some are named."""
    if pins:
        cpus = [slot for slot in ledger.slots.values() if slot.is_cpu]
        return any(_matches(pin, slot) for pin in pins for slot in cpus)
    return ledger.has_cpu_slots(is_use_known=not overcommit)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Reason why the scheduler would send no pod of a set to a node, and what helps."""

    reason: str
    hint: str

    def sentence(self, nodes: Sequence[str]) -> str:
        """Return a sentence on the nodes that it applies to."""
        names = ", ".join(nodes) if len(nodes) <= _MAX_NAMES else f"{len(nodes)} nodes"
        subject = names if len(nodes) > 1 else f"node {names}"
        return f"{subject} {'have' if len(nodes) > 1 else 'has'} {self.reason}"


_MAX_NAMES: Final = 3
_BLOCKING: Final = ("NoSchedule", "NoExecute")
_CONDITIONS: Final = "node.kubernetes.io/"
"""Prefix of Kubernetes' own taints, which repeat that a node is not ready or is cordoned."""
_NAME_FIELD: Final = "metadata.name"
"""Field of a node that affinity may name beside its labels (matchFields)."""


def obstacle(part: SetSpec, name: str, node: Node | NodeLedger) -> Obstacle | None:
    """Return why no pod of a set could run on a node; None where it can, or where its labels are unknown."""
    scheduling = part.pod.scheduling
    # Every node of a cluster has labels: without any they cannot be seen, or the backend has none.
    is_asked = node.labels and any(scheduling.alternatives)
    unmet = scheduling.unmet({**dict(node.labels), _NAME_FIELD: name}) if is_asked else ()
    if unmet:
        text = " and ".join(map(str, unmet))
        is_plain = len(unmet) == 1 and unmet[0].operator in ("In", "Exists")
        kind = "label" if is_plain else "labels that match"
        hint = "Correct pod.node_selector or pod.template, or choose another node with --on."
        return Obstacle(f"no {kind} {text}, which the set {part.name} needs", hint)
    for taint in node.taints:
        is_blocking = taint.effect in _BLOCKING and not taint.key.startswith(_CONDITIONS)
        if is_blocking and not any(toleration.tolerates(taint) for toleration in scheduling.tolerations):
            text = f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
            reason = f"the taint {text}, which the set {part.name} does not tolerate"
            return Obstacle(reason, "Write it under pod.tolerations.")
    return None


def obstacles(part: SetSpec, ledger: Ledger) -> dict[str, Obstacle]:
    """Return the nodes that are closed to a set, each with the reason."""
    reasons = ((name, obstacle(part, name, node)) for name, node in ledger.nodes.items())
    return {name: reason for name, reason in reasons if reason is not None}


Device = tuple[str, int]
"""Node and index of a device."""


@dataclass(frozen=True, slots=True)
class _Load:
    """Load of a device: what is in use, or minus the free memory in bytes; and what one more slot adds."""

    now: float
    per_slot: float


def _loads(policy: PlacementPolicy, nodes: Iterable[Node]) -> dict[Device, _Load]:
    """Return the measured load of each device, as the policy compares it."""
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
                # Not every backend knows the memory of a device; then the size from the measurement stands.
                used = use.memory_used_bytes if use is not None else None
                total = gpu.memory_bytes or (use.memory_bytes if use is not None else 0)
            if used is not None and total and gpu.slots:
                # Shares of devices can be compared, and so can bytes that are free, but not bytes that are in use.
                is_share = policy is PlacementPolicy.LEAST_BUSY
                now, total_size = (used / total, 1.0) if is_share else (used - total, total)
                loads[node.name, gpu.index] = _Load(now, total_size / gpu.slots)
    return loads


@dataclass(slots=True)
class _Pool:
    """Slots to choose from, by device, in order; private to one call of place().

    Attributes:
        sizes: Number of all slots of each device, free or not.
        cpus: The cpu devices among them.
        resources: Extended resource of devices that a plugin alone hands out.
        order: Rank of each slot. With pins: as the pins name it. Without: 0, or no entry, on devices that the run
            uses already, 1 elsewhere.
        is_exact: The pins name single slots: each replica gets the next of them, whatever its kind.
        has_pins: A person named the slots.
        used: Number of slots assigned by this call, by device.
        closed: Nodes that the set cannot run on whose replicas are seated now.
        loads: Measured loads, where the policy goes by them.
    """

    devices: dict[Device, list[SlotId]]
    sizes: Mapping[Device, int]
    cpus: Collection[Device]
    resources: Mapping[Device, str] = field(default_factory=dict)
    order: dict[SlotId, int] = field(default_factory=dict)
    is_exact: bool = False
    has_pins: bool = False
    used: dict[Device, int] = field(default_factory=dict)
    closed: Collection[str] = ()
    loads: Mapping[Device, _Load] = field(default_factory=dict)

    def assign(self, worker_set: SetSpec, policy: PlacementPolicy, *, on_cpu: bool) -> tuple[SlotId, ...]:
        """Assign slots of one device to one replica; empty when no device has that many left.

        A replica that gets its GPU from the device plugin needs the whole device.
        """
        is_whole = worker_set.pod.binding is Binding.DEVICE_PLUGIN
        devices = self.devices
        if self.closed:  # seldom: the loop below runs for each replica over all devices
            devices = {key: slots for key, slots in devices.items() if key[0] not in self.closed}
        fitting = [
            key
            for key, slots in devices.items()
            if self.suits(key, on_cpu=on_cpu)
            and (self.has_pins or on_cpu or self.resources.get(key, "") == worker_set.pod.device)
            and len(slots) >= (self.sizes[key] if is_whole else worker_set.slots)
        ]
        if not fitting:
            return ()

        def rank(key: Device) -> tuple[bool, bool, float]:
            # A GPU before the CPU of a node without any, for a set that computes on one.
            is_other_kind = not self.is_exact and (key in self.cpus) != on_cpu
            if policy is PlacementPolicy.PACK:
                return is_other_kind, False, self.order.get(self.devices[key][0], 0)
            used, load = self.used.get(key, 0), self.loads.get(key)
            if load is None or not policy.is_measured:
                return is_other_kind, True, used
            return is_other_kind, False, load.now + used * load.per_slot

        # min() is stable: without an order, devices fill in the order of the ledger.
        key = min(fitting, key=rank)
        slots = self.devices[key]
        count = len(slots) if is_whole else worker_set.slots
        chosen, self.devices[key] = tuple(slots[:count]), slots[count:]
        self.used[key] = self.used.get(key, 0) + count
        return chosen

    def suits(self, key: Device, *, on_cpu: bool) -> bool:
        """Return True for a device whose kind suits a set, and for every device that a person named."""
        # The CPU of a node without GPUs has index 0 and takes every set, as there is nothing else on that node.
        return self.has_pins or (key in self.cpus if on_cpu else key[1] != CPU)


class _ClosedNodes:
    """Nodes that are closed to sets; found once for equal settings, as the sets of many seeds share them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._nodes: dict[tuple[str, PodSettings], dict[str, Obstacle]] = {}

    def of(self, part: SetSpec) -> Mapping[str, Obstacle]:
        """Return the nodes that are closed to a set, each with the reason."""
        key = (part.name, part.pod)
        if key not in self._nodes:
            self._nodes[key] = obstacles(part, self._ledger)
        return self._nodes[key]


class _Shared:
    """Slots that a launch may share with other pods: those with the fewest pods come first.

    At level n a slot with at most n pods on it is offered; the level of a kind rises when no device has room left.
    """

    def __init__(self, pool: _Pool, ledger: Ledger) -> None:
        self._pool = pool
        self._slots = {key: tuple(slots) for key, slots in pool.devices.items()}
        self._level = {False: 0, True: 0}  # of sets on GPUs, of sets on the CPU
        # Those of this plan included, wherever its replicas are seated.
        self._pods = Counter({slot.id: bool(slot.pod) + len(slot.sharing) for slot in ledger.slots.values()})
        self._open(on_cpu=False)
        self._open(on_cpu=True)

    def assign(self, worker_set: SetSpec, policy: PlacementPolicy, *, on_cpu: bool) -> tuple[SlotId, ...]:
        """Assign slots as ``_Pool`` does; empty when no device ever has as many."""
        slots = self._pool.assign(worker_set, policy, on_cpu=on_cpu)
        most = 0 if slots else max(self._pods.values(), default=0)
        while not slots and self._level[on_cpu] <= most:
            self._level[on_cpu] += 1
            self._open(on_cpu=on_cpu)
            slots = self._pool.assign(worker_set, policy, on_cpu=on_cpu)
        self._pods.update(slots)
        return slots

    def count(self, slots: Sequence[SlotId]) -> None:
        """Count a pod on free slots that it was given; they are no longer the emptiest."""
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
    """Seat every replica of the runs.

    Args:
        pins: Only these devices and slots are used, in this order; empty means every free slot.
        existing: Seats of pods that run already, for a scale-up; they are not part of the result. PACK begins with
            the devices that they use.
        overcommit: When no free slot is left, share slots that are busy or unknown, as many pods to a slot as it
            takes. Slots of a node that is off are never used.
        nodes: Nodes with their measured loads, for the policies that go by them.
    """
    existing = tuple(existing)
    existing_pods = {seat.pod for seat in existing}
    free = _pool(ledger, (SlotState.FREE,), pins)
    if not pins and (own := {(slot.node, slot.gpu) for seat in existing for slot in seat.slots}):
        free.order = {slot: 1 for slot in ledger.free() if (slot.node, slot.gpu) not in own}
    free.used = dict(Counter((slot.node, slot.gpu) for seat in existing for slot in seat.slots))
    sharable = _pool(ledger, _SHARABLE if overcommit else (), pins)
    free.loads = sharable.loads = _loads(policy, nodes)
    shared = _Shared(sharable, ledger)
    over: list[SlotId] = []
    conflicts = [*_pin_conflicts(ledger, pins, overcommit=overcommit), *_closed_pins(runs, ledger, pins)]
    closed_nodes = _ClosedNodes(ledger)
    seats: list[Seat] = []
    has_cpu = _has_cpu(ledger, pins, overcommit=overcommit)
    for run in bound_to_cpu(runs, ledger, pins, overcommit=overcommit):
        for worker_set in run.sets:
            on_cpu = worker_set.pod.binding is Binding.CPU
            # Where no CPU slots can be seen or are named, the cluster chooses the node of a set that needs no GPU.
            needs_slots = worker_set.slots > 0 and (has_cpu or not on_cpu)
            # GPUs of an elastic job take one process each (NCCL), so its nodes go round them whatever the policy.
            is_elastic = worker_set.bounds is not None and not on_cpu and not free.is_exact
            order = PlacementPolicy.SPREAD if is_elastic else policy
            missing, closed = 0, closed_nodes.of(worker_set)
            free.closed = sharable.closed = closed
            for index in range(worker_set.replicas):
                if pod_name(run.name, worker_set.name, index) in existing_pods:
                    continue
                if not needs_slots:
                    seats.append(Seat(run.name, worker_set.name, index, ()))
                    continue
                slots = free.assign(worker_set, order, on_cpu=on_cpu)
                if slots:  # free slots first, even of a device that fits worse
                    shared.count(slots)
                else:
                    slots = shared.assign(worker_set, order, on_cpu=on_cpu)
                    over.extend(slots)
                if not slots:
                    missing += 1
                    continue
                seats.append(Seat(run.name, worker_set.name, index, slots))
            if missing:
                conflicts.append(_no_room(run, worker_set, missing, ledger, pins, closed))
    return Placement(tuple(seats), tuple(conflicts), tuple(dict.fromkeys(over)))


_CLOSED: Final = (SlotState.OFF, SlotState.RESERVED)
_SHARABLE: Final = tuple(state for state in SlotState if state not in _CLOSED)


def _pool(ledger: Ledger, states: Collection[SlotState], pins: Sequence[Pin]) -> _Pool:
    """The slots in these states by device; with pins only those, in the order of the pins."""
    is_shared = SlotState.BUSY in states
    slots = [
        # Of a slot that somebody else has reserved nobody takes a share either.
        slot
        for slot in ledger.slots.values()
        if slot.state in states and not (is_shared and slot.is_withheld)
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


def _pin_conflicts(ledger: Ledger, pins: Sequence[Pin], *, overcommit: bool) -> list[str]:
    conflicts = []
    allowed = tuple(SlotState) if overcommit else (SlotState.FREE,)
    for pin in pins:
        named = [slot for slot in ledger.slots.values() if _matches(pin, slot)]
        if not named:
            conflicts.append(f"there is no slot {pin}; `l2rtui slots` lists them")
        elif pin.slot is not None and (named[0].state not in allowed or named[0].state in _CLOSED):
            conflicts.append(f"slot {pin} is {named[0].use}")
    return conflicts


def _closed_pins(runs: Iterable[RunSpec], ledger: Ledger, pins: Sequence[Pin]) -> list[str]:
    """Return a sentence for each named node that no set can run on, with the reason of the last of them."""
    sets = [part for run in runs for part in run.sets if part.slots]
    sentences = []
    for name in dict.fromkeys(pin.node for pin in pins if pin.node in ledger.nodes):
        reasons = [obstacle(part, name, ledger.nodes[name]) for part in sets]
        if reasons and (last := reasons[-1]) is not None and all(reasons):
            sentences.append(last.sentence([name]))
    return sentences


def _no_room(
    run: RunSpec,
    worker_set: SetSpec,
    missing: int,
    ledger: Ledger,
    pins: Sequence[Pin],
    closed: Mapping[str, Obstacle],
) -> str:
    where, other = f" among {', '.join(map(str, pins))}" if pins else "", ""
    size = f" of {worker_set.slots} slots on one device" if worker_set.slots > 1 else ""
    size = " of a whole device" if worker_set.pod.binding is Binding.DEVICE_PLUGIN else size
    slots, kind = list(ledger.slots.values()), "slot"
    if not pins:
        # Free slots of the other kind are no comfort: they are not counted.
        on_cpu = worker_set.pod.binding is Binding.CPU
        device = worker_set.pod.device
        kind = "CPU slot" if on_cpu else f"{device} slot".lstrip()
        other = "" if on_cpu else _other_devices(slots, device)
        slots = [
            slot for slot in slots if (slot.is_cpu if on_cpu else slot.id.gpu != CPU and slot.resource == device)
        ]
    free = sum(slot.state is SlotState.FREE for slot in slots)
    lacking = f"{missing} of {worker_set.replicas} replicas{size} find no free {kind}{where}"
    counted = f"{free} of {len(slots)} {kind}s are free for the whole plan{_reserved(slots, pins)}"
    return f"{run.name}/{worker_set.name}: {lacking} ({counted}{other}{_left_out(closed, pins)})"


def _reserved(slots: Iterable[Slot], pins: Sequence[Pin]) -> str:
    """Return a clause on slots that others have reserved; with pins on those that are named."""
    owners = Counter(
        slot.reservation.owner
        for slot in slots
        if slot.state is SlotState.RESERVED and slot.reservation is not None
        if not pins or any(_matches(pin, slot) for pin in pins)
    )
    return "".join(f", {number} reserved by {owner}" for owner, number in sorted(owners.items()))


def _left_out(closed: Mapping[str, Obstacle], pins: Sequence[Pin]) -> str:
    """Return clauses on the nodes that are closed to a set; with pins on those that are named."""
    names: dict[Obstacle, list[str]] = {}
    for name, reason in closed.items():
        if not pins or any(pin.node == name for pin in pins):
            names.setdefault(reason, []).append(name)
    return "".join(f"; {reason.sentence(nodes)}" for reason, nodes in names.items())


def _other_devices(slots: Iterable[Slot], device: str) -> str:
    """Return a clause on devices of other plugins that are free: a set gets such a device only by its name."""
    free = {slot.resource for slot in slots if slot.resource and slot.state is SlotState.FREE} - {device}
    return f"; pod.device asks for {' or '.join(sorted(free))}" if free else ""
