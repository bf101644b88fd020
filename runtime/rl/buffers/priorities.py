"""Priorities of a replay's rows (Schaul et al. 2016, arXiv:1511.05952, the proportional variant), as a sum tree.

A learner whose updates draw on the device has them there, `runtime.rl.buffers.device_priorities`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

LEAST_ERROR: Final = 1e-6
"""Added to each error, so that rows of no error stay reachable (section 3.3)."""
SAVED: Final = "priority"
SAVED_LARGEST: Final = "largest_priority"
"""Names in a checkpoint."""
Arrays = dict[str, NDArray[Any]]


class RowPriorities(Protocol):
    """Priorities of a ring's rows, wherever they are."""

    def begin(self, slots: NDArray[np.intp], is_absent: NDArray[np.bool_]) -> None:
        """Give new rows, consecutive ones of the ring, the largest priority so far; those of padding get 0."""

    def renumber(self) -> None:
        """Follow the index, in which the rows that follow others have other numbers."""

    def saved(self, slots: NDArray[np.intp]) -> Callable[[], Arrays]:
        """Return what gives the arrays of a checkpoint, as they are now, with the priorities of ``slots``."""

    def load(self, slots: NDArray[np.intp], state: Mapping[str, NDArray[Any]], rng: np.random.Generator) -> None:
        """Load what `saved` gave, in the order of ``slots``, or an earlier version; ``rng`` is as it was then."""


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

    def begin(self, slots: NDArray[np.intp], is_absent: NDArray[np.bool_]) -> None:
        """See `RowPriorities.begin`."""
        self.set(slots, np.where(is_absent, 0.0, self.largest))

    def renumber(self) -> None:
        """Do nothing: the index itself says what follows a row."""

    def saved(self, slots: NDArray[np.intp]) -> Callable[[], Arrays]:
        """See `RowPriorities.saved`."""
        # Its slot may have a lower one by now, so the largest cannot be told from the others.
        arrays = {SAVED: self._sums[self._leaves + slots], SAVED_LARGEST: np.array(self.largest)}
        return lambda: arrays

    def load(self, slots: NDArray[np.intp], state: Mapping[str, NDArray[Any]], rng: np.random.Generator) -> None:
        """See `RowPriorities.load`."""
        del rng
        self.largest = float(state.get(SAVED_LARGEST, self.largest))
        self.set(slots, state.get(SAVED, np.full(len(slots), self.largest)))

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
