"""The machine of the Engine as one node: cores and memory from the Engine, GPUs from NVIDIA's driver.

The Engine API does not list GPUs. Its socket is a file, so Engine and driver both run on this machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from l2rtui.backends.common.node_info import CpuLoad, boot_time, dns_label
from l2rtui.backends.common.nvml import GpuProcess, GpuReport, cpu_device, shares_of
from l2rtui.config import Settings
from l2rtui.domain.node import CPU, Node

_PROC: Final = Path("/proc")
_CONTAINER_ID: Final = re.compile(r"\b[0-9a-f]{64}\b")


def node_name(info: Mapping[str, Any]) -> str:
    """Return the Engine's host name as a DNS label, as slot names require."""
    return dns_label(str(info.get("Name", ""))) or "docker"


def container_of(process: GpuProcess, proc: Path = _PROC) -> str:
    """Return the id of the container that a process runs in, from its control group; empty outside of containers.

    The Engine names the group after the container: ``docker-ID.scope`` with systemd, ``docker/ID`` without.
    """
    try:
        groups = (proc / str(process.pid) / "cgroup").read_text("utf-8", "replace")
    except OSError:  # already ended, or not in our PID namespace
        return ""
    match = _CONTAINER_ID.search(groups)
    return match[0] if match else ""


def has_gpu_runtime(info: Mapping[str, Any]) -> bool:
    """Return whether containers can get GPUs: through NVIDIA's runtime, or as CDI devices."""
    return "nvidia" in info.get("Runtimes", {}) or bool(info.get("CDISpecDirs"))


class EngineLoad:
    """CPU cores and memory in use on the Engine's machine, measured by a process of that machine."""

    def __init__(self) -> None:
        self._cpu = CpuLoad(has_quota=False)  # this process may itself run in a container of the Engine

    def read(self, info: Mapping[str, Any]) -> tuple[float | None, int | None]:
        """Return cores and bytes; None for both if the Engine runs in a virtual machine (Docker Desktop)."""
        memory = psutil.virtual_memory()
        # Both come from the kernel: a virtual machine never has exactly the memory of its host.
        if info.get("MemTotal") != memory.total:
            return None, None
        return round(self._cpu.read(), 2), memory.total - memory.available


def node(
    info: Mapping[str, Any],
    settings: Settings,
    report: GpuReport,
    *,
    cpu_used: float | None = None,
    memory_used_bytes: int | None = None,
) -> Node:
    """Return the only node; it has a CPU device, plus its GPUs if any."""
    name, cores = node_name(info), float(info.get("NCPU", 1))
    cpu = cpu_device(name, cores, settings.slots_per_core, settings.max_cpu_slots, index=CPU if report.gpus else 0)
    return Node(
        name,
        report.gpus or (cpu,),
        cpu_cores=cores,
        memory_bytes=int(info.get("MemTotal", 0)),
        message=report.problem,
        cpu=cpu if report.gpus else None,
        gpu_use=shares_of(report, container_of),
        cpu_used=cpu_used,
        memory_used_bytes=memory_used_bytes,
        # If the machine's load is not readable, our boot time does not apply to it.
        created=0.0 if cpu_used is None else boot_time(),
    )
