"""FIFO of segments that are used once, in order: base class of the rollout and gradient stores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from runtime.exchange.protocol.segment_schema import Columns, Layout
from runtime.rl.buffers.store_cuts import ConstantCut

SegmentT = TypeVar("SegmentT")


class SegmentQueue(ABC, Generic[SegmentT]):
    """FIFO of segments of ``segment_transitions`` items; an update takes the oldest ``count``."""

    noun: ClassVar[str]
    """Plural noun for a segment's contents, for error messages."""

    def __init__(self, layout: Layout, segment_transitions: int, count: int) -> None:
        self.layout = layout
        self._segment_transitions = segment_transitions
        self._count = count
        self._waiting: deque[SegmentT] = deque()

    def __len__(self) -> int:
        return len(self._waiting) * self._segment_transitions

    def put(self, columns: Columns) -> None:
        """Copy in one segment. Raises ValueError if it is not full."""
        if not self._is_full(len(columns[0])):
            size = self._segment_transitions
            raise ValueError(f"{self.noun} come in segments of {size} items, not {len(columns[0])}")
        self._append(columns)

    def _is_full(self, count: int) -> bool:
        """Return True if that many items make a full segment."""
        return count == self._segment_transitions

    @abstractmethod
    def _append(self, columns: Columns) -> None:
        """Copy full segments in."""

    def _take_oldest(self) -> list[SegmentT] | None:
        """Remove and return the oldest ``count`` segments; None if there are fewer."""
        if len(self._waiting) < self._count:
            return None
        return [self._waiting.popleft() for _ in range(self._count)]

    def state(self, most_bytes: int | None = None) -> dict[str, NDArray[Any]]:
        """Return copies of all waiting segments, concatenated; they are few, so ``most_bytes`` has no effect."""
        return self.cut(most_bytes).arrays()

    def cut(self, most_bytes: int | None = None) -> ConstantCut:
        """Return the current state, to be concatenated later."""
        del most_bytes
        return ConstantCut(partial(self._join, list(self._waiting)))

    @abstractmethod
    def _join(self, waiting: list[SegmentT]) -> dict[str, NDArray[Any]]:
        """Return copies of segments, concatenated."""

    def _check(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Raise ValueError if saved arrays are not full segments of this layout."""
        size = self._segment_transitions
        for field in self.layout.fields:
            saved = state.get(field.name, np.zeros(0))
            if saved.shape[1:] != field.shape_tail or saved.dtype != field.dtype or len(saved) % size:
                raise ValueError(
                    f"the saved {self.noun} have {field.name} as {saved.dtype} {saved.shape}; this run needs "
                    f"{field.dtype} {field.shape_tail} in segments of {size}"
                )
