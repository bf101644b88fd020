"""Copies weights from the device and publishes them to the workers, without blocking the learner's loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

if TYPE_CHECKING:
    import numpy as np


class ArrivingArrays(Protocol):
    """Copy that arrives later; implemented by `runtime.rl.device.staging.HostCopy`."""

    def ready(self) -> bool:
        """Return True once it has arrived."""

    def numpy(self) -> Mapping[str, NDArray[Any]]:
        """Return the arrays; wait for them if necessary."""


class PolicyPublisher:
    """Publisher with one copy in transit at a time, so that versions arrive in the order of their updates.

    A publication that becomes due while a copy is in transit starts after its arrival, with the weights of that
    moment: they are newer, and the ones in between are not needed. For the learner's main thread only.
    """

    def __init__(
        self, begin: Callable[[], ArrivingArrays], deliver: Callable[[NDArray[np.float32]], None], name: str
    ) -> None:
        """`begin` starts a copy of the current weights, as its array `name`; `deliver` publishes them."""
        self._begin = begin
        self._deliver = deliver
        self._name = name
        self._copy: ArrivingArrays | None = None
        self._is_due = False

    @property
    def is_pending(self) -> bool:
        """True while weights are in transit."""
        return self._copy is not None

    def publish(self) -> None:
        """Publish the current weights as soon as their copy has arrived, which may be at once."""
        self._is_due = True
        self.deliver_arrived()

    def deliver_arrived(self) -> None:
        """Publish copies that arrived and start a copy that is due; never waits."""
        while self._copy is None or self._copy.ready():
            if self._copy is not None:
                self._deliver_copy(self._copy)
            if not self._is_due:
                return
            self._copy, self._is_due = self._begin(), False

    def deliver_all(self) -> None:
        """Wait for everything in transit or due, and publish it."""
        self.deliver_arrived()
        while self._copy is not None:
            self._deliver_copy(self._copy)
            self.deliver_arrived()

    def _deliver_copy(self, copy: ArrivingArrays) -> None:
        # Drop it first: the last delivery must not offer a rejected (non-finite) policy again.
        self._copy = None
        self._deliver(copy.numpy()[self._name])
