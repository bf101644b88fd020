"""Index of a snapshot: pods by run, their order and counts, updated from the pods that differ from the last one.

At ten thousand pods and ten snapshots a second, computing one status per pod and snapshot would use most of a core.
Pods are immutable, so a pod that is the same object has the same status, position and row.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from itertools import compress

from msgspec import Struct

from l2rtui.domain.snapshot import ClusterSnapshot, PodView
from l2rtui.domain.status import Level, Phase
from l2rtui.domain.workload import Role


class PodCounts(Struct, frozen=True):
    """Counts for the status bar: failing and waiting pods, and slots of the user's runs."""

    failing: int = 0
    waiting: int = 0
    mine: int = 0


_Entry = tuple[PodView, Level, int]
"""A pod, its level, and the number of its slots if it is the user's."""


def changed_pods(old: Mapping[str, PodView], new: Mapping[str, PodView]) -> list[tuple[PodView, PodView]] | None:
    """Return each changed pod, as it was and as it is; None if pods were added, removed or reordered."""
    if len(new) != len(old) or not all(map(operator.is_, new, old)):
        return None
    # This runs for every snapshot: the loops over all pods stay in C and make no pairs of equal ones.
    differs = list(map(operator.is_not, new.values(), old.values()))
    return list(zip(compress(old.values(), differs), compress(new.values(), differs), strict=True))


def _is_waiting(pod: PodView, level: Level) -> bool:
    """True for a pod that does not run yet, including one whose image cannot be pulled, which is also a fault."""
    return level is Level.WAIT or (pod.phase is Phase.PENDING and level is not Level.BAD)


class SnapshotIndex:
    """Pods in order and by run, and their counts, for the newest snapshot; slots of ``owner`` are the user's."""

    def __init__(self, owner: str) -> None:
        self.pod_counts = PodCounts()
        self._owner = owner
        self._order: list[str] = []
        self._entries: dict[str, _Entry] = {}
        self._groups: dict[str, tuple[PodView, ...]] = {}
        self._indexed_pods: Mapping[str, PodView] | None = None

    def update(self, snapshot: ClusterSnapshot) -> None:
        """Update the index; does nothing for a snapshot with the same pods."""
        pods = snapshot.pods
        old_pods, self._indexed_pods = self._indexed_pods, pods
        if pods is old_pods:
            return
        changed = None if old_pods is None else changed_pods(old_pods, pods)
        if changed is not None and all(before.run == pod.run for before, pod in changed):
            self._update_changed([pod for _, pod in changed], pods)
            return
        if pods.keys() != self._entries.keys():
            self._order = sorted(pods, key=lambda uid: _sort_key(pods[uid]))
        entries: dict[str, _Entry] = {}
        by_run: dict[str, list[PodView]] = {}
        before, failing, waiting, mine = self._entries, 0, 0, 0
        for uid in self._order:
            pod = pods[uid]
            entry = before.get(uid)
            if entry is None or entry[0] is not pod:
                entry = (pod, pod.status.level, self._own_slots(pod))
            entries[uid] = entry
            level = entry[1]
            if level is Level.BAD:
                failing += 1
            elif _is_waiting(pod, level):
                waiting += 1
            mine += entry[2]
            group = by_run.get(pod.run)
            if group is None:
                by_run[pod.run] = [pod]
            else:
                group.append(pod)
        self._entries = entries
        self.pod_counts = PodCounts(failing, waiting, mine)
        old = self._groups
        self._groups = {run: _same(old.get(run, ()), group) for run, group in by_run.items()}

    def _update_changed(self, changed: list[PodView], pods: Mapping[str, PodView]) -> None:
        """Update entries, counts and groups of these pods, if no pod was added, removed or moved to another run."""
        failing, waiting, mine = self.pod_counts.failing, self.pod_counts.waiting, self.pod_counts.mine
        for pod in changed:
            old, before, old_slots = self._entries[pod.uid]
            level, slots = pod.status.level, self._own_slots(pod)
            failing += (level is Level.BAD) - (before is Level.BAD)
            waiting += _is_waiting(pod, level) - _is_waiting(old, before)
            mine += slots - old_slots
            self._entries[pod.uid] = (pod, level, slots)
        self.pod_counts = PodCounts(failing, waiting, mine)
        for run in {pod.run for pod in changed}:
            self._groups[run] = tuple(pods[pod.uid] for pod in self._groups[run])

    def is_of(self, snapshot: ClusterSnapshot) -> bool:
        """Return True when this snapshot was the argument of the last update()."""
        return snapshot.pods is self._indexed_pods

    @property
    def pods(self) -> tuple[PodView, ...]:
        """All pods by run, learners first, then by set and index."""
        return tuple(pod for pod, _, _ in self._entries.values())

    def _own_slots(self, pod: PodView) -> int:
        is_counted = self.is_mine(pod) and not pod.phase.is_over
        return sum(usage.count for usage in pod.devices) if is_counted else 0

    def is_mine(self, pod: PodView) -> bool:
        """Return True for a pod of the user's own runs in the namespaces that are shown."""
        # A pod in another namespace has an owner, and no run: the grid counts it with those of others.
        return bool(pod.run) and pod.owner == self._owner

    def pods_of(self, run: str) -> tuple[PodView, ...]:
        """Return the pods of a run, learners first."""
        return self._groups.get(run, ())


def _same(old: tuple[PodView, ...], new: list[PodView]) -> tuple[PodView, ...]:
    """Return the old tuple if it holds the same objects, so that identity shows that nothing has changed."""
    return old if len(old) == len(new) and all(map(operator.is_, old, new)) else tuple(new)


def _sort_key(pod: PodView) -> tuple[str, bool, str, int, float, str]:
    return pod.run, pod.role is not Role.LEARNER, pod.set_name, pod.index, pod.created, pod.uid
