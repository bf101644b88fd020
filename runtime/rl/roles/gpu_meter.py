"""GPU utilisation of this process, from the driver's library NVML: for clusters where nothing else measures it.

The driver brings the library into a container, so nothing has to be installed. Without a GPU or a driver there are
no fields.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Final

_LIBRARY: Final = "libnvidia-ml.so.1"
_SUCCESS: Final = 0  # NVML_SUCCESS in nvml.h
# Values by which the NVIDIA container runtime and CUDA hide all GPUs from a process.
_HIDDEN: Final = ("", "-1", "none", "void", "NoDevFiles")


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def own_device(env: Mapping[str, str]) -> str:
    """Return the index or UUID of the first GPU that this process may use; empty for none."""
    if env.get("NVIDIA_VISIBLE_DEVICES", "all").strip() in _HIDDEN:
        return ""
    first = env.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    return "" if first in _HIDDEN else first


class GpuMeter:
    """Meter of one GPU: `device` is its index or UUID; empty for none."""

    def __init__(self, device: str) -> None:
        self._handle = ctypes.c_void_p()
        self._nvml: ctypes.CDLL | None = None
        if not device:
            return
        try:
            nvml = ctypes.CDLL(_LIBRARY)
            opened = nvml.nvmlInit_v2() == _SUCCESS and self._find(nvml, device)
        except (OSError, AttributeError):  # no driver, or one that is too old
            return
        self._nvml = nvml if opened else None

    def report(self) -> dict[str, float]:
        """Return ``gpu_percent``, the share of time in which a kernel ran, and ``gpu_memory_bytes``, if known."""
        if self._nvml is None:
            return {}
        fields: dict[str, float] = {}
        busy, memory = _Utilization(), _Memory()
        if self._nvml.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(busy)) == _SUCCESS:
            fields["gpu_percent"] = float(busy.gpu)
        if self._nvml.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)) == _SUCCESS:
            fields["gpu_memory_bytes"] = float(memory.used)
        return fields

    def _find(self, nvml: ctypes.CDLL, device: str) -> bool:
        handle = ctypes.byref(self._handle)
        if device.isascii() and device.isdigit():
            return bool(nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(device)), handle) == _SUCCESS)
        return bool(nvml.nvmlDeviceGetHandleByUUID(device.encode(), handle) == _SUCCESS)
