"""Buffer of gradients that workers computed: distributed updates.

A gradient is sent as a segment with one item and one field, (parameters,). It is therefore counted, acknowledged,
and rejected if it is older than `max_policy_lag` versions, by the same rules: asynchronous gradient descent with
bounded staleness (Ho et al. 2013, *Stale Synchronous Parallel*). A worker whose weights are older than the bound
waits for new ones before it computes. The worker's part is `runtime.rl.roles.worker_gradients`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runtime.exchange.protocol.segment_schema import Columns, Layout, SegmentField
from runtime.rl.buffers.rollout_buffer import SegmentQueue

if TYPE_CHECKING:
    import torch


def gradient_layout(floats: int) -> Layout:
    """Return the schema of a gradient of ``floats`` parameters."""
    return Layout((SegmentField("gradient", np.dtype(np.float32), (floats,)),))


class Gradients(SegmentQueue[Columns]):
    """FIFO of gradients; an update uses the mean of `count` of them."""

    noun = "gradients"

    def __init__(self, layout: Layout, count: int) -> None:
        super().__init__(layout, 1, count)

    def put(self, columns: Columns) -> None:
        """Copy in any number of gradients."""
        self._append(columns)

    def _append(self, columns: Columns) -> None:
        # Copied: the columns are views of the receive buffer, which the next message overwrites.
        for first in range(len(columns[0])):
            self._waiting.append(tuple(column[first : first + 1].copy() for column in columns))

    def _join(self, waiting: list[Columns]) -> dict[str, NDArray[Any]]:
        arrays = {}
        for number, field in enumerate(self.layout.fields):
            pieces = [columns[number] for columns in waiting]
            arrays[field.name] = np.concatenate([np.zeros((0, *field.shape_tail), field.dtype), *pieces])
        return arrays

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Load a result of `state`. Raises ValueError if the schema differs."""
        if state:
            self._check(state)
            self._append(tuple(state[name] for name in self.layout.names))

    def take(self) -> torch.Tensor | None:
        """Remove the oldest `count` gradients and return their mean, (parameters,); None while there are fewer."""
        import torch

        mean = self.take_array()
        return None if mean is None else torch.from_numpy(mean)

    def take_array(self) -> NDArray[np.float32] | None:
        """Like `take`, but returns a NumPy array, for a parameter server without torch."""
        if (oldest := self._take_oldest()) is None:
            return None
        gradients = [columns[0][0] for columns in oldest]
        mean: NDArray[np.float32] = np.mean(gradients, axis=0) if len(gradients) > 1 else gradients[0]
        return mean
