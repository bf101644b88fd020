"""The node that this process runs on: its name, its load, and the cores and memory that its cgroups allow."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import psutil

_MIN_SECONDS = 0.1
"""Shortest time between two readings of CPU times: the kernel counts in steps of 10 ms."""
_CGROUP = Path("/sys/fs/cgroup")


@cache
def node_name() -> str:
    """Return the name of this node; see ``dns_label``."""
    return dns_label(os.uname().nodename) or "node"


def dns_label(hostname: str) -> str:
    """Return the short hostname as an RFC 1123 label, which slots and Kubernetes names need; may be empty."""
    name = re.sub(r"[^a-z0-9-]+", "-", hostname.partition(".")[0].lower()).strip("-")
    return name[:63].rstrip("-")


def usable_cores() -> float:
    """Return the CPU cores of our affinity mask, or fewer where a cgroup grants less time."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = float(len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1)
    for folder in _own_cgroups():
        match _fields(folder / "cpu.max"):  # cgroup v2
            case [quota, period] if quota.isdigit():
                cores = min(cores, int(quota) / int(period))
        match _fields(folder / "cpu.cfs_quota_us"), _fields(folder / "cpu.cfs_period_us"):  # v1: -1 is no limit
            case [quota], [period] if quota.isdigit():
                cores = min(cores, int(quota) / int(period))
    return cores


def memory_limit() -> int | None:
    """Return the memory limit of our cgroup in bytes; None without a limit."""
    return min((limit for limit, _ in _memory_limits()), default=None)


def memory_used() -> int:
    """Return the memory in use, in bytes: of the cgroup whose limit counts, or of this machine where none does."""
    machine = psutil.virtual_memory()
    limit, folder = min(_memory_limits(), default=(machine.total, _CGROUP))
    if limit < machine.total and (current := _fields(folder / "memory.current")):
        # As kubectl top and docker stats count: files that were read and can be dropped at once are no use.
        cached = _field_of(folder / "memory.stat", "inactive_file") or 0
        return max(0, int(current[0]) - cached)
    return machine.total - machine.available


class CpuLoad:
    """CPU cores in use since the previous reading: of the cgroup whose quota counts, or of this machine.

    The first reading has none before it: it is the load average of the last minute, at most all cores. A command
    that looks once would otherwise have to wait for a second reading.

    Args:
        has_quota: False counts the whole machine, whatever our cgroup may use of it.
    """

    def __init__(self, *, has_quota: bool = True) -> None:
        self._folders = list(_own_cgroups()) if has_quota else []
        self._cores = usable_cores() if has_quota else float(psutil.cpu_count() or 1)
        # Not psutil.cpu_percent(): it keeps the previous times of each thread apart, and reads from a pool of
        # threads would be first readings, which it answers with 0.
        self._busy, self._read_at = _busy_core_seconds(self._folders), time.monotonic()

    def read(self) -> float:
        """Return the cores in use."""
        passed = time.monotonic() - self._read_at
        if passed < _MIN_SECONDS:
            return min(os.getloadavg()[0], self._cores)
        before, self._busy, self._read_at = self._busy, _busy_core_seconds(self._folders), time.monotonic()
        # Bounded below, since counters of idle time may step back by a tick (proc(5)), and above, since the clock
        # and the counters are not read at the same moment.
        return min(max((self._busy - before) / passed, 0.0), float(psutil.cpu_count() or 1))


def _busy_core_seconds(cgroups: Iterable[Path]) -> float:
    """Return the seconds that cores have been busy, summed over them: of the first cgroup with a quota, or all."""
    for folder in cgroups:
        quota = _fields(folder / "cpu.max")
        if quota and quota[0].isdigit() and (used := _field_of(folder / "cpu.stat", "usage_usec")) is not None:
            return used / 1e6
    times = psutil.cpu_times()
    # On Linux time of guests is also in user and nice, and a core that waits for I/O is idle.
    twice = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return sum(times) - twice - times.idle - getattr(times, "iowait", 0.0)


def _memory_limits() -> list[tuple[int, Path]]:
    """Return the limits of our cgroup and all above it, with the folder of each; "max" is no limit."""
    limits = [(fields[0], folder) for folder in _own_cgroups() if (fields := _fields(folder / "memory.max"))]
    return [(int(limit), folder) for limit, folder in limits if limit.isdigit()]


def _own_cgroups() -> Iterator[Path]:
    """Yield our cgroup and all above it: each of them may set a limit."""
    own = ""
    for line in _lines(Path("/proc/self/cgroup")):
        number, _, path = line.split(":", 2)
        if number == "0":  # the unified hierarchy of cgroup v2 always has this number
            own = path
    folder = _CGROUP / own.lstrip("/")
    while True:
        yield folder
        if folder in (_CGROUP, folder.parent):
            break
        folder = folder.parent
    # Under v1 each controller is mounted apart. Inside a container this mount shows the container's own limit.
    yield _CGROUP / "cpu"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii").splitlines()
    except OSError:  # another system, or a limit that this cgroup does not have
        return []


def _fields(path: Path) -> list[str]:
    lines = _lines(path)
    return lines[0].split() if lines else []


def _field_of(path: Path, name: str) -> int | None:
    """Return the number behind a name in a file of names and numbers; None without it."""
    for line in _lines(path):
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return None
