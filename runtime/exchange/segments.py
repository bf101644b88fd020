"""Segments in memory: the sender's slabs, and received ones of one message as columns.

Several segments in one message are one frame on the wire. Adjacent arenas are sent without a copy; others have to
be joined first. An arena therefore stores its slab and offset: deriving adjacency from two memoryviews would cost
more than sending a segment.

Segments received through a socket are consecutive; in a shared-memory ring each begins at its own slot. Equal
segments at equal distances form one strided array, so that a column of all of them is checked or stored in one
operation.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import numpy as np

from runtime.exchange.protocol.framing import Buffer, SegmentArena
from runtime.exchange.protocol.messages import RowColumns, SegmentRows
from runtime.exchange.protocol.segment_schema import Columns, Layout, is_finite

RECENT_EPISODES: Final = 100
"""Number of episodes in the `mean_return` of a record."""


@dataclass(slots=True)
class PolicyLag:
    """Policy lag of accepted segments since the last record, in versions."""

    minimum: int = 0
    maximum: int = 0
    total: int = 0
    segments: int = 0

    def add(self, version: int, rows: SegmentRows) -> None:
        """Add segments: how far their oldest and newest actions were behind `version`."""
        oldest, newest = rows.columns.policy_version_min, rows.columns.policy_version_max
        # Not negative: a worker reads shared weights that may be newer than the announced version.
        minimum = max(0, version - max(newest))
        self.minimum = min(self.minimum, minimum) if self.segments else minimum
        self.maximum = max(self.maximum, version - min(oldest))
        self.total += max(0, 2 * version * len(oldest) - sum(oldest) - sum(newest))
        self.segments += len(oldest)

    def min_mean_max(self) -> list[float]:
        """Return the three statistics; zeros if no segment has arrived."""
        # Each segment added two lags: of its oldest and of its newest action.
        return [self.minimum, self.total / (2 * self.segments) if self.segments else 0.0, self.maximum]


@dataclass(slots=True)
class EpisodeReturns:
    """Mean return of the latest training episodes."""

    _recent: deque[tuple[int, float]] = field(default_factory=deque)
    """(episodes, sum of their returns) of each segment in which episodes ended."""
    _episodes: int = 0
    """Number of episodes in `_recent`."""

    def add(self, rows: SegmentRows) -> None:
        """Add the episodes that ended in segments."""
        columns = rows.columns
        if not any(columns.episodes):
            return
        for episodes, return_sum in zip(columns.episodes, columns.return_sum, strict=True):
            if episodes:
                self._recent.append((episodes, return_sum))
                self._episodes += episodes
        # Whole segments are dropped, so the mean covers RECENT_EPISODES or slightly more.
        while self._episodes - self._recent[0][0] >= RECENT_EPISODES:
            self._episodes -= self._recent.popleft()[0]

    def mean(self) -> float | None:
        """Mean return of an episode, or None before the first."""
        return sum(total for _, total in self._recent) / self._episodes if self._episodes else None


class FiniteCheck:
    """Search for segments with infinite numbers or NaN, normally at the cost of one sum of squares.

    A sum of squares is finite only if all its terms are, so one sum over the floats of all segments of a message
    clears them at memory speed. Only if it is not finite, which large numbers can cause as well, each segment is
    checked number by number. The caller makes NumPy ignore overflows in its thread (`numpy.seterr`): doing so here
    would cost as much as the sum over a small message.
    """

    def __init__(self, layout: Layout) -> None:
        self._item_bytes = layout.item_bytes
        self._tail = layout.tail if layout.tail is not None and layout.tail.dtype.kind == "f" else None
        self._spans: list[tuple[np.dtype[np.generic], int, int]] = []
        """Type, first and last byte of an item's float columns; adjacent ones of one type are merged."""
        start = 0
        for field_ in layout.fields:
            end = start + field_.item_bytes
            if field_.dtype.kind == "f":
                if self._spans and self._spans[-1][0] == field_.dtype and self._spans[-1][2] == start:
                    start = self._spans.pop()[1]
                self._spans.append((field_.dtype, start, end))
            start = end

    def non_finite_segments(self, bundle: SegmentBundle) -> frozenset[int]:
        """Return the indices of the segments with numbers that are not finite."""
        has_floats = self._spans or self._tail is not None
        if not has_floats or all(map(self._has_finite_sums, bundle.uniform_parts())):
            return frozenset()
        return frozenset(index for index, columns in enumerate(bundle.segments()) if not is_finite(columns))

    def _has_finite_sums(self, bundle: SegmentBundle) -> bool:
        """Return true if the floats of segments of equal size have finite sums of squares."""
        items, tail = bundle.counts[0], bundle.tails[0]
        spans = [(dtype, items * first, items * last) for dtype, first, last in self._spans]
        if self._tail is not None and tail:
            start = items * self._item_bytes
            spans.append((self._tail.dtype, start, start + tail * self._tail.item_bytes))
        for dtype, first, last in spans:
            shape, strides = (len(bundle), (last - first) // dtype.itemsize), (bundle.stride, dtype.itemsize)
            # One row per segment: the rows are contiguous, so that vecdot runs at full speed without a copy.
            values = np.ndarray(shape, dtype, bundle.arena, first, strides)
            if not math.isfinite(sum(np.vecdot(values, values).tolist())):
                return False
        return True


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
