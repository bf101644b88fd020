"""The node that this process runs on: name, boot time, and its memory limit and load, also of our cgroup."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import psutil

from runtime.base.cgroups import MemoryLimit, fields_of, memory_limits, number_of, own_cgroups, usable_cores


@cache
def node_name() -> str:
    """Return the name of this node; see ``dns_label``."""
    return dns_label(os.uname().nodename) or "node"


@cache
def boot_time() -> float:
    """Return the boot time of this machine, in seconds since the epoch.

    Read once: the kernel derives it from the clock, so it changes whenever the clock is set.
    """
    return float(psutil.boot_time())


def dns_label(hostname: str) -> str:
    """Return the short hostname as an RFC 1123 label, as slots and Kubernetes names require; may be empty."""
    name = re.sub(r"[^a-z0-9-]+", "-", hostname.partition(".")[0].lower()).strip("-")
    return name[:63].rstrip("-")


def memory_limit() -> int | None:
    """Return the memory limit of our control group in bytes; None without a limit."""
    return min((group.limit for group in memory_limits()), default=None)


_MIN_SECONDS = 0.1
"""Minimum time between two readings of CPU times: the kernel counts in steps of 10 ms."""


def memory_used() -> int:
    """Return the memory in use in bytes: of the cgroup whose limit applies, otherwise of this machine."""
    machine = psutil.virtual_memory()
    unlimited = MemoryLimit(machine.total, None)
    tightest = min(memory_limits(), key=lambda group: group.limit, default=unlimited)
    if tightest.limit < machine.total and tightest.used is not None:
        return tightest.used
    return machine.total - machine.available


class CpuLoad:
    """CPU cores in use since the previous reading: of the cgroup whose quota applies, otherwise of this machine.

    The first reading is the load average of the last minute, at most all cores. A command that reads once would
    otherwise have to wait for a second reading.

    Args:
        has_quota: If False, measure the whole machine, regardless of our cgroup's quota.
    """

    def __init__(self, *, has_quota: bool = True) -> None:
        self._folders = list(own_cgroups()) if has_quota else []
        self._cores = usable_cores() if has_quota else float(psutil.cpu_count() or 1)
        # Not psutil.cpu_percent(): it keeps the previous times per thread. Reads from a thread pool would be first
        # readings, for which it returns 0.
        self._busy, self._read_at = _busy_core_seconds(self._folders), time.monotonic()

    def read(self) -> float:
        """Return the cores in use."""
        passed = time.monotonic() - self._read_at
        if passed < _MIN_SECONDS:
            return min(os.getloadavg()[0], self._cores)
        before, self._busy, self._read_at = self._busy, _busy_core_seconds(self._folders), time.monotonic()
        # Bounded below, since idle time counters may step back by a tick (proc(5)), and above, since the clock and
        # the counters are not read at the same moment.
        return min(max((self._busy - before) / passed, 0.0), float(psutil.cpu_count() or 1))


def _busy_core_seconds(cgroups: Iterable[Path]) -> float:
    """Return the busy seconds summed over cores: of the first cgroup with a quota, otherwise of the machine."""
    for folder in cgroups:
        quota = fields_of(folder / "cpu.max")
        if quota and quota[0].isdigit() and (used := number_of(folder / "cpu.stat", "usage_usec")) is not None:
            return used / 1e6
    times = psutil.cpu_times()
    # On Linux, guest time is also included in user and nice, and a core that waits for I/O is idle.
    twice = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return sum(times) - twice - times.idle - getattr(times, "iowait", 0.0)
