"""Tickets of queued runs, and every change of a queue as a function from one value to the next.

A start has two steps with a crash allowed between any two: the *intent* is written (``begin``), the run is launched
under the id of its ticket, the ticket goes (``finish``). Whoever takes a queue over compares intents with the runs
that exist (``reconcile``): the id says whether a run was launched, so none is lost and none starts twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from l2rtui.domain.placement import Pin, PlacementPolicy
from l2rtui.domain.workload import RunSpec

QUEUED = "Queued"
"""State of a run that waits in a queue, as the reason of its row."""


class TicketState(StrEnum):
    """State of a queued run: it waits, or somebody has announced its start."""

    WAITING = "waiting"
    STARTING = "starting"


@dataclass(frozen=True, slots=True)
class Ticket:
    """One run in a queue.

    Attributes:
        number: Order of arrival, from 1 up and never used twice. The wall clock decides nothing, as it may jump.
        uid: Id under which the run will be launched.
        since: Time at which it was queued, in seconds since the epoch; for people alone.
        submission: Id of the command that queued it, under which its folder and environment are kept.
        source: Spec file that it was made of, for the history.
        problem: Reason for which its last start failed, a sentence without its full stop; empty without one.
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
    """All queued runs of one place, in the order in which their owners want them.

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
        ValueError: a run of that name waits already; the message names it.
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
    """Announce the start of a run: written down before anything of it is made."""
    return _changed(queue, uid, lambda ticket: replace(ticket, state=TicketState.STARTING, problem=""))


def finish(queue: RunQueue, uids: Collection[str]) -> RunQueue:
    """Take out runs that were launched, cancelled or destroyed; ids that are not there are passed over."""
    return replace(queue, tickets=tuple(ticket for ticket in queue.tickets if ticket.uid not in uids))


def postpone(queue: RunQueue, uid: str, problem: str = "") -> RunQueue:
    """Let a run whose start failed, and was taken back, wait on at its place."""
    return _changed(queue, uid, lambda ticket: replace(ticket, state=TicketState.WAITING, problem=problem))


def reconcile(queue: RunQueue, launched: Collection[str]) -> RunQueue:
    """Settle announced starts that nobody carries on: a run that exists was launched, any other waits on.

    Args:
        launched: Ids of the runs that exist.
    """
    # Without its intent a ticket was never launched, and it keeps its number: the order stays.
    settled = (
        replace(ticket, state=TicketState.WAITING) if ticket.state is TicketState.STARTING else ticket
        for ticket in queue.tickets
        if ticket.state is TicketState.WAITING or ticket.uid not in launched
    )
    return replace(queue, tickets=tuple(settled))


def move(queue: RunQueue, uid: str, position: int) -> RunQueue:
    """Move a run among those of its owner; between owners fairness decides, and nobody overtakes by a move.

    Args:
        position: From 1; beyond the last means the last.
    """
    moved = queue.with_uid(uid)
    if moved is None:
        return queue
    own = [ticket for ticket in queue.tickets if ticket.owner == moved.owner]
    own.remove(moved)
    own.insert(max(0, position - 1), moved)
    # The places that the owner's tickets have stay the owner's; only who stands on which of them changes.
    line = iter(own)
    tickets = (next(line) if ticket.owner == moved.owner else ticket for ticket in queue.tickets)
    return replace(queue, tickets=tuple(tickets))


def _changed(queue: RunQueue, uid: str, change: Callable[[Ticket], Ticket]) -> RunQueue:
    # A ticket that was cancelled meanwhile is no error: its canceller has said so to the person.
    return replace(
        queue, tickets=tuple(change(ticket) if ticket.uid == uid else ticket for ticket in queue.tickets)
    )
