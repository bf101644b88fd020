"""Replay of sequences for policies with memory: a batch contains whole segments of some copies and their first
states.

The ring stores transitions: a segment of T steps of N copies uses T * N consecutive rows in time order, so
consecutive steps of a copy are N rows apart. The state at the start of a segment is spread over the steps of its
copy (`runtime.rl.algos.memory.spread_states`), and is restored from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runtime.exchange.protocol.segment_schema import Columns, Layout
from runtime.exchange.segments import SegmentBundle
from runtime.rl.buffers.host_rows import HostRows
from runtime.rl.buffers.replay import Batch, Replay, RowsFactory
from runtime.rl.buffers.ring_index import ABSENT, common_copies, copies_in

if TYPE_CHECKING:
    import torch


class SequenceReplay(Replay):
    """The latest ``capacity`` transitions, sampled as sequences, uniformly and with replacement.

    All segments have the same number of copies and steps, ``segment``, and ``capacity`` is at least one segment.
    The oldest segment can be drawn until its first row is overwritten.
    """

    def __init__(
        self, capacity: int, layout: Layout, seed: int, *, segment: tuple[int, int], rows: RowsFactory = HostRows
    ) -> None:
        super().__init__(capacity, layout, seed, rows=rows, segment=segment)
        self.sequence = segment
        self._copies, self._steps = segment
        self._has_padding = False
        """True from the first padding on, even if its segment was overwritten since."""

    def faulty_segments(self, bundle: SegmentBundle) -> frozenset[int]:
        """Return the indices of segments of another size, or whose tails do not match their ends."""
        faulty, first = set(super().faulty_segments(bundle)), 0
        for part in bundle.uniform_parts():
            columns = part.columns()
            ended, tail = columns[3], columns[-1].shape[1]
            fits = (ended.shape[1] == self._copies * self._steps) & (copies_in(ended, tail) == self._copies)
            faulty.update((first + np.flatnonzero(~fits)).tolist())
            first += len(part)
        return frozenset(faulty)

    def put(self, columns: Columns) -> None:
        """Insert one segment, over the oldest transitions if full. Raises ValueError for another size."""
        ended = columns[3][None]
        if ended.size != self._copies * self._steps or common_copies(ended, len(columns[-1])) != self._copies:
            raise ValueError(
                f"replay: {ended.size} transitions are no segment of {self._steps} steps of {self._copies} copies"
            )
        super().put(columns)

    def put_saved(self, columns: list[NDArray[Any]], following: NDArray[np.intp], tail: NDArray[Any]) -> None:
        """Insert a saved history, whose last column is ``ended``; see `Replay.put_saved`."""
        super().put_saved(columns, following, tail)
        self._has_padding |= bool((columns[-1] == ABSENT).any())

    def _begin_draws(self, count: int, absent: NDArray[np.bool_] | None) -> None:  # noqa: ARG002  (drawn evenly)
        self._has_padding |= absent is not None

    def _drawn(self, batch_size: int) -> tuple[NDArray[np.intp], NDArray[np.float64] | None]:
        count = self._copies * self._steps
        segments, overwritten = divmod(len(self), count)
        segment, copy = divmod(
            self.rng.integers(segments * self._copies, size=max(1, batch_size // self._steps)), self._copies
        )
        ages = overwritten + count * segment[:, None] + copy[:, None] + self._copies * np.arange(self._steps)
        return self.index.slots(ages.reshape(-1)), None

    def batch_of(self, tensors: list[torch.Tensor]) -> Batch:
        """Return the batch of whole sequences; see `Replay.batch_of`."""
        *transitions, state, ended = tensors
        # The parts of a state are in consecutive steps of its copy; this joins them to one row.
        states = state.reshape(-1, self._steps * state.shape[1])
        absent = ended == ABSENT if self._has_padding else None
        return replace(super().batch_of(transitions), ended=ended, state=states, absent=absent)
