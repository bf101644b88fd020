"""One process of a pod as its supervisor holds it: started or taken over, its output pumped, its end noticed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from l2rtui.backends.local import policy, processes
from l2rtui.backends.local.logfile import LogWriter
from l2rtui.backends.local.records import Proc

_CHUNK = 65_536
_PIPE_BYTES = 1 << 20
"""How much a process may print while nobody reads, before it waits: Linux' largest pipe for everybody."""


class Child:
    """A process and its pipe.

    Attributes:
        pipe: The end that we read, for a selector; None after the end of output.
        pidfd: Readable when a process that is not our child has ended (Linux); None for our own.
        is_gone: The process has ended; what it left behind may not have.
        exit_code: Its code, None while it runs and when it was not ours to wait for.
    """

    def __init__(self, proc: Proc, pipe: int | None, fifo: Path, log: LogWriter, *, is_ours: bool) -> None:
        self.proc = proc
        self.pipe = pipe
        self.pidfd = None if is_ours else _pidfd(proc)
        self.is_gone = False
        self.exit_code: int | None = None
        self._fifo = fifo
        self._log = log
        self._is_ours = is_ours

    @property
    def is_unwatched(self) -> bool:
        """Whether nothing tells us of its end, so that somebody has to look."""
        return not self._is_ours and not self.is_gone and self.pidfd is None

    @classmethod
    def start(
        cls, command: str, argv: Sequence[str], environ: Mapping[str, str], fifo: Path, log: LogWriter
    ) -> Child:
        """Start a process in a session and group of its own, in our working folder.

        Its standard output is a FIFO that it holds open for both directions: when its reader dies, it neither gets
        SIGPIPE nor loses what it printed, and the next reader finds the FIFO by name.

        Raises:
            OSError: it cannot be started.
        """
        fifo.parent.mkdir(mode=0o700, exist_ok=True)
        os.mkfifo(fifo, 0o600)
        theirs = os.open(fifo, os.O_RDWR)
        try:
            pipe = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
            try:
                _widen(pipe)
                pid = os.posix_spawn(
                    command,
                    list(argv),
                    dict(environ),
                    file_actions=[
                        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                        (os.POSIX_SPAWN_DUP2, theirs, 1),
                        (os.POSIX_SPAWN_DUP2, theirs, 2),
                    ],
                    setsid=True,
                    setsigmask=[],
                    setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores these, and children would too
                )
            except OSError:
                os.close(pipe)
                raise
        except OSError:
            fifo.unlink()
            raise
        finally:
            os.close(theirs)
        return cls(processes.identify(pid), pipe, fifo, log, is_ours=True)

    @classmethod
    def take_over(cls, proc: Proc, fifo: Path, log: LogWriter) -> Child:
        """Look after a process that another supervisor has started."""
        try:
            pipe: int | None = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:  # somebody removed it; the process runs on, its output is lost
            pipe = None
        return cls(proc, pipe, fifo, log, is_ours=False)

    def look(self) -> bool:
        """Notice whether the process has ended; its group is ended with it. True when it just has."""
        if self.is_gone:
            return False
        if self._is_ours:
            self.is_gone = self._wait()
        elif not processes.is_alive(self.proc):
            processes.signal_group(self.proc, signal.SIGKILL)
            self.is_gone = True
        return self.is_gone

    def signal(self, number: int) -> None:
        """Signal the whole group."""
        processes.signal_group(self.proc, number)

    def pump(self, rounds: int = _PIPE_BYTES // _CHUNK) -> bool:
        """Move output into the log; False when there will be no more.

        Args:
            rounds: Reads at most so many chunks, so that one loud process does not starve the others.

        Raises:
            OSError: the log cannot be written.
        """
        if self.pipe is None:
            return False
        for _ in range(rounds):
            try:
                chunk = os.read(self.pipe, _CHUNK)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            self._log.write(chunk)
        return True

    def close_pipe(self) -> None:
        """Let go of the pipe."""
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None

    def close_pidfd(self) -> None:
        """Let go of the pidfd."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def close(self) -> None:
        """Take what is left in the pipe and let go of everything."""
        # At most a full pipe more: an escapee that could not be ended must not keep us here.
        with contextlib.suppress(OSError):
            self.pump(rounds=2 * _PIPE_BYTES // _CHUNK)
        self._log.close()
        self._fifo.unlink(missing_ok=True)
        self.close_pipe()
        self.close_pidfd()

    def _wait(self) -> bool:
        """Reap our child; before that its pid, hence its group, cannot be anybody else's."""
        if hasattr(os, "waitid"):
            if os.waitid(os.P_PID, self.proc.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                return False
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.proc.pid, signal.SIGKILL)
        pid, status = os.waitpid(self.proc.pid, os.WNOHANG)
        if pid:
            self.exit_code = policy.exit_code_of(status)
            processes.signal_group(self.proc, signal.SIGKILL)
        return bool(pid)


def _pidfd(proc: Proc) -> int | None:
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        descriptor: int = opener(proc.pid)
    except OSError:  # it has just ended, or the kernel is older than 5.3: a timer looks too
        return None
    return descriptor


def _widen(pipe: int) -> None:
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # the user's pipes may take no more memory: the default size works too
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
