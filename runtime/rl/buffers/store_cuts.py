"""Experience as it was at one moment, copied out little by little while its store goes on.

A checkpoint needs experience and accounts of the same moment. To copy all rows at that moment would stop the
learner and its exchange for tens of milliseconds; here they are stopped for a chunk at a time, and whoever is about
to overwrite a row of the cut lets it be copied first (copy on write).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES: Final = 1024 * 1024
"""Bytes that are copied at once: less than a millisecond."""


class RingCut:
    """Copy of the rows ``first`` to ``first + count`` of a ring's columns, oldest first.

    Rows are numbered from the beginning of the run; row n of a column is at n modulo its length. Not thread-safe:
    the caller holds the lock of the ring, except in ``columns``.
    """

    def __init__(self, columns: Sequence[NDArray[Any]], first: int, count: int) -> None:
        self._sources = tuple(columns)
        self._first = self._next = first
        self._end = first + count
        # Not touched before rows are copied in: the pages of a large copy are had in the writer's time.
        self._copies = tuple(np.empty((count, *column.shape[1:]), column.dtype) for column in columns)
        row_bytes = sum(column.dtype.itemsize * int(np.prod(column.shape[1:])) for column in columns)
        self._chunk_rows = max(1, CHUNK_BYTES // max(1, row_bytes))

    @property
    def is_complete(self) -> bool:
        """True once every row is copied."""
        return self._next >= self._end

    def copy_next(self) -> bool:
        """Copy one chunk; return true while there is more."""
        self.copy_before(self._next + self._chunk_rows)
        return not self.is_complete

    def copy_before(self, row: int) -> None:
        """Copy all rows before ``row``, which may be overwritten after this."""
        row = min(row, self._end)
        while self._next < row:
            capacity = len(self._sources[0])
            start = self._next % capacity
            count = min(row - self._next, capacity - start)
            into = self._next - self._first
            for source, copy in zip(self._sources, self._copies, strict=True):
                copy[into : into + count] = source[start : start + count]
            self._next += count

    def columns(self) -> tuple[NDArray[Any], ...]:
        """Return the copied columns; they are whole once ``is_complete`` is true."""
        return self._copies


class ReplayCut:
    """Experience of a replay buffer: columns by name, and facts if it is the buffer's whole state."""

    def __init__(
        self, names: Sequence[str], rows: RingCut, facts: Mapping[str, NDArray[Any]], first_slot: int
    ) -> None:
        self._names = tuple(names)
        self._rows = rows
        self._facts = facts
        self._first_slot = first_slot

    def copy_next(self) -> bool:
        """Copy one chunk; return true while there is more."""
        return self._rows.copy_next()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state that the buffer loads, once everything is copied; the caller needs no lock."""
        columns = self._rows.columns()
        # A whole state is in the order of the slots, so that its rows keep their places; the newest rows alone are
        # in the order of time.
        if self._facts and self._first_slot:
            columns = tuple(np.roll(column, self._first_slot, axis=0) for column in columns)
        return {**dict(zip(self._names, columns, strict=True)), **self._facts}


class ConstantCut:
    """State whose parts are never written again, such as waiting segments: nothing is copied under the lock."""

    def __init__(self, join: Callable[[], dict[str, NDArray[Any]]]) -> None:
        """`join` returns the parts as the state that the store loads."""
        self._join = join

    def copy_next(self) -> bool:
        """Return false: there is nothing to copy."""
        return False

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the joined parts; the caller needs no lock."""
        return self._join()
