"""Tickets of queued runs, and all changes of a queue as pure functions.

A start has three steps, and a crash may happen between any two: write the *intent* (``begin``), launch the run
under the id of its ticket, remove the ticket (``finish``). A process that takes over a queue compares intents with
the existing runs (``reconcile``): the id shows whether a run was launched, so no run is lost or started twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from l2rtui.domain.placement import Pin, PlacementPolicy
from l2rtui.domain.workload import RunSpec


class TicketState(StrEnum):
    """State of a queued run: it waits, or its start was announced."""

    WAITING = "waiting"
    STARTING = "starting"


@dataclass(frozen=True, slots=True)
class Ticket:
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


@dataclass(frozen=True, slots=True)
class RunQueue:
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
