"""The machine of the Engine as one node: cores and memory from the Engine, GPUs from NVIDIA's driver.

The Engine API does not list GPUs. Its socket is a file, so the Engine runs on this machine and so does the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from l2rtui.backends.common.node_info import dns_label
from l2rtui.backends.common.nvml import GpuReport, cpu_device
from l2rtui.config import Settings
from l2rtui.domain.node import CPU, Node


def node_name(info: Mapping[str, Any]) -> str:
    """Return the Engine's host name as a DNS label, as names of slots need it."""
    return dns_label(str(info.get("Name", ""))) or "docker"


def has_gpu_runtime(info: Mapping[str, Any]) -> bool:
    """Return whether containers can get GPUs: through NVIDIA's runtime, or as CDI devices."""
    return "nvidia" in info.get("Runtimes", {}) or bool(info.get("CDISpecDirs"))


def node(info: Mapping[str, Any], settings: Settings, report: GpuReport) -> Node:
    """Return the one node; its cpu device stands beside its GPUs, or alone where it has none."""
    name, cores = node_name(info), float(info.get("NCPU", 1))
    cpu = cpu_device(name, cores, settings.slots_per_core, settings.max_cpu_slots, index=CPU if report.gpus else 0)
    return Node(
        name,
        report.gpus or (cpu,),
        cpu_cores=cores,
        memory_bytes=int(info.get("MemTotal", 0)),
        message=report.problem,
        cpu=cpu if report.gpus else None,
    )
