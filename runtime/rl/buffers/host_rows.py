"""Rows of a replay in host memory: NumPy arrays, gathered into the tensors of a batch."""

from __future__ import annotations

import math
import mmap
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runtime.exchange.protocol.segment_schema import SegmentField
from runtime.rl.buffers.ring_index import TailMove

if TYPE_CHECKING:
    import torch

LARGE_BYTES = 2**30
"""`reserved` maps arrays of at least this size itself."""
MAP_NORESERVE = 0x4000
"""From linux/mman.h of x86 and ARM; part of `mmap` from Python 3.13 on."""


def reserved(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array whose memory is allocated as it is written. Raises MemoryError if the system does not allow
    that.

    With ``vm.overcommit_memory`` 0, Linux refuses to allocate more memory than the machine has, even if most of it
    is never touched, unless the mapping asks for no reservation: mmap(2), MAP_NORESERVE.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE_BYTES:
        return np.empty(shape, dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (MAP_NORESERVE if sys.platform == "linux" else 0)
    try:
        pages = mmap.mmap(-1, size, flags=flags)
    except OSError as error:
        raise MemoryError(f"{size / 2**30:.1f} GiB cannot be reserved: {error.strerror}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype).reshape(shape)


class HostRows:
    """Columns of a ring: observations, followed by those that no transition starts with, and the transitions' other
    fields.

    ``fields`` are a transition's, the observation first. Memory is reserved but not touched: a large ring costs
    only what it contains.
    """

    def __init__(self, fields: tuple[SegmentField, ...], rows: int, size: int, *, pinned: bool = False) -> None:
        """Reserve ``rows`` transitions and ``size`` observations; ``pinned`` batches are copied to a GPU faster."""
        obs, *rest = fields
        self._fields = fields
        self._rows = rows
        self._pinned = pinned
        self._obs = reserved((size, *obs.shape_tail), obs.dtype)
        self._columns = [reserved((rows, *field.shape_tail), field.dtype) for field in rest]
        self._batches: dict[tuple[int, int], tuple[list[NDArray[Any]], list[torch.Tensor]]] = {}

    def writing(self) -> AbstractContextManager[object]:
        """Return the context in which rows are written."""
        return nullcontext()

    def joined(self) -> AbstractContextManager[object]:
        """Return the context in which rows are written from tensors of the current stream."""
        return nullcontext()

    def write_obs(self, first: int, values: NDArray[Any]) -> None:
        """Write observations (S, n, …) to consecutive rows, starting at ``first``."""
        self._write(self._obs, first, values)

    def write_rest(self, first: int, columns: list[NDArray[Any]]) -> None:
        """Write all fields of transitions except observations, each (S, n, …), to rows starting at ``first``."""
        for column, values in zip(self._columns, columns, strict=True):
            self._write(column, first, values)

    @staticmethod
    def _write(column: NDArray[Any], first: int, values: NDArray[Any]) -> None:
        segments, count = values.shape[:2]
        if segments == 1:
            column[first : first + count] = values[0]
        else:
            column[first : first + segments * count].reshape(values.shape)[...] = values

    def resize(self, move: TailMove, size: int) -> None:
        """Make room for ``size`` observations and move those of the second ring."""
        before, self._obs = self._obs, reserved((size, *self._obs.shape[1:]), self._obs.dtype)
        self._obs[: self._rows] = before[: self._rows]
        self._obs[move.target] = before[move.source]

    def reader(self) -> NDArray[Any]:
        """Return the observations in their current memory: a batch being read is not affected when they move."""
        return self._obs

    def gather(
        self,
        obs: NDArray[Any],
        slots: NDArray[np.intp],
        following: NDArray[np.intp],
        weight: NDArray[Any] | None,
        number: int,
    ) -> list[torch.Tensor]:
        """Return observations, next observations, the other columns and the weights of a batch, in memory
        ``number``.

        The next batch with the same size and number overwrites it.
        """
        arrays, tensors = self._batches.get((len(slots), number)) or self._make_batch(len(slots), number)
        # mode="clip" writes straight into `out`; the default would use an extra buffer.
        np.take(obs, slots, axis=0, out=arrays[0], mode="clip")
        np.take(obs, following, axis=0, out=arrays[1], mode="clip")
        for column, array in zip(self._columns, arrays[2:], strict=False):
            if column.dtype == array.dtype:
                np.take(column, slots, axis=0, out=array, mode="clip")
            else:
                array[:] = column[slots]
        if weight is None:
            return tensors[:-1]
        arrays[-1][:] = weight
        return tensors

    def _make_batch(self, count: int, number: int) -> tuple[list[NDArray[Any]], list[torch.Tensor]]:
        import torch

        obs, *rest = self._fields
        kind = torch.float32 if obs.dtype == np.float32 else torch.uint8
        shapes = [((count, *obs.shape_tail), kind)] * 2
        shapes += [((count, *field.shape_tail), torch.float32) for field in rest]
        shapes.append(((count,), torch.float32))
        tensors = [torch.empty(shape, dtype=dtype, pin_memory=self._pinned) for shape, dtype in shapes]
        self._batches[count, number] = [tensor.numpy() for tensor in tensors], tensors
        return self._batches[count, number]

    def read(self, slots: NDArray[np.intp], obs: NDArray[np.intp]) -> list[NDArray[Any]]:
        """Return copies of the observations in rows ``obs``, and of the other columns in ``slots``."""
        return [self._obs[obs], *(column[slots] for column in self._columns)]
