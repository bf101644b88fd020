"""Memory for segments before they are sent: consecutive ranges of slabs, so that several are sent as one piece.

Several segments in one message are one frame on the wire. Adjacent arenas are sent without a copy; others have to
be joined first. An arena therefore stores its slab and offset: deriving adjacency from two memoryviews would cost
more than sending a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from runtime.exchange.protocol.framing import Buffer, SegmentArena

SLAB_BYTES: Final = 4 * 1024 * 1024
"""Size of one allocation. A slab is freed with the last arena that refers to it."""


class SegmentAllocator:
    """Allocator of arenas of one size, adjacent within a slab; a completed arena may be shortened."""

    def __init__(self, arena_bytes: int) -> None:
        self._size = arena_bytes
        self._slab_bytes = arena_bytes * max(1, SLAB_BYTES // max(1, arena_bytes))
        self._slab = memoryview(b"")
        self._next = 0

    def allocate(self) -> SegmentArena:
        """Return an unused arena with arbitrary content."""
        start = self._next
        if start + self._size > self._slab.nbytes or not self._slab.nbytes:
            # np.empty touches no memory: pages are allocated with the first write, so an unused rest costs nothing.
            self._slab, start = np.empty(self._slab_bytes, dtype=np.uint8).data, 0
        self._next = start + self._size
        return SegmentArena(self._slab, start, self._size)

    def cut(self, arena: SegmentArena, nbytes: int) -> SegmentArena:
        """Shorten the most recently allocated arena to `nbytes` and return it; the next one begins after it."""
        self._next = arena.start + nbytes
        return SegmentArena(arena.slab, arena.start, nbytes)


def contiguous_pieces(arenas: Sequence[SegmentArena]) -> list[memoryview]:
    """Return the bytes of the arenas in order, adjacent ones as one piece."""
    pieces: list[memoryview] = []
    first = arenas[0]
    slab, start, end = first.slab, first.start, first.start + first.nbytes
    for arena in arenas[1:]:
        if arena.slab is not slab or arena.start != end:
            pieces.append(slab[start:end])
            slab, start, end = arena.slab, arena.start, arena.start
        end += arena.nbytes
    pieces.append(slab[start:end])
    return pieces


def gather(arenas: Sequence[SegmentArena]) -> Buffer:
    """Return the arenas as one piece: a view if they are adjacent, otherwise a copy."""
    pieces = contiguous_pieces(arenas)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
