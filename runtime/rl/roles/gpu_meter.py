"""How busy the GPU of this process is, as its driver's library says: for clusters where nobody else measures it.

The library comes into a container with the driver, so nothing is installed for it. Where there is no GPU or no
driver nothing is told.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Final

_LIBRARY: Final = "libnvidia-ml.so.1"
_DONE: Final = 0
_HIDDEN: Final = ("", "-1", "none", "void", "NoDevFiles")


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def own_device(env: Mapping[str, str]) -> str:
    """Index or UUID of the first GPU that this process may use; empty where it may use none."""
    if env.get("NVIDIA_VISIBLE_DEVICES", "all").strip() in _HIDDEN:
        return ""
    first = env.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    return "" if first in _HIDDEN else first


class GpuMeter:
    """Reads how busy one GPU is.

    Args:
        device: Its index or UUID; empty for none.
    """

    def __init__(self, device: str) -> None:
        self._handle = ctypes.c_void_p()
        self._nvml: ctypes.CDLL | None = None
        if not device:
            return
        try:
            nvml = ctypes.CDLL(_LIBRARY)
            opened = nvml.nvmlInit_v2() == _DONE and self._find(nvml, device)
        except (OSError, AttributeError):  # no driver, or one that is too old
            return
        self._nvml = nvml if opened else None

    def report(self) -> dict[str, float]:
        """``gpu_percent`` of the time in which something ran on it and ``gpu_memory_bytes`` in use, where told."""
        if self._nvml is None:
            return {}
        found: dict[str, float] = {}
        busy, memory = _Utilization(), _Memory()
        if self._nvml.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(busy)) == _DONE:
            found["gpu_percent"] = float(busy.gpu)
        if self._nvml.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)) == _DONE:
            found["gpu_memory_bytes"] = float(memory.used)
        return found

    def _find(self, nvml: ctypes.CDLL, device: str) -> bool:
        handle = ctypes.byref(self._handle)
        if device.isascii() and device.isdigit():
            return bool(nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(device)), handle) == _DONE)
        return bool(nvml.nvmlDeviceGetHandleByUUID(device.encode(), handle) == _DONE)
