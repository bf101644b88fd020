"""Ages of the newest metric records, by this machine's clock. Pure.

A record carries the time of its own machine, whose clock may be minutes off. That time is used only for the first
record of a run, which may come from an old log. Every later record has just arrived, whatever its clock says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from l2rtui.domain.metrics import is_old
from l2rtui.domain.quantity import age

NOT_READ: Final = "?"
"""In place of the age of a pod's old record while its log is not read: it may have written newer ones since."""
WORKER_INTERVAL_SECONDS: Final = 10.0
"""Time between two records of a worker (``runtime.rl.roles.worker``); a learner reports its own interval."""


class Timed(Protocol):
    """A record with the time of its writer's clock."""

    @property
    def time(self) -> float:
        """Seconds since the epoch; 0 if the record has no time."""


class RecordAges:
    """Arrival of the newest record of each run or pod, by uid.

    Attributes:
        arrivals: Time of the record by its writer's clock, and of its arrival by that of the app.
    """

    def __init__(self) -> None:
        self.arrivals: dict[str, tuple[float, float]] = {}

    def take(self, records: Mapping[str, Timed], now: float) -> None:
        """Note which of these records are new."""
        for uid, record in records.items():
            before = self.arrivals.get(uid)
            if before is None:
                self.arrivals[uid] = (record.time, min(now, record.time or now))
            elif before[0] != record.time:
                self.arrivals[uid] = (record.time, now)

    def keep(self, uids: Collection[str]) -> None:
        """Drop all others."""
        self.arrivals = {uid: arrival for uid, arrival in self.arrivals.items() if uid in uids}

    def seconds(self, uid: str, now: float) -> float:
        """Return the age of a record; 0 without a record."""
        return max(0.0, now - self.arrivals[uid][1]) if uid in self.arrivals else 0.0

    def age_if_old(self, uid: str, now: float, interval_seconds: float = WORKER_INTERVAL_SECONDS) -> str:
        """Return the age of a record in a few characters; empty if it is recent, or without a record."""
        if uid not in self.arrivals:
            return ""
        seconds = now - self.arrivals[uid][1]
        return age(seconds) if is_old(seconds, interval_seconds) else ""
