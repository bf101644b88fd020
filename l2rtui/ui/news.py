"""What is worth ringing for: a run of mine fails, has finished, or comes back. Worked out between two snapshots."""

from __future__ import annotations

from enum import Enum

from l2rtui.domain.runstatus import run_status
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.status import Level


class _State(Enum):
    GOING = "going"
    FAILING = "failing"
    OVER = "over"


class Watch:
    """Remembers how each run of one owner stood, and tells each turn once."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._states: dict[str, _State] = {}

    def news(self, snapshot: ClusterSnapshot) -> list[str]:
        """Sentences about what has turned since the last call; none of runs seen for the first time."""
        told: list[str] = []
        states: dict[str, _State] = {}
        for uid, run in snapshot.runs.items():
            if run.owner != self._owner:
                continue
            pods = snapshot.pods_of(run.name)
            status = run_status(run, pods)
            state = {Level.BAD: _State.FAILING, Level.DONE: _State.OVER}.get(status.level, _State.GOING)
            states[uid] = state
            before = self._states.get(uid)
            if before is not None and before is not state:
                if state is _State.FAILING:
                    told.append(f"{run.name} fails: {status.sentence}")
                elif state is _State.OVER:
                    told.append(f"{run.name} has finished")
        self._states = states
        return told
