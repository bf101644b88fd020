"""Segments in memory: the sender's slabs, and received ones of one message as columns.

Several segments in one message are one frame on the wire. Adjacent arenas are sent without a copy; others have to
be joined first. An arena therefore stores its slab and offset: deriving adjacency from two memoryviews would cost
more than sending a segment.

Segments received through a socket are consecutive; in a shared-memory ring each begins at its own slot. Equal
segments at equal distances form one strided array, so that a column of all of them is checked or stored in one
operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import numpy as np

from runtime.exchange.protocol.framing import Buffer, SegmentArena
from runtime.exchange.protocol.messages import RowColumns
from runtime.exchange.protocol.segment_schema import Columns, Layout

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


@dataclass(frozen=True, slots=True)
class SegmentBundle:
    """At least one segment in an arena, which the next message may overwrite.

    Attributes:
        counts: Items of each segment; none is 0.
        tails: Rows behind the items of each segment.
        distance: Bytes from the start of one segment to the start of the next; 0 if they are consecutive.
    """

    layout: Layout
    arena: memoryview
    counts: tuple[int, ...]
    tails: tuple[int, ...]
    distance: int = 0
    _columns: Columns | None = field(default=None, init=False, repr=False, compare=False)
    _parts: tuple[SegmentBundle, ...] = field(default=(), init=False, repr=False, compare=False)

    @classmethod
    def of(
        cls, layout: Layout, arena: memoryview, columns: RowColumns, slot_bytes: int = 0
    ) -> SegmentBundle | None:
        """Return the segments of a message; None if the arena does not have exactly their size.

        `slot_bytes` is the size of a slot if the arena is part of a ring, in which each segment has a slot.
        """
        counts, tails = columns.transitions, columns.tail
        if not all(counts):
            return None
        if not slot_bytes:
            fits = arena.nbytes == layout.item_bytes * sum(counts) + layout.tail_bytes * sum(tails)
        else:
            most = max(map(layout.segment_bytes, counts, tails))
            fits = most <= slot_bytes and arena.nbytes == slot_bytes * len(counts)
        return cls(layout, arena, counts, tails, slot_bytes) if fits else None

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def nbytes(self) -> int:
        """Size of the segments, without gaps between them."""
        return self.layout.item_bytes * sum(self.counts) + self.layout.tail_bytes * sum(self.tails)

    @property
    def is_uniform(self) -> bool:
        """True if all segments have equal numbers of items and of tail rows."""
        counts, tails = self.counts, self.tails
        return counts.count(counts[0]) == len(counts) and tails.count(tails[0]) == len(tails)

    @property
    def stride(self) -> int:
        """Bytes from one segment to the next; only for uniform segments."""
        return self.distance or self.layout.segment_bytes(self.counts[0], self.tails[0])

    def part(self, first: int, end: int) -> SegmentBundle:
        """Return the segments with indices `first` to `end - 1`."""
        if first == 0 and end == len(self):
            return self
        starts = list(self._starts())
        return SegmentBundle(
            self.layout, self.arena[starts[first] :], self.counts[first:end], self.tails[first:end], self.distance
        )

    def uniform_parts(self) -> tuple[SegmentBundle, ...]:
        """Return the longest series of segments of equal sizes, in order; only this bundle if all are equal.

        Sizes differ where an episode was truncated: by one tail row, in a few segments of a message.
        """
        if self.is_uniform:
            # Not cached: a bundle that refers to itself would keep the arena until the next garbage collection, and
            # a ring whose memory is in use cannot be closed.
            return (self,)
        if not self._parts:
            object.__setattr__(self, "_parts", tuple(self._runs()))
        return self._parts

    def _runs(self) -> Iterator[SegmentBundle]:
        start = 0
        for (count, tail), run in groupby(zip(self.counts, self.tails, strict=True)):
            segments = len(tuple(run))
            counts, tails = (count,) * segments, (tail,) * segments
            yield SegmentBundle(self.layout, self.arena[start:], counts, tails, self.distance)
            start += segments * (self.distance or self.layout.segment_bytes(count, tail))

    def segments(self) -> Iterator[Columns]:
        """Yield the columns of each segment, its tail last if the layout has one."""
        for start, count, tail in zip(self._starts(), self.counts, self.tails, strict=True):
            end = start + self.layout.segment_bytes(count, tail)
            yield self.layout.columns(self.arena[start:end], count, tail)

    def columns(self) -> Columns:
        """Return each column over all segments, (segments, items, …), the tail last; only for uniform segments."""
        if self._columns is None:
            # Cached: the store needs them when it inspects a message, and again, under the lock, when it stores it.
            object.__setattr__(self, "_columns", self._views())
        assert self._columns is not None  # noqa: S101  (set above)
        return self._columns

    def _views(self) -> Columns:
        segments, count, stride, tail = len(self), self.counts[0], self.stride, self.layout.tail
        views, start = [], 0
        for item in self.layout.fields:
            shape, strides = (segments, count, *item.shape_tail), (stride, *item.strides)
            views.append(np.ndarray(shape, item.dtype, self.arena, start, strides))
            start += count * item.strides[0]
        if tail is not None:
            shape, strides = (segments, self.tails[0], *tail.shape_tail), (stride, *tail.strides)
            views.append(np.ndarray(shape, tail.dtype, self.arena, start, strides))
        return tuple(views)

    def _starts(self) -> Iterator[int]:
        start = 0
        for count, tail in zip(self.counts, self.tails, strict=True):
            yield start
            start += self.distance or self.layout.segment_bytes(count, tail)
