"""The node that this process runs on: its name, its load, and the cores and memory that its cgroups allow."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
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
    limits = [fields[0] for folder in _own_cgroups() if (fields := _fields(folder / "memory.max"))]
    return min((int(limit) for limit in limits if limit.isdigit()), default=None)  # "max" is no limit


class CpuLoad:
    """CPU cores in use on this machine, by all processes, since the previous reading.

    The first reading has none before it: it is the load average of the last minute, at most all cores. A command
    that looks once would otherwise have to wait for a second reading.
    """

    def __init__(self) -> None:
        # Not psutil.cpu_percent(): it keeps the previous times of each thread apart, and reads from a pool of
        # threads would be first readings, which it answers with 0.
        self._busy, self._total = _cpu_seconds()
        self._read_at = time.monotonic()

    def read(self) -> float:
        """Return the cores in use."""
        cores = psutil.cpu_count() or 1
        if time.monotonic() - self._read_at < _MIN_SECONDS:
            return min(os.getloadavg()[0], float(cores))
        (busy, total), before = _cpu_seconds(), (self._busy, self._total)
        self._busy, self._total, self._read_at = busy, total, time.monotonic()
        # Counters of idle time may step back by a tick (proc(5)), so the share is bounded.
        share = (busy - before[0]) / (total - before[1]) if total > before[1] else 0.0
        return cores * min(max(share, 0.0), 1.0)


def _cpu_seconds() -> tuple[float, float]:
    """Return busy and total seconds of all cores since the start of the machine."""
    times = psutil.cpu_times()
    # On Linux time of guests is also in user and nice, and a core that waits for I/O is idle.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return total - times.idle - getattr(times, "iowait", 0.0), total


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
