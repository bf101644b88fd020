"""Validation and statistics of incoming segments at a learner: finite numbers, policy lag, returns."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from runtime.exchange.protocol.messages import SegmentRows
from runtime.exchange.protocol.segment_schema import Layout, is_finite
from runtime.exchange.segments import SegmentBundle

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
