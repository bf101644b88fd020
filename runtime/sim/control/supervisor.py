"""Supervisor of one simulator: ready within a deadline, watched while it runs, restarted within a budget.

The driver calls `start`, `check` before each use, `restart` after a failure, and `stop`. Liveness from heartbeats
and poses and the restart budget do no I/O. Meanwhile a thread sends heartbeats and notices the simulator's end.
Only the driver restarts, since only it knows where an episode can end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from runtime.base.errors import unexpected_reason
from runtime.base.processes import exponential_delay
from runtime.sim.launchers.simulator_process import Addresses, Cause, Failure, SimulatorHandle
from runtime.sim.spec import SimulatorSpec
from runtime.sim.wire import rpc_methods
from runtime.sim.wire.controller import Controller
from runtime.sim.wire.errors import (
    BadReplyError,
    BudgetError,
    CallError,
    CallRefusedError,
    CallTimeoutError,
    LostError,
    StartError,
)

POLL_SECONDS: Final = 0.1
"""Interval of checks for its end."""
FIRST_ANSWER_SECONDS: Final = 2.0
"""Timeout of the first call; each further attempt has twice the timeout."""
Starter = Callable[[SimulatorSpec], SimulatorHandle]


class SimulatorSupervisor:
    """One simulator across its restarts.

    ``start`` starts one, or raises SimulatorError or OSError. ``pose_time`` returns the time of the newest pose
    (monotonic seconds), None before the first.
    """

    def __init__(
        self, spec: SimulatorSpec, start: Starter, pose_time: Callable[[], float | None] = lambda: None
    ) -> None:
        self.spec = spec
        self.restarts = 0
        """Number of starts after the first."""
        self.last_failure: Failure | None = None
        self.left = 0
        """Number of processes that could not be ended; 0 unless they hang in the kernel."""
        self._start = start
        self._pose_time = pose_time
        self._budget = Budget(
            restarts=spec.restarts,
            window_seconds=spec.window_seconds,
            first_seconds=spec.backoff_seconds,
            longest_seconds=spec.longest_backoff_seconds,
        )
        self.handle: SimulatorHandle | None = None
        self._state = State.STOPPED
        self._failure: Failure | None = None
        self._ready_since = 0.0
        self._watch: threading.Thread | None = None
        self._unwatch = threading.Event()

    @property
    def state(self) -> State:
        """Current state."""
        # The watching thread records a failure; only the driver's own calls change the state.
        return State.LOST if self._failure is not None and self._state is State.READY else self._state

    @property
    def addresses(self) -> Addresses:
        """Addresses of its channels. Raises LostError while it is not running."""
        return self._running().addresses

    @property
    def uptime_seconds(self) -> float:
        """Seconds since it became ready; 0 while it is not."""
        return time.monotonic() - self._ready_since if self._state is State.READY else 0.0

    @property
    def last_error(self) -> str:
        """Sentence of the last failure; empty before the first."""
        return self.last_failure.sentence if self.last_failure is not None else ""

    def start(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Start it and wait until it is ready, with further attempts within the budget.

        Raises BudgetError if the budget is exhausted, StartError if ``is_wanted`` has become false.
        """
        while True:
            if (failure := self._try_start(is_wanted)) is None:
                return
            self._failed(failure, is_wanted)

    def check(self) -> None:
        """Raise LostError if it has ended or hangs. Does not wait."""
        handle = self._running()
        if (failure := self._failure or handle.ended()) is not None:
            self._failure = self.last_failure = failure
            raise LostError(failure.sentence)

    def lose(self, failure: Failure, *, news_seconds: float = 0.0) -> LostError:
        """Record that the driver has lost it; return the error to raise, with the true cause if known.

        Waits up to ``news_seconds`` for the cause: a connection breaks before the end of its process is reported.
        """
        handle, until = self.handle, time.monotonic() + news_seconds
        end = self._failure or (handle.ended() if handle is not None else None)
        while end is None and handle is not None and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
            end = handle.ended()
        self._failure = self.last_failure = end or failure
        return LostError(self._failure.sentence)

    def restart(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Stop it and start another: after a failure with the budget's delay, otherwise immediately. See start."""
        failure = self._failure
        self._end()
        self.restarts += 1
        if failure is not None and failure.cause is not Cause.ASKED:
            self._failed(failure, is_wanted)
        self.start(is_wanted)

    def request_restart(self) -> None:
        """Mark it as lost, so that the driver restarts it outside of its budget. Any thread. Raises LostError."""
        self._running()
        if self._failure is None:
            self._failure = self.last_failure = Failure(Cause.ASKED, "the simulator was restarted by request")

    def signal(self, number: int) -> None:
        """Send it a signal. Any thread."""
        self._running().signal(number)

    def stop(self) -> int:
        """Stop it; return how many of its processes could not be ended."""
        self._end()
        self._state = State.STOPPED if self._state is not State.GIVEN_UP else self._state
        return self.left

    def tail(self, lines: int = 20) -> list[str]:
        """Return the last lines of its output."""
        return self.handle.tail(lines) if self.handle is not None else []

    def _running(self) -> SimulatorHandle:
        if self.handle is None:
            raise LostError("the simulator is not running")
        return self.handle

    def _failed(self, failure: Failure, is_wanted: Callable[[], bool]) -> None:
        """Wait for the back-off of the budget. Raises BudgetError, StartError."""
        self.last_failure = failure
        if (delay := self._budget.failed(time.monotonic())) is None:
            self._state = State.GIVEN_UP
            raise BudgetError(f"the simulator is given up after {self._budget.sentence}; last: {failure.sentence}")
        until = time.monotonic() + delay
        while (left := until - time.monotonic()) > 0:
            if not is_wanted():
                raise StartError("the simulator is no longer needed")
            time.sleep(min(left, POLL_SECONDS))

    def _try_start(self, is_wanted: Callable[[], bool]) -> Failure | None:
        self._state, self._failure = State.STARTING, None
        try:
            self.handle = self._start(self.spec)
        except (StartError, OSError) as error:  # an invalid spec is raised: another attempt cannot help
            self._state = State.LOST
            return Failure(Cause.CANNOT_START, str(error))
        try:
            failure = self._await_ready(self.handle, is_wanted)
        except BaseException:
            self._end()
            raise
        if failure is not None:
            self._end()
            self._state = State.LOST
            return failure
        self._state, self._ready_since = State.READY, time.monotonic()
        self._unwatch = threading.Event()
        arguments = (self.handle, self._unwatch)
        self._watch = threading.Thread(target=self._watch_process, args=arguments, name="l2r-watch", daemon=True)
        self._watch.start()
        return None

    def _await_ready(self, handle: SimulatorHandle, is_wanted: Callable[[], bool]) -> Failure | None:
        """Wait for the first response of the control port; return the failure if none comes."""
        deadline = time.monotonic() + self.spec.start_seconds
        pause, problem, patience = 0.01, "it was not asked", FIRST_ANSWER_SECONDS
        with Controller(handle.addresses.host, handle.addresses.control) as controller:
            while (left := deadline - time.monotonic()) > 0:
                if not is_wanted():
                    raise StartError("the simulator is no longer needed")
                if (failure := handle.ended()) is not None:
                    return failure
                try:
                    controller.call(rpc_methods.get_level(), timeout_seconds=min(left, patience))
                except (CallRefusedError, BadReplyError) as error:
                    return Failure(Cause.NOT_READY, f"the process does not answer like a simulator: {error}")
                except CallTimeoutError as error:
                    problem, patience = str(error), 2 * patience  # responses are slow while a level loads
                except CallError as error:
                    problem = str(error)
                else:
                    return None
                time.sleep(pause)
                pause = min(POLL_SECONDS, 1.5 * pause)
        tail = " / ".join(handle.tail(3))
        sentence = f"the simulator was not ready within {self.spec.start_seconds:g} s ({problem})"
        return Failure(Cause.NOT_READY, f"{sentence}; its last words: {tail}" if tail else sentence)

    def _watch_process(self, handle: SimulatorHandle, unwatch: threading.Event) -> None:
        """Watch one process of the simulator until it fails or `unwatch` is set; record the failure."""
        try:
            failure = self._await_failure(handle, unwatch)
        # Counts as a loss too: otherwise a hang would go unnoticed. The driver starts another with its own watch.
        except Exception as error:  # noqa: BLE001
            failure = Failure(Cause.UNWATCHED, f"the watch of the simulator failed: {unexpected_reason(error)}")
        if failure is not None and not unwatch.is_set():
            self._failure = self.last_failure = failure

    def _await_failure(self, handle: SimulatorHandle, unwatch: threading.Event) -> Failure | None:
        """Return the failure of one process of the simulator; None once `unwatch` is set."""
        spec = self.spec
        liveness = LivenessMonitor(heartbeat_seconds=spec.hung_seconds, pose_seconds=spec.pose_seconds)
        now = time.monotonic()
        liveness.answered(now)
        due = now + spec.heartbeat_seconds
        with Controller(handle.addresses.host, handle.addresses.control) as controller:
            while not unwatch.wait(POLL_SECONDS):
                failure = handle.ended()
                now = time.monotonic()
                if failure is None and now >= due:
                    # One missing response is not a hang: the monitor checks the time without any; late ones count.
                    with contextlib.suppress(CallError):
                        controller.call(rpc_methods.get_level(), timeout_seconds=spec.heartbeat_seconds)
                    if controller.heard is not None:
                        liveness.answered(controller.heard)
                    due = time.monotonic() + spec.heartbeat_seconds
                if (posed := self._pose_time()) is not None:
                    liveness.posed(posed)
                if (failure := failure or handle.ended() or liveness.check(time.monotonic())) is not None:
                    return failure
        return None

    def _end(self) -> None:
        """End the current process and its watch."""
        self._unwatch.set()
        handle, self.handle = self.handle, None
        if handle is not None:
            # A process that hangs does not handle SIGTERM, so a grace would only delay the restart.
            hung = self._failure is not None and self._failure.cause is Cause.HUNG
            self.left = handle.stop(0.0 if hung else self.spec.grace_seconds)
        if self._watch is not None:  # short: its heartbeat fails immediately, as the process is gone
            self._watch.join()
            self._watch = None
        if self._state is State.READY:
            self._state = State.STOPPED


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
