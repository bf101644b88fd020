"""Slot ledger: the holder of each slot of each device, derived only from nodes and pods.

Nothing is remembered between two snapshots, so the ledger cannot drift from the cluster. Unknown facts have their
own state: a slot on a node whose pods cannot be listed is ``unknown``, never ``free``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from l2rtui.domain.node import CPU, Gpu, Node, Resource, SlotId, SlotReservation, Taint, device_name


class SlotState(StrEnum):
    """State of a slot. OFF: its node is not ready or is cordoned. FAILED: its holder crashes.

    RESERVED: another user has reserved it, and no pod uses it. Slots that the user has reserved are free.
    """

    FREE = "free"
    BUSY = "busy"
    UNKNOWN = "unknown"
    OFF = "off"
    FAILED = "failed"
    RESERVED = "reserved"


class DeviceUsage(Struct, frozen=True):
    """Use of one device by one pod.

    Attributes:
        gpu: Device index on the pod's node; None for a device whose index is unknown.
        slot: Slot index; None if no plan of l2rtui has numbered the part of the device that the pod uses.
        count: Number of slots, if they are not numbered.
        resource: Extended resource of devices that the device plugin chose, if ``gpu`` is None; see ``Gpu``.
        is_unsure: It cannot be determined whether the pod uses the device; its slot is then unknown, not free.
    """

    gpu: int | None
    slot: int | None = None
    count: int = 1
    resource: str = ""
    is_unsure: bool = False


class Holder(Struct, frozen=True):
    """Pod as input of the ledger. Pods that no longer use a device are left out.

    Attributes:
        flags: Inconsistencies, each a sentence without the pod's name: ``asks for all GPUs``.
        requests: Units of extended resources that the scheduler counts for it.
        is_bound: The scheduler has chosen its node; before that, its requests count only on nodes where they fit.
    """

    uid: str
    pod: str
    node: str
    owner: str
    run: str
    set_name: str
    devices: tuple[DeviceUsage, ...]
    is_failing: bool = False
    flags: tuple[str, ...] = ()
    requests: tuple[tuple[str, int], ...] = ()
    is_bound: bool = True


class Slot(Struct, frozen=True):
    """One slot and its holder; the strings are empty for a slot without a holder.

    Attributes:
        is_cpu: It is a slot of a cpu device.
        resource: Resource of its device, see ``Gpu``.
        sharing: Further pods on the slot if it is over-committed.
        is_mismatched: Its holder has a problem; ``Ledger.mismatches`` describes it.
        reservation: Reservation of the slot, also while a pod uses it.
    """

    id: SlotId
    state: SlotState
    owner: str = ""
    run: str = ""
    set_name: str = ""
    pod: str = ""
    pod_uid: str = ""
    is_cpu: bool = False
    sharing: tuple[str, ...] = ()
    resource: str = ""
    is_mismatched: bool = False
    reservation: SlotReservation | None = None

    @property
    def is_withheld(self) -> bool:
        """True if another user has reserved it, with or without a pod."""
        return self.reservation is not None and not self.reservation.is_mine

    @property
    def use(self) -> str:
        """State of the slot for use after "is": ``held by r-w-0``, ``off``, ``reserved by anna until …``."""
        if self.pod:
            return f"held by {self.pod}"
        return self.reservation.text if self.is_withheld and self.reservation is not None else str(self.state)


class Count(Struct, frozen=True):
    """Units of one extended resource of a node, as kube-scheduler counts them."""

    resource: Resource
    requested: int = 0

    @property
    def free(self) -> int:
        """Units that are available to another pod."""
        return max(0, self.resource.allocatable - self.requested)

    def __str__(self) -> str:
        """``7 of 8 free``."""
        return f"{self.free} of {self.resource.allocatable} free"


class NodeLedger(Struct, frozen=True):
    """Ledger of one node; successive ledgers share it while nothing on the node changes.

    Attributes:
        unplaced: Pods that use a device of the node whose index is unknown.
        unplaced_slots: Number of slots that they use together.
        labels, taints, devices: Properties of the node that placement uses; empty if unknown.
        counts: Units of each extended resource by its name; None if resources are not counted.
        is_use_known: All pods on the node can be listed.
        mismatches: Problems of each pod that has any, by its uid.
    """

    slots: Mapping[SlotId, Slot]
    problems: tuple[str, ...] = ()
    unplaced: tuple[str, ...] = ()
    unplaced_slots: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[Taint, ...] = ()
    mismatches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    devices: tuple[Gpu, ...] = ()
    counts: Mapping[str, Count] | None = None
    is_use_known: bool = True

    @property
    def unseen(self) -> str:
        """Clause on pods whose GPU is unknown: ``1 of 8 GPUs in use through the device plugin (a)``."""
        if not self.unplaced:
            return ""
        pods = tuple(dict.fromkeys(self.unplaced))
        names = ", ".join(pods[:3]) + (f" and {len(pods) - 3} more" if len(pods) > 3 else "")
        used = [count for count in (self.counts or {}).values() if not count.resource.device and count.requested]
        parts = [
            f"{count.requested} of {count.resource.allocatable} "
            f"{'shares of GPUs' if count.resource.is_share else 'GPUs'} in use through the device plugin"
            for count in used
        ]
        return f"{' and '.join(parts) or 'GPUs are used that cannot be told apart'} ({names})"


class Ledger(Struct, frozen=True):
    """All slots in the order node, device, slot.

    Attributes:
        slots: By id.
        problems: Uses that do not fit: two pods on one slot, a missing device, a full device.
        unplaced: Pods that use a device whose index is unknown, by node.
        nodes: Ledger of each node, including unlisted nodes that pods name.
        mismatches: Problems of each pod that has any, by its uid.
    """

    slots: Mapping[SlotId, Slot]
    problems: tuple[str, ...] = ()
    unplaced: Mapping[str, tuple[str, ...]] | None = None
    nodes: Mapping[str, NodeLedger] = field(default_factory=dict)
    mismatches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def of_gpu(self, node: str, gpu: int) -> tuple[Slot, ...]:
        """Slots of one device, lowest first."""
        slots: list[Slot] = []
        while (slot := self.slots.get(SlotId(node, gpu, len(slots)))) is not None:
            slots.append(slot)
        return tuple(slots)

    def free(self) -> tuple[SlotId, ...]:
        """Slots that are available to a new worker, in order."""
        return tuple(slot.id for slot in self.slots.values() if slot.state is SlotState.FREE)

    def count(self, state: SlotState) -> int:
        """Number of slots in this state."""
        return sum(slot.state is state for slot in self.slots.values())

    def without(self, slot_ids: Iterable[SlotId]) -> Ledger:
        """Return the ledger with these slots busy: launches have claimed them, but their pods are not visible
        yet.
        """
        slots = dict(self.slots)
        for slot_id in slot_ids:
            if (slot := slots.get(slot_id)) is not None and slot.state in (SlotState.FREE, SlotState.UNKNOWN):
                slots[slot_id] = replace(slot, state=SlotState.BUSY)
        return replace(self, slots=slots)

    def has_cpu_slots(self, *, is_use_known: bool = True) -> bool:
        """True if a slot of a cpu device exists; with ``is_use_known``, a slot whose holder is known."""
        slots = (slot for slot in self.slots.values() if slot.is_cpu)
        return any(not is_use_known or slot.state is not SlotState.UNKNOWN for slot in slots)


class Basis(Struct, frozen=True):
    """Earlier ledger to build on, and the nodes that have changed since then; all other nodes are reused."""

    ledger: Ledger
    touched: frozenset[str]

    def touching(self, names: Iterable[str]) -> Basis:
        """Return the same basis with more nodes marked as changed."""
        return Basis(self.ledger, self.touched.union(names))

    def reusable(self, name: str) -> NodeLedger | None:
        """Ledger of an unchanged node; None if it has changed or was not listed."""
        return None if name in self.touched else self.ledger.nodes.get(name)


def build_ledger(nodes: Iterable[Node], holders: Iterable[Holder], basis: Basis | None = None) -> Ledger:
    """Derive the ledger.

    Numbered uses are seated first. A use without a slot number gets the highest free slots of its device, so that
    the slots that placement fills first stay with the pods that were placed there. A use of an unknown device makes
    all free slots of its node unknown, however few it counts: a worker placed on an exact slot there may share it.
    CPU slots beside GPUs stay free, as the unknown device is a GPU. Devices that only a plugin hands out are
    interchangeable: the last free ones count as used. A pod that requests a unit from a plugin is placed by the
    counts of the node, which no unknown device changes.

    Args:
        holders: With a basis, only the holders on changed nodes are needed.
    """
    by_node: dict[str, list[Holder]] = {}
    for holder in holders:
        if holder.devices or holder.flags or holder.requests:
            by_node.setdefault(holder.node, []).append(holder)
    parts: dict[str, NodeLedger] = {}
    for node in nodes:
        reusable = basis.reusable(node.name) if basis is not None else None
        parts[node.name] = reusable or _node_ledger(node, by_node.get(node.name, ()))
    for name, node_holders in by_node.items():
        if name not in parts:
            # Pods on an unlisted or removed node must not vanish from the problems.
            parts[name] = _node_ledger(Node(name), [_without_devices(holder) for holder in node_holders])
    if basis is not None:
        for name, part in basis.ledger.nodes.items():
            if name not in parts and name not in basis.touched:
                parts[name] = part  # unchanged: its holders were not passed in again
    slots: dict[SlotId, Slot] = {}
    for part in parts.values():
        slots.update(part.slots)
    problems = tuple(problem for part in parts.values() for problem in part.problems)
    unplaced = {name: part.unplaced for name, part in parts.items() if part.unplaced}
    mismatches = {uid: sentences for part in parts.values() for uid, sentences in part.mismatches.items()}
    return Ledger(slots, problems, unplaced, parts, mismatches)


class _Problems:
    """Problems of one node as sentences, and the pods that each one concerns."""

    def __init__(self) -> None:
        # A dict as an ordered set: a pod with several containers can report the same problem twice.
        self._pods: dict[str, dict[str, None]] = {}

    def add(self, sentence: str, *uids: str) -> None:
        """Add a sentence that concerns the pods with these uids."""
        self._pods.setdefault(sentence, {}).update(dict.fromkeys(uids))

    @property
    def sentences(self) -> tuple[str, ...]:
        """All sentences without duplicates."""
        return tuple(self._pods)

    def by_pod(self) -> dict[str, tuple[str, ...]]:
        """Sentences that concern each pod, by its uid."""
        by_pod: dict[str, tuple[str, ...]] = {}
        for sentence, uids in self._pods.items():
            for uid in uids:
                by_pod[uid] = (*by_pod.get(uid, ()), sentence)
        return by_pod


def _without_devices(holder: Holder) -> Holder:
    """Return a pod whose node is not listed, or not chosen yet, without the devices that it names there."""
    devices = tuple(usage for usage in holder.devices if usage.gpu is None)
    if len(devices) == len(holder.devices):
        return holder
    flag = (f"names the node {holder.node}, which is not in the cluster",) if holder.node else ()
    return replace(holder, devices=devices, flags=(*holder.flags, *flag))


def _node_ledger(node: Node, holders: Iterable[Holder]) -> NodeLedger:
    # Lists by device and index: hashing a SlotId at every access would cost more than everything else.
    holders = tuple(holders)
    devices = {gpu.index: _empty(node, gpu) for gpu in node.devices}
    counts, waiting = _counts(node, holders)
    usages = [
        (holder, usage)
        for holder in holders
        for usage in holder.devices
        if holder.uid not in waiting or usage.gpu is not None
    ]
    # Exact slots first, then devices without a slot, then unknown devices; by name, so that ties do not flicker.
    usages.sort(key=lambda pair: (pair[1].gpu is None, pair[1].slot is None, pair[0].pod))
    problems = _Problems()
    for holder in holders:
        for flag in holder.flags:
            problems.add(f"{holder.pod} {flag}", holder.uid)
    unplaced: list[str] = []
    unplaced_slots = 0
    last = [pair for pair in usages if pair[1].gpu is None and not pair[1].resource]
    if len(last) == 1 and (all_gpus := _whole_node(*last[0], devices)):
        # A pod that requests every GPU of the node uses all of them.
        usages = [*(pair for pair in usages if pair is not last[0]), *((last[0][0], usage) for usage in all_gpus)]
    for holder, usage in usages:
        if usage.resource and devices:
            alike = [device for device in devices.values() if device and device[0].resource == usage.resource]
            _seat_alike(alike, holder, usage, problems)
        elif usage.gpu is None:
            unplaced.append(holder.pod)
            unplaced_slots += usage.count
        else:
            _seat(devices.get(usage.gpu, []), holder, usage, problems)
    slots = {slot.id: slot for device in devices.values() for slot in device}
    if unplaced:
        for slot_id, slot in slots.items():
            if slot.state is SlotState.FREE and slot_id.gpu != CPU and not slot.resource:
                slots[slot_id] = replace(slot, state=SlotState.UNKNOWN)
    mismatches = problems.by_pod()
    _flag(slots, mismatches)
    return NodeLedger(
        slots,
        problems.sentences,
        tuple(unplaced),
        unplaced_slots,
        node.labels,
        node.taints,
        mismatches,
        node.devices,
        counts,
        node.is_use_known,
    )


def _counts(node: Node, holders: Iterable[Holder]) -> tuple[dict[str, Count] | None, frozenset[str]]:
    """Count requested units; also return the uids of pods that wait for this very node and do not fit.

    The counts are None if the node reports no resources.
    """
    if node.resources is None:
        return None, frozenset()
    left = {resource.name: resource.allocatable for resource in node.resources}
    waiting = set()
    # A pod that is not bound yet takes nothing until all its requests fit.
    for holder in sorted(holders, key=lambda item: (not item.is_bound, item.pod)):
        if holder.is_bound or all(units <= left.get(name, 0) for name, units in holder.requests):
            for name, units in holder.requests:
                left[name] = left.get(name, 0) - units
        else:
            waiting.add(holder.uid)
    counts = {item.name: Count(item, item.allocatable - left[item.name]) for item in node.resources}
    return counts, frozenset(waiting)


def _whole_node(holder: Holder, usage: DeviceUsage, devices: Mapping[int, list[Slot]]) -> list[DeviceUsage]:
    """Return the uses of a pod that surely holds all GPUs of its node; otherwise empty."""
    gpus = [slots for slots in devices.values() if slots and not slots[0].is_cpu and not slots[0].resource]
    slots = [slot for device in gpus for slot in device]
    is_all = holder.is_bound and not usage.is_unsure and usage.count == len(slots)
    if not is_all or any(slot.state not in (SlotState.FREE, SlotState.OFF) for slot in slots):
        return []
    return [DeviceUsage(device[0].id.gpu, None, len(device)) for device in gpus]


def _flag(slots: dict[SlotId, Slot], uids: Collection[str]) -> None:
    """Mark the slots whose holders have a problem."""
    for slot_id, slot in slots.items() if uids else ():
        if slot.pod_uid in uids:
            slots[slot_id] = replace(slot, is_mismatched=True)


def _empty(node: Node, gpu: Gpu) -> list[Slot]:
    """Slots of a device before any use is entered."""
    state = SlotState.FREE if node.is_use_known else SlotState.UNKNOWN
    if not (node.ready and node.is_schedulable and gpu.is_healthy):
        state = SlotState.OFF
    slots = [Slot(slot_id, state, is_cpu=gpu.is_cpu, resource=gpu.resource) for slot_id in gpu.slot_ids()]
    for item in node.reservations:
        if item.gpu == gpu.index and item.slot < len(slots):
            is_free = state is SlotState.FREE and not item.is_mine
            now = SlotState.RESERVED if is_free else state
            slots[item.slot] = replace(slots[item.slot], state=now, reservation=item)
    return slots


def _seat_alike(devices: list[list[Slot]], holder: Holder, usage: DeviceUsage, problems: _Problems) -> None:
    """Mark devices as used when the device plugin did not say which ones; report a shortage."""
    # Start from the last, so that placement, which starts with the first, names devices that no pod uses.
    free = [device for device in devices if not device[0].pod][::-1]
    for device in free[: usage.count]:
        _seat(device, holder, DeviceUsage(device[0].id.gpu, 0), problems)
    if len(free) < usage.count:
        sentence = f"{holder.pod} holds {usage.count} {usage.resource} of {holder.node}, which has {len(free)} left"
        problems.add(sentence, holder.uid)


def _seat(device: list[Slot], holder: Holder, usage: DeviceUsage, problems: _Problems) -> None:
    """Enter one use into the slots of its device; report a problem if it does not fit."""
    if not device:
        sentence = f"{holder.pod} names device {_written(usage)} of {holder.node}, which has no such device"
        problems.add(sentence, holder.uid)
        return
    if usage.slot is None:
        # From the top, see build_ledger.
        numbers = [number for number, slot in enumerate(device) if not slot.pod][::-1][: usage.count]
    else:
        numbers = [usage.slot] if usage.slot < len(device) else []
    state = SlotState.FAILED if holder.is_failing else SlotState.BUSY
    state = SlotState.UNKNOWN if usage.is_unsure else state
    for number in numbers:
        slot = device[number]
        if slot.pod:
            # The first holder stays in the slot; the sentence names both.
            problems.add(f"{holder.pod} and {slot.pod} both hold slot {slot.id}", holder.uid, slot.pod_uid)
            device[number] = replace(slot, sharing=(*slot.sharing, holder.pod))
            continue
        own = (holder.owner, holder.run, holder.set_name, holder.pod, holder.uid)
        device[number] = Slot(
            slot.id, state, *own, slot.is_cpu, resource=slot.resource, reservation=slot.reservation
        )
    if len(numbers) < usage.count:
        device_text = f"device {_written(usage)} of {holder.node}"
        problems.add(f"{holder.pod} holds more of {device_text} than its slots: it is over-committed", holder.uid)


def _written(usage: DeviceUsage) -> str:
    return "" if usage.gpu is None else device_name(usage.gpu)
