"""Processes of this backend: their identity (pid and start time) and the tags in their environment.

A pid is not enough: the kernel later reuses it for another process. On Linux, /proc is read directly, as a
supervisor must stay small and psutil is large; elsewhere psutil is used. ``supervision.supervised_process``
describes how processes are stopped.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from msgspec import Struct

from l2rtui.backends.local.state_files import ProcessIdentity
from runtime.base.contract import ENV_LOCAL_RUN, ENV_POD, ENV_POD_ID, ENV_RUN, ENV_RUN_ID
from runtime.base.processes import signal_process_group

IS_LINUX = sys.platform == "linux"
ENV_FOLDER = ENV_LOCAL_RUN
"""Tag with the folder of the run, in the environment of every process of this backend, including supervisors."""
_NO_MEMORY = 0x00200000 | 0x4
"""PF_KTHREAD and PF_EXITING of include/linux/sched.h: the process has no environment and will not get one."""
_EXEC_RETRIES = 100
"""Maximum number of waits of a millisecond for the end of an exec()."""


class TaggedProcess(Struct, frozen=True):
    """A living process with the tags of its environment; missing tags are empty strings."""

    proc: ProcessIdentity
    command: str
    folder: str
    run: str
    run_id: str
    pod: str
    pod_id: str


# A state folder on a network file system outlives the boot, and start times restart with each boot.
@cache
def boot_id() -> str:
    """Return the id of this boot, which start times of Linux processes are relative to; empty on other systems."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()[:8] if IS_LINUX else ""


def start_time_of(pid: int) -> str | None:
    """Return the start time of a process, which no later process with its pid shares; None if it has ended.

    Field 22 of /proc/PID/stat (proc(5): clock ticks since boot) with the boot's id. A zombie counts as ended.
    """
    return _start_linux(pid) if IS_LINUX else _start_psutil(pid)


def identify(pid: int) -> ProcessIdentity:
    """Return the identity of a process that we have just started; an ended one gets an impossible start time."""
    return ProcessIdentity(pid, start_time_of(pid) or "ended")


def is_alive(proc: ProcessIdentity | None) -> bool:
    """Return True while the process is running; a later process with its pid does not count."""
    return proc is not None and start_time_of(proc.pid) == proc.start


def is_stopped(proc: ProcessIdentity) -> bool:
    """Return True while the process is stopped by a signal (SIGSTOP, or ctrl+z on a terminal)."""
    if IS_LINUX:
        fields = _stat_linux(proc.pid)
        # One read for both: a later process of this pid must not be mistaken for it.
        return fields is not None and fields[0] == "T" and f"{boot_id()}-{fields[19]}" == proc.start
    import psutil

    try:
        return is_alive(proc) and psutil.Process(proc.pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def signal_process(proc: ProcessIdentity, number: int) -> bool:
    """Signal the process; return False if it has ended or belongs to another user."""
    if not is_alive(proc):
        return False
    try:
        os.kill(proc.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def signal_group(leader: ProcessIdentity, number: int) -> None:
    """Signal the process group that one of our processes leads or has led.

    A group's id stays taken while it has members. So if a living process has the leader's pid but is not the
    leader, the group is foreign; if no process has that pid, the remaining members are ours.
    """
    if start_time_of(leader.pid) not in (leader.start, None):
        return
    signal_process_group(leader.pid, number)


def find_tagged(is_selected: Callable[[TaggedProcess], bool]) -> list[TaggedProcess]:
    """Find selected living processes with a tag of this backend; this process is left out."""
    return [process for process in (_scan_linux() if IS_LINUX else _scan_psutil()) if is_selected(process)]


def own_children() -> list[int]:
    """Return the children of this process, including unreaped ones (Linux; empty elsewhere)."""
    try:
        tasks = os.listdir("/proc/self/task")  # noqa: PTH208  (called often)
        return [int(pid) for task in tasks for pid in Path(f"/proc/self/task/{task}/children").read_text().split()]
    except OSError:
        return []


def tags_of(pid: int) -> TaggedProcess | None:
    """Return a process with the tags of its environment; None if it has ended, or outside of Linux."""
    start = start_time_of(pid) if IS_LINUX else None
    if start is None:
        return None
    items = (item.partition("=") for item in os.fsdecode(_environ_linux(pid)).split("\0"))
    return _tagged(ProcessIdentity(pid, start), {key: value for key, _, value in items}, _command_linux(str(pid)))


def command_of(pid: int) -> str:
    """Return the command line of a process; empty if it cannot be read."""
    return _command_linux(str(pid)) if IS_LINUX else ""


def _stat_linux(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state (field 3) on; None if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123  (called often: Path costs more)
            text = file.read(4096).decode("utf-8", "replace")
    except OSError:  # ended, possibly while it was read (ESRCH)
        return None
    # The command's name may itself contain blanks and parentheses: the last parenthesis ends it.
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else fields


def _start_linux(pid: int) -> str | None:
    fields = _stat_linux(pid)
    return None if fields is None else f"{boot_id()}-{fields[19]}"


def _scan_linux() -> Iterator[TaggedProcess]:
    needle, own = f"{ENV_FOLDER}=".encode(), os.getpid()
    for name in os.listdir("/proc"):  # noqa: PTH208  (called often)
        if not name.isdigit() or int(name) == own:
            continue
        environ = _environ_linux(int(name))
        # A substring test first: it is much cheaper than splitting the environment of every process.
        if needle not in environ:
            continue
        if (process := tags_of(int(name))) is not None:
            yield process


def _environ_linux(pid: int) -> bytes:
    """Return the environment of a process; empty if it has ended, is another user's, or has none.

    During exec() a process has no readable environment: wait until it has.
    """
    environ, is_laid_out = b"", False
    for _ in range(_EXEC_RETRIES):
        try:
            with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123
                environ = file.readall()
        except OSError:
            break
        fields = None if environ or is_laid_out else _stat_linux(pid)
        # Fields 9 and 51 of proc(5): flags; env_end, which is 0 until exec() has laid out the new memory.
        if fields is None or int(fields[6]) & _NO_MEMORY:
            break
        # If that came between the two reads, the environment is there now: it is read once more.
        is_laid_out = int(fields[48]) > 0
        if not is_laid_out:
            time.sleep(0.001)
    return environ


def _command_linux(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _tagged(proc: ProcessIdentity, environ: dict[str, str], command: str) -> TaggedProcess:
    names = (ENV_FOLDER, ENV_RUN, ENV_RUN_ID, ENV_POD, ENV_POD_ID)
    return TaggedProcess(proc, command, *(environ.get(name, "") for name in names))


def _start_psutil(pid: int) -> str | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.6f}"
    except psutil.Error:
        return None


def _scan_psutil() -> Iterator[TaggedProcess]:
    import psutil

    for process in psutil.process_iter():
        try:
            environ = process.environ()
            if ENV_FOLDER in environ and process.pid != os.getpid():
                start = f"{process.create_time():.6f}"
                yield _tagged(ProcessIdentity(process.pid, start), environ, " ".join(process.cmdline()))
        except (psutil.Error, OSError):  # ended, or another user's
            continue
