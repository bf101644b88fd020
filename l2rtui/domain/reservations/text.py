"""Text form of the reservations of one node, as backends store it: bounded and untrusted. Pure.

A list of ``{"owner", "until", "note", "slots": ["0.0", "cpu.3"]}``. Anyone with write access to the storage may
have written anything: unreadable entries reserve nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import isfinite
from typing import Any, Final

from l2rtui.domain.node import SlotReservation, device_index, device_name
from l2rtui.domain.reservations.rules import MOST_NOTE, MOST_SECONDS
from l2rtui.domain.sanitize import sanitize

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
