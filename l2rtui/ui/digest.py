"""What screens ask of a snapshot again and again, worked out from what differs from the one before.

At ten thousand pods and ten snapshots a second even one look at every status would be most of a core. Pods are
immutable, so a pod that is the same object has the same status, the same place in the order, the same row.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress

from l2rtui.domain.snapshot import ClusterSnapshot, PodView
from l2rtui.domain.status import Level
from l2rtui.domain.workload import Role


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts for the status bar: failing and waiting pods, and slots that are mine."""

    failing: int = 0
    waiting: int = 0
    mine: int = 0


_Seen = tuple[PodView, Level, int]
"""A pod, its level, and the slots that it holds if it is mine."""


class Digest:
    """Pods in order and by run, and their counts, for the newest snapshot.

    Args:
        owner: Whose slots are ``mine``.

    Attributes:
        tally: Counts of the pods.
    """

    def __init__(self, owner: str) -> None:
        self.tally = Tally()
        self._owner = owner
        self._order: list[str] = []
        self._seen: dict[str, _Seen] = {}
        self._groups: dict[str, tuple[PodView, ...]] = {}
        self._taken: Mapping[str, PodView] | None = None

    def take(self, snapshot: ClusterSnapshot) -> None:
        """Bring everything up to date; nothing is done for a snapshot with the same pods."""
        pods = snapshot.pods
        before_it, self._taken = self._taken, pods
        if pods is before_it:
            return
        if before_it is not None and len(pods) == len(before_it) and all(map(operator.is_, pods, before_it)):
            # The same keys in the same order: this runs for every snapshot, so not one line of Python for a pod.
            others = map(operator.is_not, pods.values(), before_it.values())
            changed = list(compress(pods.values(), others))
            if all(self._seen[pod.uid][0].run == pod.run for pod in changed):
                self._take_changed(changed, pods)
                return
        if pods.keys() != self._seen.keys():
            self._order = sorted(pods, key=lambda uid: _place(pods[uid]))
        seen: dict[str, _Seen] = {}
        by_run: dict[str, list[PodView]] = {}
        before, failing, waiting, mine = self._seen, 0, 0, 0
        for uid in self._order:
            pod = pods[uid]
            known = before.get(uid)
            if known is None or known[0] is not pod:
                known = (pod, pod.status.level, self._mine(pod))
            seen[uid] = known
            level = known[1]
            if level is Level.BAD:
                failing += 1
            elif level is Level.WAIT:
                waiting += 1
            mine += known[2]
            group = by_run.get(pod.run)
            if group is None:
                by_run[pod.run] = [pod]
            else:
                group.append(pod)
        self._seen = seen
        self.tally = Tally(failing, waiting, mine)
        old = self._groups
        self._groups = {run: _same(old.get(run, ()), group) for run, group in by_run.items()}

    def _take_changed(self, changed: list[PodView], pods: Mapping[str, PodView]) -> None:
        """The same pods in the same runs: only what has changed is looked at."""
        failing, waiting, mine = self.tally.failing, self.tally.waiting, self.tally.mine
        for pod in changed:
            _, before, held = self._seen[pod.uid]
            level, holds = pod.status.level, self._mine(pod)
            failing += (level is Level.BAD) - (before is Level.BAD)
            waiting += (level is Level.WAIT) - (before is Level.WAIT)
            mine += holds - held
            self._seen[pod.uid] = (pod, level, holds)
        self.tally = Tally(failing, waiting, mine)
        for run in {pod.run for pod in changed}:
            self._groups[run] = tuple(pods[one.uid] for one in self._groups[run])

    def is_of(self, snapshot: ClusterSnapshot) -> bool:
        """Whether this is what take() was given last."""
        return snapshot.pods is self._taken

    @property
    def pods(self) -> tuple[PodView, ...]:
        """All pods by run, learners first, then by set and index."""
        return tuple(known[0] for known in self._seen.values())

    def _mine(self, pod: PodView) -> int:
        is_mine = pod.owner == self._owner and not pod.phase.is_over
        return sum(claim.count for claim in pod.claims) if is_mine else 0

    def pods_of(self, run: str) -> tuple[PodView, ...]:
        """Pods of a run, learners first."""
        return self._groups.get(run, ())


def _same(old: tuple[PodView, ...], new: list[PodView]) -> tuple[PodView, ...]:
    """The old tuple where it holds the same objects: what is made of it need not be made again."""
    return old if len(old) == len(new) and all(map(operator.is_, old, new)) else tuple(new)


def _place(pod: PodView) -> tuple[str, bool, str, int, float, str]:
    return pod.run, pod.role is not Role.LEARNER, pod.set_name, pod.index, pod.created, pod.uid
