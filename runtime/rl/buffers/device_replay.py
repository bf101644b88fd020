"""Replay on the learner's device: rows arrive there, and draws, weights and new priorities need no host.

Segments are copied to the device as they arrive, and batches are gathered there.

Proportional prioritised replay as in `runtime.rl.buffers.priorities` (Schaul et al. 2016, arXiv:1511.05952, section
3.3), but with the cumulative sum of all priorities instead of the sum tree: each step down a tree waits for the
previous one, while a device sums a million numbers in a few small kernels. The row that follows each transition is
stored with its priority, so that a drawn batch is gathered in one operation.

A draw and an update only launch kernels, so they can be captured. The host-side methods are called under the
exchange's lock; their copies run after all earlier launches and before later ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.exchange.protocol.segment_schema import SegmentField
from runtime.rl.buffers.priorities import LEAST_ERROR, SAVED, SAVED_LARGEST, Arrays, Priority
from runtime.rl.buffers.ring_index import RingIndex, TailMove
from runtime.rl.device.accelerator import check_generator, load_generator, saved_generators
from runtime.rl.device.staging import CopyStream, HostCopy, PinnedBuffers

ALIGNED_FROM_BYTES: Final = 1_024
"""Size of an observation from which rows are padded."""


class DeviceRows:
    """Columns of a ring as tensors: observations, and one float32 record for all other fields of a transition.

    A batch takes two gathers, one of observations with the next ones and one of records, however many fields there
    are: for small networks, launches dominate the time of an update. Actions and rewards are float32 in every
    batch.
    """

    def __init__(self, device: str, fields: tuple[SegmentField, ...], rows: int, size: int) -> None:
        """Allocate ``rows`` transitions and ``size`` observations."""
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
        self._copies.mark_read()  # Earlier computation used this memory.
        self._segments, self._draws = PinnedBuffers(self.device), PinnedBuffers(self.device)
        self._batches: dict[tuple[int, int], tuple[Tensor, ...]] = {}

    def _empty(self, shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
        """Return memory of the current stream for rows that the copy stream writes."""
        return self._copies.keep(torch.empty(shape, dtype=kind, device=self.device))

    def column(self, count: int, kind: torch.dtype) -> Tensor:
        """Return zeros for a further column; write it in the context of `writing`, read it in that of `ordered`."""
        made = self._empty((count,), kind).zero_()
        self._copies.mark_read()
        return made

    # --- in ---
    @contextmanager
    def writing(self) -> Iterator[None]:
        """Return the context in which rows are written: after all gathers so far, in parallel with the
        computation.
        """
        with self._copies.copying(), self._segments.taking():
            yield

    @contextmanager
    def joined(self) -> Iterator[None]:
        """In the block, rows may be written from tensors of the current stream, which may be freed after the
        block.
        """
        self._copies.mark_read()
        yield
        self._copies.await_copies()

    def write(self, target: Tensor, values: NDArray[Any]) -> None:
        """Copy a host array to a device tensor of the same shape, within `writing`."""
        target.copy_(self._segments.hold(values), non_blocking=True)

    def write_obs(self, first: int, values: NDArray[Any] | Tensor) -> None:
        """Write observations (S, n, …) to consecutive rows, starting at ``first``."""
        count = values.shape[0] * values.shape[1]
        target = self._obs[first : first + count]
        if isinstance(values, Tensor):
            target[:, : self._width].copy_(values.reshape(count, self._width), non_blocking=True)
        else:
            target.copy_(self._segments.hold(values.reshape(count, self._width), self._pitch), non_blocking=True)

    def write_rest(self, first: int, columns: list[NDArray[Any] | Tensor]) -> None:
        """Write all fields of transitions except observations, each (S, n, …), to rows starting at ``first``."""
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
        # Allocated on the computing stream, which gathers from it: a draw may outlive this memory, and the copy
        # stream could get memory of its own again before the gather has finished.
        self._obs = self._empty((size, self._pitch), self._kind)
        self._copies.mark_read()
        with self._copies.copying():
            self._obs[: self._rows] = before[: self._rows]
            source, target = (torch.from_numpy(rows).to(self.device) for rows in (move.source, move.target))
            self._obs[target] = before[source]

    # --- out ---
    def reader(self) -> Tensor:
        """Return the observations in their current memory."""
        return self._obs

    def gather(
        self,
        obs: Tensor,
        slots: NDArray[np.intp],
        following: NDArray[np.intp],
        weight: NDArray[Any] | None,
        number: int,
    ) -> list[Tensor]:
        """Return observations, next observations, the other columns and the weights of a batch, in memory
        ``number``.

        The next batch with the same size and number overwrites it. The host waits for nothing.
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
        """Return the context in which row numbers are sent to the device and used in gathers."""
        with self.turn(), self.ordered():
            yield

    def turn(self) -> AbstractContextManager[None]:
        """Return the context of one launch; the host waits here if it is several launches ahead of the device."""
        return self._draws.taking()

    @contextmanager
    def ordered(self) -> Iterator[None]:
        """In the block, the current stream may read and write rows: after all copies so far, before later ones."""
        self._copies.await_copies()
        yield
        self._copies.mark_read()

    def send(self, target: Tensor, values: NDArray[Any]) -> None:
        """Copy a host array to a device tensor of the same shape and type, within `drawing`."""
        target.copy_(self._draws.hold(values), non_blocking=True)

    def gathered(self, obs: Tensor, rows: Tensor) -> list[Tensor]:
        """Return the result of `gather` for ``rows`` (2 B,), slots and then their following rows, in new memory.

        It only launches kernels, so it can be captured; ``obs`` is the result of `reader`.
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
        """Return host copies of the observations in rows ``obs``, and of the other columns in ``slots``."""
        # On the stream that writes rows: all rows were written in its order, and nothing waits for the computation.
        with self._copies.on_stream():
            record = self._records[torch.from_numpy(slots).to(self.device)].cpu().numpy()
            padded = self._obs[torch.from_numpy(obs).to(self.device)].cpu().numpy()
            columns: list[NDArray[Any]] = [np.ascontiguousarray(padded[:, : self._width])]
        for start, width, field in self._parts(self._rest):
            values = record[:, start : start + width].astype(field.dtype)
            columns.append(values.reshape(len(slots), *field.shape_tail))
        return columns


def _pitch(width: int, item_bytes: int) -> int:
    """Return the length of a row for observations of ``width`` numbers.

    Torch uses wide loads to gather rows of a multiple of 16 bytes: on an H200, 512 rows of 28,256 bytes took 10
    microseconds, and of 28,248 bytes 39. For small rows the padding is not worth its memory.
    """
    if width * item_bytes < ALIGNED_FROM_BYTES or 16 % item_bytes:
        return width
    numbers = 16 // item_bytes
    return -(-width // numbers) * numbers


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
