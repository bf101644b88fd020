"""Priorities of a replay's rows (Schaul et al. 2016, arXiv:1511.05952, the proportional variant), as a sum tree.

If the learner's updates draw on the device, `runtime.rl.buffers.device_replay` holds them there instead.

TD errors arrive late from the device; `LatePriorities` holds their rows until then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

LEAST_ERROR: Final = 1e-6
"""Added to each error, so that rows with error 0 can still be drawn (section 3.3)."""
SAVED: Final = "priority"
SAVED_LARGEST: Final = "largest_priority"
"""Names in a checkpoint."""
Arrays = dict[str, NDArray[Any]]


class RowPriorities(Protocol):
    """Priorities of a ring's rows, in host or device memory."""

    def begin(self, slots: NDArray[np.intp], is_absent: NDArray[np.bool_]) -> None:
        """Set new consecutive rows of the ring to the largest priority so far, and padding to 0."""

    def renumber(self) -> None:
        """Follow a change of the index in the numbers of following rows."""

    def saved(self, slots: NDArray[np.intp]) -> Callable[[], Arrays]:
        """Return a function that returns a checkpoint's arrays as of now, with the priorities of ``slots``."""

    def load(self, slots: NDArray[np.intp], state: Mapping[str, NDArray[Any]], rng: np.random.Generator) -> None:
        """Load a result of `saved`, in the order of ``slots``, or an earlier version; ``rng`` has its state of that
        time.
        """


@dataclass(frozen=True, slots=True)
class Priority:
    """Weighting of rows by their TD error: P(i) ~ error ** exponent, weights (N P(i)) ** -correction."""

    exponent: float
    """Alpha in the paper; 0 draws uniformly."""
    correction: float
    """Initial beta."""
    correction_steps: int | None = None
    """Transitions over which beta rises to 1; None keeps it constant."""

    def correction_at(self, transitions: int) -> float:
        """Return beta after this many transitions, counted over all resumes of the run (section 3.4)."""
        if self.correction_steps is None:
            return self.correction
        share = min(1.0, transitions / self.correction_steps)
        return self.correction + (1.0 - self.correction) * share


class Priorities:
    """Sum tree over the priorities of a ring's rows; time to set and to draw is proportional to its depth.

    Schaul et al. 2016, section 3.3 and appendix B.2.1. Node 1 is the root, the children of node n are 2n and 2n +
    1.
    """

    def __init__(self, capacity: int) -> None:
        self._leaves = 1 << max(0, capacity - 1).bit_length()
        self._sums = np.zeros(2 * self._leaves)
        self.largest = 1.0
        """Largest priority so far. New rows get it, so that each of them is soon sampled at least once."""

    def begin(self, slots: NDArray[np.intp], is_absent: NDArray[np.bool_]) -> None:
        """See `RowPriorities.begin`."""
        self.set(slots, np.where(is_absent, 0.0, self.largest))

    def renumber(self) -> None:
        """Do nothing: `set` and `draw` do not use the numbers of following rows."""

    def saved(self, slots: NDArray[np.intp]) -> Callable[[], Arrays]:
        """See `RowPriorities.saved`."""
        # Its row may have a lower priority by now, so the largest cannot be computed from the others.
        arrays = {SAVED: self._sums[self._leaves + slots], SAVED_LARGEST: np.array(self.largest)}
        return lambda: arrays

    def load(self, slots: NDArray[np.intp], state: Mapping[str, NDArray[Any]], rng: np.random.Generator) -> None:
        """See `RowPriorities.load`."""
        del rng
        self.largest = float(state.get(SAVED_LARGEST, self.largest))
        self.set(slots, state.get(SAVED, np.full(len(slots), self.largest)))

    def set(self, slots: NDArray[np.intp], values: NDArray[Any]) -> None:
        """Set priorities of rows; for a row that occurs twice, the last value counts."""
        nodes = slots + self._leaves
        self._sums[nodes] = values
        self.largest = max(self.largest, float(values.max(initial=0.0)))
        # All rows are at the same depth, so every pass moves all of them one level up.
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
            # Rounding can put `aim` at the very end of the total: never descend into a subtree without weight.
            right = (aim >= left) & (self._sums[nodes + 1] > 0)
            aim -= np.where(right, left, 0.0)
            nodes += right
        return nodes - self._leaves, self._sums[nodes] / total


class ArrivingErrors(Protocol):
    """TD errors by device, in the order of the batch's shares; implemented by
    `runtime.rl.device.staging.HostCopy`.
    """

    def ready(self) -> bool:
        """Return True once they have arrived."""

    def numpy(self) -> Mapping[str, NDArray[Any]]:
        """Return the arrays; wait for them if necessary."""


class LatePriorities:
    """Sets priorities once their errors have arrived, at most one update late.

    If the learner waited for an update's errors, the device would be idle until the next launch. Ape-X (Horgan et
    al. 2018, arXiv:1803.00933) sets priorities even later, from another machine.
    """

    def __init__(self, set_priorities: Callable[[NDArray[np.intp], NDArray[Any]], None]) -> None:
        """`set_priorities` takes rows of the buffer and their errors."""
        self._set = set_priorities
        self._pending: tuple[NDArray[np.intp], ArrivingErrors] | None = None

    def add(self, rows: NDArray[np.intp], errors: ArrivingErrors, *, is_exact: bool) -> None:
        """Set the priorities of ``rows`` once ``errors`` have arrived; ``is_exact`` waits for them."""
        # The older errors first: for a row of both batches, the newer error counts.
        self.settle()
        self._pending = rows, errors
        if is_exact or errors.ready():
            self.settle()

    def settle(self) -> None:
        """Set pending priorities. Their update was launched one update ago, so the wait is short."""
        if self._pending is not None:
            (rows, errors), self._pending = self._pending, None
            self._set(rows, np.concatenate(list(errors.numpy().values())))
