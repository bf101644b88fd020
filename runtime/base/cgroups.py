"""Limits and use of the control groups of this process, and groups that hold all processes of a run.

Limits are read from version 2, and from version 1 if it is mounted. Groups for a run are of version 2.

Source: the kernel's cgroup-v2.rst and cgroup-v1/memory.rst. Only uses the standard library: each supervisor of a
local run imports this, and psutil would double its memory.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

CGROUP = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
RUN_PREFIX = "l2rtui-"
"""Start of the names of groups that hold the processes of one run."""
_ENTER_TRIES = 3


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
    root = root or CGROUP
    folder = root / _unified_path().lstrip("/")
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


class RunGroup(Struct, frozen=True):
    """Control group of a run. No descendant can leave it by changing its environment, session or parent."""

    folder: Path

    @classmethod
    def enter(cls, uid: str, earlier: str = "") -> RunGroup | None:
        """Move this process into the group of a run, created if necessary; None where that is not allowed.

        Args:
            uid: Identifies the run. earlier: Folder of the run's group, as an earlier process recorded it.
        """
        parent, recorded = parent_of_runs(), cls.recorded(uid, earlier)
        if recorded is not None:
            folder = recorded.folder
        elif parent is not None:
            folder = parent / f"{RUN_PREFIX}{uid}"
        else:
            return None
        for _ in range(_ENTER_TRIES):
            try:
                folder.mkdir(exist_ok=True)
                (folder / "cgroup.procs").write_text(str(os.getpid()), "ascii")
            except FileNotFoundError:
                continue  # another process removed it while it was empty
            except OSError:
                break
            # Groups of runs whose supervisor was killed; those with processes stay.
            for path in folder.parent.glob(f"{RUN_PREFIX}*"):
                cls(path).remove()
            return cls(folder)
        with contextlib.suppress(OSError):
            folder.rmdir()
        return None

    @classmethod
    def recorded(cls, uid: str, folder: str) -> RunGroup | None:
        """Return the group with this recorded folder; None unless it exists and belongs to the run."""
        path = Path(folder)
        is_own = path.name == f"{RUN_PREFIX}{uid}" and path.is_relative_to(CGROUP) and ".." not in path.parts
        return cls(path) if is_own and os.access(path / "cgroup.procs", os.R_OK) else None

    @staticmethod
    def uid_of(folder: str) -> str:
        """Return the uid of the run in the name of its group."""
        return Path(folder).name.removeprefix(RUN_PREFIX)

    @classmethod
    def default(cls, uid: str) -> RunGroup | None:
        """Return the group that this process would create for the run, if it exists."""
        parent = parent_of_runs()
        return cls.recorded(uid, str(parent / f"{RUN_PREFIX}{uid}")) if parent is not None else None

    def members(self) -> list[int]:
        """Return the processes of the group and of groups below it."""
        pids = []
        for folder, _, _ in os.walk(self.folder):
            pids += [int(line) for line in lines_of(Path(folder) / "cgroup.procs") if line != "0"]
        return pids

    def kill(self) -> None:
        """Send SIGKILL to all processes of the group."""
        try:
            (self.folder / "cgroup.kill").write_text("1", "ascii")
        except OSError:  # a kernel before 5.14, or another user's group
            for pid in self.members():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        """Remove the group unless it has processes."""
        for folder, _, _ in os.walk(self.folder, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)  # noqa: PTH106


def leave_run_group() -> None:
    """Move this process out of the group of a run: it must outlive that run."""
    parent, own = parent_of_runs(), _unified_path()
    if parent is not None and Path(own).name.startswith(RUN_PREFIX):
        with contextlib.suppress(OSError):
            (parent / "cgroup.procs").write_text(str(os.getpid()), "ascii")


def _unified_path() -> str:
    """Return the path of our group in the hierarchy of version 2; empty without one."""
    for line in lines_of(OWN):
        number, _, path = line.split(":", 2)
        if number == "0":  # the unified hierarchy always has this number
            return path
    return ""


def parent_of_runs() -> Path | None:
    """Return the folder for groups of runs: our own, or that around the group of a run; None without version 2."""
    own = _unified_path()
    for line in lines_of(Path("/proc/self/mountinfo")):
        fields = line.split()
        if "-" in fields and fields[fields.index("-") + 1] == "cgroup2" and own:
            root, mount = fields[3].rstrip("/"), Path(fields[4])
            if not own.startswith(root):
                continue
            folder = mount / own.removeprefix(root).lstrip("/")
            while folder.name.startswith(RUN_PREFIX):
                folder = folder.parent
            return folder
    return None


def _used(folder: Path, used_name: str, cache_name: str) -> int | None:
    match fields_of(folder / used_name):
        case [used] if used.isdigit():
            return max(0, int(used) - (number_of(folder / "memory.stat", cache_name) or 0))
    return None
