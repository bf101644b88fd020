"""Snapshots of experience that are copied out bit by bit while the store continues.

A checkpoint needs experience and counts of the same moment. Copying all rows at that moment would stop the learner
and its exchange for tens of milliseconds. Here they stop for one chunk at a time, and a writer that is about to
overwrite a row of the snapshot has it copied first (copy on write).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.exchange.protocol.segment_schema import SegmentField

CHUNK_BYTES: Final = 1024 * 1024
"""Bytes per chunk: the copy takes less than a millisecond."""
ReadRows = Callable[[NDArray[np.intp], NDArray[np.intp]], list[NDArray[Any]]]
"""(rows of transitions, rows of observations) → copies: the observations, then the other columns."""


class RingCut:
    """Copy of transitions ``first`` to ``first + n`` of a ring, with the observations that belong to them.

    Transitions are numbered from the start of the run. ``tails`` are rows of observations that no transition starts
    with. ``first_use``, ascending, is for each of them the first transition, counted from 0, that leads to it: the
    row is not overwritten while that transition is in the ring. Not thread-safe: the caller holds the ring's lock,
    except in ``columns``.
    """

    def __init__(
        self,
        read: ReadRows,
        fields: Sequence[SegmentField],
        first: int,
        slots: NDArray[np.intp],
        tails: NDArray[np.intp],
        first_use: NDArray[np.intp],
    ) -> None:
        """``fields`` are those of a transition in the ring, the observation first; ``slots`` (n,) are its rows."""
        self._read = read
        self._first = first
        self._done = 0
        self._slots, self._tails, self._first_use = slots, tails, first_use
        obs, *rest = fields
        # Not touched before rows are copied in: a large copy's pages are allocated in the writer's time.
        self._obs = np.empty((len(slots) + len(tails), *obs.shape_tail), obs.dtype)
        self._rest = [np.empty((len(slots), *field.shape_tail), field.dtype) for field in rest]
        row_bytes = sum(field.item_bytes for field in fields)
        self._chunk_rows = max(1, CHUNK_BYTES // max(1, row_bytes))

    @property
    def is_complete(self) -> bool:
        """True once every row is copied."""
        return self._done >= len(self._slots)

    def copy_next(self) -> bool:
        """Copy one chunk; return True if more is left."""
        self._copy(self._done + self._chunk_rows)
        return not self.is_complete

    def copy_before(self, number: int) -> None:
        """Copy all transitions before ``number``, because they may be overwritten next."""
        if number - self._first > self._done:
            self._copy(number - self._first)

    def copy_all(self) -> None:
        """Copy everything that is left, because rows are about to move."""
        self._copy(len(self._slots))

    def _copy(self, end: int) -> None:
        start, end, count = self._done, min(end, len(self._slots)), len(self._slots)
        low, high = np.searchsorted(self._first_use, (start, end)).tolist()
        obs, *rest = self._read(
            self._slots[start:end], np.concatenate([self._slots[start:end], self._tails[low:high]])
        )
        self._obs[start:end] = obs[: end - start]
        self._obs[count + low : count + high] = obs[end - start :]
        for copy, column in zip(self._rest, rest, strict=True):
            copy[start:end] = column
        self._done = end

    def columns(self) -> tuple[NDArray[Any], ...]:
        """Return the copied columns, observations first; they are complete once ``is_complete`` is True."""
        return self._obs, *self._rest


class ReplayCut:
    """Snapshot of a replay buffer: the columns of a ``RingCut`` by name, and data that needs no copy.

    ``arriving`` returns data that is still in transit from the device.
    """

    def __init__(
        self,
        names: Sequence[str],
        rows: RingCut,
        facts: Mapping[str, NDArray[Any]],
        arriving: Callable[[], Mapping[str, NDArray[Any]]] = dict,
    ) -> None:
        self._names = tuple(names)
        self._rows = rows
        self._facts = facts
        self._arriving = arriving

    def copy_next(self) -> bool:
        """Copy one chunk; return True if more is left."""
        return self._rows.copy_next()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state that the buffer loads, once everything is copied; needs no lock."""
        rows = dict(zip(self._names, self._rows.columns(), strict=True))
        return {**rows, **self._facts, **self._arriving()}


class ConstantCut:
    """State whose parts are never modified, such as waiting segments: nothing is copied under the lock."""

    def __init__(self, join: Callable[[], dict[str, NDArray[Any]]]) -> None:
        """`join` combines the parts into the state that the store loads."""
        self._join = join

    def copy_next(self) -> bool:
        """Return false: there is nothing to copy."""
        return False

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the joined parts; the caller needs no lock."""
        return self._join()
