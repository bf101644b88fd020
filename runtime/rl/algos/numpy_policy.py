"""Policy network in NumPy with the interface of remote inference: for small networks, without torch.

For these NumPy is faster: torch's overhead per call exceeds the computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.rl.algos.actor import ActorShape, NumpyActor


class NumpyPolicy:
    """Forward pass of `NumpyActor`, as a `PolicyNetwork` for remote inference."""

    def __init__(self, shape: ActorShape, most_rows: int) -> None:
        self._actor = NumpyActor(shape)
        self.weights: NDArray[np.float32] = self._actor.weights
        """(shape.size,) the actor's own array: written values take effect directly."""
        # np.empty reserves memory without touching it: only used rows cost memory.
        self.buffers: Sequence[NDArray[Any]] = [np.empty((most_rows, shape.obs_dim), shape.obs_space.dtype)]
        """(maximum rows, obs_dim) memory for the observations of a batch."""
        self._outputs: NDArray[np.float32] = np.zeros((0, shape.answer_floats), np.float32)

    def refresh(self) -> None:
        """Do nothing: the weights are used in place."""

    def begin(self, slot: int, count: int) -> None:
        """Compute the first ``count`` rows of ``buffers[slot]``."""
        self._outputs = self._actor.outputs(self.buffers[slot][:count])

    def finish(self, slot: int) -> NDArray[np.float32]:
        """Return the outputs (count, ``shape.answer_floats``)."""
        del slot  # there is only one
        return self._outputs
