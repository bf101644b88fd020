"""Reserve slots, and release reservations."""

from __future__ import annotations

from collections.abc import Sequence

from l2rtui.backends.base import Backend, Reservations
from l2rtui.domain import reservations
from l2rtui.domain.node import SlotId, SlotReservation
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.errors import NotFoundError, UsageError
from l2rtui.services.history import journal
from l2rtui.services.ownership import refuse_owners


def store_of(backend: Backend) -> Reservations:
    """Return the reservations of a backend. Raises UsageError if it has none."""
    store = backend.reservations
    if store is None:
        place = "one context" if backend.contexts is not None else "a backend whose slots are its own"
        raise UsageError("Nothing can be reserved here.", f"Reservations need {place}: `--context NAME`.")
    return store


def slots_named(places: Sequence[str], snapshot: ClusterSnapshot) -> tuple[SlotId, ...]:
    """Return the slots of places such as ``n1``, ``n1/0-3`` or ``n1/3.2``. Raises UsageError."""
    try:
        return reservations.slots_named(places, snapshot.ledger)
    except ValueError as error:
        sentence = str(error)
        raise UsageError(f"{sentence[0].upper()}{sentence[1:]}.", "`l2rtui slots` lists them.") from None


async def reserve(backend: Backend, slots: Sequence[SlotId], now: float, seconds: float, note: str = "") -> float:
    """Reserve slots for the user from now on; return the end, in seconds since the epoch.

    Args:
        now: Seconds since the epoch. seconds: time for which the slots are reserved.

    Raises:
        UsageError: the time is too short or too long, or nothing can be reserved here.
        RefusedError: another user has reserved or uses one of the slots.
    """
    if problem := reservations.span_problem(seconds):
        raise UsageError(f"{problem[0].upper()}{problem[1:]}.", "Write --for 30m, 4h or 2d.")
    until = now + seconds
    await store_of(backend).reserve(slots, until, note)
    journal.record("reserve", _written(slots), "done", until=until, note=note)
    return until


async def unreserve(
    backend: Backend, snapshot: ClusterSnapshot, slots: Sequence[SlotId], *, is_admin: bool = False
) -> Sequence[tuple[SlotId, SlotReservation]]:
    """End the reservations of slots; return the ended ones.

    Raises:
        NotFoundError: none of the slots is reserved. RefusedError: one is reserved by another user.
    """
    reserved = reservations.reserved(slots, snapshot.ledger)
    if not reserved:
        raise NotFoundError(
            "None of these slots is reserved.", "`l2rtui slots --state reserved` lists those that are."
        )
    refuse_owners("unreserve", [(str(slot), item.owner) for slot, item in reserved], is_admin=is_admin)
    ended = [slot for slot, _ in reserved]
    await store_of(backend).release(ended)
    journal.record("unreserve", _written(ended), "done")
    return reserved


def mine(snapshot: ClusterSnapshot) -> list[SlotId]:
    """Return the slots that the user has reserved."""
    slots = snapshot.ledger.slots.values()
    return [slot.id for slot in slots if slot.reservation is not None and slot.reservation.is_mine]


def _written(slots: Sequence[SlotId]) -> str:
    return ",".join(map(str, slots[:8])) + (f" and {len(slots) - 8} more" if len(slots) > 8 else "")
