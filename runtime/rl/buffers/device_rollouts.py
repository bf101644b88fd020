"""Rollout that lies on the learner's device already: one batch, written by the learner's own collection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from runtime.exchange.protocol.segment_schema import Columns, Layout
from runtime.rl.buffers.rollout_buffer import RolloutBatch
from runtime.rl.buffers.store_cuts import ConstantCut

if TYPE_CHECKING:
    import torch


class DeviceRollouts:
    """Room for one rollout, which an update takes before the next one is collected."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._batch: RolloutBatch | None = None

    def __len__(self) -> int:
        return self._batch.reward.numel() if self._batch is not None else 0

    def offer(self, columns: Mapping[str, torch.Tensor]) -> None:
        """Hold a rollout's columns (T, N, …) by name, where they are, for the next update."""
        self._batch = RolloutBatch(**columns)

    def take(self) -> RolloutBatch | None:
        """Remove and return the rollout; None if there is none."""
        batch, self._batch = self._batch, None
        return batch

    def put(self, columns: Columns) -> None:
        """Refuse a worker's segment: nobody has credit to send one."""
        del columns
        raise ValueError("this learner collects by itself and takes no segments")

    def state(self, most_bytes: int | None = None) -> dict[str, NDArray[Any]]:
        """Return nothing: between two updates the store is empty, and the copies are in the collector's state."""
        return self.cut(most_bytes).arrays()

    def cut(self, most_bytes: int | None = None) -> ConstantCut:
        """Return an empty state."""
        del most_bytes
        return ConstantCut(dict)

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take nothing over: segments of workers in a checkpoint are older than the policy."""
