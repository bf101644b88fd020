"""What comes in at a learner: whether its numbers can be learned from, how old it is, what it earned."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from runtime.layout import Layout, is_finite
from runtime.messages import Trajectory

RECENT_EPISODES: Final = 100
"""Episodes whose mean is the `mean_return` of a record."""


@dataclass(slots=True)
class Lag:
    """How many policy versions behind what came in was, since it was last looked at."""

    least: int = 0
    most: int = 0
    total: int = 0
    segments: int = 0

    def add(self, oldest: int, newest: int) -> None:
        """Count a segment by how many versions its oldest and newest actions were behind."""
        self.least = newest if not self.segments else min(self.least, newest)
        self.most = max(self.most, oldest)
        self.total += oldest + newest
        self.segments += 1

    def figures(self) -> list[float]:
        """[min, mean, max] in versions; zeros if nothing came."""
        return [self.least, self.total / (2 * self.segments) if self.segments else 0.0, self.most]


@dataclass(slots=True)
class Returns:
    """Mean return of the latest training episodes."""

    kept: deque[tuple[int, float]] = field(default_factory=deque)

    def add(self, segment: Trajectory) -> None:
        """Count the episodes that ended in a segment."""
        if segment.episodes:
            self.kept.append((segment.episodes, segment.return_sum))
            while sum(count for count, _ in self.kept) - self.kept[0][0] >= RECENT_EPISODES:
                self.kept.popleft()

    def mean(self) -> float | None:
        """Mean return of an episode, or None before the first."""
        count = sum(count for count, _ in self.kept)
        return sum(total for _, total in self.kept) / count if count else None


class FiniteCheck:
    """Finds segments with numbers that are infinite or none, at the cost of one sum.

    A sum is finite only if all its terms are, so one sum over the floats of all segments of a message clears them
    all. Only where it is not finite (large numbers can do that as well) is each segment looked at number by number.
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
        if min(counts) == max(counts) and self._sums_up(arena, counts[0], len(counts)):
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
        """Say whether the floats of equal segments have finite sums."""
        stride = items * self._item_bytes
        with np.errstate(all="ignore"):
            for dtype, first, last in self._spans:
                shape = segments, items * (last - first) // dtype.itemsize
                values = np.ndarray(shape, dtype, arena, items * first, (stride, dtype.itemsize))
                if not math.isfinite(np.add.reduce(values, axis=None)):
                    return False
        return True
