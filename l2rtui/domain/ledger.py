"""The slot ledger: who holds each slot of each GPU, derived from nodes and pods alone.

Nothing is remembered between two snapshots, so the ledger cannot drift from the truth. What cannot be known is
a state of its own: a slot on a node whose pods we may not list reads ``unknown``, never ``free``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from l2rtui.domain.node import Node, SlotId
from l2rtui.domain.row import row


class SlotState(StrEnum):
    """What a slot is at this moment."""

    FREE = "free"
    BUSY = "busy"
    UNKNOWN = "unknown"
    OFF = "off"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Claim:
    """What one pod holds of one device.

    Attributes:
        gpu: Device index on the pod's node; None when the pod holds some device that cannot be told.
        slot: Slot index; None when the pod holds a part of the device that no plan of ours has numbered.
        count: How many slots, where they are not numbered.
    """

    gpu: int | None
    slot: int | None = None
    count: int = 1


@row(frozen=True, slots=True)
class Holder:
    """A pod as the ledger sees it: only those that still hold something are handed in.

    Attributes:
        flags: What about it does not fit together, each a sentence without its name: ``asks for all GPUs``.
    """

    uid: str
    pod: str
    node: str
    owner: str
    run: str
    set_name: str
    claims: tuple[Claim, ...]
    is_failing: bool = False
    flags: tuple[str, ...] = ()


@row(frozen=True, slots=True)
class Slot:
    """One slot and its holder; the strings are empty where there is none."""

    id: SlotId
    state: SlotState
    owner: str = ""
    run: str = ""
    set_name: str = ""
    pod: str = ""
    pod_uid: str = ""


@dataclass(frozen=True, slots=True)
class NodeLedger:
    """The part of one node; two ledgers share it while nothing on the node changes.

    Attributes:
        unplaced: Pods that hold some device of the node which cannot be told.
        unplaced_slots: How many slots they hold together.
    """

    slots: Mapping[SlotId, Slot]
    problems: tuple[str, ...] = ()
    unplaced: tuple[str, ...] = ()
    unplaced_slots: int = 0


@dataclass(frozen=True, slots=True)
class Ledger:
    """All slots in the order node, device, slot.

    Attributes:
        slots: By id.
        problems: Claims that do not fit: two on one slot, a device that is not there, a device that is full.
        unplaced: Pods that hold some device of a node which cannot be told, by node.
        nodes: The same by node, also of nodes that are not there but that pods name.
    """

    slots: Mapping[SlotId, Slot]
    problems: tuple[str, ...] = ()
    unplaced: Mapping[str, tuple[str, ...]] | None = None
    nodes: Mapping[str, NodeLedger] = field(default_factory=dict)

    def of_gpu(self, node: str, gpu: int) -> tuple[Slot, ...]:
        """Slots of one device, lowest first."""
        found: list[Slot] = []
        while (slot := self.slots.get(SlotId(node, gpu, len(found)))) is not None:
            found.append(slot)
        return tuple(found)

    def free(self) -> tuple[SlotId, ...]:
        """Slots that a new worker may take, in order."""
        return tuple(slot.id for slot in self.slots.values() if slot.state is SlotState.FREE)

    def count(self, state: SlotState) -> int:
        """How many slots are in this state."""
        return sum(slot.state is state for slot in self.slots.values())


@dataclass(frozen=True, slots=True)
class Basis:
    """An earlier ledger, and the nodes on which something has changed since: the others are taken over."""

    ledger: Ledger
    touched: frozenset[str]

    def touching(self, names: Iterable[str]) -> Basis:
        """The same with more changes."""
        return Basis(self.ledger, self.touched.union(names))

    def known(self, name: str) -> NodeLedger | None:
        """The part of a node that has not changed; None when it has, or was not there."""
        return None if name in self.touched else self.ledger.nodes.get(name)


def build_ledger(nodes: Iterable[Node], holders: Iterable[Holder], basis: Basis | None = None) -> Ledger:
    """Derive the ledger.

    Numbered claims are seated first. A claim on a device without a number takes its highest free slots, so that
    the slots which placement fills first stay with those who were placed. A claim on an unknown device turns all
    free slots of its node into unknown ones, however few it holds: whoever is placed on an exact slot there may
    meet it.

    Args:
        holders: With a basis, those on the touched nodes are enough.
    """
    by_node: dict[str, list[Holder]] = {}
    for holder in holders:
        if holder.claims or holder.flags:
            by_node.setdefault(holder.node, []).append(holder)
    parts: dict[str, NodeLedger] = {}
    for node in nodes:
        known = basis.known(node.name) if basis is not None else None
        parts[node.name] = known or _node_ledger(node, by_node.get(node.name, ()))
    for name, found in by_node.items():
        if name not in parts:
            parts[name] = _node_ledger(Node(name), found)
    if basis is not None:
        for name, part in basis.ledger.nodes.items():
            if name not in parts and name not in basis.touched:
                parts[name] = part  # pods on a node that was not there before and is not there now
    slots: dict[SlotId, Slot] = {}
    for part in parts.values():
        slots.update(part.slots)
    problems = tuple(problem for part in parts.values() for problem in part.problems)
    return Ledger(slots, problems, {name: part.unplaced for name, part in parts.items() if part.unplaced}, parts)


def _node_ledger(node: Node, holders: Iterable[Holder]) -> NodeLedger:
    # By device and number: hashing a slot's id for each look at it would cost more than all the rest.
    devices = {gpu.index: [_empty(node, slot_id) for slot_id in gpu.slot_ids()] for gpu in node.gpus}
    claims = [(holder, claim) for holder in holders for claim in holder.claims]
    claims.sort(key=lambda pair: (pair[1].gpu is None, pair[1].slot is None, pair[0].pod))
    problems = {f"{holder.pod} {flag}": None for holder in holders for flag in holder.flags}
    unplaced: list[str] = []
    unplaced_slots = 0
    for holder, claim in claims:
        if claim.gpu is None:
            unplaced.append(holder.pod)
            unplaced_slots += claim.count
        elif problem := _seat(devices.get(claim.gpu, []), holder, claim):
            problems[problem] = None
    slots = {slot.id: slot for device in devices.values() for slot in device}
    if unplaced:
        for slot_id, slot in slots.items():
            if slot.state is SlotState.FREE:
                slots[slot_id] = Slot(slot_id, SlotState.UNKNOWN)
    return NodeLedger(slots, tuple(problems), tuple(unplaced), unplaced_slots)


def _empty(node: Node, slot_id: SlotId) -> Slot:
    if not (node.ready and node.is_schedulable):
        return Slot(slot_id, SlotState.OFF)
    return Slot(slot_id, SlotState.FREE if node.is_use_known else SlotState.UNKNOWN)


def _seat(device: list[Slot], holder: Holder, claim: Claim) -> str:
    """Write one claim into the slots of its device; return a sentence when it does not fit."""
    if not device:
        return f"{holder.pod} names device {claim.gpu} of {holder.node}, which has no such device"
    if claim.slot is None:
        wanted = [number for number, slot in enumerate(device) if not slot.pod][::-1][: claim.count]
    else:
        wanted = [claim.slot] if claim.slot < len(device) else []
    state = SlotState.FAILED if holder.is_failing else SlotState.BUSY
    problem = ""
    for number in wanted:
        slot = device[number]
        if slot.pod:
            problem = f"{holder.pod} and {slot.pod} both hold slot {slot.id}"
            continue
        device[number] = Slot(slot.id, state, holder.owner, holder.run, holder.set_name, holder.pod, holder.uid)
    if len(wanted) < claim.count:
        problem = (
            f"{holder.pod} holds more of device {claim.gpu} of {holder.node} than its slots: it is over-committed"
        )
    return problem
