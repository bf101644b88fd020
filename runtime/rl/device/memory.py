"""Free memory of the device and of the host, within this process's limits."""

from __future__ import annotations

from pathlib import Path

import torch

from runtime.base.cgroups import CGROUP, memory_limits

MEMINFO = Path("/proc/meminfo")


def device_free_bytes(device: str) -> int | None:
    """Return the free bytes of a CUDA device; None if the learner computes in host memory."""
    if torch.device(device).type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)


def host_free_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Return the bytes that this process can still allocate: the host's free memory, within the container's limit.

    None if neither is known, as on systems without /proc.
    """
    free = [max(0, group.limit - group.used) for group in memory_limits(cgroup) if group.used is not None]
    available = _available(meminfo)
    return min(free if available is None else [*free, available], default=None)


def _available(meminfo: Path) -> int | None:
    """Return MemAvailable of proc(5): memory available without swapping, including caches that can be dropped."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
