"""Distributed update: workers compute gradients where the data is, and the learner applies them.

A gradient travels as any segment does: one item whose one field is the slope in every parameter. So it is counted,
acknowledged, and refused when it is older than `max_policy_lag` versions, by the same rules; asynchronous descent
with bounded staleness (Ho et al. 2013) is nothing else. A worker whose weights are older than the bound waits for
new ones before it computes. What a worker does is in `runtime.gradient_work`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runtime.layout import Columns, Field, Layout

if TYPE_CHECKING:
    import torch


def gradient_layout(floats: int) -> Layout:
    """Lay out a gradient."""
    return Layout((Field("gradient", np.dtype(np.float32), (floats,)),))


class Gradients:
    """Gradients wait in the order in which they came in, until an update takes `count` of them."""

    def __init__(self, layout: Layout, count: int) -> None:
        self.layout = layout
        self._count = count
        self._waiting: deque[NDArray[np.float32]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, columns: Columns) -> None:
        """Copy gradients in."""
        self._waiting.extend(columns[0].copy())

    def take(self) -> torch.Tensor | None:
        """Return the mean of the oldest `count` gradients, once there are as many; they are gone then."""
        import torch

        taken = self.take_array()
        return None if taken is None else torch.from_numpy(taken)

    def take_array(self) -> NDArray[np.float32] | None:
        """Return what `take` does, for whoever needs no torch."""
        if len(self._waiting) < self._count:
            return None
        taken = [self._waiting.popleft() for _ in range(self._count)]
        mean: NDArray[np.float32] = np.mean(taken, axis=0) if len(taken) > 1 else taken[0]
        return mean

    def state(self, most_bytes: int | None = None) -> dict[str, NDArray[Any]]:
        """Copies of the gradients that wait; they are few, so `most_bytes` is not asked."""
        del most_bytes
        (field,) = self.layout.fields
        return {field.name: np.array(self._waiting, dtype=np.float32).reshape(-1, *field.shape_tail)}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `state` gave. ValueError if it is of another layout."""
        if not state:
            return
        (field,) = self.layout.fields
        saved = state.get(field.name, np.zeros(0))
        if saved.shape[1:] != field.shape_tail or saved.dtype != field.dtype:
            raise ValueError(
                f"the saved gradients are {saved.dtype} {saved.shape}; this run has {field.shape_tail}"
            )
        self.put((saved,))
