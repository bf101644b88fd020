"""Policy network in NumPy behind the interface of remote inference: for small networks, without torch.

For these NumPy is faster: torch's overhead for each call exceeds the computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.rl.algos.actor import ActorShape, NumpyActor


class NumpyPolicy:
    """Forward pass of `NumpyActor`, a `PolicyNetwork` of remote inference."""

    def __init__(self, shape: ActorShape, most_rows: int) -> None:
        self._actor = NumpyActor(shape)
        self.weights: NDArray[np.float32] = self._actor.weights
        """(shape.size,) the actor's own: what is written here is used."""
        # np.empty reserves memory without touching it: only rows that come cost any.
        self.buffers: Sequence[NDArray[Any]] = [np.empty((most_rows, shape.obs_dim), shape.obs_space.dtype)]
        """(most rows, obs_dim) memory for the observations of a batch."""
        self._outputs: NDArray[np.float32] = np.zeros((0, shape.answer_floats), np.float32)

    def refresh(self) -> None:
        """Do nothing: the weights are used where they lie."""

    def begin(self, slot: int, count: int) -> None:
        """Compute the first ``count`` rows of ``buffers[slot]``."""
        self._outputs = self._actor.outputs(self.buffers[slot][:count])

    def finish(self, slot: int) -> NDArray[np.float32]:
        """Return the outputs (count, ``shape.answer_floats``)."""
        del slot  # there is one
        return self._outputs
