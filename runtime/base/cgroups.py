"""Limits and use of the control groups of this process: version 2, and version 1 if it is mounted.

Source: the kernel's cgroup-v2.rst and cgroup-v1/memory.rst. Only uses the standard library: each supervisor of a
local run imports this, and psutil would double its memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CGROUP = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


class MemoryLimit(NamedTuple):
    """Memory limit and use of one control group, in bytes.

    Attributes:
        limit: Groups without a limit have no MemoryLimit; version 1 writes a number near 2**63 for no limit.
        used: Without file caches that can be dropped, as in kubectl top and docker stats; None if the group does
            not report it.
    """

    limit: int
    used: int | None


def usable_cores() -> float:
    """Return the CPU cores of our affinity mask, or fewer if a control group grants less time."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = float(len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1)
    for folder in own_cgroups():
        match fields_of(folder / "cpu.max"):  # version 2
            case [quota, period] if quota.isdigit():
                cores = min(cores, int(quota) / int(period))
        match fields_of(folder / "cpu.cfs_quota_us"), fields_of(folder / "cpu.cfs_period_us"):  # -1: no limit
            case [quota], [period] if quota.isdigit():
                cores = min(cores, int(quota) / int(period))
    return cores


def memory_limits(root: Path | None = None) -> list[MemoryLimit]:
    """Return the memory limits of our control group and all its parents: each of them applies."""
    names = ("memory.max", "memory.current", "inactive_file")
    names_v1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    limits = []
    for folder in own_cgroups(root):
        for limit_name, used_name, cache_name in (names, names_v1):
            if (fields := fields_of(folder / limit_name)) and fields[0].isdigit():  # "max" means no limit
                limits.append(MemoryLimit(int(fields[0]), _used(folder, used_name, cache_name)))
    return limits


def own_cgroups(root: Path | None = None) -> Iterator[Path]:
    """Yield the folders of our control group and all its parents: each of them may set a limit."""
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
    # With version 1 each controller has its own mount; inside a container that mount shows its own limit.
    yield root / "cpu"
    yield root / "memory"


def number_of(path: Path, name: str) -> int | None:
    """Return the number after a name in a file of names and numbers; None if the name is missing."""
    for line in lines_of(path):
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return None


def lines_of(path: Path) -> list[str]:
    """Return the lines of a kernel file; empty if it does not exist."""
    try:
        return path.read_text("ascii").splitlines()
    except OSError:  # another system, or a limit that this group does not have
        return []


def fields_of(path: Path) -> list[str]:
    """Return the fields of the first line of a kernel file; empty if it does not exist."""
    lines = lines_of(path)
    return lines[0].split() if lines else []


def _used(folder: Path, used_name: str, cache_name: str) -> int | None:
    match fields_of(folder / used_name):
        case [used] if used.isdigit():
            return max(0, int(used) - (number_of(folder / "memory.stat", cache_name) or 0))
    return None
