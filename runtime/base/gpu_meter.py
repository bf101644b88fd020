"""Utilisation and memory of GPUs, from the driver's library NVML through the module `pynvml` (nvidia-ml-py).

`pynvml` is imported when a meter is created, not before. Without it, without a driver or without a GPU there are no
fields: an unknown figure is left out and never 0. A card returns "Not Supported" for figures that it lacks
(utilisation of a MIG instance, power in a virtual machine), so every figure is read separately.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

# Values by which the NVIDIA container runtime and CUDA hide all GPUs from a process.
_HIDDEN: Final = ("", "-1", "none", "void", "NoDevFiles")


class GpuState(Struct, frozen=True):
    """Figures of one GPU at one moment; None where the card does not report one.

    Attributes:
        percent: Share of time in which a kernel ran, 0 to 100, over the driver's last sample (1/6 to 1 s).
        memory_used_bytes: In use by all processes. memory_bytes: Its total memory.
        watts: Power draw. celsius: Temperature of the chip.
    """

    percent: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    watts: float | None = None
    celsius: float | None = None


def read_state(nvml: Any, handle: Any) -> GpuState:
    """Read the figures of one GPU by its NVML handle; raises NVMLError if the GPU itself is gone."""
    busy = _supported(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    memory = _supported(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    milliwatts = _supported(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    celsius = _supported(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    return GpuState(
        None if busy is None else float(busy.gpu),
        None if memory is None else int(memory.used),
        None if memory is None else int(memory.total),
        None if milliwatts is None else milliwatts / 1000,
        None if celsius is None else float(celsius),
    )


def _supported(nvml: Any, call: Callable[[], Any]) -> Any:
    """Return the result of a call; None if this card or driver does not support it."""
    try:
        return call()
    # A driver older than the module lacks functions. In containers some figures need a permission that is not
    # granted.
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
        return None


def own_devices(env: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Return the first GPU that this process may use, in the format of `GpuMeter`; empty for none."""
    if env.get("NVIDIA_VISIBLE_DEVICES", "all").strip() in _HIDDEN:
        return ()
    first = env.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    return () if first in _HIDDEN else ((first,),)


def visible_uuids(env: Mapping[str, str], nvml: Any = None) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that this process may use, if its variables or the driver reveal them.

    Args:
        nvml: As in `GpuMeter`.
    """
    visible = env.get("NVIDIA_VISIBLE_DEVICES", "").strip()
    names = visible.split(",")
    if all(name.startswith(("GPU-", "MIG-")) for name in names):  # the usual form with the device plugin
        return tuple(names)
    if visible in _HIDDEN and "NVIDIA_VISIBLE_DEVICES" in env:
        return ()
    chosen = env.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None and chosen.strip() in _HIDDEN:
        return ()
    try:
        nvml = nvml if nvml is not None else importlib.import_module("pynvml")
    except ImportError:
        return ()
    try:
        nvml.nvmlInit()
        devices = chosen.split(",") if chosen is not None else [str(i) for i in range(nvml.nvmlDeviceGetCount())]
        handles = [_handle(nvml, [name.strip()]) for name in devices]
        return tuple(str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles if handle is not None)
    except nvml.NVMLError:
        return ()


class GpuMeter:
    """Meter of the GPUs that a process uses.

    Args:
        devices: Alternative names of each GPU, the first that NVML knows is used: an index, or a UUID (``GPU-…``,
            ``MIG-…``).
        nvml: The module `pynvml`, or a replacement; None imports it.
    """

    def __init__(self, *devices: Sequence[str], nvml: Any = None) -> None:
        self._nvml = nvml
        self._handles: list[Any] = []
        if not devices:
            return
        try:
            self._nvml = nvml if nvml is not None else importlib.import_module("pynvml")
        except ImportError:  # an image without it
            return
        try:
            self._nvml.nvmlInit()
            handles = [_handle(self._nvml, names) for names in devices]
        except self._nvml.NVMLError:  # no driver, or a broken one
            return
        # Half of the GPUs would give a figure that looks like all of them.
        self._handles = handles if None not in handles else []

    def report(self) -> dict[str, float]:
        """Return ``gpu_percent`` (mean of the GPUs) and ``gpu_memory_bytes`` (their sum), if known.

        Takes about ten microseconds per GPU and does not wait for kernels.
        """
        try:
            states = [read_state(self._nvml, handle) for handle in self._handles]
        except self._nvml.NVMLError:  # a lost card, or a driver that was upgraded: it may come back
            return {}
        percents = [state.percent for state in states if state.percent is not None]
        used = [state.memory_used_bytes for state in states if state.memory_used_bytes is not None]
        fields: dict[str, float] = {}
        if states and len(percents) == len(states):
            fields["gpu_percent"] = sum(percents) / len(percents)
        if states and len(used) == len(states):
            fields["gpu_memory_bytes"] = sum(used)
        return fields


def _handle(nvml: Any, names: Sequence[str]) -> Any:
    """Return the NVML handle of the first name that exists; None for none."""
    for name in names:
        try:
            if name.isascii() and name.isdigit():
                return nvml.nvmlDeviceGetHandleByIndex(int(name))
            return nvml.nvmlDeviceGetHandleByUUID(name)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            continue
    return None
