"""Process between a worker and its simulator: it starts the simulator, writes its log, and ends all its
descendants.

It is run as a script and only needs the standard library, so that it starts within milliseconds. Three mechanisms
make sure that no process survives the worker, however it dies:

- *The pipe*: our standard input comes from the worker, and its end means that the worker has ended.
- *The parent's death signal* (prctl(2), PR_SET_PDEATHSIG), for when another process holds the other end of the
  pipe. It is sent when the *thread* that started us ends, so it counts only where our parent has really changed.
- *The guard*: a forked copy of this process that waits for its end, and cleans up where it could not.

The simulator gets its own session and a mark in its environment, the variable L2R_SIM. Processes of its session,
orphaned descendants of this process, and processes with the mark are ended with it.

Input, one per line: first the settings as JSON, then ``stop SECONDS`` or ``signal NUMBER``. Output: JSON lines
``started``, ``failed``, ``ended`` and ``done``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import pwd
import select
import signal
import sys
import time
from typing import Any

MARK = "L2R_SIM"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ORPHAN_GRACE_SECONDS = 1.0
"""Time from the worker's death to SIGKILL."""
CLEANUP_SECONDS = 5.0
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process on Linux; without effect on other systems."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def marked(mark: str) -> list[int]:
    """Return the pids of the living processes with this mark, except this one."""
    return [pid for pid in _pids() if _carries(pid, mark)]


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]  # noqa: PTH208
    except OSError:  # the folder does not exist: not Linux
        return []


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  (called often: Path costs more)
            return file.read()
    except OSError:
        return b""


def _carries(pid: int, mark: str) -> bool:
    environ = _read(f"/proc/{pid}/environ")
    return f"{MARK}={mark}".encode() in environ.split(b"\0")


def _stat(pid: int) -> tuple[str, int, int] | None:
    """Return state, parent and session of a process; None if it has ended."""
    stat = _read(f"/proc/{pid}/stat")
    if b")" not in stat:
        return None
    # After the last parenthesis: the name of a program may contain spaces and parentheses (proc_pid_stat(5)).
    fields = stat[stat.rindex(b")") + 2 :].split()
    return fields[0].decode(), int(fields[1]), int(fields[3])


def members(mark: str, session: int, ancestor: int, spared: int) -> list[int]:
    """Return the pids of a simulator: its session, the descendants of ``ancestor``, and the marked processes."""
    # Three criteria, since a process can escape each one: setsid(2) leaves the session, a double fork the tree (but
    # as a subreaper we inherit it), and a cleared environment the mark.
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None and stat[0] not in "ZX"}
    family = {ancestor}
    while more := {pid for pid, (_, parent, _) in stats.items() if parent in family and pid != spared} - family:
        family |= more
    return [
        pid
        for pid, (_, _, of) in stats.items()
        if pid not in (ancestor, spared) and (of == session or pid in family or _carries(pid, mark))
    ]


def send(pids: list[int], number: int) -> None:
    """Signal processes; those that have just ended are skipped."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def oom_kills() -> int:
    """Return how many processes of our control group the kernel has killed for lack of memory."""
    # Version 2 of control groups has the number 0 and a different file for the count than version 1.
    for line in _read("/proc/self/cgroup").decode().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            text = _read(f"/sys/fs/cgroup{path}/memory.events")
        elif controllers == "memory":
            text = _read(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
        else:
            continue
        for entry in text.decode().splitlines():
            name, _, value = entry.partition(" ")
            if name == "oom_kill" and value.isdigit() and int(value):
                return int(value)
    return 0


class Log:
    """Log file of bounded size, rotated once: at least the newest half is always available."""

    def __init__(self, path: str, most_bytes: int) -> None:
        self._path = path
        self._half = most_bytes // 2
        self._file = self._open()

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, chunk: bytes) -> None:
        """Append output; on a full disk it is dropped, since the simulator must not stop because of its log."""
        with contextlib.suppress(OSError):
            if os.fstat(self._file).st_size + len(chunk) > self._half:
                os.replace(self._path, self._path + ".1")  # noqa: PTH105
                os.close(self._file)
                self._file = self._open()
            os.write(self._file, chunk)


class Shim:
    """One simulator and the processes that it has started."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._mark = settings["mark"]
        self._log = Log(settings["log"], settings["log_bytes"])
        self._parent = os.getppid()
        # A signal writes a byte into this pipe, so that select() wakes up for it: no handler runs our code.
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._waker)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)
        prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
        # Orphaned descendants of the simulator become our children, not pid 1's: we can find and reap them.
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._guard, self._to_guard = self._fork_guard()
        self._ooms = oom_kills()
        self._input = b""
        self._deadline: float | None = None
        """Time of SIGKILL; set once SIGTERM was sent to the simulator."""
        self._simulator, self._output = -1, -1

    def run(self) -> None:
        """Start the simulator and return when none of its processes is left."""
        if problem := self._start():
            self._send_event("failed", problem=problem)
        else:
            self._send_event("started", pid=self._simulator)
            status = self._watch()
            self._send_event(
                "ended",
                status=status,
                # A SIGKILL that we did not send, while the kernel counted one more kill for lack of memory.
                oom=os.WIFSIGNALED(status)
                and os.WTERMSIG(status) == signal.SIGKILL
                and self._deadline is None
                and oom_kills() > self._ooms,
            )
        self._clean()
        with contextlib.suppress(OSError):
            os.write(self._to_guard, b"q")

    def _fork_guard(self) -> tuple[int, int]:
        """Fork the guard, which cleans up if this process is killed; return its pid and the pipe that it reads."""
        listen, tell = os.pipe()
        us = os.getpid()
        if pid := os.fork():
            os.close(listen)
            return pid, tell
        with contextlib.suppress(BaseException):
            signal.set_wakeup_fd(-1)
            for number in set(_SIGNALS) - {signal.SIGCHLD}:
                signal.signal(number, signal.SIG_IGN)
            # Its own session: a kill of the worker's process group must not end the guard.
            os.setsid()
            prctl(PR_SET_PDEATHSIG, 0)
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            for descriptor in (tell, self._wake, self._waker):
                os.close(descriptor)
            # A byte means that we have cleaned up ourselves; end of file means that we were killed.
            if not os.read(listen, 1):
                deadline = time.monotonic() + CLEANUP_SECONDS
                while time.monotonic() < deadline:
                    left = [pid for pid in members(self._mark, -1, os.getpid(), os.getpid()) if pid != us]
                    if not left:
                        break
                    send(left, signal.SIGKILL)
                    time.sleep(0.02)
        os._exit(0)

    def _start(self) -> str:
        """Fork and exec the simulator; return the problem, empty on success."""
        settings, us = self._settings, os.getpid()
        try:
            user = pwd.getpwnam(settings["user"]) if settings["user"] else None
        except KeyError:
            return f"the user {settings['user']!r} does not exist here"
        read_output, write_output = os.pipe()
        # Closed by a successful exec (pipes are not inheritable): end of file without a text means that it runs.
        read_error, write_error = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                try:
                    self._become(user, us, write_output)
                except OSError as error:
                    os.write(write_error, f"{error.strerror}: {error.filename or settings['argv'][0]}".encode())
            os._exit(127)
        os.close(write_error)
        os.close(write_output)
        problem = b""
        while chunk := os.read(read_error, 1000):
            problem += chunk
        os.close(read_error)
        if problem:
            os.waitpid(pid, 0)
            os.close(read_output)
            return problem.decode("utf-8", "replace")
        self._simulator, self._output = pid, read_output
        os.set_blocking(read_output, False)
        return ""

    def _become(self, user: pwd.struct_passwd | None, parent: int, output: int) -> None:
        """Turn this fork into the simulator. Only returns by raising OSError."""
        settings = self._settings
        os.setsid()
        environ = dict(settings["env"])
        if user is not None:
            os.initgroups(user.pw_name, user.pw_gid)
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            environ.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)
        # A change of user clears the death signal, so it is set last; our parent may have ended before that.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            raise OSError(errno.ESRCH, "the supervisor has ended")
        if settings["cwd"]:
            os.chdir(settings["cwd"])
        for source, descriptor in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
            os.dup2(source, descriptor)
        # exec keeps ignored signals ignored, and a program may rely on the defaults.
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, *_SIGNALS):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(settings["argv"][0], settings["argv"], environ)  # noqa: S606  (that is what this file is for)

    def _watch(self) -> int:
        """Write the log and execute commands; return the simulator's wait status when it has ended."""
        sources = {0, self._wake, self._output}
        while True:
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            ready, _, _ = select.select(list(sources), [], [], left)
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                if os.getppid() != self._parent:
                    self._stop(ORPHAN_GRACE_SECONDS)
            if self._output in ready and not self._copy_output():
                sources.discard(self._output)
            if 0 in ready and not self._read_commands():
                sources.discard(0)
                self._stop(ORPHAN_GRACE_SECONDS)
            if self._deadline is not None and time.monotonic() >= self._deadline:
                send(self._left(), signal.SIGKILL)
                self._deadline = time.monotonic() + 0.05  # again: a process may just have forked another
            if (status := self._reap()) is not None:
                return status

    def _reap(self) -> int | None:
        """Reap children that have ended; return the simulator's status if it is among them."""
        status = None
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, ended = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self._simulator:
                    status = ended
        return status

    def _copy_output(self) -> bool:
        """Copy output into the log; False at its end."""
        try:
            chunk = os.read(self._output, 65_536)
        except BlockingIOError:
            return True
        self._log.write(chunk)
        return bool(chunk)

    def _read_commands(self) -> bool:
        """Execute the worker's commands; return False when it has ended."""
        chunk = os.read(0, 4096)
        self._input += chunk
        *lines, self._input = self._input.split(b"\n")
        for line in lines:
            word, _, value = line.decode("ascii", "replace").partition(" ")
            with contextlib.suppress(ValueError, OSError):
                if word == "stop":
                    self._stop(float(value))
                elif word == "signal":
                    os.kill(self._simulator, int(value))
        return bool(chunk)

    def _stop(self, grace_seconds: float) -> None:
        """Send SIGTERM to all processes; SIGKILL follows after the grace."""
        if self._deadline is None:
            send(self._left(), signal.SIGTERM)
        until = time.monotonic() + grace_seconds
        self._deadline = until if self._deadline is None else min(self._deadline, until)

    def _left(self) -> list[int]:
        return members(self._mark, self._simulator, os.getpid(), self._guard)

    def _clean(self) -> None:
        """End the remaining processes, and report how many could not be ended."""
        deadline = time.monotonic() + CLEANUP_SECONDS
        while (left := self._left()) and time.monotonic() < deadline:
            send(left, signal.SIGKILL)
            time.sleep(0.01)
            self._reap()
        if self._output >= 0:
            # Output written before the end is still in the pipe.
            while select.select([self._output], [], [], 0)[0] and self._copy_output():
                pass
        self._send_event("done", left=len(left))

    def _send_event(self, event: str, **fields: Any) -> None:
        """Send an event to the worker, which may have ended."""
        with contextlib.suppress(OSError):
            os.write(1, json.dumps({"event": event, **fields}).encode() + b"\n")


def _first_line() -> bytes:
    """Read the settings byte by byte: the commands after them must stay in the pipe."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            sys.exit(0)  # the worker ended before it wrote the settings
        line += byte
    return line


def main() -> None:
    """Run one simulator."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for descriptor in range(3, 256):  # the port lease was inherited, and the simulator must not hold it
        with contextlib.suppress(OSError):
            os.set_inheritable(descriptor, False)
    Shim(json.loads(_first_line())).run()


if __name__ == "__main__":
    main()
