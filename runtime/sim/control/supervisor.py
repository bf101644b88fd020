"""Looks after one simulator: ready within a deadline, watched while it runs, started anew.

Who drives it calls `start`, `check` before relying on it, `restart` after a failure, and `stop`; a thread of our
own sends heartbeats and notices its end meanwhile. Restarting is left to the driver, since only it knows when.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from runtime.sim import calls
from runtime.sim.controller import Controller
from runtime.sim.errors import (
    BadReplyError,
    BudgetError,
    CallError,
    CallTimeoutError,
    LostError,
    RefusedError,
    StartError,
)
from runtime.sim.handle import Addresses, Handle
from runtime.sim.health import Budget, Cause, Failure, State, Vitals
from runtime.sim.spec import SimulatorSpec

LOOK_SECONDS: Final = 0.1
"""Between two looks at whether it has ended."""
FIRST_ANSWER_SECONDS: Final = 2.0
"""For the first try of the first call; each further one has twice the time."""
Starter = Callable[[SimulatorSpec], Handle]


@dataclass(frozen=True, slots=True)
class Report:
    """What the app shows of a simulator."""

    state: State
    restarts: int
    uptime_seconds: float
    last_error: str


class Supervisor:
    """One simulator over its restarts.

    Args:
        start: Starts one; gives a Handle or raises SimulatorError or OSError.
        pose_time: When the newest pose came (monotonic seconds), None before the first.
    """

    def __init__(
        self, spec: SimulatorSpec, start: Starter, pose_time: Callable[[], float | None] = lambda: None
    ) -> None:
        self.spec = spec
        self.restarts = 0
        """Starts beyond the first."""
        self.last_failure: Failure | None = None
        self.left = 0
        """Processes that could not be ended; 0 unless the kernel itself hangs on to them."""
        self._start = start
        self._pose_time = pose_time
        self._budget = Budget(
            restarts=spec.restarts,
            window_seconds=spec.window_seconds,
            first_seconds=spec.backoff_seconds,
            longest_seconds=spec.longest_backoff_seconds,
        )
        self._handle: Handle | None = None
        self._state = State.STOPPED
        self._failure: Failure | None = None
        self._ready_since = 0.0
        self._watch: threading.Thread | None = None
        self._unwatch = threading.Event()

    @property
    def state(self) -> State:
        """How it is doing."""
        return State.LOST if self._failure is not None and self._state is State.READY else self._state

    @property
    def addresses(self) -> Addresses:
        """Where it is reached. LostError while there is none."""
        return self._running().addresses

    @property
    def uptime_seconds(self) -> float:
        """Since it was ready; 0 while it is not."""
        return time.monotonic() - self._ready_since if self._state is State.READY else 0.0

    def report(self) -> Report:
        """Say how it is doing, for a metric record."""
        error = self.last_failure.sentence if self.last_failure is not None else ""
        return Report(self.state, self.restarts, self.uptime_seconds, error)

    def start(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Start it and wait until it is ready, trying again within the budget.

        Raises BudgetError when that is spent, and StartError as soon as ``is_wanted`` says no.
        """
        while True:
            failure = self._try_start(is_wanted)
            if failure is None:
                return
            self._failed(failure, is_wanted)

    def check(self) -> None:
        """Raise LostError where it has ended or hangs. Returns at once."""
        handle = self._running()
        failure = self._failure or handle.ended()
        if failure is not None:
            self._failure = self.last_failure = failure
            raise LostError(failure.sentence)

    def lose(self, failure: Failure, *, news_seconds: float = 0.0) -> LostError:
        """Take note that the driver finds it lost; the error for it to raise, with the true cause where known.

        Args:
            news_seconds: Longest wait for the news that it has ended: a connection breaks before that is told.
        """
        handle, until = self._handle, time.monotonic() + news_seconds
        known = self._failure or (handle.ended() if handle is not None else None)
        while known is None and handle is not None and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
            known = handle.ended()
        self._failure = self.last_failure = known or failure
        return LostError(self._failure.sentence)

    def restart(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """End what is left of it and start another; after a failure within the budget, else at once. See start."""
        failure = self._failure
        self._end()
        self.restarts += 1
        if failure is not None and failure.cause is not Cause.ASKED:
            self._failed(failure, is_wanted)
        self.start(is_wanted)

    def ask_restart(self) -> None:
        """Have the driver find it lost and start it anew, outside its budget. From any thread. LostError."""
        self._running()
        if self._failure is None:
            self._failure = self.last_failure = Failure(Cause.ASKED, "the simulator was restarted by request")

    def signal(self, number: int) -> None:
        """Send it a signal. From any thread."""
        self._running().signal(number)

    def stop(self) -> int:
        """End it; how many of its processes could not be ended."""
        self._end()
        self._state = State.STOPPED if self._state is not State.GIVEN_UP else self._state
        return self.left

    def tail(self, lines: int = 20) -> list[str]:
        """The last lines of its output."""
        return self._handle.tail(lines) if self._handle is not None else []

    def _running(self) -> Handle:
        if self._handle is None:
            raise LostError("the simulator is not running")
        return self._handle

    def _failed(self, failure: Failure, is_wanted: Callable[[], bool]) -> None:
        """Wait as long as the budget says. Raises BudgetError, StartError."""
        self.last_failure = failure
        delay = self._budget.failed(time.monotonic())
        if delay is None:
            self._state = State.GIVEN_UP
            raise BudgetError(f"the simulator is given up after {self._budget.sentence}; last: {failure.sentence}")
        until = time.monotonic() + delay
        while (left := until - time.monotonic()) > 0:
            if not is_wanted():
                raise StartError("the simulator is not wanted any more")
            time.sleep(min(left, LOOK_SECONDS))

    def _try_start(self, is_wanted: Callable[[], bool]) -> Failure | None:
        self._state, self._failure = State.STARTING, None
        try:
            self._handle = self._start(self.spec)
        except (StartError, OSError) as error:
            self._state = State.LOST
            return Failure(Cause.CANNOT_START, str(error))
        try:
            failure = self._await_ready(self._handle, is_wanted)
        except BaseException:
            self._end()
            raise
        if failure is not None:
            self._end()
            self._state = State.LOST
            return failure
        self._state, self._ready_since = State.READY, time.monotonic()
        self._begin_watch(self._handle)
        return None

    def _await_ready(self, handle: Handle, is_wanted: Callable[[], bool]) -> Failure | None:
        """Wait for the first answer of the control port."""
        deadline = time.monotonic() + self.spec.start_seconds
        pause, problem, patience = 0.01, "it was not asked", FIRST_ANSWER_SECONDS
        with Controller(handle.addresses.host, handle.addresses.control) as controller:
            while (left := deadline - time.monotonic()) > 0:
                if not is_wanted():
                    raise StartError("the simulator is not wanted any more")
                failure = handle.ended()
                if failure is not None:
                    return failure
                try:
                    controller.call(calls.get_level(), timeout_seconds=min(left, patience))
                except (RefusedError, BadReplyError) as error:
                    return Failure(Cause.NOT_READY, f"the simulator is no simulator: {error}")
                except CallTimeoutError as error:
                    problem, patience = str(error), 2 * patience  # what is slow gets the time to be so
                except CallError as error:
                    problem = str(error)
                else:
                    return None
                time.sleep(pause)
                pause = min(LOOK_SECONDS, 1.5 * pause)
        tail = " / ".join(handle.tail(3))
        sentence = f"the simulator was not ready within {self.spec.start_seconds:g} s ({problem})"
        return Failure(Cause.NOT_READY, f"{sentence}; its last words: {tail}" if tail else sentence)

    def _begin_watch(self, handle: Handle) -> None:
        self._unwatch = threading.Event()
        arguments = (handle, self._unwatch)
        self._watch = threading.Thread(target=self._look, args=arguments, name="l2r-watch", daemon=True)
        self._watch.start()

    def _look(self, handle: Handle, unwatch: threading.Event) -> None:
        """Watch one incarnation until it fails or nobody wants to know."""
        spec = self.spec
        vitals = Vitals(heartbeat_seconds=spec.hung_seconds, pose_seconds=spec.pose_seconds)
        now = time.monotonic()
        vitals.answered(now)
        beat = now + spec.heartbeat_seconds
        with Controller(handle.addresses.host, handle.addresses.control) as controller:
            while not unwatch.wait(LOOK_SECONDS):
                failure = handle.ended()
                now = time.monotonic()
                if failure is None and now >= beat:
                    try:
                        controller.call(calls.get_level(), timeout_seconds=spec.heartbeat_seconds)
                    except CallError:
                        pass  # silence is judged by how long it lasts; an answer that is late is one too
                    if controller.heard is not None:
                        vitals.answered(controller.heard)
                    beat = time.monotonic() + spec.heartbeat_seconds
                posed = self._pose_time()
                if posed is not None:
                    vitals.posed(posed)
                failure = failure or handle.ended() or vitals.check(time.monotonic())
                if failure is not None and not unwatch.is_set():
                    self._failure = self.last_failure = failure
                    return

    def _end(self) -> None:
        """End the present incarnation."""
        self._unwatch.set()
        handle, self._handle = self._handle, None
        if handle is not None:
            # What hangs does not listen to SIGTERM, so there is nothing to wait for.
            hung = self._failure is not None and self._failure.cause is Cause.HUNG
            self.left = handle.stop(0.0 if hung else self.spec.grace_seconds)
        if self._watch is not None:  # its heartbeat fails at once, now that nobody is there to answer
            self._watch.join()
            self._watch = None
        if self._state is State.READY:
            self._state = State.STOPPED
