"""The process between a worker and its simulator: it starts it, keeps its log, and leaves nothing of it behind.

A file of its own that needs the standard library alone, since it is run as a script and must start within
milliseconds. Three things make sure that nothing survives the worker, however that dies:

- *The pipe*: our standard input comes from the worker, and its end means that the worker has ended.
- *The parent's death signal*, for when a stranger holds the other end of the pipe. It is sent when the *thread*
  ends that started us, so it is believed only where our parent has really changed.
- *The guard*: a forked copy of us that waits for our own end, and cleans up where we could not.

The simulator gets a session of its own and a mark in its environment. What it leaves (processes of its session, our
orphaned descendants, whoever carries the mark) is ended with it. The mark is the variable L2R_SIM.

Input, a line each: first the settings as JSON, then ``stop SECONDS`` or ``signal NUMBER``. Output: JSON lines
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
"""From the worker's death to SIGKILL."""
CLEANUP_SECONDS = 5.0


def prctl(option: int, value: int) -> None:
    """Ask the Linux kernel for something about ourselves; elsewhere there is nothing to ask."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def marked(mark: str) -> list[int]:
    """Pids of the living processes that carry this mark, ourselves excepted."""
    return [pid for pid in _pids() if _carries(pid, mark)]


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]  # noqa: PTH208
    except OSError:  # no such folder: not Linux
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
    """State, parent and session of a process; None when it has ended."""
    stat = _read(f"/proc/{pid}/stat")
    if b")" not in stat:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return fields[0].decode(), int(fields[1]), int(fields[3])


def found(mark: str, session: int, ancestor: int, spared: int) -> list[int]:
    """Pids of what belongs to a simulator: its session, the descendants of ``ancestor``, and who is marked."""
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None and stat[0] not in "ZX"}
    family = {ancestor}
    grown = True
    while grown:
        more = {pid for pid, (_, parent, _) in stats.items() if parent in family and pid != spared} - family
        grown = bool(more)
        family |= more
    return [
        pid
        for pid, (_, _, of) in stats.items()
        if pid not in (ancestor, spared) and (of == session or pid in family or _carries(pid, mark))
    ]


def send(pids: list[int], number: int) -> None:
    """Signal processes; those that have just ended do not mind."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def oom_kills() -> int:
    """How often the kernel has ended a process of our control group for memory."""
    for line in _read("/proc/self/cgroup").decode().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            text, key = _read(f"/sys/fs/cgroup{path}/memory.events"), "oom_kill"
        elif controllers == "memory":
            text, key = _read(f"/sys/fs/cgroup/memory{path}/memory.oom_control"), "oom_kill"
        else:
            continue
        for entry in text.decode().splitlines():
            name, _, value = entry.partition(" ")
            if name == key and value.isdigit() and int(value):
                return int(value)
    return 0


class Log:
    """The simulator's output in a file of bounded size: the newest half at least is there."""

    def __init__(self, path: str, most_bytes: int) -> None:
        self._path = path
        self._half = most_bytes // 2
        self._file = self._open()

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, chunk: bytes) -> None:
        """Add output; what a full disk does not take is lost."""
        with contextlib.suppress(OSError):
            if os.fstat(self._file).st_size + len(chunk) > self._half:
                os.replace(self._path, self._path + ".1")  # noqa: PTH105
                os.close(self._file)
                self._file = self._open()
            os.write(self._file, chunk)


class Shim:
    """One simulator."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._mark = settings["mark"]
        self._log = Log(settings["log"], settings["log_bytes"])
        self._parent = os.getppid()
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._waker)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._guard, self._to_guard = self._fork_guard()
        self._ooms = oom_kills()
        self._input = b""
        self._deadline: float | None = None
        """When SIGKILL follows; set once the simulator was asked to end."""
        self._simulator, self._output = -1, -1

    def run(self) -> None:
        """Start the simulator and stay until nothing of it is left."""
        problem = self._start()
        if problem:
            self._say("failed", problem=problem)
        else:
            self._say("started", pid=self._simulator)
            status = self._watch()
            self._say(
                "ended",
                status=status,
                oom=os.WIFSIGNALED(status)
                and os.WTERMSIG(status) == signal.SIGKILL
                and self._deadline is None
                and oom_kills() > self._ooms,
            )
        self._clean()
        with contextlib.suppress(OSError):
            os.write(self._to_guard, b"q")

    def _fork_guard(self) -> tuple[int, int]:
        """Fork the one that cleans up if we are killed; its pid, and the pipe whose end tells it."""
        listen, tell = os.pipe()
        us = os.getpid()
        pid = os.fork()
        if pid:
            os.close(listen)
            return pid, tell
        with contextlib.suppress(BaseException):
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
                signal.signal(number, signal.SIG_IGN)
            os.setsid()
            prctl(PR_SET_PDEATHSIG, 0)
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            for descriptor in (tell, self._wake, self._waker):
                os.close(descriptor)
            if not os.read(listen, 1):
                deadline = time.monotonic() + CLEANUP_SECONDS
                while time.monotonic() < deadline:
                    left = [pid for pid in found(self._mark, -1, os.getpid(), os.getpid()) if pid != us]
                    if not left:
                        break
                    send(left, signal.SIGKILL)
                    time.sleep(0.02)
        os._exit(0)

    def _start(self) -> str:
        """Fork and exec the simulator; what went wrong, or nothing."""
        settings, us = self._settings, os.getpid()
        try:
            user = pwd.getpwnam(settings["user"]) if settings["user"] else None
        except KeyError:
            return f"there is no user {settings['user']!r} here"
        read_output, write_output = os.pipe()
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
        """Turn this fork into the simulator. Only returns by OSError."""
        settings = self._settings
        os.setsid()
        environ = dict(settings["env"])
        if user is not None:
            os.initgroups(user.pw_name, user.pw_gid)
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            environ.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)
        # A change of user clears the death signal, so it is asked for last; we may have been orphaned before it.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            raise OSError(errno.ESRCH, "the supervisor is gone")
        if settings["cwd"]:
            os.chdir(settings["cwd"])
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(settings["argv"][0], settings["argv"], environ)  # noqa: S606  (that is what this file is for)

    def _watch(self) -> int:
        """Keep the log, obey, and return the simulator's wait status when it has ended."""
        sources = {0, self._wake, self._output}
        while True:
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            ready, _, _ = select.select(list(sources), [], [], left)
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                if os.getppid() != self._parent:
                    self._stop(ORPHAN_GRACE_SECONDS)
            if self._output in ready and not self._pump():
                sources.discard(self._output)
            if 0 in ready and not self._obey():
                sources.discard(0)
                self._stop(ORPHAN_GRACE_SECONDS)
            if self._deadline is not None and time.monotonic() >= self._deadline:
                send(self._left(), signal.SIGKILL)
                self._deadline = time.monotonic() + 0.05
            status = self._reap()
            if status is not None:
                return status

    def _reap(self) -> int | None:
        """Take leave of whoever has ended; the simulator's status, if it is among them."""
        status = None
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, ended = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self._simulator:
                    status = ended
        return status

    def _pump(self) -> bool:
        """Move output into the log; False when there will be no more."""
        try:
            chunk = os.read(self._output, 65_536)
        except BlockingIOError:
            return True
        self._log.write(chunk)
        return bool(chunk)

    def _obey(self) -> bool:
        """Do what the worker wants; False when it has ended."""
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
        """Ask everything to end; SIGKILL follows."""
        if self._deadline is None:
            send(self._left(), signal.SIGTERM)
        until = time.monotonic() + grace_seconds
        self._deadline = until if self._deadline is None else min(self._deadline, until)

    def _left(self) -> list[int]:
        return found(self._mark, self._simulator, os.getpid(), self._guard)

    def _clean(self) -> None:
        """End what the simulator has left behind, and say how much of it could not be ended."""
        deadline = time.monotonic() + CLEANUP_SECONDS
        while (left := self._left()) and time.monotonic() < deadline:
            send(left, signal.SIGKILL)
            time.sleep(0.01)
            self._reap()
        if self._output >= 0:
            while select.select([self._output], [], [], 0)[0] and self._pump():
                pass
        self._say("done", left=len(left))

    def _say(self, event: str, **fields: Any) -> None:
        """Tell the worker; it may be gone."""
        with contextlib.suppress(OSError):
            os.write(1, json.dumps({"event": event, **fields}).encode() + b"\n")


def _first_line() -> bytes:
    """Read the settings byte by byte: what follows them is not for now."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(0)  # the worker ended before it said anything
        line += byte
    return line


def main() -> None:
    """Run one simulator."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for descriptor in range(3, 256):  # the port lease came with us and is for us alone
        with contextlib.suppress(OSError):
            os.set_inheritable(descriptor, False)
    Shim(json.loads(_first_line())).run()


if __name__ == "__main__":
    main()
