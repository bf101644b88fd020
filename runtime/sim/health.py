"""What the signs of life of a simulator mean, and how often it may be started again: no I/O, no clock."""

from __future__ import annotations

import signal
from collections import deque
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How a simulator is doing."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    LOST = "lost"
    """It crashed, exited or hangs; it is to be started again."""
    GIVEN_UP = "given up"
    """Its budget of restarts is spent."""


class Cause(StrEnum):
    """Why a simulator was lost."""

    EXITED = "exited"
    CRASHED = "crashed"
    KILLED = "killed"
    OUT_OF_MEMORY = "out of memory"
    HUNG = "hung"
    NOT_READY = "not ready"
    CANNOT_START = "cannot start"
    SUPERVISOR_LOST = "supervisor lost"
    ASKED = "asked"
    """Somebody asked for another one: no failure of the simulator."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One loss, with its cause and a sentence for people."""

    cause: Cause
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: by a code or by a signal."""

    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False

    @classmethod
    def of_code(cls, code: int, *, out_of_memory: bool = False) -> Ended:
        """Turn a code as shells and containers tell it, 128 and more for a signal, into what it was."""
        if code > 128 and code - 128 <= signal.NSIG:
            return cls(signal=code - 128, out_of_memory=out_of_memory)
        return cls(code=code, out_of_memory=out_of_memory)

    def failure(self) -> Failure:
        """Return what that means: an end that nobody asked for is a failure, even with code 0."""
        if self.out_of_memory:
            return Failure(Cause.OUT_OF_MEMORY, "the simulator ran out of memory: the kernel ended it")
        if self.signal is None:
            return Failure(Cause.EXITED, f"the simulator exited with code {self.code}")
        try:
            name = signal.Signals(self.signal).name
        except ValueError:
            name = f"signal {self.signal}"
        if self.signal in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            return Failure(Cause.KILLED, f"the simulator was killed by {name}, which we did not send")
        return Failure(Cause.CRASHED, f"the simulator crashed with {name}")


class Vitals:
    """The two signs of life, heartbeats on the control port and poses, and when their absence is a hang.

    Args:
        heartbeat_seconds: Longest time without an answer on the control port.
        pose_seconds: Longest time without a pose, once there was one since poses were expected.
    """

    def __init__(self, *, heartbeat_seconds: float, pose_seconds: float) -> None:
        self._heartbeat_seconds = heartbeat_seconds
        self._pose_seconds = pose_seconds
        self._answered: float | None = None
        self._posed: float | None = None

    def answered(self, at: float) -> None:
        """The control port answered, last at ``at``."""
        self._answered = at if self._answered is None else max(at, self._answered)

    def posed(self, at: float) -> None:
        """The newest pose came at ``at``."""
        self._posed = at if self._posed is None else max(at, self._posed)

    def no_pose_expected(self) -> None:
        """Poses may stop, for example while a level changes; the next one counts again."""
        self._posed = None

    def check(self, now: float) -> Failure | None:
        """Say what is wrong at ``now``; None while nothing is."""
        deaf = 0.0 if self._answered is None else now - self._answered
        still = 0.0 if self._posed is None else now - self._posed
        signs = []
        if deaf > self._heartbeat_seconds:
            signs.append(f"no answer on its control port for {deaf:.1f} s")
        if still > self._pose_seconds:
            signs.append(f"no pose for {still:.1f} s")
        if not signs:
            return None
        return Failure(Cause.HUNG, f"the simulator hangs: {' and '.join(signs)}")


class Budget:
    """How often a simulator may fail, and how long to wait before it is started again.

    Args:
        restarts: Failures allowed within the window.
        window_seconds: Older failures are forgotten.
        first_seconds: Wait after the first failure; doubled with each further one.
        longest_seconds: Longest wait.
    """

    def __init__(
        self, *, restarts: int, window_seconds: float, first_seconds: float, longest_seconds: float
    ) -> None:
        self._restarts = restarts
        self._window = window_seconds
        self._first = first_seconds
        self._longest = longest_seconds
        self._failed: deque[float] = deque()

    def failed(self, now: float) -> float | None:
        """Note a failure at ``now``; seconds to wait before the next start, None where the budget is spent."""
        self._failed.append(now)
        while self._failed and now - self._failed[0] > self._window:
            self._failed.popleft()
        if len(self._failed) > self._restarts:
            return None
        delay: float = self._first * 2 ** (len(self._failed) - 1)
        return min(self._longest, delay)

    @property
    def sentence(self) -> str:
        """The rule, for people."""
        return f"more than {self._restarts} failures within {self._window:g} s"
