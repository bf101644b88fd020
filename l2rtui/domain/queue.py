"""Queue of runs that wait for slots: its tickets, their service order, and which may start now. Pure.

A start has three steps, and a crash may happen between any two: write the *intent* (``begin``), launch the run
under the id of its ticket, remove the ticket (``finish``). A process that takes over a queue compares intents with
the existing runs (``reconcile``): the id shows whether a run was launched, so no run is lost or started twice.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import Ledger, SlotState
from l2rtui.domain.node import SlotId
from l2rtui.domain.placement import Pin, PlacementPolicy, bound_to_cpu, place
from l2rtui.domain.quantity import counted
from l2rtui.domain.workload import RunSpec, SetSpec


class TicketState(StrEnum):
    """State of a queued run: it waits, or its start was announced."""

    WAITING = "waiting"
    STARTING = "starting"


class Ticket(Struct, frozen=True):
    """One run in a queue.

    Attributes:
        number: Order of arrival, from 1, never reused. The wall clock is not used, as it may jump.
        uid: Id under which the run will be launched.
        since: Time at which it was queued, in seconds since the epoch; for display only.
        submission: Id of the command that queued it, under which its folder and environment are kept.
        source: Spec file that it was created from, for the history.
        problem: Why its last start failed, a sentence without its full stop; otherwise empty.
    """

    number: int
    uid: str
    spec: RunSpec
    owner: str
    since: float = 0.0
    policy: PlacementPolicy = PlacementPolicy.PACK
    pins: tuple[Pin, ...] = ()
    wave: int = 0
    submission: str = ""
    source: str = ""
    state: TicketState = TicketState.WAITING
    problem: str = ""

    @property
    def demand(self) -> int:
        """Number of slots that the run takes."""
        return sum(part.num_pods * part.slots for part in self.spec.sets)


class RunQueue(Struct, frozen=True):
    """All queued runs of one place, in the order that their owners want.

    Attributes:
        next_number: Number of the next ticket.
    """

    tickets: tuple[Ticket, ...] = ()
    next_number: int = 1

    def named(self, run: str) -> Ticket | None:
        """Return the ticket of the run of this name, or None."""
        return next((ticket for ticket in self.tickets if ticket.spec.name == run), None)

    def with_uid(self, uid: str) -> Ticket | None:
        """Return the ticket of the run with this id, or None."""
        return next((ticket for ticket in self.tickets if ticket.uid == uid), None)


def enqueue(queue: RunQueue, tickets: Iterable[Ticket]) -> RunQueue:
    """Append tickets and number them.

    Raises:
        ValueError: A run of that name is already waiting; the message names it.
    """
    names = {ticket.spec.name for ticket in queue.tickets}
    added: list[Ticket] = []
    for number, ticket in enumerate(tickets, queue.next_number):
        if ticket.spec.name in names:
            raise ValueError(f"a run named {ticket.spec.name} waits in the queue")
        names.add(ticket.spec.name)
        added.append(replace(ticket, number=number))
    return RunQueue((*queue.tickets, *added), queue.next_number + len(added))


def begin(queue: RunQueue, uid: str) -> RunQueue:
    """Announce the start of a run. This is stored before any of its objects are created."""
    return _changed(queue, uid, lambda ticket: replace(ticket, state=TicketState.STARTING, problem=""))


def finish(queue: RunQueue, uids: Collection[str]) -> RunQueue:
    """Remove runs that were launched, cancelled or destroyed; unknown ids are ignored."""
    return replace(queue, tickets=tuple(ticket for ticket in queue.tickets if ticket.uid not in uids))


def postpone(queue: RunQueue, uid: str, problem: str = "") -> RunQueue:
    """Put a run whose start failed and was rolled back into the waiting state again, at its old position."""
    return _changed(queue, uid, lambda ticket: replace(ticket, state=TicketState.WAITING, problem=problem))


def reconcile(queue: RunQueue, launched: Collection[str]) -> RunQueue:
    """Resolve announced starts after a crash: a run that exists was launched, any other waits again.

    Args:
        launched: Ids of the runs that exist.
    """
    # A ticket keeps its number when its intent is withdrawn, so the order stays.
    settled = (
        replace(ticket, state=TicketState.WAITING) if ticket.state is TicketState.STARTING else ticket
        for ticket in queue.tickets
        if ticket.state is TicketState.WAITING or ticket.uid not in launched
    )
    return replace(queue, tickets=tuple(settled))


def move(queue: RunQueue, uid: str, position: int) -> RunQueue:
    """Move a run among the runs of the same owner; the order between owners is decided by fairness only.

    Args:
        position: From 1; a position beyond the last means the last.
    """
    moved = queue.with_uid(uid)
    if moved is None:
        return queue
    own = [ticket for ticket in queue.tickets if ticket.owner == moved.owner]
    own.remove(moved)
    own.insert(max(0, position - 1), moved)
    # The owner's tickets keep the same set of positions; only their order among themselves changes.
    line = iter(own)
    tickets = (next(line) if ticket.owner == moved.owner else ticket for ticket in queue.tickets)
    return replace(queue, tickets=tuple(tickets))


def _changed(queue: RunQueue, uid: str, change: Callable[[Ticket], Ticket]) -> RunQueue:
    # A ticket that was cancelled meanwhile is not an error: the command that cancelled it has reported that.
    return replace(
        queue, tickets=tuple(change(ticket) if ticket.uid == uid else ticket for ticket in queue.tickets)
    )


class AdmissionVerdict(Struct, frozen=True):
    """Decision on one queued run.

    Attributes:
        position: Position in the service order, from 1.
        slots: Slots on which it starts now; None for a run that waits.
        reason: Why it waits, without a full stop.
        is_blocking: Later runs may not take slots that it could use.
    """

    ticket: Ticket
    position: int
    slots: tuple[SlotId, ...] | None
    reason: str = ""
    is_blocking: bool = False


def held_slots(ledger: Ledger) -> Counter[str]:
    """Return the number of slots that each owner holds; the empty name stands for unknown owners."""
    return Counter(slot.owner for slot in ledger.slots.values() if slot.pod)


def fair_order(tickets: Sequence[Ticket], slots_of: Mapping[str, int]) -> tuple[Ticket, ...]:
    """Return the tickets in service order: the owner with the fewest slots is next, ties in order of arrival.

    Max-min fairness by progressive filling, which is dominant resource fairness for a single resource (Ghodsi et
    al., NSDI 2011). Runs whose start is announced come first: they have already been chosen.

    Args:
        slots_of: Number of slots of each owner.
    """
    starting = [ticket for ticket in tickets if ticket.state is TicketState.STARTING]
    load = Counter(slots_of)
    for ticket in starting:
        load[ticket.owner] += ticket.demand
    lines: dict[str, list[tuple[int, Ticket]]] = {}
    for place_in_queue, ticket in enumerate(tickets):
        if ticket.state is TicketState.WAITING:
            lines.setdefault(ticket.owner, []).append((place_in_queue, ticket))
    heads = [(load[owner], line[0][0], owner) for owner, line in lines.items()]
    heapq.heapify(heads)
    order = starting
    served: Counter[str] = Counter()
    while heads:
        _, _, owner = heapq.heappop(heads)
        line = lines[owner]
        ticket = line[served[owner]][1]
        order.append(ticket)
        served[owner] += 1
        load[owner] += ticket.demand
        if served[owner] < len(line):
            heapq.heappush(heads, (load[owner], line[served[owner]][0], owner))
    return tuple(order)


def admit(order: Sequence[Ticket], ledger: Ledger) -> tuple[AdmissionVerdict, ...]:
    """Decide on each run in service order; a run starts as a whole or not at all.

    A run that does not fit blocks the free slots that it could use, so that a smaller run behind it cannot starve
    it. Runs that need other slots are not affected. A run that does not fit on any existing node, and a run whose
    start has just failed, block nothing.
    """
    verdicts: list[AdmissionVerdict] = []
    free, left, ahead, capacity = ledger, len(ledger.free()), "", _Capacity(ledger)
    counts = f"{left} of {len(ledger.slots)} {'is' if left == 1 else 'are'} free"
    for position, ticket in enumerate(order, 1):
        if ticket.problem:
            verdicts.append(AdmissionVerdict(ticket, position, None, ticket.problem))
            continue
        # Once no slot is free, nothing more is placed: queues are long, and a placement is expensive.
        slots = _fitting(ticket, free) if left or not ticket.demand else None
        if slots is not None:
            verdicts.append(AdmissionVerdict(ticket, position, slots))
            free, left = occupied(free, slots), left - len(slots)
        elif conflict := capacity.conflict(ticket):
            verdicts.append(AdmissionVerdict(ticket, position, None, f"more than there is: {conflict}"))
        else:
            reason = f"{_demand_text(ticket)}, {counts}{f', {ahead} comes first' if ahead else ''}"
            verdicts.append(AdmissionVerdict(ticket, position, None, reason, is_blocking=True))
            contested = _contested(ticket, free) if left else ()
            free, left, ahead = occupied(free, contested), left - len(contested), ahead or ticket.spec.name
    return tuple(verdicts)


def impossible(tickets: Iterable[Ticket], ledger: Ledger) -> tuple[Ticket, str] | None:
    """Return the first run that would not fit even if every slot were free, with the reason; None if all would
    fit.
    """
    capacity = _Capacity(ledger)
    return next(((ticket, conflict) for ticket in tickets if (conflict := capacity.conflict(ticket))), None)


class _Capacity:
    """Ledger with all slots free; its answers are cached, as the seeds of an experiment are alike."""

    def __init__(self, ledger: Ledger) -> None:
        usable = [slot.id for slot in ledger.slots.values() if slot.state is not SlotState.OFF]
        self._ledger = vacated(ledger, usable)
        self._conflicts: dict[tuple[object, ...], str] = {}

    def conflict(self, ticket: Ticket) -> str:
        """Return why a run would not fit; empty if it would."""
        key = (ticket.spec.sets, ticket.pins, ticket.policy)
        if key not in self._conflicts:
            placed = place([ticket.spec], self._ledger, policy=ticket.policy, pins=ticket.pins)
            self._conflicts[key] = "; ".join(placed.conflicts)
        return self._conflicts[key]


def _fitting(ticket: Ticket, ledger: Ledger) -> tuple[SlotId, ...] | None:
    """Return the slots on which a whole run fits; None if it does not fit."""
    placed = place([ticket.spec], ledger, policy=ticket.policy, pins=ticket.pins)
    return None if placed.conflicts else tuple(slot for seat in placed.seats for slot in seat.slots)


def _contested(ticket: Ticket, ledger: Ledger) -> tuple[SlotId, ...]:
    """Return the free slots that a run which does not fit could use once further slots become free."""
    free = len(ledger.free())
    (bound,) = bound_to_cpu([ticket.spec], ledger, ticket.pins)

    def single(part: SetSpec) -> SetSpec:
        # One slot at a time: a replica that needs both a free slot and a busy one waits for both.
        binding = Binding.ENV if part.pod.binding is Binding.DEVICE_PLUGIN else part.pod.binding
        count = free if part.slots else 0
        return replace(part, replicas=count, slots=min(part.slots, 1), pod=replace(part.pod, binding=binding))

    slots: list[SlotId] = []
    for part in bound.sets:
        greedy: RunSpec = replace(bound, sets=(single(part),))
        placed = place([greedy], ledger, policy=ticket.policy, pins=ticket.pins)
        slots += [slot for seat in placed.seats for slot in seat.slots]
    return tuple(dict.fromkeys(slots))


def _marked(ledger: Ledger, slots: Iterable[SlotId], state: SlotState) -> Ledger:
    changed = dict(ledger.slots)  # copied for each change: callers keep the ledger from before
    for slot_id in slots:
        changed[slot_id] = replace(changed[slot_id], state=state)
    return replace(ledger, slots=changed)


def released(ledger: Ledger, runs: Iterable[str]) -> Ledger:
    """Return the ledger as it will be after these runs have ended; slots shared with other runs stay busy."""
    names = set(runs)
    # A slot that another user has reserved is not free then either.
    ending = (slot for slot in ledger.slots.values() if slot.run in names and not slot.is_withheld)
    slots = [slot.id for slot in ending if not slot.sharing]
    return vacated(ledger, slots)


def vacated(ledger: Ledger, slots: Iterable[SlotId]) -> Ledger:
    """Return the ledger with these slots free."""
    return _marked(ledger, slots, SlotState.FREE)


def occupied(ledger: Ledger, slots: Iterable[SlotId]) -> Ledger:
    """Return the ledger with these slots in use."""
    return _marked(ledger, slots, SlotState.BUSY)


def _demand_text(ticket: Ticket) -> str:
    where = f" among {', '.join(map(str, ticket.pins))}" if ticket.pins else ""
    return f"{counted(ticket.demand, 'slot')}{where}"
