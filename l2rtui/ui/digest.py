"""What screens ask of a snapshot again and again, worked out from what differs from the one before.

At ten thousand pods and ten snapshots a second even one look at every status would be most of a core. Pods are
immutable, so a pod that is the same object has the same status, the same place in the order, the same row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from l2rtui.domain.snapshot import ClusterSnapshot, PodView
from l2rtui.domain.status import Level
from l2rtui.domain.workload import Role


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts for the status bar: failing and waiting pods, and slots that are mine."""

    failing: int = 0
    waiting: int = 0
    mine: int = 0


class Digest:
    """Pods in order and by run, and their counts, for the newest snapshot.

    Args:
        owner: Whose slots are ``mine``.

    Attributes:
        pods: All pods by run, learners first, then by set and index.
        tally: Their counts.
    """

    def __init__(self, owner: str) -> None:
        self.pods: tuple[PodView, ...] = ()
        self.tally = Tally()
        self._owner = owner
        self._order: list[str] = []
        self._seen: dict[str, tuple[PodView, Level]] = {}
        self._by_run: dict[str, list[PodView]] = {}
        self._groups: dict[str, tuple[PodView, ...]] = {}
        self._taken: Mapping[str, PodView] | None = None

    def take(self, snapshot: ClusterSnapshot) -> None:
        """Bring everything up to date; nothing is done for a snapshot with the same pods."""
        pods = snapshot.pods
        if pods is self._taken:
            return
        self._taken = pods
        if pods.keys() != self._seen.keys():
            self._order = sorted(pods, key=lambda uid: _place(pods[uid]))
        seen: dict[str, tuple[PodView, Level]] = {}
        by_run: dict[str, list[PodView]] = {}
        before, levels = self._seen, {Level.BAD: 0, Level.WAIT: 0}
        mine = 0
        for uid in self._order:
            pod = pods[uid]
            known = before.get(uid)
            if known is None or known[0] is not pod:
                known = (pod, pod.status.level)
            seen[uid] = known
            if known[1] in levels:
                levels[known[1]] += 1
            if pod.owner == self._owner and pod.claims and not pod.phase.is_over:
                mine += sum(claim.count for claim in pod.claims)
            by_run.setdefault(pod.run, []).append(pod)
        self._seen = seen
        self.pods = tuple(pod for pod, _ in seen.values())
        self._by_run, self._groups = by_run, {}
        self.tally = Tally(levels[Level.BAD], levels[Level.WAIT], mine)

    def pods_of(self, run: str) -> tuple[PodView, ...]:
        """Pods of a run, learners first."""
        found = self._groups.get(run)
        if found is None:
            found = self._groups[run] = tuple(self._by_run.get(run, ()))
        return found


def _place(pod: PodView) -> tuple[str, bool, str, int, float, str]:
    return pod.run, pod.role is not Role.LEARNER, pod.set_name, pod.index, pod.created, pod.uid
