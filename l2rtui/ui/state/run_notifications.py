"""Notifications, with a bell, when a run of the user fails or has finished; from one snapshot to the next."""

from __future__ import annotations

from l2rtui.domain.runstatus import run_status
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.status import Level


class RunNotifications:
    """States of the runs of one owner; each change of state is reported once."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._states: dict[str, Level] = {}  # BAD, DONE, or OK for every other level

    def update(self, snapshot: ClusterSnapshot) -> list[str]:
        """Return sentences about changes since the last call; none for runs that are new."""
        sentences: list[str] = []
        states: dict[str, Level] = {}
        for uid, run in snapshot.runs.items():
            if run.owner != self._owner:
                continue
            pods = snapshot.pods_of(run.name)
            status = run_status(run, pods)
            state = states[uid] = status.level if status.level in (Level.BAD, Level.DONE) else Level.OK
            # None for a run that is new to us: at the start of the app old failures must not ring.
            before = self._states.get(uid)
            if before is not None and before is not state:
                if state is Level.BAD:
                    sentences.append(f"{run.name} fails: {status.sentence}")
                elif state is Level.DONE:
                    sentences.append(f"{run.name} has finished")
        self._states = states
        return sentences
