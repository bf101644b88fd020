"""Limits and use of the control groups of this process: version 2, and version 1 where it is mounted.

Source: the kernel's cgroup-v2.rst and cgroup-v1/memory.rst. The standard library alone: each supervisor of a
local run imports this, and psutil would double what one takes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CGROUP = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


class MemoryLimit(NamedTuple):
    """Limit of one control group, and what is used of it, in bytes.

    Attributes:
        limit: No limit is no MemoryLimit; version 1 writes a number near 2**63 for it.
        used: Without files that were read and can be dropped at once, as kubectl top and docker stats count; None
            where the group does not say.
    """

    limit: int
    used: int | None


def usable_cores() -> float:
    """Return the CPU cores of our affinity mask, or fewer where a control group grants less time."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = float(len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1)
    for folder in own_cgroups():
        match fields_of(folder / "cpu.max"):  # version 2
            case [quota, period] if quota.isdigit():
                cores = min(cores, int(quota) / int(period))
        match fields_of(folder / "cpu.cfs_quota_us"), fields_of(folder / "cpu.cfs_period_us"):  # 1: -1 is no limit
            case [quota], [period] if quota.isdigit():
                cores = min(cores, int(quota) / int(period))
    return cores


def memory_limits(root: Path | None = None) -> list[MemoryLimit]:
    """Return the memory limits of our control group and of all above it: each of them counts."""
    names = ("memory.max", "memory.current", "inactive_file")
    names_v1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    limits = []
    for folder in own_cgroups(root):
        for limit_name, used_name, cache_name in (names, names_v1):
            if (fields := fields_of(folder / limit_name)) and fields[0].isdigit():  # "max" is no limit
                limits.append(MemoryLimit(int(fields[0]), _used(folder, used_name, cache_name)))
    return limits


def own_cgroups(root: Path | None = None) -> Iterator[Path]:
    """Yield the folder of our control group and of all above it: each of them may set a limit."""
    root, own = root or CGROUP, ""
    for line in lines_of(OWN):
        number, _, path = line.split(":", 2)
        if number == "0":  # the unified hierarchy of version 2 always has this number
            own = path
    folder = root / own.lstrip("/")
    while True:
        yield folder
        if folder in (root, folder.parent):
            break
        folder = folder.parent
    # Under version 1 each controller is mounted apart; inside a container that mount shows its own limit.
    yield root / "cpu"
    yield root / "memory"


def number_of(path: Path, name: str) -> int | None:
    """Return the number behind a name in a file of names and numbers; None without it."""
    for line in lines_of(path):
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return None


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file of the kernel; empty if it is not there."""
    try:
        return path.read_text("ascii").splitlines()
    except OSError:  # another system, or a limit that this group does not have
        return []


def fields_of(path: Path) -> list[str]:
    """Return the fields of the first line of a file of the kernel; empty if it is not there."""
    lines = lines_of(path)
    return lines[0].split() if lines else []


def _used(folder: Path, used_name: str, cache_name: str) -> int | None:
    match fields_of(folder / used_name):
        case [used] if used.isdigit():
            return max(0, int(used) - (number_of(folder / "memory.stat", cache_name) or 0))
    return None
