"""One process of a pod in its supervisor: started or taken over, its output copied to the log, its end noticed.

Restarts follow kubelet's rules: it restarts a container the first time without a pause, then after 10 s, doubling
to 300 s, and forgets failures after 10 minutes without one (``pkg/kubelet/kubelet.go``). Here the setting
``backoff_seconds`` replaces the 10 s; the other values are 30 and 60 times that.

Some processes of a run have no tags: they have cleared their environment, as `sudo`, `env -i` and daemons do. The
supervisor is their subreaper (prctl(2), PR_SET_CHILD_SUBREAPER): the kernel makes it the parent of each descendant
whose parent has ended, whatever its session, group and environment. Descendants of an earlier supervisor are found
in the run's control group, where one may be created. Children of a daemon are not descendants and are not seen: a
container, a job of `at` or systemd, a login by ssh.

A process group gets SIGTERM first and SIGKILL after its grace period, as kubelet does with
``terminationGracePeriodSeconds``. The supervisor stops pods with ``request_stop``, ``hurry_stop`` and
``kill_if_due``. The deadline is in the pod's record, so it survives the supervisor. A destroy that cannot rely on a
supervisor uses ``terminate_all`` and ``kill_remaining``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from l2rtui.backends.local import process_scan
from l2rtui.backends.local.paths import RunFolder
from l2rtui.backends.local.process_scan import TaggedProcess
from l2rtui.backends.local.state_files import AdoptedProcess, PodRecord, ProcessIdentity
from l2rtui.backends.local.supervision.log_file import LogWriter
from l2rtui.domain.status import exit_text
from runtime.base.cgroups import RunGroup
from runtime.base.processes import exponential_delay, shell_exit_code, signal_process_group

_CHUNK = 65_536
_PIPE_BYTES = 1 << 20
"""Capacity of the output pipe: the largest that Linux allows every user (``/proc/sys/fs/pipe-max-size``)."""

_PYTHON_HELPERS = ("resource_tracker", "multiprocessing.forkserver", "compile_worker")


class SupervisedProcess:
    """A process and its output pipe.

    Attributes:
        pipe: Read end, for a selector; None after the end of output.
        pidfd: Readable once a process that is not our child has ended (Linux); None for our own.
        is_gone: The process has ended; its descendants may still run.
        exit_code: None while it runs, and always if it was another supervisor's child.
        left_running: Commands of its descendants that still ran when it ended with exit code 0.
    """

    def __init__(
        self, proc: ProcessIdentity, pipe: int | None, fifo: Path, log: LogWriter, *, is_child: bool
    ) -> None:
        self.proc = proc
        self.pipe = pipe
        self.pidfd = None if is_child else _pidfd(proc)
        self.is_gone = False
        self.exit_code: int | None = None
        self.left_running: tuple[str, ...] = ()
        self._fifo = fifo
        self._log = log
        self._is_child = is_child

    @property
    def must_poll(self) -> bool:
        """True if neither SIGCHLD nor a pidfd reports its end."""
        return not self._is_child and not self.is_gone and self.pidfd is None

    @classmethod
    def start(
        cls, command: str, argv: Sequence[str], environ: Mapping[str, str], fifo: Path, log: LogWriter
    ) -> SupervisedProcess:
        """Start a process in its own session and process group, in our working folder.

        Its standard output is a FIFO that it opens for both directions: if its reader dies, it neither gets SIGPIPE
        nor loses its output, and the next reader finds the FIFO by name.

        Raises:
            OSError: It cannot be started.
        """
        fifo.parent.mkdir(mode=0o700, exist_ok=True)
        os.mkfifo(fifo, 0o600)
        writer = os.open(fifo, os.O_RDWR)
        try:
            pipe = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
            try:
                _enlarge(pipe)
                pid = os.posix_spawn(
                    command,
                    list(argv),
                    dict(environ),
                    file_actions=[
                        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                        (os.POSIX_SPAWN_DUP2, writer, 1),
                        (os.POSIX_SPAWN_DUP2, writer, 2),
                    ],
                    setsid=True,
                    setsigmask=[],
                    setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # ignored by Python, which children would inherit
                )
            except OSError:
                os.close(pipe)
                raise
        except OSError:
            fifo.unlink()
            raise
        finally:
            os.close(writer)
        return cls(process_scan.identify(pid), pipe, fifo, log, is_child=True)

    @classmethod
    def take_over(cls, proc: ProcessIdentity, fifo: Path, log: LogWriter) -> SupervisedProcess:
        """Supervise a process that another supervisor has started."""
        try:
            pipe: int | None = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:  # it was removed; the process keeps running, its output is lost
            pipe = None
        return cls(proc, pipe, fifo, log, is_child=False)

    def poll_exit(self) -> bool:
        """Check whether the process has ended, and if so kill the rest of its group; return True if it has just
        ended.
        """
        if self.is_gone:
            return False
        if self._is_child:
            self.is_gone = self._reap()
        elif not process_scan.is_alive(self.proc):
            process_scan.signal_group(self.proc, signal.SIGKILL)
            self.is_gone = True
        return self.is_gone

    def signal_group(self, number: int) -> None:
        """Signal the process group."""
        process_scan.signal_group(self.proc, number)

    def copy_output(self, rounds: int = _PIPE_BYTES // _CHUNK) -> bool:
        """Copy output into the log; return False at the end of output.

        Args:
            rounds: Maximum number of chunks to read, so that one verbose process does not starve the others.

        Raises:
            OSError: The log cannot be written.
        """
        if self.pipe is None:
            return False
        for _ in range(rounds):
            try:
                if not self._log.copy(self.pipe, _CHUNK):
                    return False
            except BlockingIOError:
                return True
        return True

    def close_pipe(self) -> None:
        """Close the pipe."""
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None

    def close_pidfd(self) -> None:
        """Close the pidfd."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def close(self, mark: str = "") -> None:
        """Copy the rest of the pipe and close everything.

        Args:
            mark: Last line of the log, written by the supervisor; empty for none.
        """
        # At most two full pipes: a descendant that could not be killed may keep writing, and must not block us
        # here.
        with contextlib.suppress(OSError):
            self.copy_output(rounds=2 * _PIPE_BYTES // _CHUNK)
        if mark:
            self._log.mark(mark)
        self._log.close()
        self._fifo.unlink(missing_ok=True)
        self.close_pipe()
        self.close_pidfd()

    def _reap(self) -> bool:
        """Wait for our child without blocking; until it is reaped no other process can get its pid or its group."""
        if hasattr(os, "waitid"):
            # WNOWAIT leaves a zombie: the group is signalled while its id is certainly still ours.
            end = os.waitid(os.P_PID, self.proc.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if end is None:
                return False
            if end.si_code == os.CLD_EXITED and end.si_status == 0:
                self.left_running = tuple(self._descendants())
            signal_process_group(self.proc.pid, signal.SIGKILL)
        pid, status = os.waitpid(self.proc.pid, os.WNOHANG)
        if pid:
            self.exit_code = exit_code_of(status)
            process_scan.signal_group(self.proc, signal.SIGKILL)
        return bool(pid)

    def _descendants(self) -> Iterator[str]:
        for process in process_scan.find_tagged(lambda tagged: tagged.pod_id == self._fifo.stem):
            # Helpers of Python's own libraries end by themselves once their parent has ended.
            if not any(helper in process.command for helper in _PYTHON_HELPERS):
                yield process.command


def _pidfd(proc: ProcessIdentity) -> int | None:
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        descriptor: int = opener(proc.pid)
    except OSError:  # it has just ended, or the kernel is older than 5.3: then a timer polls
        return None
    return descriptor


def _enlarge(pipe: int) -> None:
    """Set a pipe to its largest capacity: the process can print without a reader, and blocks when the pipe is
    full.
    """
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        # The user's pipes together may exceed /proc/sys/fs/pipe-user-pages-soft: the default capacity works too.
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


_MAX_FACTOR = 30
_FORGET_FACTOR = 60
START_ERROR_CODE = 128
"""Exit code of a process that could not be started, as Kubernetes reports a StartError."""
UNKNOWN_EXIT = "its exit code is unknown: it ended while no supervisor was its parent"


def backoff(restarts_in_row: int, base_seconds: float) -> float:
    """Return the seconds before the next start, after this number of consecutive restarts."""
    return exponential_delay(restarts_in_row, base_seconds, _MAX_FACTOR * base_seconds)


def is_forgotten(ran_seconds: float, base_seconds: float) -> bool:
    """Return True if a process ran long enough that its earlier failures no longer count."""
    return ran_seconds >= _FORGET_FACTOR * base_seconds


def exit_code_text(exit_code: int | None) -> str:
    """Describe the end of a process, for the mark between two processes in a log."""
    return "exit code unknown" if exit_code is None else exit_text(exit_code)


def exit_code_of(wait_status: int) -> int:
    """Convert a waitpid() status to the exit code in shells and Kubernetes: 128 + n for signal n."""
    return shell_exit_code(os.waitstatus_to_exitcode(wait_status))


class AdoptedProcesses:
    """Children of a supervisor that it has not started.

    Args:
        earlier: Adopted processes of an earlier supervisor. They belong to the run, but are not children of this
            one.
    """

    def __init__(self, folder: RunFolder, earlier: Iterable[AdoptedProcess]) -> None:
        self._folder = folder
        self._known = {process.proc: process for process in earlier}

    @property
    def living(self) -> list[AdoptedProcess]:
        """Living adopted processes, as of the latest `look`."""
        return list(self._known.values())

    def look(self, own: Collection[int], members: Collection[int] = ()) -> bool:
        """Reap ended children and record new ones; return whether anything changed.

        Args:
            own: Pids of the processes that the supervisor has started, which it reaps itself.
            members: Pids of the processes in the run's control group.
        """
        before = set(self._known)
        for pid in process_scan.own_children():
            if pid in own:
                continue
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    continue
            self._note(pid)
        for pid in set(members).difference(own):
            self._note(pid, is_child=False)
        self._known = {proc: process for proc, process in self._known.items() if process_scan.is_alive(proc)}
        return set(self._known) != before

    def kill(self, is_over: Callable[[str], bool]) -> set[str]:
        """Send SIGKILL to the processes of pods that are over; return the pods of the signalled processes."""
        selected = [process for process in self._known.values() if is_over(process.pod_uid)]
        return {
            process.pod_uid for process in selected if process_scan.signal_process(process.proc, signal.SIGKILL)
        }

    def _note(self, pid: int, *, is_child: bool = True) -> None:
        process = process_scan.tags_of(pid)
        if process is None or process.proc in self._known:
            return
        if process.folder and not is_child:  # found by its tags at any time
            return
        # With tags but no pod: the supervisor of another run that a command of this one has launched, and that ends
        # with its own run; or a delivery of alerts, which is not awaited.
        if process.folder and (process.folder != str(self._folder.path) or not process.pod_id):
            return
        self._known[process.proc] = AdoptedProcess(process.proc, process.pod_id or self._pod_by_output(pid))

    def _pod_by_output(self, pid: int) -> str:
        """Return the pod whose pipe a process has open, as its output or otherwise."""
        pipes = f"{self._folder.pipes}/"
        with suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
                with suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115
                    if target.startswith(pipes):
                        return target.removeprefix(pipes).partition(".")[0]
        return ""


_POLL_SECONDS = 0.02
_KILL_SECONDS = 5.0
"""Longest wait for the end of a process after SIGKILL; a process that sleeps in the kernel (state D) ignores it."""


# --- in the supervisor: deadlines, never waits -----------------------------------------------------------------
def request_stop(record: PodRecord, process: SupervisedProcess | None, grace_seconds: float, now: float) -> None:
    """Send SIGTERM to the process group of a pod and set the deadline of SIGKILL.

    Args:
        now: ``time.monotonic()``, as the deadline must not move when the date is set.
    """
    record.kill_at = now + grace_seconds
    if process is not None:
        process.signal_group(signal.SIGTERM)


def hurry_stop(record: PodRecord, grace_seconds: float, now: float) -> None:
    """Bring the deadline of SIGKILL forward; a longer grace than the first one never postpones it."""
    if record.kill_at is not None:
        record.kill_at = min(record.kill_at, now + grace_seconds)


def kill_if_due(record: PodRecord, process: SupervisedProcess | None, now: float) -> bool:
    """Send SIGKILL once to the process group of a pod whose deadline has passed; return whether it was sent."""
    if record.kill_at is None or now < record.kill_at:
        return False
    record.kill_at = None
    if process is not None:
        process.signal_group(signal.SIGKILL)
    return process is not None


# --- in a destroy: these block, and belong in a thread ---------------------------------------------------------
def terminate_all(processes: Sequence[TaggedProcess], grace_seconds: float) -> None:
    """Send SIGTERM to every process, and wait until all have ended or the grace period has passed."""
    for process in processes:
        process_scan.signal_process(process.proc, signal.SIGTERM)
    until = time.monotonic() + grace_seconds
    while time.monotonic() < until and any(process_scan.is_alive(process.proc) for process in processes):
        time.sleep(_POLL_SECONDS)


def kill_remaining(
    is_of_run: Callable[[TaggedProcess], bool], recorded: Iterable[ProcessIdentity], group: RunGroup | None = None
) -> dict[ProcessIdentity, str]:
    """Send SIGKILL to every tagged or recorded process, and to the run's control group, until none is left.

    Returns:
        Processes that survive SIGKILL, with their commands; empty proves that the run has ended.
    """
    recorded = tuple(recorded)
    until = time.monotonic() + _KILL_SECONDS
    while True:
        survivors = {
            process.proc: process.command or process.pod or "process" for process in kill_tagged(is_of_run)
        }
        # A recorded process may have cleared its environment; then no scan finds it by its tag. Another user's
        # process cannot be killed, and is skipped.
        for proc in recorded:
            if kill(proc) or process_scan.is_alive(proc):
                survivors.setdefault(proc, process_scan.command_of(proc.pid) or "process")
        if group is not None:
            for pid in group.members():
                if process_scan.is_alive(proc := process_scan.identify(pid)):
                    survivors.setdefault(proc, process_scan.command_of(pid) or "process")
            group.kill()
        # Repeated even after a success: a process may have forked between the scan and its SIGKILL.
        if not survivors or time.monotonic() > until:
            return survivors
        time.sleep(_POLL_SECONDS)


def kill_tagged(is_selected: Callable[[TaggedProcess], bool]) -> list[TaggedProcess]:
    """Send SIGKILL to every selected process and return them. Repeat until the result is empty, as a process may
    fork.
    """
    processes = process_scan.find_tagged(is_selected)
    for process in processes:
        kill(process.proc)
    return processes


def kill(proc: ProcessIdentity) -> bool:
    """Send SIGKILL to one process; return False if it has ended."""
    return process_scan.signal_process(proc, signal.SIGKILL)
