"""Replica index of each pod of a controller: names of pods are random, replicas of the plan are numbered.

A pod keeps its index while it lives, so that rows do not change their names under the user's cursor. A new pod gets
the lowest index that no living pod has. A pod that is terminating or has ended shares its index with its successor,
and no longer uses a slot from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.structs import ObjectMeta, PodStruct, epoch
from l2rtui.domain.status import Phase
from runtime.base import bounded_json


@dataclass(frozen=True, slots=True)
class PlannedReplica:
    """Replica of the plan.

    Attributes:
        slots: Slots of the controller's device; empty if the cluster chooses the device.
        has_successor: A newer pod already has this index.
    """

    index: int
    slots: tuple[int, ...] = ()
    has_successor: bool = False


def read_planned_replicas(meta: ObjectMeta) -> tuple[PlannedReplica, ...]:
    """Read the replicas from the annotation of a controller or of one of its pods; empty if unreadable."""
    text = meta.annotation(labels.SEATS)
    try:
        parsed = bounded_json.loads(text) if text else []
        return tuple(PlannedReplica(int(index), tuple(map(int, slots))) for index, slots in parsed)
    except (ValueError, TypeError, OverflowError):
        return ()


class ReplicaIndexer:
    """Assignment of pods to replica indices, remembered by controller."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {}

    def assign(
        self, controller: str, planned: tuple[PlannedReplica, ...], pods: Iterable[PodStruct]
    ) -> Mapping[str, PlannedReplica]:
        """Assign a replica to each pod of a controller (its uid), by the pod's uid; pods come in any order."""
        if not planned:
            self._numbers.pop(controller, None)
            return {}
        previous = self._numbers.get(controller, {})
        ordered = sorted(pods, key=_age)
        # By age, so that two clients that start at different times assign the same indices.
        living = [pod.metadata.uid for pod in ordered if is_living(pod)]
        others = [pod.metadata.uid for pod in ordered if not is_living(pod)]
        numbers: dict[str, int] = {}
        for uid in living:
            if previous.get(uid, len(planned)) < len(planned):
                numbers[uid] = previous[uid]
        left = sorted(set(range(len(planned))) - set(numbers.values()))
        lent = {previous[uid] for uid in others if uid in previous}
        # Free indices first, then indices of terminating pods, whose slots may be in use until their grace period
        # ends.
        left.sort(key=lambda number: (number in lent, number))
        for uid in living:
            if uid not in numbers and left:
                numbers[uid] = left.pop(0)
        living_numbers = set(numbers.values())
        replicas = {uid: planned[number] for uid, number in numbers.items()}
        for position, uid in enumerate(others):
            number = previous.get(uid)
            # Unknown after a restart of this program, or beyond the end after a change of scale.
            if number is None or number >= len(planned):
                number = left.pop(0) if left else position % len(planned)
            numbers[uid] = number
            replicas[uid] = PlannedReplica(planned[number].index, planned[number].slots, number in living_numbers)
        if numbers:
            self._numbers[controller] = numbers
        else:
            self._numbers.pop(controller, None)
        return replicas


def is_living(pod: PodStruct) -> bool:
    """Return True if a pod has neither ended nor is terminating."""
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in (Phase.SUCCEEDED, Phase.FAILED)


def _age(pod: PodStruct) -> tuple[float, str]:
    return epoch(pod.metadata.creation_timestamp), pod.metadata.name
