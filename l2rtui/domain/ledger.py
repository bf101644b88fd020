"""The slot ledger: who holds each slot of each GPU, derived from nodes and pods alone.

Nothing is remembered between two snapshots, so the ledger cannot drift from the truth. What cannot be known is
a state of its own: a slot on a node whose pods we may not list reads ``unknown``, never ``free``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from l2rtui.domain.node import Node, SlotId


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


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod as the ledger sees it: only those that still hold something are handed in."""

    uid: str
    pod: str
    node: str
    owner: str
    run: str
    set_name: str
    claims: tuple[Claim, ...]
    is_failing: bool = False


@dataclass(frozen=True, slots=True)
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
class Ledger:
    """All slots in the order node, device, slot.

    Attributes:
        slots: By id.
        problems: Claims that do not fit: two on one slot, a device that is not there, a device that is full.
        unplaced: Pods that hold some device of a node which cannot be told, by node.
    """

    slots: Mapping[SlotId, Slot]
    problems: tuple[str, ...] = ()
    unplaced: Mapping[str, tuple[str, ...]] | None = None

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


def build_ledger(nodes: Iterable[Node], holders: Iterable[Holder]) -> Ledger:
    """Derive the ledger.

    Numbered claims are seated first. A claim on a device without a number takes its highest free slots, so that
    the slots which placement fills first stay with those who were placed. A claim on an unknown device turns the
    free slots of its node into unknown ones.
    """
    nodes = tuple(nodes)
    slots = {slot_id: _empty(node, slot_id) for node in nodes for gpu in node.gpus for slot_id in gpu.slot_ids()}
    devices = {(gpu.node, gpu.index): gpu.slot_ids() for node in nodes for gpu in node.gpus}
    claims = [(holder, claim) for holder in holders for claim in holder.claims]
    claims.sort(key=lambda pair: (pair[1].gpu is None, pair[1].slot is None, pair[0].pod))
    problems: list[str] = []
    unplaced: dict[str, tuple[str, ...]] = {}
    for holder, claim in claims:
        if claim.gpu is None:
            unplaced[holder.node] = (*unplaced.get(holder.node, ()), holder.pod)
        elif problem := _seat(slots, devices.get((holder.node, claim.gpu), ()), holder, claim):
            problems.append(problem)
    for slot_id, slot in slots.items():
        if slot.state is SlotState.FREE and slot_id.node in unplaced:
            slots[slot_id] = Slot(slot_id, SlotState.UNKNOWN)
    return Ledger(slots, tuple(problems), unplaced)


def _empty(node: Node, slot_id: SlotId) -> Slot:
    if not (node.ready and node.is_schedulable):
        return Slot(slot_id, SlotState.OFF)
    return Slot(slot_id, SlotState.FREE if node.is_use_known else SlotState.UNKNOWN)


def _seat(slots: dict[SlotId, Slot], of_device: tuple[SlotId, ...], holder: Holder, claim: Claim) -> str:
    """Write one claim into the slots of its device; return a sentence when it does not fit."""
    if not of_device:
        return f"{holder.pod} names device {claim.gpu} of {holder.node}, which has no such device"
    if claim.slot is None:
        wanted = [slot_id for slot_id in of_device if not slots[slot_id].pod][::-1][: claim.count]
    else:
        wanted = [slot_id for slot_id in of_device if slot_id.slot == claim.slot]
    state = SlotState.FAILED if holder.is_failing else SlotState.BUSY
    problem = ""
    for slot_id in wanted:
        if slots[slot_id].pod:
            problem = f"{holder.pod} and {slots[slot_id].pod} both hold slot {slot_id}"
            continue
        slots[slot_id] = Slot(slot_id, state, holder.owner, holder.run, holder.set_name, holder.pod, holder.uid)
    if len(wanted) < claim.count:
        problem = (
            f"{holder.pod} holds more of device {claim.gpu} of {holder.node} than its slots: it is over-committed"
        )
    return problem
