"""The machine of the Engine as one node: what the Engine says of it, and its GPUs by NVIDIA's driver.

The Engine itself cannot say which GPUs there are. It is on this machine (its socket is a file), so the driver
here is the driver there.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any

from l2rtui.config import Settings
from l2rtui.domain.node import Gpu, Node


def node_name(info: Mapping[str, Any]) -> str:
    """The Engine's host as a DNS label, which slots need."""
    name = re.sub(r"[^a-z0-9-]+", "-", str(info.get("Name", "")).partition(".")[0].lower()).strip("-")
    return name[:63].rstrip("-") or "docker"


def has_gpu_runtime(info: Mapping[str, Any]) -> bool:
    """Whether the Engine can hand GPUs to containers: NVIDIA's runtime, or its devices by CDI."""
    return "nvidia" in info.get("Runtimes", {}) or bool(info.get("CDISpecDirs"))


def node(info: Mapping[str, Any], settings: Settings, gpus: tuple[Gpu, ...], problem: str = "") -> Node:
    """The one node; without a GPU it has the cpu device."""
    name, cores = node_name(info), float(info.get("NCPU", 1))
    if not gpus:
        slots = max(1, min(settings.max_cpu_slots, int(settings.slots_per_core * cores)))
        gpus = (Gpu(name, 0, slots=slots, is_cpu=True),)
    return Node(name, gpus, cpu_cores=cores, memory_bytes=int(info.get("MemTotal", 0)), message=problem)


def read_gpus(name: str, slots: int, nvml: Any = None) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs, and why they cannot be read where that is so; blocks for some milliseconds.

    Args:
        nvml: The module ``pynvml`` or what stands for it; None imports it.
    """
    try:
        nvml = nvml or importlib.import_module("pynvml")
        nvml.nvmlInit()
    except ImportError as error:
        return (), f"the GPUs cannot be read: {error}"
    except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded):
        return (), ""
    except nvml.NVMLError as error:
        return (), f"the GPUs cannot be read: NVML says {error}"
    try:
        return tuple(_gpu(nvml, name, slots, index) for index in range(nvml.nvmlDeviceGetCount())), ""
    except nvml.NVMLError as error:
        return (), f"the GPUs cannot be read: NVML says {error}"
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, name: str, slots: int, index: int) -> Gpu:
    device = nvml.nvmlDeviceGetHandleByIndex(index)
    return Gpu(
        name,
        index,
        uuid=str(nvml.nvmlDeviceGetUUID(device)),
        model=str(nvml.nvmlDeviceGetName(device)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(device).total),
        slots=slots,
    )
