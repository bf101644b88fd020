"""Liveness of a simulator from heartbeats and poses, and its restart budget; no I/O, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from runtime.base.processes import exponential_delay
from runtime.sim.launchers.failures import Cause, Failure


class State(StrEnum):
    """State of a simulator."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    LOST = "lost"
    """It crashed, exited or hangs, and will be restarted."""
    GIVEN_UP = "given up"
    """Its restart budget is exhausted."""


@dataclass(kw_only=True, slots=True)
class LivenessMonitor:
    """Watchdog over the two signs of life of a simulator: responses on its control port, and poses."""

    heartbeat_seconds: float
    """Longest time without a response on the control port."""
    pose_seconds: float
    """Longest time between poses, after the first expected one."""
    _answered: float | None = field(default=None, init=False)
    _posed: float | None = field(default=None, init=False)

    def answered(self, at: float) -> None:
        """Record that the control port responded, last at ``at``."""
        # max: an awaited response may be recorded after a later one.
        self._answered = at if self._answered is None else max(at, self._answered)

    def posed(self, at: float) -> None:
        """Record that the newest pose arrived at ``at``."""
        self._posed = at if self._posed is None else max(at, self._posed)

    def check(self, now: float) -> Failure | None:
        """Return the failure at ``now``; None while both signs of life are recent."""
        # Before the first response or pose nothing is missing: the start has its own deadline.
        deaf = 0.0 if self._answered is None else now - self._answered
        still = 0.0 if self._posed is None else now - self._posed
        signs = []
        if deaf > self.heartbeat_seconds:
            signs.append(f"no answer on its control port for {deaf:.1f} s")
        if still > self.pose_seconds:
            signs.append(f"no pose for {still:.1f} s")
        return Failure(Cause.HUNG, f"the simulator hangs: {' and '.join(signs)}") if signs else None


@dataclass(kw_only=True, slots=True)
class Budget:
    """Restart budget: a number of failures within a sliding window, with exponential back-off."""

    restarts: int
    """Failures allowed within the window."""
    window_seconds: float
    first_seconds: float
    """Wait after the first failure; doubled with each further one."""
    longest_seconds: float
    _failed: deque[float] = field(default_factory=deque, init=False)

    def failed(self, now: float) -> float | None:
        """Record a failure at ``now``; return the seconds before the next start, None if the budget is
        exhausted.
        """
        self._failed.append(now)
        while self._failed and now - self._failed[0] > self.window_seconds:
            self._failed.popleft()
        if len(self._failed) > self.restarts:
            return None
        return exponential_delay(len(self._failed), self.first_seconds, self.longest_seconds)

    @property
    def sentence(self) -> str:
        """The limit as text."""
        return f"more than {self.restarts} failures within {self.window_seconds:g} s"
