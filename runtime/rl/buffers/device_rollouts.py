"""Rollout that is already on the learner's device: a single batch, written by the learner's own collection."""

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
    """Holds one rollout, which an update takes before the next one is collected."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._batch: RolloutBatch | None = None

    def __len__(self) -> int:
        return self._batch.reward.numel() if self._batch is not None else 0

    def offer(self, columns: Mapping[str, torch.Tensor]) -> None:
        """Keep a rollout's columns (T, N, …) by name, without a copy, for the next update."""
        self._batch = RolloutBatch(**columns)

    def take(self) -> RolloutBatch | None:
        """Remove and return the rollout; None without one."""
        batch, self._batch = self._batch, None
        return batch

    def put(self, columns: Columns) -> None:
        """Reject a worker's segment: no worker has credit to send one."""
        del columns
        raise ValueError("this learner collects by itself and accepts no segments")

    def state(self, most_bytes: int | None = None) -> dict[str, NDArray[Any]]:
        """Return nothing: between two updates the store is empty, and the collector's state contains the copies."""
        return self.cut(most_bytes).arrays()

    def cut(self, most_bytes: int | None = None) -> ConstantCut:
        """Return an empty state."""
        del most_bytes
        return ConstantCut(dict)

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Ignore the state: workers' segments in a checkpoint are older than the policy."""
