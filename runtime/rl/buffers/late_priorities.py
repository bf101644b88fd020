"""Priorities of a replay buffer from TD errors that are still on their way from the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class ArrivingErrors(Protocol):
    """TD errors by device, in the order of the batch's shares; `runtime.rl.device.streams.HostCopy` is one."""

    def ready(self) -> bool:
        """Return true once they are there."""

    def numpy(self) -> Mapping[str, NDArray[Any]]:
        """Return the arrays, after a wait if need be."""


class LatePriorities:
    """Priorities that are set when their errors have arrived, at most one update late.

    To wait for the errors of an update would let the device idle until the next one is launched. Ape-X (Horgan et
    al. 2018, arXiv:1803.00933) sets priorities later than this, from another machine.
    """

    def __init__(self, set_priorities: Callable[[NDArray[np.intp], NDArray[Any]], None]) -> None:
        """`set_priorities` takes rows of the buffer and their errors."""
        self._set = set_priorities
        self._pending: tuple[NDArray[np.intp], ArrivingErrors] | None = None

    def add(self, rows: NDArray[np.intp], errors: ArrivingErrors, *, is_exact: bool) -> None:
        """Set the priorities of ``rows`` once ``errors`` are there; ``is_exact`` waits for them."""
        # First the older ones: of a row that is in both batches, the newer error counts.
        self.settle()
        self._pending = rows, errors
        if is_exact or errors.ready():
            self.settle()

    def settle(self) -> None:
        """Set what is pending; the update behind the errors was launched one update ago, so the wait is short."""
        if self._pending is not None:
            (rows, errors), self._pending = self._pending, None
            self._set(rows, np.concatenate(list(errors.numpy().values())))
