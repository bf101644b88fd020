"""Batches of a replay for the learner's loop: drawn under the exchange's lock, gathered without it, copied ahead.

If the replay is in host memory and the learner on a GPU, the next batch is gathered and copied during the current
update (depth 1). Such a batch was drawn one update earlier: it misses segments that arrived since, and prioritised
replay used priorities that are one update older. With ``lockstep`` nothing is drawn ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from runtime.rl.buffers.replay import Batch, Draw, Replay
from runtime.rl.device.staging import DeviceCopier

T = TypeVar("T")
Locked = Callable[[Callable[[], T]], T]
"""Runs a function while nothing is put into the store."""


@dataclass(frozen=True, slots=True)
class _Fetched:
    """Batch in transit: its rows, and the number of its set of tensors."""

    batch: Batch
    draw: Draw
    number: int


class BatchSource:
    """Source of batches of one size. With a ``copier`` batches are copied to its device; ``ahead`` draws the next
    one early.
    """

    def __init__(
        self, replay: Replay, size: int, locked: Locked[Draw], copier: DeviceCopier | None, *, ahead: bool
    ) -> None:
        self._replay = replay
        self._size = size
        self._locked = locked
        self._copier = copier
        self._ahead = ahead and copier is not None
        self._next: _Fetched | None = None
        self._current: _Fetched | None = None

    def take(self) -> Batch:
        """Return a batch; one of the next two overwrites its tensors. Raises ValueError if the buffer is empty."""
        fetched = self._next or self._fetch()
        self._next, self._current = None, fetched
        if self._copier is not None:
            self._copier.await_copy(fetched.number)
        return fetched.batch

    def prefetch(self) -> None:
        """Draw the next batch early, once the update with the current one was started."""
        if self._ahead and self._next is None:
            self._next = self._fetch()

    @property
    def rows(self) -> NDArray[np.intp]:
        """(B,) rows of the batch that `take` returned last; the replay may have drawn the next one since."""
        current = self._current
        assert current is not None  # noqa: S101  (a batch was taken)
        return current.draw.slots

    def _fetch(self) -> _Fetched:
        draw = self._locked(lambda: self._replay.draw(self._size))
        copier, current = self._copier, self._current
        if copier is None:
            return _Fetched(self._replay.gather(draw), draw, 0)
        number = 0
        if current is not None:
            number = 1 - current.number
            # All work on the current set was started: a later copy to it is queued after that work.
            copier.mark_used(current.number)
        copier.finish_copy(number)
        batch = self._replay.gather(draw, number)
        return _Fetched(batch.replaced(copier.copy(batch.tensors, number)), draw, number)
