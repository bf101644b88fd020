"""Rows of a replay on the device that learns: segments are copied there as they come, batches are gathered
there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.exchange.protocol.segment_schema import SegmentField
from runtime.rl.buffers.ring_index import TailMove
from runtime.rl.device.staging import CopyStream, PinnedBuffers


class DeviceRows:
    """Columns of a ring as tensors: observations, and one record of float32 for all else that a transition has.

    A batch is two gathers, observations with the next ones and records, however many fields there are: for small
    networks the launches of an update are its time. Actions and rewards are float32 in every batch anyway.
    """

    def __init__(self, device: str, fields: tuple[SegmentField, ...], rows: int, size: int) -> None:
        """``rows`` transitions and ``size`` observations, both allocated at once."""
        obs, *rest = fields
        self._device = torch.device(device)
        self._kind = torch.from_numpy(np.empty(0, obs.dtype)).dtype
        self._rest = rest
        self._widths = [int(np.prod(field.shape_tail)) for field in rest]
        self._rows = rows
        self._copies = CopyStream(self._device)
        self._obs = self._empty((size, *obs.shape_tail), self._kind)
        self._records = self._empty((rows, sum(self._widths)), torch.float32)
        self._copies.mark_read()  # what was computed before in the memory above
        self._segments, self._draws = PinnedBuffers(self._device), PinnedBuffers(self._device)
        self._batches: dict[tuple[int, int], tuple[Tensor, ...]] = {}

    def _empty(self, shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
        """Return memory of the present stream for rows that the stream of copies writes."""
        return self._copies.keep(torch.empty(shape, dtype=kind, device=self._device))

    # --- in ---
    @contextmanager
    def writing(self) -> Iterator[None]:
        """Return the context in which rows are written: behind the gathers so far, beside the computation."""
        with self._copies.copying(), self._segments.taking():
            yield

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Let the rows of the block be written from tensors of the present stream, which may be freed behind it."""
        self._copies.mark_read()
        yield
        self._copies.await_copies()

    def write_obs(self, first: int, values: NDArray[Any] | Tensor) -> None:
        """Write observations (S, n, …) to consecutive rows from ``first`` on."""
        count = values.shape[0] * values.shape[1]
        source = values if isinstance(values, Tensor) else self._segments.hold(values)
        self._obs[first : first + count].copy_(source.flatten(0, 1), non_blocking=True)

    def write_rest(self, first: int, columns: list[NDArray[Any] | Tensor]) -> None:
        """Write what transitions have beside observations, each (S, n, …), to rows from ``first`` on."""
        segments, count = columns[0].shape[:2]
        target = self._records[first : first + segments * count]
        if all(not isinstance(column, Tensor) for column in columns):
            record = np.empty((segments, count, sum(self._widths)), dtype=np.float32)
            for start, width, column in self._parts(columns):
                record[:, :, start : start + width] = np.asarray(column).reshape(segments, count, width)
            target.copy_(self._segments.hold(record).flatten(0, 1), non_blocking=True)
            return
        for start, width, column in self._parts(columns):
            source = column if isinstance(column, Tensor) else self._segments.hold(column)
            target[:, start : start + width].copy_(source.reshape(-1, width), non_blocking=True)

    def _parts(self, columns: list[Any]) -> Iterator[tuple[int, int, Any]]:
        start = 0
        for width, column in zip(self._widths, columns, strict=True):
            yield start, width, column
            start += width

    def resize(self, move: TailMove, size: int) -> None:
        """Make room for ``size`` observations and move those of the second ring."""
        before = self._obs
        # Allocated on the computing stream, which gathers from it: a draw may outlive this memory, and what the
        # stream of copies allocates it could be given again before the gather is done.
        self._obs = self._empty((size, *before.shape[1:]), self._kind)
        self._copies.mark_read()
        with self._copies.copying():
            self._obs[: self._rows] = before[: self._rows]
            source, target = (torch.from_numpy(rows).to(self._device) for rows in (move.source, move.target))
            self._obs[target] = before[source]

    # --- out ---
    def reader(self) -> Tensor:
        """Return the observations as they are now."""
        return self._obs

    def gather(
        self,
        obs: Tensor,
        slots: NDArray[np.intp],
        following: NDArray[np.intp],
        weight: NDArray[Any] | None,
        number: int,
    ) -> list[Tensor]:
        """Return observations, next ones, the other columns and the weights of a batch, in memory ``number``.

        It is overwritten by the next batch of that size and number. The host waits for nothing.
        """
        count = len(slots)
        rows, pair, record, weights = self._batches.get((count, number)) or self._make_batch(count, number)
        self._copies.await_copies()
        with self._draws.taking():
            rows.copy_(self._draws.hold(np.concatenate([slots, following])), non_blocking=True)
            if weight is not None:
                weights.copy_(self._draws.hold(weight.astype(np.float32)), non_blocking=True)
        torch.index_select(obs, 0, rows, out=pair)
        torch.index_select(self._records, 0, rows[:count], out=record)
        self._copies.mark_read()
        tensors = [pair[:count], pair[count:]]
        for start, width, field in self._parts(self._rest):
            part = record[:, start : start + width]
            tensors.append(part if field.shape_tail else part.squeeze(1))
        return tensors if weight is None else [*tensors, weights]

    def _make_batch(self, count: int, number: int) -> tuple[Tensor, ...]:
        rows = torch.empty(2 * count, dtype=torch.int64, device=self._device)
        pair = torch.empty((2 * count, *self._obs.shape[1:]), dtype=self._kind, device=self._device)
        record = torch.empty((count, sum(self._widths)), device=self._device)
        self._batches[count, number] = rows, pair, record, torch.empty(count, device=self._device)
        return self._batches[count, number]

    def read(self, slots: NDArray[np.intp], obs: NDArray[np.intp]) -> list[NDArray[Any]]:
        """Return copies on the host of the observations in rows ``obs``, and of the other columns in ``slots``."""
        # On the stream that writes: all rows are written in its order, and nothing here waits for the computation.
        with self._copies.on_stream():
            record = self._records[torch.from_numpy(slots).to(self._device)].cpu().numpy()
            columns: list[NDArray[Any]] = [self._obs[torch.from_numpy(obs).to(self._device)].cpu().numpy()]
        for start, width, field in self._parts(self._rest):
            values = record[:, start : start + width].astype(field.dtype)
            columns.append(values.reshape(len(slots), *field.shape_tail))
        return columns
