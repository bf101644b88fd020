"""Which seat of its controller each pod sits on: names of pods are random, places in the plan are not.

A pod keeps its seat while it lives, so indices do not shift under a person's hand. A new pod takes the lowest seat
that no living pod has; one that is being stopped, or has ended, lends its seat to its successor and holds no slot
from then on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.structs import Meta, PodStruct, epoch
from l2rtui.domain.status import Phase


@dataclass(frozen=True, slots=True)
class Seat:
    """A place in the plan.

    Attributes:
        slots: Of the controller's device; empty where the cluster chooses the device.
        is_lent: A successor sits here already.
    """

    index: int
    slots: tuple[int, ...] = ()
    is_lent: bool = False


def read_seats(meta: Meta) -> tuple[Seat, ...]:
    """The seats that a controller, or one of its pods, says there are; empty when it says nothing readable."""
    text = meta.annotation(labels.SEATS)
    try:
        parsed = json.loads(text) if text else []
        return tuple(Seat(int(index), tuple(map(int, slots))) for index, slots in parsed)
    except (ValueError, TypeError):
        return ()


class Seating:
    """Remembers who sits where, by controller."""

    def __init__(self) -> None:
        self._sitting: dict[str, dict[str, int]] = {}

    def seat(self, controller: str, seats: tuple[Seat, ...], pods: Iterable[PodStruct]) -> Mapping[str, Seat]:
        """Seats of all pods of a controller, by uid.

        Args:
            controller: Its uid. pods: all that are there, in any order.
        """
        if not seats:
            self._sitting.pop(controller, None)
            return {}
        known = self._sitting.get(controller, {})
        ordered = sorted(pods, key=_age)
        living = [pod.metadata.uid for pod in ordered if is_living(pod)]
        others = [pod.metadata.uid for pod in ordered if not is_living(pod)]
        numbers: dict[str, int] = {}
        for uid in living:
            if known.get(uid, len(seats)) < len(seats):
                numbers[uid] = known[uid]
        left = sorted(set(range(len(seats))) - set(numbers.values()))
        kept = {known[uid] for uid in others if uid in known}
        left.sort(key=lambda number: (number in kept, number))  # rather an empty seat than a lent one
        for uid in living:
            if uid not in numbers and left:
                numbers[uid] = left.pop(0)
        taken = set(numbers.values())
        found = {uid: seats[number] for uid, number in numbers.items()}
        for place, uid in enumerate(others):
            number = known.get(uid)
            if number is None or number >= len(seats):
                number = left.pop(0) if left else place % len(seats)
            numbers[uid] = number
            found[uid] = Seat(seats[number].index, seats[number].slots, number in taken)
        if numbers:
            self._sitting[controller] = numbers
        else:
            self._sitting.pop(controller, None)
        return found


def is_living(pod: PodStruct) -> bool:
    """Whether a pod is neither over nor being stopped."""
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in (Phase.SUCCEEDED, Phase.FAILED)


def _age(pod: PodStruct) -> tuple[float, str]:
    return epoch(pod.metadata.creation_timestamp), pod.metadata.name
