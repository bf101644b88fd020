"""Forecast: the latest time until a queued run may start, from the limits of the runs before it."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from l2rtui.domain.ledger import Ledger
from l2rtui.domain.node import SlotId
from l2rtui.domain.queue.admission import admit, occupied, released, vacated
from l2rtui.domain.queue.tickets import Ticket

MOST_ROUNDS = 200
"""Ends of runs that are looked at; what lies behind them is far away, and unknown is said of it."""


def forecast(
    order: Sequence[Ticket], ledger: Ledger, ends: Mapping[str, float], walls: Mapping[str, float]
) -> dict[str, float]:
    """Return the seconds until each run may start at the latest, by its name; one that is not there is unknown.

    Each run is taken to last as long as it may: one without a limit never ends, and whoever needs its slots has no
    forecast. Runs that others launch meanwhile are not foreseen.

    Args:
        order: Queued runs in the order of service.
        ends: Seconds until each running run has reached its limit, by name; a run without a limit is left out.
        walls: Longest duration of each queued run, in seconds by name; a run without a limit is left out.
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
        # A run of this queue has no holder in the ledger yet: its slots are those of its forecast start.
        ledger = vacated(ledger, slots[run]) if run in slots else released(ledger, [run])
    return starts
