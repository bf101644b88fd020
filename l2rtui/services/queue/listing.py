"""Rows of a queue for lists: the position of each run, its reason for waiting, and its expected start."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from l2rtui.backends.base import Backend
from l2rtui.domain.ledger import Ledger
from l2rtui.domain.node import SlotId
from l2rtui.domain.quantity import age
from l2rtui.domain.queue import Ticket, TicketState, admit, fair_order, held_slots, occupied, released, vacated
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import L2RError


class QueueRow(Struct, frozen=True):
    """One queued run.

    Attributes:
        position: From 1, in the order of service.
        waits_for: Reason for waiting and expected start, as text.
    """

    run: str
    uid: str
    owner: str
    position: int
    waits_for: str
    since: float


async def queue_rows(backend: Backend, snapshot: ClusterSnapshot) -> tuple[QueueRow, ...]:
    """Return the queued runs in the order of service; none where runs cannot wait."""
    store = backend.queue
    tickets = store.read().queue.tickets if store is not None else ()
    if not tickets:
        return ()
    ledger = snapshot.ledger
    order = fair_order(tickets, held_slots(ledger))
    verdicts = admit(order, ledger)
    walls = {ticket.spec.name: wall for ticket in order if (wall := _wall(ticket.spec)) is not None}
    starts = forecast(order, ledger, await _ends(backend, snapshot), walls)
    return tuple(
        QueueRow(
            verdict.ticket.spec.name,
            verdict.ticket.uid,
            verdict.ticket.owner,
            verdict.position,
            _waits_for(verdict.ticket, verdict.reason, starts.get(verdict.ticket.spec.name)),
            verdict.ticket.since,
        )
        for verdict in verdicts
    )


def _waits_for(ticket: Ticket, reason: str, seconds: float | None) -> str:
    if ticket.state is TicketState.STARTING:
        return "nothing: it is being started"
    if not reason:
        return "nothing: it starts next"
    if ticket.problem:
        return reason
    when = "" if seconds is None else f"; starts within {age(seconds)}, by the time limits of other runs"
    return f"{reason}{when}"


def _wall(spec: RunSpec) -> float | None:
    """Return the longest duration of a run in seconds; None without a limit."""
    return spec.limits.wall if spec.limits is not None else None


async def _ends(backend: Backend, snapshot: ClusterSnapshot) -> dict[str, float]:
    """Return the seconds until each run that holds slots reaches its time limit, if it has one."""
    holders = {slot.run for slot in snapshot.ledger.slots.values() if slot.run}
    ends = await asyncio.gather(*(_end(backend, snapshot, run) for run in sorted(holders)))
    return {run: seconds for run, seconds in ends if seconds is not None}


async def _end(backend: Backend, snapshot: ClusterSnapshot, run: str) -> tuple[str, float | None]:
    try:
        wall = _wall(await backend.spec(run))
    except L2RError:  # another user's, or one that is just ending: its end is unknown
        wall = None
    started = _first(pod.started for pod in snapshot.pods_of(run))
    # Before the start the full duration remains.
    return run, None if wall is None else max(0.0, wall - (max(0.0, time.time() - started) if started else 0.0))


def _first(moments: Iterable[float | None]) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)


MOST_ROUNDS = 200
"""Number of run ends that are simulated. Later starts are far away and reported as unknown."""


def forecast(
    order: Sequence[Ticket], ledger: Ledger, ends: Mapping[str, float], walls: Mapping[str, float]
) -> dict[str, float]:
    """Return the seconds until the latest start of each run, by name; runs that are missing have no forecast.

    Each run is assumed to use its whole time limit. A run without a limit never ends, so runs that need its slots
    have no forecast. Runs that other users launch meanwhile are not considered.

    Args:
        order: Queued runs in the order of service.
        ends: Seconds until each running run reaches its limit, by name; runs without a limit are left out.
        walls: Maximum duration of each queued run, in seconds by name; runs without a limit are left out.
    """
    starts: dict[str, float] = {}
    waiting, now = list(order), 0.0
    events = [(max(0.0, seconds), run) for run, seconds in ends.items()]
    heapq.heapify(events)
    slots: dict[str, tuple[SlotId, ...]] = {}
    for _ in range(MOST_ROUNDS):
        for verdict in admit(waiting, ledger):
            if verdict.slots is None:
                continue
            name = verdict.ticket.spec.name
            starts[name], slots[name] = now, verdict.slots
            ledger = occupied(ledger, verdict.slots)
            if name in walls:
                heapq.heappush(events, (now + walls[name], name))
        waiting = [ticket for ticket in waiting if ticket.spec.name not in starts]
        if not waiting or not events:
            break
        now, run = heapq.heappop(events)
        # A run of this queue has no holder in the ledger yet: its slots are the slots of its forecast start.
        ledger = vacated(ledger, slots[run]) if run in slots else released(ledger, [run])
    return starts
