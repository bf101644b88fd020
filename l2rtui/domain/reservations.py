"""Reservations of slots for a person and a time: their rules, and their text as backends store it. Pure.

The text of a node is a list of ``{"owner", "until", "note", "slots": ["0.0", "cpu.3"]}``. Anyone with write access
to the storage may have written anything: unreadable entries reserve nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from math import isfinite
from typing import Any, Final

from l2rtui.domain.ledger import Ledger, Slot
from l2rtui.domain.node import SlotId, SlotReservation, device_index, device_name
from l2rtui.domain.sanitize import sanitize

MOST_SECONDS: Final = 14 * 86_400.0
"""Longest reservation: slots of a person who has left must become free without an administrator."""
LEAST_SECONDS: Final = 60.0
MOST_NOTE: Final = 100
"""Maximum length of a note in characters; longer notes are truncated."""


def slots_named(places: Iterable[str], ledger: Ledger) -> tuple[SlotId, ...]:
    """Return the slots of places, in ledger order. Places: ``NODE``, ``NODE/GPU``, ``NODE/GPU.SLOT``, ranges.

    Raises:
        ValueError: A place has another form, or a slot does not exist; the message names it.
    """
    named: set[SlotId] = set()
    for place in places:
        for part in filter(None, (part.strip() for part in place.split(","))):
            slots = _slots_of(part, ledger)
            if not slots:
                raise ValueError(f"there is no slot {part}")
            named.update(slots)
    return tuple(slot for slot in ledger.slots if slot in named)


def _slots_of(part: str, ledger: Ledger) -> list[SlotId]:
    from l2rtui.domain.placement import parse_pins, pinned  # lists read only the limits of this module

    if "/" not in part:
        return [slot for slot in ledger.slots if slot.node == part]
    pins = parse_pins(part)
    if missing := next((pin for pin in pins if not pinned(ledger, (pin,))), None):
        raise ValueError(f"there is no slot {missing}")
    return pinned(ledger, pins)


def span_problem(seconds: float) -> str:
    """Return a sentence if the duration is too short or too long; otherwise empty."""
    if LEAST_SECONDS <= seconds <= MOST_SECONDS:
        return ""
    return f"a reservation lasts from 1 minute to {MOST_SECONDS / 86_400:g} days"


def obstacle(slots: Iterable[SlotId], ledger: Ledger, owner: str) -> str:
    """Return a sentence on the first slot that this person cannot reserve; empty if all can be reserved.

    A slot can be reserved if it is unused or used only by pods of the same person.
    """
    for slot_id in slots:
        slot = ledger.slots.get(slot_id)
        if slot is None:
            return f"there is no slot {slot_id}"
        if sentence := _obstacle(slot, owner):
            return f"slot {slot_id} is {sentence}"
    return ""


def _obstacle(slot: Slot, owner: str) -> str:
    if slot.reservation is not None and slot.reservation.owner != owner:
        return slot.reservation.text
    if slot.pod and slot.owner != owner:
        return f"held by {slot.pod}{f' of {slot.owner}' if slot.owner else ''}"
    return ""


def others_on(existing: Iterable[SlotReservation], slots: Iterable[SlotId], owner: str) -> SlotReservation | None:
    """Return the first reservation of another person on these slots of one node; None without any."""
    numbers = {(slot.gpu, slot.slot) for slot in slots}
    return next((item for item in existing if (item.gpu, item.slot) in numbers and item.owner != owner), None)


def with_added(
    existing: Iterable[SlotReservation], slots: Collection[SlotId], owner: str, until: float, note: str
) -> tuple[SlotReservation, ...]:
    """Return the reservations of a node with these slots reserved; earlier reservations of them are replaced."""
    note = " ".join(sanitize(note).split())[:MOST_NOTE]
    added = (SlotReservation(slot.gpu, slot.slot, owner, until, note, is_mine=True) for slot in slots)
    return tuple(sorted((*without(existing, slots), *added), key=lambda item: (item.gpu, item.slot)))


def without(existing: Iterable[SlotReservation], slots: Iterable[SlotId]) -> tuple[SlotReservation, ...]:
    """Return the reservations of a node without the ones on these slots."""
    numbers = {(slot.gpu, slot.slot) for slot in slots}
    return tuple(item for item in existing if (item.gpu, item.slot) not in numbers)


def by_node(slots: Iterable[SlotId]) -> dict[str, list[SlotId]]:
    """Group slots by node, sorted by node name: concurrent reservations then lock nodes in the same order."""
    nodes: dict[str, list[SlotId]] = {}
    for slot in slots:
        nodes.setdefault(slot.node, []).append(slot)
    return dict(sorted(nodes.items()))


def reserved(slots: Iterable[SlotId], ledger: Ledger) -> Sequence[tuple[SlotId, SlotReservation]]:
    """Return the reserved slots with their reservations."""
    pairs = ((slot, ledger.slots[slot].reservation) for slot in slots if slot in ledger.slots)
    return [(slot, reservation) for slot, reservation in pairs if reservation is not None]


MOST_TEXT: Final = 64 * 1024
"""Longest text that is read, in characters. A node with 16 GPUs and 128 CPU slots needs about two thousand."""
_MOST_OWNER: Final = 64


def reservations_text(reservations: Iterable[SlotReservation]) -> str:
    """Return the text of reservations; empty without any."""
    groups: dict[tuple[str, float, str], list[str]] = {}
    for item in reservations:
        slot = f"{device_name(item.gpu)}.{item.slot}"
        groups.setdefault((item.owner, item.until, item.note), []).append(slot)
    entries = [
        {"owner": owner, "until": until, "note": note, "slots": slots}
        for (owner, until, note), slots in groups.items()
    ]
    return json.dumps(entries, separators=(",", ":")) if entries else ""


def read_reservations(text: str, now: float, me: str) -> tuple[SlotReservation, ...]:
    """Return the unexpired reservations of a text; if several name one slot, the first counts.

    Args:
        now: Seconds since the epoch.
        me: The user of this program; determines ``is_mine``.
    """
    if len(text) > MOST_TEXT:
        return ()
    try:
        entries = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return ()
    first: dict[tuple[int, int], SlotReservation] = {}
    for entry in entries if isinstance(entries, list) else ():
        for item in _items(entry, now, me):
            first.setdefault((item.gpu, item.slot), item)
    return tuple(first[key] for key in sorted(first))


def _items(entry: Any, now: float, me: str) -> Iterable[SlotReservation]:
    if not isinstance(entry, dict):
        return
    owner, until, note, slots = (entry.get(key) for key in ("owner", "until", "note", "slots"))
    if not isinstance(owner, str) or not owner or isinstance(until, bool) or not isinstance(until, int | float):
        return
    # A time beyond the allowed maximum is a mistake, and the reservation would never end.
    if not isfinite(until) or not now < until <= now + 2 * MOST_SECONDS or not isinstance(slots, list):
        return
    text = " ".join(sanitize(note).split())[:MOST_NOTE] if isinstance(note, str) else ""
    for slot in slots:
        device, _, number = slot.rpartition(".") if isinstance(slot, str) else ("", "", "")
        gpu = device_index(device[:9])
        if gpu is not None and number.isascii() and number.isdigit() and len(number) < 9:
            name = sanitize(owner[:_MOST_OWNER])
            yield SlotReservation(gpu, int(number), name, float(until), text, is_mine=owner == me)
