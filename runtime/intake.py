"""What comes in at a learner: whether its numbers can be learned from, how old it is, what it earned."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from runtime.layout import Layout, is_finite
from runtime.messages import Rows

RECENT_EPISODES: Final = 100
"""Episodes whose mean is the `mean_return` of a record."""


@dataclass(slots=True)
class Lag:
    """How many policy versions behind what came in was, since it was last looked at."""

    least: int = 0
    most: int = 0
    total: int = 0
    segments: int = 0

    def add(self, version: int, rows: Rows) -> None:
        """Count segments by how many versions their oldest and newest actions were behind `version`."""
        oldest, newest = rows.columns.policy_version_min, rows.columns.policy_version_max
        least = max(0, version - max(newest))
        self.least = min(self.least, least) if self.segments else least
        self.most = max(self.most, version - min(oldest))
        self.total += max(0, 2 * version * len(oldest) - sum(oldest) - sum(newest))
        self.segments += len(oldest)

    def figures(self) -> list[float]:
        """[min, mean, max] in versions; zeros if nothing came."""
        return [self.least, self.total / (2 * self.segments) if self.segments else 0.0, self.most]


@dataclass(slots=True)
class Returns:
    """Mean return of the latest training episodes."""

    kept: deque[tuple[int, float]] = field(default_factory=deque)
    _episodes: int = 0
    """In `kept`."""

    def add(self, rows: Rows) -> None:
        """Count the episodes that ended in segments."""
        columns = rows.columns
        if not any(columns.episodes):
            return
        for episodes, return_sum in zip(columns.episodes, columns.return_sum, strict=True):
            if episodes:
                self.kept.append((episodes, return_sum))
                self._episodes += episodes
        while self._episodes - self.kept[0][0] >= RECENT_EPISODES:
            self._episodes -= self.kept.popleft()[0]

    def mean(self) -> float | None:
        """Mean return of an episode, or None before the first."""
        return sum(total for _, total in self.kept) / self._episodes if self._episodes else None


class FiniteCheck:
    """Finds segments with numbers that are infinite or none, at the cost of one sum of squares.

    A sum of squares is finite only if all its terms are, so those over the floats of all segments of a message
    clear them all, at the speed of memory. Only where one is not finite (large numbers can do that as well) is each
    segment looked at number by number. The caller lets NumPy ignore overflows in its thread: to do so here would
    cost as much as to sum up a small message.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._item_bytes = layout.item_bytes
        self._spans: list[tuple[np.dtype[np.generic], int, int]] = []
        """Type of the float columns, and their first and last byte for one item; neighbours of a type are one."""
        start = 0
        for each in layout.fields:
            end = start + each.item_bytes
            if each.dtype.kind == "f":
                if self._spans and self._spans[-1][0] == each.dtype and self._spans[-1][2] == start:
                    start = self._spans.pop()[1]
                self._spans.append((each.dtype, start, end))
            start = end

    def spoiled(self, arena: memoryview, counts: Sequence[int]) -> frozenset[int]:
        """Return the places of the segments, of so many items each, that nothing can be learned from.

        The arena has their size in all.
        """
        are_equal = counts.count(counts[0]) == len(counts)
        if not self._spans or (are_equal and self._sums_up(arena, counts[0], len(counts))):
            return frozenset()
        found = set()
        start = 0
        for place, count in enumerate(counts):
            end = start + count * self._item_bytes
            if not is_finite(self._layout.columns(arena[start:end], count)):
                found.add(place)
            start = end
        return frozenset(found)

    def _sums_up(self, arena: memoryview, items: int, segments: int) -> bool:
        """Say whether the floats of equal segments have finite sums of squares."""
        stride = items * self._item_bytes
        for dtype, first, last in self._spans:
            shape, strides = (segments, items * (last - first) // dtype.itemsize), (stride, dtype.itemsize)
            values = np.ndarray(shape, dtype, arena, items * first, strides)
            if not math.isfinite(sum(np.vecdot(values, values).tolist())):
                return False
        return True
