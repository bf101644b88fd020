"""Forecast of the latest start of each queued run, from the time limits of the runs before it."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from l2rtui.domain.ledger import Ledger
from l2rtui.domain.node import SlotId
from l2rtui.domain.queue.admission import admit, occupied, released, vacated
from l2rtui.domain.queue.tickets import Ticket

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
