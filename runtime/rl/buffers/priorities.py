"""Priorities of a replay's rows as a sum tree (Schaul et al. 2016, arXiv:1511.05952, the proportional variant)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Priority:
    """Weighting of rows by their TD error: P(i) ~ error ** exponent, weights (N P(i)) ** -correction."""

    exponent: float
    """Alpha of the paper; 0 draws evenly."""
    correction: float
    """Beta at the start."""
    correction_steps: int | None = None
    """Transitions over which beta rises to 1; None keeps it."""

    def correction_at(self, transitions: int) -> float:
        """Return beta once so many transitions have come in, over all resumes of the run (section 3.4)."""
        if self.correction_steps is None:
            return self.correction
        share = min(1.0, transitions / self.correction_steps)
        return self.correction + (1.0 - self.correction) * share


class Priorities:
    """Sum tree over the priorities of a ring's rows; setting and sampling cost its depth.

    Schaul et al. 2016, section 3.3 and appendix B.2.1. Node 1 is the root, the children of node n are 2n and 2n +
    1.
    """

    def __init__(self, capacity: int) -> None:
        self._leaves = 1 << max(0, capacity - 1).bit_length()
        self._sums = np.zeros(2 * self._leaves)
        self.largest = 1.0
        """Largest priority so far. New rows get it, so that each is sampled at least once soon."""

    def set(self, slots: NDArray[np.intp], values: NDArray[Any]) -> None:
        """Set priorities of rows; where a row is named twice the last value counts."""
        nodes = slots + self._leaves
        self._sums[nodes] = values
        self.largest = max(self.largest, float(values.max(initial=0.0)))
        # All rows are at the same depth, so every pass moves the whole set one level up.
        while nodes[0] > 1:
            nodes = np.unique(nodes >> 1)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def draw(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Return rows, one from each of ``count`` equal strata of the total, and their probabilities."""
        total = self._sums[1]
        aim = (np.arange(count) + rng.random(count)) * (total / count)
        nodes = np.ones(count, dtype=np.intp)
        while nodes[0] < self._leaves:
            nodes *= 2
            left = self._sums[nodes]
            # Rounding can leave `aim` at the very end of the total: never descend into a subtree without weight.
            right = (aim >= left) & (self._sums[nodes + 1] > 0)
            aim -= np.where(right, left, 0.0)
            nodes += right
        return nodes - self._leaves, self._sums[nodes] / total

    def values(self, count: int) -> NDArray[np.float64]:
        """Return the priorities of the first ``count`` rows."""
        return self._sums[self._leaves : self._leaves + count].copy()
