"""Life cycle of one pod in its supervisor: start, run, end, back-off, restart, until it has ended or is stopped.

The record is public: others read it in the status file. The process is private to a living supervisor. Every change
of the record is reported through ``SupervisionContext.changed``, and the supervisor writes the file.
"""

from __future__ import annotations

import re
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from msgspec import Struct

from l2rtui.backends.common.run_variables import backstop_seconds
from l2rtui.backends.local.environment import RUNTIME_COMMAND, find_command, pod_command, pod_environ
from l2rtui.backends.local.paths import RunFolder
from l2rtui.backends.local.state_files import DesiredPod, PodRecord, RunRecord, RunStatus
from l2rtui.backends.local.supervision import supervised_process
from l2rtui.backends.local.supervision.log_file import (
    EventLog,
    EventRecord,
    LogWriter,
    final_lines,
    log_path,
    serials,
)
from l2rtui.backends.local.supervision.supervised_process import SupervisedProcess
from l2rtui.domain.log import last_words
from l2rtui.domain.plan import gpu_count
from l2rtui.domain.secret import redact
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role
from runtime.base import contract
from runtime.base.cgroups import number_of
from runtime.base.contract import END_FILE
from runtime.base.limits import ENDED_BY, Limits, deadline_label
from runtime.base.metrics import parse_record, text

if TYPE_CHECKING:
    import subprocess


class Backstop(Struct, frozen=True):
    """Deadline by ``time.monotonic()``, and its text.

    Attributes:
        label: ``ended by limit wall 12 h``.
    """

    at: float
    label: str


def backstop_of(record: RunRecord, before: RunStatus | None, now: float) -> Backstop | None:
    """Return the deadline of a run; None without a limit that has a deadline.

    Args:
        before: Status of an earlier supervisor, whose deadline is kept.
        now: Seconds of ``time.monotonic()``, which all processes of one boot share.
    """
    pods = [pod.plan for pod in record.pods]
    seconds = backstop_seconds(record.spec, pods)
    if seconds is None:
        return None
    at = now + seconds
    # After a boot that clock restarts, and the old time may be far in the future.
    if before is not None and before.limit_at is not None:
        at = min(at, before.limit_at)
    return Backstop(at, f"{ENDED_BY} {deadline_label(record.spec.limits or Limits(), gpu_count(pods))}")


def end_reason(folder: Path, run_id: str) -> str:
    """Return the limit by which the learner of this launch has ended it; empty without one.

    Args:
        folder: Its ``L2R_DIR``, where an earlier launch may have left its own record.
    """
    try:
        record = parse_record((folder / END_FILE).read_text("utf-8").strip())
    except (OSError, ValueError):
        return ""
    if record is None or record.get("run_id") != run_id or record.get("limit") is not True:
        return ""
    return text(record.get("reason"))


_COUNTS = Path("/proc/vmstat")
_SIGKILL: Final = 128 + signal.SIGKILL
_COMMAND_CHARS: Final = 60
_LINES: Final = 5
"""Number of last lines that are searched: libraries of threads print some after their error."""
_processes: Final[list[subprocess.Popen[bytes]]] = []
_ENDED_WITH_RUN = (None, 0, 128 + signal.SIGTERM, 128 + signal.SIGKILL)
"""Exit codes of a process that was stopped because its run had finished: such a pod counts as succeeded."""


class DeathCause(NamedTuple):
    """Reason of a pod in one word, and a sentence without its subject."""

    reason: str
    sentence: str


OOM_KILLED = DeathCause("OOMKilled", "the kernel killed it, as memory ran out")
_IN_WORDS: Final = (
    (
        re.compile(r"(CUDA|HIP|cuda\w*|NCCL|GPU).{0,40}out of memory"),
        DeathCause("OutOfGpuMemory", "the memory of its GPU is full"),
    ),
    (
        re.compile(
            r"\b\w*MemoryError\b|std::bad_alloc|[Cc]annot allocate memory|can't allocate memory|[Oo]ut of memory"
            r"|memory allocation of \d+ bytes failed|failed to map segment from shared object"
        ),
        DeathCause("OutOfMemory", "memory ran out, or its limit (`ulimit -v`)"),
    ),
    (
        re.compile(
            r"can't start new thread|[Tt]hread creation failed|pthread_create failed|unable to create .{0,20}thread"
            r"|(fork|thread|cannot be started|clone).{0,80}Resource temporarily unavailable"
        ),
        DeathCause("ThreadLimit", "the limit of processes and threads is reached (`ulimit -u`)"),
    ),
    (
        re.compile(r"Too many open files"),
        DeathCause("FileLimit", "the limit of open files is reached (`ulimit -n`)"),
    ),
    (re.compile(r"No space left on device|Disk quota exceeded"), DeathCause("NoSpace", "its disk is full")),
    (
        re.compile(r"EOFError: EOF when reading a line|_curses\.error: (cbreak|nocbreak|setupterm)"),
        DeathCause("NoInput", "it asks for input, and no terminal belongs to a process of a run"),
    ),
)


class OomKills:
    """Count of processes that the kernel has killed as memory ran out; 0 where it does not count them."""

    def __init__(self) -> None:
        # Two: a look may fall between a kill and the moment in which its end is noticed.
        self._looks = (_count(), _count())

    def look(self) -> None:
        """Read the count; to be called every few seconds."""
        self._looks = (self._looks[1], _count())

    def has_risen(self) -> bool:
        """Return True if the count has risen since the look before the last."""
        return _count() > self._looks[0]


def background_sentence(commands: Sequence[str]) -> str:
    """Return what happened to the processes that a command had left running in the background when it ended."""
    # Paths into the folder of the run are long, and their last part says which program it is.
    words = (Path(word).name if word.startswith("/") else word for word in commands[0].split(" "))
    named = redact(" ".join(words))
    named = named if len(named) <= _COMMAND_CHARS else f"{named[:_COMMAND_CHARS]}…"
    others = f" and {len(commands) - 1} more" if len(commands) > 1 else ""
    return (
        f"its command ended while `{named}`{others} still ran in the background, and was ended with it;"
        " start it in the foreground, or end the script with wait"
    )


def cause_of(exit_code: int | None, lines: Sequence[str], *, has_oom_kill: bool) -> DeathCause | None:
    """Return the cause of a failure; None if nothing beyond the exit code is known.

    Args:
        exit_code: None if it is unknown. lines: Last lines of the process.
        has_oom_kill: The kernel has killed some process of the machine at that time.
    """
    if has_oom_kill and exit_code in (None, _SIGKILL):
        return OOM_KILLED
    if exit_code == _SIGKILL:  # somebody killed it, whatever it had said before
        return None
    # The last error is the one that ended it: an earlier one may have been handled.
    for line in reversed(lines[-_LINES:]):
        for pattern, cause in _IN_WORDS:
            if pattern.search(line):
                return cause
    return None


def _count() -> int:
    return number_of(_COUNTS, "oom_kill") or 0


def send(environ: Mapping[str, str], reason: str, cwd: str, *, is_by_limit: bool = False) -> None:
    """Start the delivery. Its output goes to the supervisor's log.

    Args:
        environ: Environment of the learner: rules, folder and secrets.
        reason: Sentence on how it ended.

    Raises:
        OSError: It cannot be started.
    """
    import subprocess  # loaded only by a supervisor that sends an alert

    command = find_command(RUNTIME_COMMAND, environ["PATH"], cwd)
    if command is None:
        raise OSError(None, f"{RUNTIME_COMMAND} is not there")
    # Not part of the pod, whose remaining processes are killed, but part of the run, so that a destroy ends it.
    own = {key: value for key, value in environ.items() if key != contract.ENV_POD_ID}
    words: Sequence[str] = ("--limit",) if is_by_limit else ()
    # Ended deliveries are reaped here; the last one is left to init.
    _processes[:] = [process for process in _processes if process.poll() is None]
    _processes.append(
        subprocess.Popen(
            [command, "alert", "--ended", reason, *words],
            env=own,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    )


@dataclass(slots=True)
class SupervisionContext:
    """Values that all pods of a supervisor share.

    Attributes:
        environ: The user's cleaned environment. cores: Number of cores of this node.
        changed: Called after each change of a pod's record.
        report_problem: Called with a sentence when a log cannot be written; withdraw_problem when it can again.
        now: Seconds since the epoch. monotonic: seconds of a clock that no change of the date moves.
        events: Journal of the run. oom_kills: Kills of the kernel on this machine.
    """

    folder: RunFolder
    record: RunRecord
    environ: Mapping[str, str]
    cores: float
    cwd: str
    selector: selectors.BaseSelector
    changed: Callable[[], None]
    report_problem: Callable[[str], None]
    withdraw_problem: Callable[[str], None] = lambda _: None
    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    events: EventLog = field(init=False)
    oom_kills: OomKills = field(default_factory=OomKills)

    def __post_init__(self) -> None:
        self.events = EventLog(self.folder.events)

    def note(
        self, pod: str, reason: str, message: str = "", *, is_warning: bool = False, at: float | None = None
    ) -> None:
        """Write an event of a pod into the journal; an empty name means the run."""
        self.events.add(EventRecord(self.now() if at is None else at, pod, reason, message, is_warning))


class SupervisedPod:
    """One pod; see the module docstring."""

    def __init__(self, context: SupervisionContext, record: PodRecord) -> None:
        self._context = context
        self.record = record
        self.process: SupervisedProcess | None = None
        self._is_finishing = False
        self._finish_reason = ""
        self._problem = ""
        self._background = ""

    @classmethod
    def new(cls, context: SupervisionContext, desired: DesiredPod) -> SupervisedPod:
        """Make a pod that has had no process yet."""
        record = PodRecord(uid=desired.uid, wish=desired.uid, plan=desired.plan, created=desired.created)
        slots = ", ".join(map(str, desired.plan.seat.slots))
        context.note(desired.plan.name, "Claimed", slots or "no slot", at=desired.created)
        return cls(context, record)

    @property
    def name(self) -> str:
        """Name of the pod."""
        return self.record.plan.name

    @property
    def is_over(self) -> bool:
        """True if no process of it runs or will run."""
        return self.process is None and self.record.phase.is_over

    @property
    def has_succeeded(self) -> bool:
        """True if it succeeded and will not be replaced."""
        return self.is_over and self.record.phase is Phase.SUCCEEDED and not self.record.is_terminating

    def start(self, mark: str = "", reason: str = "Started") -> None:
        """Start its process.

        Args:
            mark: Written into the log before its first line; empty for the first process of a name.
            reason: Its reason in the journal.
        """
        record, folder = self.record, self._context.folder
        record.next_start = None
        # Numbers continue across pods of one name: the log of a replacement follows its predecessor's.
        record.serial = max(serials(folder.log_dir(self.name)), default=-1) + 1
        try:
            log = LogWriter(folder.log_dir(self.name), record.serial, self._context.record.log_max_bytes)
        except OSError as error:
            self._handle_start_error(f"its log in {folder.path} cannot be written: {error.strerror}")
            return
        if mark:
            log.mark(mark)
        try:
            self.process = self._spawn(log)
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument or a variable
            sentence = getattr(error, "strerror", None) or str(error)
            sentence = f"{record.plan.set_spec.command[0]} cannot be started: {sentence}"
            log.mark(sentence)
            log.close()
            self._handle_start_error(sentence)
            return
        record.proc, record.started = self.process.proc, self._context.now()
        # The last words of the process before stay until this one has run for a while: it may be about to fail too.
        record.phase, record.reason = Phase.RUNNING, ""
        self._note(reason, f"{mark}, pid {record.proc.pid}" if mark else f"pid {record.proc.pid}")
        self._watch()

    def take_over(self) -> None:
        """Supervise the process that the record names, alive or not, on behalf of an earlier supervisor."""
        record, context = self.record, self._context
        if record.proc is not None:
            log = LogWriter(context.folder.log_dir(self.name), record.serial, context.record.log_max_bytes)
            self.process = SupervisedProcess.take_over(record.proc, self._fifo(), log)
            self._watch()

    def stop(self, grace_seconds: float | None) -> None:
        """Stop the pod, permanently or for a replacement; a second call may only shorten the grace period.

        Args:
            grace_seconds: None for its set's own.
        """
        record, now = self.record, self._context.monotonic()
        grace = record.plan.set_spec.grace_seconds if grace_seconds is None else grace_seconds
        if record.is_terminating:
            supervised_process.hurry_stop(record, grace, now)
        else:
            record.is_terminating = True
            supervised_process.request_stop(record, self.process, grace, now)
            if self.process is not None:
                self._note("Stopping", f"SIGTERM, after {grace:g} s SIGKILL")
        self._context.changed()

    def finish(self, reason: str = "") -> None:
        """End with the run: stop a running process, and do not restart a pod in back-off.

        Args:
            reason: Limit that has ended the run; empty for a run that has finished.
        """
        record = self.record
        if self._is_finishing or self.is_over or record.is_terminating:
            return
        self._finish_reason = reason
        if self.process is None:
            record.next_start, record.message = None, reason or record.message
            record.phase, record.reason = (Phase.FAILED if record.exit_code else Phase.SUCCEEDED), ""
        else:
            # Not is_terminating: a stopped pod would be replaced, but this one has ended.
            self._is_finishing = True
            grace = record.plan.set_spec.grace_seconds
            supervised_process.request_stop(record, self.process, grace, self._context.monotonic())
            cause = f"its run is {reason}" if reason else "its run has finished"
            self._note("Stopping", f"{cause}: SIGTERM, after {grace:g} s SIGKILL")
        self._context.changed()

    def run_due(self) -> None:
        """Perform due actions: SIGKILL after the grace period, or the next start after the back-off."""
        record, now = self.record, self._context.now()
        if supervised_process.kill_if_due(record, self.process, self._context.monotonic()):
            self._note("Killed", "SIGKILL: it still ran after its grace period", is_warning=True)
        if record.next_start is not None and not record.is_terminating:
            # A wall clock that was set back must not delay a start by more than the longest back-off.
            longest = supervised_process.backoff(99, self._context.record.backoff_seconds)
            record.next_start = min(record.next_start, now + longest)
            if now >= record.next_start:
                self._restart()

    def poll_exit(self) -> bool:
        """Check its process; return True if it has just ended."""
        process = self.process
        if process is None or not process.poll_exit():
            return False
        if process.pidfd is not None:  # it stays readable, so select() would return immediately each time
            self._context.selector.unregister(process.pidfd)
            process.close_pidfd()
        if process.left_running and not (self.record.is_terminating or self._is_finishing):
            self._background = background_sentence(process.left_running)
            self._note("BackgroundEnded", self._background, is_warning=True)
        return True

    def copy_output(self) -> None:
        """Copy output into the log."""
        process = self.process
        if process is None or process.pipe is None:
            return
        try:
            has_more = process.copy_output()
        except OSError as error:
            self._problem = f"the log of {self.name} cannot be written: {error.strerror}; lines are lost"
            self._context.report_problem(self._problem)
            return
        if self._problem:
            self._context.withdraw_problem(self._problem)
            self._problem = ""
        if not has_more:
            self._context.selector.unregister(process.pipe)
            process.close_pipe()

    def handle_exit(self) -> None:
        """Apply the restart policy after the process and all its descendants have ended, unless it was stopped."""
        process, record = self.process, self.record
        if process is None:
            return
        if process.pipe is not None:
            self._context.selector.unregister(process.pipe)
        words, self._background = self._background, ""
        process.close(mark=words)
        self.process, record.proc = None, None
        record.exit_code = process.exit_code
        # Of a process that ended while no supervisor was its parent nobody knows when.
        record.ended = None if process.exit_code is None else self._context.now()
        # A stopped process did not end on its own: its exit code does not indicate a fault.
        is_fault = process.exit_code != 0 and not (record.is_terminating or self._is_finishing)
        end, reason = supervised_process.exit_code_text(process.exit_code), ""
        if is_fault:
            lines = final_lines(log_path(self._context.folder.log_dir(self.name), record.serial))
            words = last_words(lines) if process.exit_code is not None else supervised_process.UNKNOWN_EXIT
            has_oom_kill = self._context.oom_kills.has_risen()
            if cause := cause_of(process.exit_code, lines, has_oom_kill=has_oom_kill):
                reason, end = cause.reason, f"{end}, {cause.sentence}"
                words = f"{cause.sentence}: {words}".removesuffix(": ")
        self._note("Died", end, is_warning=is_fault)
        if is_fault:
            self._alert(end)
        elif self._is_finishing and self._finish_reason:
            self._alert(self._finish_reason, is_by_limit=True)
        if self._is_finishing and not record.is_terminating:
            record.kill_at = None
            is_well = process.exit_code in _ENDED_WITH_RUN
            record.phase, record.reason = (Phase.SUCCEEDED if is_well else Phase.FAILED), ""
            record.message = self._finish_reason or "it was ended with its run"
        elif not record.is_terminating:
            self._apply_policy(words, reason)
        self._context.changed()

    def replacement(self) -> SupervisedPod:
        """Start another pod with the same plan, after this one was stopped."""
        record = self.record
        fresh = PodRecord(uid=str(uuid4()), wish=record.wish, plan=record.plan, created=self._context.now())
        pod = SupervisedPod(self._context, fresh)
        pod.start(f"replaced, {self._exit_text()}", "Replaced")
        return pod

    def _spawn(self, log: LogWriter) -> SupervisedProcess:
        context, plan = self._context, self.record.plan
        environ = pod_environ(context.record, context.folder, plan, self.record.uid, context.environ, context.cores)
        argv = pod_command(context.folder, context.record.spec, plan.set_spec)
        command = find_command(argv[0], environ["PATH"], context.cwd)
        if command is None:
            raise OSError(None, "no executable file of this name is found")
        return SupervisedProcess.start(command, argv, environ, self._fifo(), log)

    def _alert(self, reason: str, *, is_by_limit: bool = False) -> None:
        """Send an alert for the end of a learner, which may have had no time to send it itself."""
        context, plan = self._context, self.record.plan
        if plan.set_spec.role is not Role.LEARNER or not context.record.spec.alerts:
            return
        environ = pod_environ(context.record, context.folder, plan, self.record.uid, context.environ, context.cores)
        try:
            send(environ, reason, context.cwd, is_by_limit=is_by_limit)
        except OSError as error:
            context.report_problem(f"no alert can be sent: {error.strerror or error}")

    def _watch(self) -> None:
        process = self.process
        for descriptor in (process.pipe, process.pidfd) if process else ():
            if descriptor is not None:
                self._context.selector.register(descriptor, selectors.EVENT_READ, self)
        self._context.changed()

    def _handle_start_error(self, sentence: str) -> None:
        self.record.started = self.record.ended = self._context.now()
        self.record.exit_code = supervised_process.START_ERROR_CODE
        self._note("StartError", sentence, is_warning=True)
        if cause := cause_of(self.record.exit_code, [sentence], has_oom_kill=False):
            sentence = f"{cause.sentence}: {sentence}"
        self._apply_policy(sentence, "StartError", has_run=False)

    def _apply_policy(self, message: str, reason: str, *, has_run: bool = True) -> None:
        """Restart now, later, or never.

        Args:
            reason: Reason of a pod that is not restarted, or was never started.
        """
        record, base, now = self.record, self._context.record.backoff_seconds, self._context.now()
        code = 1 if record.exit_code is None else record.exit_code
        record.message = message
        run = self._context.record
        if not code and run.spec.limits is not None and record.plan.set_spec.role is Role.LEARNER:
            record.message = end_reason(Path(run.volume or self._context.folder.data), run.uid)
        if not record.plan.set_spec.restart.restarts_after(code):
            record.phase, record.reason = (Phase.FAILED if code else Phase.SUCCEEDED), reason
            self._context.changed()
            return
        if record.started is not None and supervised_process.is_forgotten(now - record.started, base):
            record.failures = 0
        wait = supervised_process.backoff(record.failures, base)
        record.failures += 1
        record.next_start = now + wait
        if wait:
            sentence = f"starts again in {wait:g} s, failure {record.failures} in a row"
            self._note("BackOff", sentence, is_warning=True)
        # As in Kubernetes, a pod stays Running between two processes; one that has never run stays Pending.
        record.reason = reason
        if has_run:
            record.phase, record.reason = Phase.RUNNING, "CrashLoopBackOff" if wait else ""
        self._context.changed()

    def _restart(self) -> None:
        self.record.restarts += 1
        self.start(f"restart {self.record.restarts}, {self._exit_text()}", "Restarted")

    def _exit_text(self) -> str:
        """Describe the end of the latest process, for the mark before the first line of the next one."""
        if self.record.reason == "StartError":
            return "not started"
        return supervised_process.exit_code_text(self.record.exit_code)

    def _note(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        self._context.note(self.name, reason, message, is_warning=is_warning)

    def _fifo(self) -> Path:
        return self._context.folder.pipes / f"{self.record.uid}.{self.record.serial}"
