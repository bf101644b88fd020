"""The node that this process runs on: its name, and the cores and memory that its cgroups allow.

The standard library alone: each supervisor of a local run imports it, and psutil would double what one takes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


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
    for folder in own_cgroups():
        match fields_of(folder / "cpu.max"):  # cgroup v2
            case [quota, period] if quota.isdigit():
                cores = min(cores, int(quota) / int(period))
        match fields_of(folder / "cpu.cfs_quota_us"), fields_of(folder / "cpu.cfs_period_us"):  # v1: -1 is no limit
            case [quota], [period] if quota.isdigit():
                cores = min(cores, int(quota) / int(period))
    return cores


def memory_limit() -> int | None:
    """Return the memory limit of our cgroup in bytes; None without a limit."""
    return min((limit for limit, _ in memory_limits()), default=None)


def memory_limits() -> list[tuple[int, Path]]:
    """Return the limits of our cgroup and all above it, with the folder of each; "max" is no limit."""
    limits = [(fields[0], folder) for folder in own_cgroups() if (fields := fields_of(folder / "memory.max"))]
    return [(int(limit), folder) for limit, folder in limits if limit.isdigit()]


def own_cgroups() -> Iterator[Path]:
    """Yield our cgroup and all above it: each of them may set a limit."""
    own = ""
    for line in lines_of(Path("/proc/self/cgroup")):
        number, _, path = line.split(":", 2)
        if number == "0":  # the unified hierarchy of cgroup v2 always has this number
            own = path
    folder = CGROUP / own.lstrip("/")
    while True:
        yield folder
        if folder in (CGROUP, folder.parent):
            break
        folder = folder.parent
    # Under v1 each controller is mounted apart. Inside a container this mount shows the container's own limit.
    yield CGROUP / "cpu"


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file of the kernel; empty if it is not there."""
    try:
        return path.read_text("ascii").splitlines()
    except OSError:  # another system, or a limit that this cgroup does not have
        return []


def fields_of(path: Path) -> list[str]:
    """Return the fields of the first line of a file of the kernel; empty if it is not there."""
    lines = lines_of(path)
    return lines[0].split() if lines else []
