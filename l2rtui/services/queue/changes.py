"""Changes of a queue by users: cancel a waiting run, move it among the user's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from l2rtui.backends.queue_store import QueueStore
from l2rtui.domain.queue import RunQueue, Ticket, TicketState, finish, move
from l2rtui.domain.selection.filter_language import EXPERIMENT_WORDS
from l2rtui.errors import NotFoundError, RefusedError
from l2rtui.services.history import journal
from l2rtui.services.ownership import refuse_owners


def tickets_named(queue: RunQueue, names: Sequence[str]) -> tuple[Ticket, ...]:
    """Return the tickets of runs, of the runs of ``experiment/NAME``, or of an experiment whose name no run has,
    each once.

    Raises:
        NotFoundError: a name has none.
    """
    chosen: dict[str, Ticket] = {}
    for name in names:
        head, _, rest = name.partition("/")
        experiment = rest if head in EXPERIMENT_WORDS else name
        tickets = [ticket for ticket in queue.tickets if ticket.spec.name == name] or [
            ticket for ticket in queue.tickets if ticket.spec.experiment == experiment
        ]
        if not tickets:
            raise NotFoundError(f"No run named {name} is queued.", "See `l2rtui queue`.")
        chosen.update((ticket.uid, ticket) for ticket in tickets)
    return tuple(chosen.values())


async def cancel(store: QueueStore, names: Sequence[str], *, is_admin: bool = False) -> tuple[Ticket, ...]:
    """Remove runs from the queue; all of them or none.

    Raises:
        NotFoundError: a name matches nothing. RefusedError: a run is another user's, or is being started.
    """
    cancelled: tuple[Ticket, ...] = ()

    def without(queue: RunQueue) -> RunQueue:
        nonlocal cancelled
        cancelled = tickets_named(queue, names)
        _refuse_others("queue cancel", cancelled, is_admin=is_admin)
        for ticket in cancelled:
            _refuse_starting(ticket)
        return finish(queue, {ticket.uid for ticket in cancelled})

    await asyncio.to_thread(store.change_queue, without)
    journal.record("queue cancel", ", ".join(ticket.spec.name for ticket in cancelled), "done")
    return cancelled


async def move_to(store: QueueStore, name: str, position: int, *, is_admin: bool = False) -> Ticket:
    """Move a run among those of its owner; position 1 is the first.

    Raises:
        NotFoundError: no run of that name is queued. RefusedError: it is another user's, or is being started.
    """
    moved: list[Ticket] = []

    def after(queue: RunQueue) -> RunQueue:
        ticket = queue.named(name)
        if ticket is None:
            raise NotFoundError(f"No run named {name} is queued.", "See `l2rtui queue`.")
        _refuse_others("queue move", [ticket], is_admin=is_admin)
        _refuse_starting(ticket)
        moved.append(ticket)
        return move(queue, ticket.uid, position)

    await asyncio.to_thread(store.change_queue, after)
    journal.record("queue move", name, "done", position=position)
    return moved[0]


def _refuse_others(verb: str, tickets: Sequence[Ticket], *, is_admin: bool) -> None:
    refuse_owners(verb, [(ticket.spec.name, ticket.owner) for ticket in tickets], is_admin=is_admin)


def _refuse_starting(ticket: Ticket) -> None:
    if ticket.state is TicketState.STARTING:
        raise RefusedError(f"{ticket.spec.name} is being started.", f"`l2rtui destroy {ticket.spec.name}` ends it.")
