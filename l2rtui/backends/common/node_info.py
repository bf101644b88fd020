"""What this machine lets us use: its name, cores and memory, containers' limits included."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


@cache
def node_name() -> str:
    """The short name of this machine as a DNS label, which slots and Kubernetes names need."""
    name = re.sub(r"[^a-z0-9-]+", "-", os.uname().nodename.partition(".")[0].lower()).strip("-")
    return name[:63].rstrip("-") or "node"


def usable_cores() -> float:
    """CPU cores that we may use: our affinity, or less where a cgroup grants less time."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = float(len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1)
    for folder in _own_cgroups():
        match _words(folder / "cpu.max"):  # cgroup v2
            case [quota, period] if quota.isdigit():
                cores = min(cores, int(quota) / int(period))
        match _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us"):  # v1: -1 is no limit
            case [quota], [period] if quota.isdigit():
                cores = min(cores, int(quota) / int(period))
    return cores


def memory_limit() -> int | None:
    """Bytes that our cgroup may use at most; None without a limit."""
    found = [words[0] for folder in _own_cgroups() if (words := _words(folder / "memory.max"))]
    return min((int(word) for word in found if word.isdigit()), default=None)


def _own_cgroups() -> Iterator[Path]:
    """Our cgroup and all above it: each of them may set a limit. Also where v1 mounts the cpu controller."""
    own = ""
    for line in _lines(Path("/proc/self/cgroup")):
        number, _, path = line.split(":", 2)
        if number == "0":
            own = path
    folder = _CGROUP / own.lstrip("/")
    while True:
        yield folder
        if folder in (_CGROUP, folder.parent):
            break
        folder = folder.parent
    yield _CGROUP / "cpu"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii").splitlines()
    except OSError:  # another system, or a limit that this cgroup does not have
        return []


def _words(path: Path) -> list[str]:
    lines = _lines(path)
    return lines[0].split() if lines else []
