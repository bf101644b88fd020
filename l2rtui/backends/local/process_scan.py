"""Processes for certain: pid plus start time, and the mark in their environment by which all are found.

Linux is read from /proc directly: a supervisor must stay small, and psutil is not. Elsewhere psutil answers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from l2rtui.backends.local.records import Proc
from runtime.contract import ENV_POD, ENV_POD_ID, ENV_RUN, ENV_RUN_ID

IS_LINUX = sys.platform == "linux"
ENV_FOLDER = "L2R_LOCAL_RUN"
"""Folder of the run, in the environment of every process of this backend, supervisors included."""
_NO_MEMORY = 0x00200000 | 0x4
"""PF_KTHREAD and PF_EXITING of include/linux/sched.h: there is no environment and there will be none."""
_EXEC_TRIES = 100


@dataclass(frozen=True, slots=True)
class Marked:
    """A living process with the marks that its environment carries; empty strings for those it lacks."""

    proc: Proc
    command: str
    folder: str
    run: str
    run_id: str
    pod: str
    pod_id: str


@cache
def boot_id() -> str:
    """This boot of this machine; start times of Linux processes count from it. Empty elsewhere."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()[:8] if IS_LINUX else ""


def start_of(pid: int) -> str | None:
    """When a process started, in a form that no other process with its pid shares; None when it has ended.

    Field 22 of /proc/PID/stat (proc(5): clock ticks since boot) with the boot's id. A zombie has ended.
    """
    return _start_linux(pid) if IS_LINUX else _start_psutil(pid)


def identify(pid: int) -> Proc:
    """Name a process that we have just started; one that ended at once gets a start time that nobody has."""
    return Proc(pid, start_of(pid) or "ended")


def is_alive(proc: Proc | None) -> bool:
    """Whether this very process runs; a process that got its pid later is another."""
    return proc is not None and start_of(proc.pid) == proc.start


def signal_process(proc: Proc, number: int) -> bool:
    """Signal this very process; False when it has ended or is not ours."""
    if not is_alive(proc):
        return False
    try:
        os.kill(proc.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def signal_group(leader: Proc, number: int) -> None:
    """Signal the process group that a process of ours leads or has led.

    A group's id stays taken while it has members. So when a process with the leader's pid lives and is not the
    leader, the group is somebody else's; when none lives, what is left of the group is ours.
    """
    if start_of(leader.pid) not in (leader.start, None):
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, number)


def marked(is_wanted: Callable[[Marked], bool]) -> list[Marked]:
    """Every living process that carries a mark of this backend and is wanted, ourselves excepted."""
    return [one for one in (_scan_linux() if IS_LINUX else _scan_psutil()) if is_wanted(one)]


def kill_marked(is_wanted: Callable[[Marked], bool]) -> list[Marked]:
    """SIGKILL every such process; those that were found. Call it until it finds none: a process may fork."""
    found = marked(is_wanted)
    for one in found:
        signal_process(one.proc, signal.SIGKILL)
    return found


def _stat_linux(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the command's name, from the state on; None when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123  (called often: Path costs more)
            text = file.read(4096).decode("utf-8", "replace")
    except OSError:  # ended, or ended while it was read (ESRCH)
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else fields


def _start_linux(pid: int) -> str | None:
    fields = _stat_linux(pid)
    return None if fields is None else f"{boot_id()}-{fields[19]}"


def _scan_linux() -> Iterator[Marked]:
    needle, own = f"{ENV_FOLDER}=".encode(), os.getpid()
    for name in os.listdir("/proc"):  # noqa: PTH208  (called often)
        if not name.isdigit() or int(name) == own:
            continue
        environ = _environ_linux(int(name))
        if needle not in environ:
            continue
        start = _start_linux(int(name))
        if start is not None:
            items = (item.partition("=") for item in os.fsdecode(environ).split("\0"))
            yield _marked(Proc(int(name), start), {key: value for key, _, value in items}, _command_linux(name))


def _environ_linux(pid: int) -> bytes:
    """The environment of a process; empty for one that has ended, is somebody else's, or has none.

    In the midst of exec() a process has none yet, and its mark cannot be seen: we wait until it has.
    """
    environ = b""
    for _ in range(_EXEC_TRIES):
        try:
            with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123
                environ = file.readall()
        except OSError:
            break
        fields = None if environ else _stat_linux(pid)
        # Fields 9 and 51 of proc(5): flags; env_end, which is 0 until exec() has laid out the new memory.
        if fields is None or int(fields[6]) & _NO_MEMORY or int(fields[48]):
            break
        time.sleep(0.001)
    return environ


def _command_linux(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _marked(proc: Proc, environ: dict[str, str], command: str) -> Marked:
    names = (ENV_FOLDER, ENV_RUN, ENV_RUN_ID, ENV_POD, ENV_POD_ID)
    return Marked(proc, command, *(environ.get(name, "") for name in names))


def _start_psutil(pid: int) -> str | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.6f}"
    except psutil.Error:
        return None


def _scan_psutil() -> Iterator[Marked]:
    import psutil

    for process in psutil.process_iter():
        try:
            environ = process.environ()
            if ENV_FOLDER in environ and process.pid != os.getpid():
                start = f"{process.create_time():.6f}"
                yield _marked(Proc(process.pid, start), environ, " ".join(process.cmdline()))
        except (psutil.Error, OSError):  # ended, or somebody else's
            continue
