"""Memory for segments before they are sent: slots that follow one another, so that many go in one piece.

A bundle of segments is one frame on the wire. Segments whose arenas lie side by side are sent from where they lie;
others have to be brought together first. Who lies beside whom is known from the moment an arena is handed out: to
find it out from two views costs more than to send a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from runtime.framing import Arena, Buffer

SLAB_BYTES: Final = 4 * 1024 * 1024
"""Taken from the system at once. A slab goes back when the last of its segments is neither kept nor on its way."""


class Arenas:
    """Hands out arenas of one size, side by side as long as the slab lasts."""

    def __init__(self, arena_bytes: int) -> None:
        self._size = arena_bytes
        self._count = max(1, SLAB_BYTES // max(1, arena_bytes))
        self._slab = memoryview(b"")
        self._next = self._count

    def take(self) -> Arena:
        """Return an arena that nobody else has; what is in it is left from before."""
        if self._next == self._count:
            self._slab, self._next = np.empty(self._count * self._size, dtype=np.uint8).data, 0
        start = self._next * self._size
        self._next += 1
        return Arena(self._slab, start, self._size)


def stretches(arenas: Sequence[Arena]) -> list[memoryview]:
    """Return the bytes of the arenas in order, neighbours as one piece."""
    found: list[memoryview] = []
    first = arenas[0]
    slab, start, end = first.slab, first.start, first.start + first.nbytes
    for each in arenas[1:]:
        if each.slab is not slab or each.start != end:
            found.append(slab[start:end])
            slab, start, end = each.slab, each.start, each.start
        end += each.nbytes
    found.append(slab[start:end])
    return found


def gather(arenas: Sequence[Arena]) -> Buffer:
    """Return the arenas as one piece: the memory in which they lie if they are neighbours, else a copy."""
    pieces = stretches(arenas)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
