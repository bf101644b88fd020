"""The node that this process runs on: its name, and the cores and memory that its cgroups allow."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

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
