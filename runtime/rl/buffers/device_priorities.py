"""Priorities of a replay's rows on the learner's device: draws, weights and new priorities without the host.

Proportional prioritised replay as in `runtime.rl.buffers.priorities` (Schaul et al. 2016, arXiv:1511.05952, section
3.3), but with the cumulative sum of all priorities instead of the sum tree: each step down a tree waits for the
previous one, while a device sums a million numbers in a few small kernels. The row that follows each transition is
stored with its priority, so that a drawn batch is gathered in one operation.

A draw and an update only launch kernels, so they can be captured. The host-side methods are called under the
exchange's lock; their copies run after all earlier launches and before later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.rl.buffers.device_rows import DeviceRows
from runtime.rl.buffers.priorities import LEAST_ERROR, SAVED, SAVED_LARGEST, Arrays, Priority
from runtime.rl.buffers.ring_index import RingIndex
from runtime.rl.device.generators import check_generator, load_generator, saved_generators
from runtime.rl.device.staging import HostCopy

DRAWS: Final = "draw_generator"
"""Name of the generator's state in a checkpoint."""
_LEAST: Final = 1e-300
"""Replaces a priority of 0 in a weight. Those rows are drawn only through rounding."""


class DevicePriorities:
    """Priorities and following rows of all rows of a ring. In float64, sums of millions are exact enough to draw
    the smallest priorities.
    """

    def __init__(self, priority: Priority, rows: DeviceRows, index: RingIndex, seed: int) -> None:
        self._priority = priority
        self._rows = rows
        self._index = index
        self.generator = torch.Generator(rows.device).manual_seed(seed)
        self._values = rows.column(index.rows, torch.float64)
        self._following = rows.column(index.rows, torch.int64)
        self._largest = rows.column(1, torch.float64).fill_(1.0)
        self._newest, self._correction = rows.column(1, torch.int64), rows.column(1, torch.float64)
        self._sent = (0, 0.0)
        """Last row that holds a transition, and beta, as stored on the device."""

    # --- the device's side ---
    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors that an update changes."""
        return self._values, self._largest

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Return (2 count,) rows, transitions and then their following rows, and (count,) importance weights.

        One row from each of ``count`` equal strata of the total, in ascending order (appendix B.2.1).
        """
        sums = self._values.cumsum(0)
        strata = torch.arange(count, dtype=torch.float64, device=sums.device)
        numbers = torch.rand(count, dtype=torch.float64, device=sums.device, generator=self.generator)
        aims = (strata + numbers) * (sums[-1] / count)
        # Rounding can put an aim at the very end of the total.
        slots = torch.minimum(torch.searchsorted(sums, aims, right=True), self._newest)
        chosen = self._values.index_select(0, slots).clamp_min_(_LEAST)
        # (N P) ** -beta divided by the largest of the batch (section 3.4); N and the total cancel out.
        weight = (chosen.min() / chosen).pow(self._correction).float()
        return torch.cat([slots, self._following.index_select(0, slots)]), weight

    def update(self, slots: Tensor, td_error: Tensor) -> None:
        """Set the priorities of a batch's rows, as `draw` returned them, from its absolute TD error (count,)."""
        values = (td_error + LEAST_ERROR).pow(self._priority.exponent).double()
        # If a row was drawn several times, its last value counts. Such rows are neighbours, and all of them get the
        # same value, because writes are not ordered like the batch.
        last = torch.searchsorted(slots, slots, right=True) - 1
        self._values.index_copy_(0, slots, values.index_select(0, last))
        torch.maximum(self._largest, values.max(), out=self._largest)

    # --- the host's side ---
    def begin(self, slots: NDArray[np.intp], is_absent: NDArray[np.bool_]) -> None:
        """See `RowPriorities.begin`; also sends the rows that follow."""
        with self._rows.writing():
            start = 0
            while start < len(slots):  # in two pieces where they reach over the end of the ring
                first = int(slots[start])
                count = min(len(slots) - start, self._index.rows - first)
                self._rows.write(
                    self._following[first : first + count], self._index.following[first : first + count]
                )
                values, absent = self._values[first : first + count], is_absent[start : start + count]
                if absent.any():
                    self._rows.write(values, np.where(absent, 0.0, 1.0))
                    values.mul_(self._largest)
                else:
                    values.copy_(self._largest.expand(count))
                start += count
            self._send_moment()

    def _send_moment(self) -> None:
        """Send the values that depend on the number of transitions, if they changed."""
        moment = len(self._index) - 1, self._priority.correction_at(self._index.inserted)
        if moment != self._sent:
            self._sent = moment
            self._rows.write(self._newest, np.array(moment[:1]))
            self._rows.write(self._correction, np.array(moment[1:]))

    def renumber(self) -> None:
        """See `RowPriorities.renumber`: send the following row of all rows."""
        with self._rows.writing():
            self._rows.write(self._following, self._index.following)

    def saved(self, slots: NDArray[np.intp]) -> Callable[[], Arrays]:
        """See `RowPriorities.saved`."""
        with self._rows.ordered():
            copy = HostCopy({SAVED: self._values, SAVED_LARGEST: self._largest})
        generators = {name: state.numpy() for name, state in saved_generators({DRAWS: self.generator}).items()}

        def arrays() -> Arrays:
            arrived = copy.numpy()
            return {SAVED: arrived[SAVED][slots], SAVED_LARGEST: arrived[SAVED_LARGEST][0], **generators}

        return arrays

    def load(self, slots: NDArray[np.intp], state: Mapping[str, NDArray[Any]], rng: np.random.Generator) -> None:
        """See `RowPriorities.load`. A checkpoint of a learner that drew on the host seeds the generator."""
        largest = state.get(SAVED_LARGEST, np.ones(()))
        values = np.zeros(self._index.rows)
        values[slots] = state.get(SAVED, np.full(len(slots), largest))
        with self._rows.writing():
            self._rows.write(self._values, values)
            self._rows.write(self._largest, largest.reshape(1))
        if DRAWS in state:
            saved = {name: torch.from_numpy(array) for name, array in state.items() if name.startswith(DRAWS)}
            check_generator(DRAWS, self.generator, saved)
            load_generator(DRAWS, self.generator, saved)
        else:
            self.generator.manual_seed(int(rng.integers(2**63)))
