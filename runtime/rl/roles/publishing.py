"""Weights on their way from the device to the workers, without a wait in the learner's loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

if TYPE_CHECKING:
    import numpy as np


class ArrivingArrays(Protocol):
    """Copy that arrives later; `runtime.rl.device.streams.HostCopy` is one."""

    def ready(self) -> bool:
        """Return true once it is there."""

    def numpy(self) -> Mapping[str, NDArray[Any]]:
        """Return the arrays, after a wait if need be."""


class PolicyPublisher:
    """Publisher with one copy on its way at a time, so that versions arrive in the order of their updates.

    A publication that is due while a copy is on its way begins when that has arrived, with the weights of that
    moment: they are newer, and nobody has missed the ones between. Belongs to the learner's main thread.
    """

    def __init__(
        self, begin: Callable[[], ArrivingArrays], deliver: Callable[[NDArray[np.float32]], None], name: str
    ) -> None:
        """`begin` starts a copy of the present weights, which are its array `name`; `deliver` publishes them."""
        self._begin = begin
        self._deliver = deliver
        self._name = name
        self._copy: ArrivingArrays | None = None
        self._is_due = False

    @property
    def is_pending(self) -> bool:
        """True while weights are on their way."""
        return self._copy is not None

    def publish(self) -> None:
        """Publish the present weights as soon as they have arrived; those that are there at once, at once."""
        self._is_due = True
        self.deliver_arrived()

    def deliver_arrived(self) -> None:
        """Publish what has arrived and begin what is due; never waits."""
        while self._copy is None or self._copy.ready():
            if self._copy is not None:
                self._deliver_copy(self._copy)
            if not self._is_due:
                return
            self._copy, self._is_due = self._begin(), False

    def deliver_all(self) -> None:
        """Wait for everything that is on its way or due, and publish it."""
        self.deliver_arrived()
        while self._copy is not None:
            self._deliver_copy(self._copy)
            self.deliver_arrived()

    def _deliver_copy(self, copy: ArrivingArrays) -> None:
        # Forgotten first: a policy that is refused (not finite) must not be offered again by the last delivery.
        self._copy = None
        self._deliver(copy.numpy()[self._name])
