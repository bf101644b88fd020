"""The life of one pod in its supervisor: start, run, end, wait, start again, until it is over or stopped.

The record is what others read; the child is what only a living supervisor has. Every change of the record is told
through ``changed``, and the supervisor writes it down.
"""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from l2rtui.backends.local import policy
from l2rtui.backends.local.child import Child
from l2rtui.backends.local.environment import find_command, pod_command, pod_environ
from l2rtui.backends.local.layout import RunFolder
from l2rtui.backends.local.logfile import LogWriter, serials
from l2rtui.backends.local.records import PodRecord, PodWish, RunRecord
from l2rtui.domain.status import Phase

_ENDED_WITH_RUN = (None, 0, 128 + signal.SIGTERM, 128 + signal.SIGKILL)
"""Exit codes of a process that did as it was told when its run was finished."""


@dataclass(slots=True)
class Surroundings:
    """What all pods of a supervisor share.

    Attributes:
        environ: The user's environment, clean. cores: of this machine.
        changed: To be called after each change of a pod's record.
        complain: To be called with a sentence when a log cannot be written.
    """

    folder: RunFolder
    record: RunRecord
    environ: Mapping[str, str]
    cores: float
    cwd: str
    selector: selectors.BaseSelector
    changed: Callable[[], None]
    complain: Callable[[str], None]


class Pod:
    """One pod; see the module."""

    def __init__(self, around: Surroundings, record: PodRecord) -> None:
        self._around = around
        self.record = record
        self.child: Child | None = None
        self._is_finishing = False

    @classmethod
    def new(cls, around: Surroundings, wish: PodWish) -> Pod:
        """A pod that no process has run for yet."""
        return cls(around, PodRecord(uid=wish.uid, wish=wish.uid, plan=wish.plan, created=wish.created))

    @property
    def name(self) -> str:
        """Name of the pod."""
        return self.record.plan.name

    @property
    def is_over(self) -> bool:
        """Whether no process of it runs or will run."""
        return self.child is None and self.record.phase.is_over

    @property
    def has_succeeded(self) -> bool:
        """Whether it has done what it was started for, and nobody has asked for it again."""
        return self.is_over and self.record.phase is Phase.SUCCEEDED and not self.record.is_terminating

    def start(self, mark: str = "") -> None:
        """Start its process.

        Args:
            mark: Written into the log before its first line; empty for the first process of a name.
        """
        record, folder = self.record, self._around.folder
        record.next_start = None
        record.serial = max(serials(folder.log_dir(self.name)), default=-1) + 1
        try:
            log = LogWriter(folder.log_dir(self.name), record.serial, self._around.record.log_max_bytes)
        except OSError as error:
            self._not_started(f"its log in {folder.path} cannot be written: {error.strerror}")
            return
        if mark:
            log.mark(mark)
        try:
            self.child = self._spawn(log)
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument or a variable
            sentence = getattr(error, "strerror", None) or str(error)
            sentence = f"{record.plan.set_spec.command[0]} cannot be started: {sentence}"
            log.mark(sentence)
            log.close()
            self._not_started(sentence)
            return
        record.proc, record.started = self.child.proc, time.time()
        record.phase, record.reason, record.message = Phase.RUNNING, "", ""
        self._watch()

    def take_over(self) -> None:
        """Look after the process that the record names, living or not, in another supervisor's place."""
        record = self.record
        if record.proc is not None:
            log = LogWriter(
                self._around.folder.log_dir(self.name), record.serial, self._around.record.log_max_bytes
            )
            self.child = Child.take_over(record.proc, self._fifo(), log)
            self._watch()

    def stop(self, grace_seconds: float | None) -> None:
        """Ask the process group to end, and remember when to insist. A second call may only hurry it."""
        grace = self.record.plan.set_spec.grace_seconds if grace_seconds is None else grace_seconds
        until = time.monotonic() + grace
        if not self.record.is_terminating:
            self.record.is_terminating = True
            self.record.kill_at = until
            if self.child is not None:
                self.child.signal(signal.SIGTERM)
        elif self.record.kill_at is not None:
            self.record.kill_at = min(self.record.kill_at, until)
        self._around.changed()

    def finish(self) -> None:
        """End for good, since the run is finished: what runs is asked to end, what waits is not started again."""
        record = self.record
        if self._is_finishing or self.is_over or record.is_terminating:
            return
        if self.child is None:
            record.next_start = None
            record.phase, record.reason = (Phase.FAILED if record.exit_code else Phase.SUCCEEDED), ""
        else:
            self._is_finishing = True
            record.kill_at = time.monotonic() + record.plan.set_spec.grace_seconds
            self.child.signal(signal.SIGTERM)
        self._around.changed()

    def tick(self) -> None:
        """Do what is due."""
        record, now = self.record, time.time()
        if record.kill_at is not None and time.monotonic() >= record.kill_at:
            record.kill_at = None
            if self.child is not None:
                self.child.signal(signal.SIGKILL)
        if record.next_start is not None and not record.is_terminating:
            # A clock that was set back must not keep a pod waiting for longer than the longest back-off.
            longest = policy.backoff(99, self._around.record.backoff_seconds)
            record.next_start = min(record.next_start, now + longest)
            if now >= record.next_start:
                self._restart()

    def look(self) -> bool:
        """Notice whether its process has just ended."""
        child = self.child
        if child is None or not child.look():
            return False
        if child.pidfd is not None:  # readable from now on: it has said what it had to say
            self._around.selector.unregister(child.pidfd)
            child.close_pidfd()
        return True

    def pump(self) -> None:
        """Move output into the log."""
        child = self.child
        if child is None or child.pipe is None:
            return
        try:
            goes_on = child.pump()
        except OSError as error:
            self._around.complain(f"the log of {self.name} cannot be written: {error.strerror}; lines are lost")
            return
        if not goes_on:
            self._around.selector.unregister(child.pipe)
            child.close_pipe()

    def conclude(self) -> None:
        """The process and all that it left have ended: go by the policy, unless the pod was stopped."""
        child, record = self.child, self.record
        if child is None:
            return
        if child.pipe is not None:
            self._around.selector.unregister(child.pipe)
        child.close()
        self.child, record.proc = None, None
        record.exit_code = child.exit_code
        if self._is_finishing and not record.is_terminating:
            record.kill_at = None
            is_well = child.exit_code in _ENDED_WITH_RUN
            record.phase, record.reason = (Phase.SUCCEEDED if is_well else Phase.FAILED), ""
            record.message = "it was ended with its run"
        elif not record.is_terminating:
            self._decide("" if child.exit_code is not None else policy.UNKNOWN_EXIT)
        self._around.changed()

    def replacement(self) -> Pod:
        """Another pod in the place of this one, which was stopped."""
        record = self.record
        pod = Pod(
            self._around, PodRecord(uid=str(uuid4()), wish=record.wish, plan=record.plan, created=time.time())
        )
        pod.start(f"replaced, {self._ending()}")
        return pod

    def _spawn(self, log: LogWriter) -> Child:
        around, plan = self._around, self.record.plan
        environ = pod_environ(around.record, around.folder, plan, self.record.uid, around.environ, around.cores)
        argv = pod_command(around.folder, plan)
        command = find_command(argv[0], environ["PATH"], around.cwd)
        if command is None:
            raise OSError(None, "no executable file of this name is found")
        return Child.start(command, argv, environ, self._fifo(), log)

    def _watch(self) -> None:
        child = self.child
        for descriptor in (child.pipe, child.pidfd) if child else ():
            if descriptor is not None:
                self._around.selector.register(descriptor, selectors.EVENT_READ, self)
        self._around.changed()

    def _not_started(self, sentence: str) -> None:
        self.record.started, self.record.exit_code = time.time(), policy.START_ERROR_CODE
        self._decide(sentence, "StartError")

    def _decide(self, message: str, reason: str = "") -> None:
        """Start again now, later, or never."""
        record, base, now = self.record, self._around.record.backoff_seconds, time.time()
        code = 1 if record.exit_code is None else record.exit_code
        record.message = message
        if not record.plan.set_spec.restart.restarts_after(code):
            record.phase, record.reason = (Phase.FAILED if code else Phase.SUCCEEDED), reason
            self._around.changed()
            return
        if record.started is not None and policy.is_forgotten(now - record.started, base):
            record.failures = 0
        wait = policy.backoff(record.failures, base)
        record.failures += 1
        record.next_start = now + wait
        # As in Kubernetes, a pod stays Running between two processes; one that has never run stays Pending.
        record.reason = reason or ("CrashLoopBackOff" if wait else "")
        if not reason:
            record.phase = Phase.RUNNING
        self._around.changed()

    def _restart(self) -> None:
        self.record.restarts += 1
        self.start(f"restart {self.record.restarts}, {self._ending()}")

    def _ending(self) -> str:
        """How the latest process ended, for the line before the next one's first."""
        return "not started" if self.record.reason == "StartError" else policy.ending(self.record.exit_code)

    def _fifo(self) -> Path:
        return self._around.folder.pipes / f"{self.record.uid}.{self.record.serial}"
