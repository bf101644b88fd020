"""Publications of a learner whose weights leave the device slowly: their order, and the last of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.rl.roles.publishing import PolicyPublisher


class SlowCopy:
    """Weights that arrive when the test allows it, or when they are awaited."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.has_arrived = False
        self.waits = 0

    def ready(self) -> bool:
        return self.has_arrived

    def numpy(self) -> Mapping[str, NDArray[Any]]:
        self.waits += not self.has_arrived
        self.has_arrived = True
        return {"policy": np.full(2, self.value, np.float32)}


class Device:
    """Weights that a test changes, and the copies of them that were started."""

    def __init__(self) -> None:
        self.value = 0.0
        self.copies: list[SlowCopy] = []
        self.published: list[float] = []
        self.publisher = PolicyPublisher(
            self._begin, lambda arena: self.published.append(float(arena[0])), "policy"
        )

    def _begin(self) -> SlowCopy:
        self.copies.append(SlowCopy(self.value))
        return self.copies[-1]


def test_nothing_waits_while_weights_are_on_their_way() -> None:
    device = Device()
    device.publisher.publish()
    device.publisher.deliver_arrived()
    assert device.publisher.is_pending
    assert not device.published
    device.copies[0].has_arrived = True
    device.publisher.deliver_arrived()
    assert device.published == [0.0]
    assert not device.publisher.is_pending
    assert device.copies[0].waits == 0


def test_what_is_due_meanwhile_is_published_once_and_with_the_newest_weights() -> None:
    device = Device()
    for value in (1.0, 2.0, 3.0):
        device.value = value
        device.publisher.publish()
    assert len(device.copies) == 1
    device.value = 4.0
    device.copies[0].has_arrived = True
    device.publisher.deliver_arrived()
    assert device.published == [1.0]
    device.copies[1].has_arrived = True
    device.publisher.deliver_arrived()
    assert device.published == [1.0, 4.0]
    assert not device.publisher.is_pending


def test_the_last_publication_is_waited_for() -> None:
    device = Device()
    device.publisher.publish()
    device.value = 5.0
    device.publisher.publish()
    device.publisher.deliver_all()
    assert device.published == [0.0, 5.0]
    assert not device.publisher.is_pending
    device.publisher.deliver_all()
    assert device.published == [0.0, 5.0]


def test_weights_that_are_refused_are_not_offered_again() -> None:
    device, offered = Device(), []

    def refuse(arena: NDArray[np.float32]) -> None:
        offered.append(float(arena[0]))
        raise ValueError("not finite")

    publisher = PolicyPublisher(lambda: SlowCopy(7.0), refuse, "policy")
    publisher.publish()
    with pytest.raises(ValueError, match="not finite"):
        publisher.deliver_all()
    publisher.deliver_all()
    assert offered == [7.0]
    assert not device.published
