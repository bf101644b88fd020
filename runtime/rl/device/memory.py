"""Free memory of the device and of the host, as the limits of this process have it."""

from __future__ import annotations

from pathlib import Path

import torch

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def device_free_bytes(device: str) -> int | None:
    """Return the free bytes of a CUDA device; None where the learner computes in the host's memory."""
    if torch.device(device).type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)


def host_free_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Return the bytes that this process can still get: what the host has, within the container's limit.

    None where neither is known, as on systems without /proc.
    """
    free = [value for value in (_available(meminfo), _below_limit(cgroup)) if value is not None]
    return min(free, default=None)


def _available(meminfo: Path) -> int | None:
    """Return MemAvailable of proc(5): what can be had without swapping, with the caches that would make room."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _below_limit(cgroup: Path) -> int | None:
    """Return the bytes below the limit of the cgroup (version 2, or 1), whose file caches can be dropped."""
    for limit_name, used_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit = (cgroup / limit_name).read_text().strip()
            used = int((cgroup / used_name).read_text())
            stat = (cgroup / used_name).with_name("memory.stat").read_text().splitlines()
        except (OSError, ValueError):
            continue
        if not limit.isdigit():  # "max": no limit
            return None
        cache = next((int(line.split()[1]) for line in stat if line.startswith(f"{cache_name} ")), 0)
        return max(0, int(limit) - used + cache)
    return None
