"""Rows of a replay on the device that learns: segments are copied there as they come, batches are gathered
there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.exchange.protocol.segment_schema import SegmentField
from runtime.rl.buffers.ring_index import TailMove
from runtime.rl.device.staging import CopyStream, PinnedBuffers

ALIGNED_FROM_BYTES: Final = 1_024
"""Size of an observation from which on rows are padded."""


class DeviceRows:
    """Columns of a ring as tensors: observations, and one record of float32 for all else that a transition has.

    A batch is two gathers, observations with the next ones and records, however many fields there are: for small
    networks the launches of an update are its time. Actions and rewards are float32 in every batch anyway.
    """

    def __init__(self, device: str, fields: tuple[SegmentField, ...], rows: int, size: int) -> None:
        """``rows`` transitions and ``size`` observations, both allocated at once."""
        obs, *rest = fields
        self._width = math.prod(obs.shape_tail)
        self._pitch = _pitch(self._width, obs.dtype.itemsize)
        self.device = torch.device(device)
        self._kind = torch.from_numpy(np.empty(0, obs.dtype)).dtype
        self._rest = rest
        self._widths = [int(np.prod(field.shape_tail)) for field in rest]
        self._rows = rows
        self._copies = CopyStream(self.device)
        self._obs = self._empty((size, self._pitch), self._kind)
        self._records = self._empty((rows, sum(self._widths)), torch.float32)
        self._copies.mark_read()  # what was computed before in the memory above
        self._segments, self._draws = PinnedBuffers(self.device), PinnedBuffers(self.device)
        self._batches: dict[tuple[int, int], tuple[Tensor, ...]] = {}

    def _empty(self, shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
        """Return memory of the present stream for rows that the stream of copies writes."""
        return self._copies.keep(torch.empty(shape, dtype=kind, device=self.device))

    def column(self, count: int, kind: torch.dtype) -> Tensor:
        """Return zeros beside the rows, to be written in the context of `writing` and read in that of `ordered`."""
        made = self._empty((count,), kind).zero_()
        self._copies.mark_read()
        return made

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

    def write(self, target: Tensor, values: NDArray[Any]) -> None:
        """Copy an array of the host to a tensor of its shape on the device, within `writing`."""
        target.copy_(self._segments.hold(values), non_blocking=True)

    def write_obs(self, first: int, values: NDArray[Any] | Tensor) -> None:
        """Write observations (S, n, …) to consecutive rows from ``first`` on."""
        count = values.shape[0] * values.shape[1]
        target = self._obs[first : first + count]
        if isinstance(values, Tensor):
            target[:, : self._width].copy_(values.reshape(count, self._width), non_blocking=True)
        else:
            target.copy_(self._segments.hold(values.reshape(count, self._width), self._pitch), non_blocking=True)

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
        self._obs = self._empty((size, self._pitch), self._kind)
        self._copies.mark_read()
        with self._copies.copying():
            self._obs[: self._rows] = before[: self._rows]
            source, target = (torch.from_numpy(rows).to(self.device) for rows in (move.source, move.target))
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
        with self.drawing():
            self.send(rows, np.concatenate([slots, following]))
            if weight is not None:
                self.send(weights, weight.astype(np.float32))
            torch.index_select(obs, 0, rows, out=pair)
            torch.index_select(self._records, 0, rows[:count], out=record)
        tensors = self._columns(pair, record)
        return tensors if weight is None else [*tensors, weights]

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Return the context of row numbers that are sent to the device, and of the gathers by them."""
        with self.turn(), self.ordered():
            yield

    def turn(self) -> AbstractContextManager[None]:
        """Return the context of one launch; the host waits here if it is several ahead of the device."""
        return self._draws.taking()

    @contextmanager
    def ordered(self) -> Iterator[None]:
        """Let the present stream read and write rows in the block: behind all copies so far, before later ones."""
        self._copies.await_copies()
        yield
        self._copies.mark_read()

    def send(self, target: Tensor, values: NDArray[Any]) -> None:
        """Copy an array of the host to a tensor of its shape and type on the device, within `drawing`."""
        target.copy_(self._draws.hold(values), non_blocking=True)

    def gathered(self, obs: Tensor, rows: Tensor) -> list[Tensor]:
        """Return what `gather` does for ``rows`` (2 B,), slots and what follows them, in memory of its own.

        It only launches kernels, so it can be captured; ``obs`` is what `reader` returned.
        """
        pair, record = obs.index_select(0, rows), self._records.index_select(0, rows[: len(rows) // 2])
        return self._columns(pair, record)

    def _columns(self, pair: Tensor, record: Tensor) -> list[Tensor]:
        count = len(record)
        pair = pair[:, : self._width]
        tensors = [pair[:count], pair[count:]]
        for start, width, field in self._parts(self._rest):
            part = record[:, start : start + width]
            tensors.append(part if field.shape_tail else part.squeeze(1))
        return tensors

    def _make_batch(self, count: int, number: int) -> tuple[Tensor, ...]:
        rows = torch.empty(2 * count, dtype=torch.int64, device=self.device)
        pair = torch.empty((2 * count, self._pitch), dtype=self._kind, device=self.device)
        record = torch.empty((count, sum(self._widths)), device=self.device)
        self._batches[count, number] = rows, pair, record, torch.empty(count, device=self.device)
        return self._batches[count, number]

    def read(self, slots: NDArray[np.intp], obs: NDArray[np.intp]) -> list[NDArray[Any]]:
        """Return copies on the host of the observations in rows ``obs``, and of the other columns in ``slots``."""
        # On the stream that writes: all rows are written in its order, and nothing here waits for the computation.
        with self._copies.on_stream():
            record = self._records[torch.from_numpy(slots).to(self.device)].cpu().numpy()
            padded = self._obs[torch.from_numpy(obs).to(self.device)].cpu().numpy()
            columns: list[NDArray[Any]] = [np.ascontiguousarray(padded[:, : self._width])]
        for start, width, field in self._parts(self._rest):
            values = record[:, start : start + width].astype(field.dtype)
            columns.append(values.reshape(len(slots), *field.shape_tail))
        return columns


def _pitch(width: int, item_bytes: int) -> int:
    """Return the numbers in a row for observations of ``width`` numbers.

    Torch gathers rows of a multiple of 16 bytes by wide loads: 512 of 28,256 bytes took 10 microseconds on an H200,
    and of 28,248 bytes 39. Small rows are not worth the memory.
    """
    if width * item_bytes < ALIGNED_FROM_BYTES or 16 % item_bytes:
        return width
    numbers = 16 // item_bytes
    return -(-width // numbers) * numbers
