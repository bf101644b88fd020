"""Priorities of a replay buffer from TD errors that have not arrived from the device yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class ArrivingErrors(Protocol):
    """TD errors by device, in the order of the batch's shares; implemented by
    `runtime.rl.device.streams.HostCopy`.
    """

    def ready(self) -> bool:
        """Return True once they have arrived."""

    def numpy(self) -> Mapping[str, NDArray[Any]]:
        """Return the arrays; wait for them if necessary."""


class LatePriorities:
    """Sets priorities once their errors have arrived, at most one update late.

    If the learner waited for an update's errors, the device would be idle until the next launch. Ape-X (Horgan et
    al. 2018, arXiv:1803.00933) sets priorities even later, from another machine.
    """

    def __init__(self, set_priorities: Callable[[NDArray[np.intp], NDArray[Any]], None]) -> None:
        """`set_priorities` takes rows of the buffer and their errors."""
        self._set = set_priorities
        self._pending: tuple[NDArray[np.intp], ArrivingErrors] | None = None

    def add(self, rows: NDArray[np.intp], errors: ArrivingErrors, *, is_exact: bool) -> None:
        """Set the priorities of ``rows`` once ``errors`` have arrived; ``is_exact`` waits for them."""
        # The older errors first: for a row of both batches, the newer error counts.
        self.settle()
        self._pending = rows, errors
        if is_exact or errors.ready():
            self.settle()

    def settle(self) -> None:
        """Set pending priorities. Their update was launched one update ago, so the wait is short."""
        if self._pending is not None:
            (rows, errors), self._pending = self._pending, None
            self._set(rows, np.concatenate(list(errors.numpy().values())))
