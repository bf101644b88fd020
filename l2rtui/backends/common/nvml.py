"""GPUs of this node and the processes that compute on them, read by NVML; a cpu device where there is no GPU.

The only code that talks to ``pynvml``. A test passes another object with the few functions that are used here.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from typing import Any

from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.node import Gpu, GpuUse
from runtime.base.gpu_meter import GpuState, read_state

_NO_DRIVER_SECONDS = 60.0
"""Period without another search for a missing driver: each search reads every library folder."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU."""

    pid: int
    claim: DeviceUsage


@dataclass(frozen=True, slots=True)
class GpuReport:
    """GPUs and their processes at one moment.

    Attributes:
        uses: Utilisation, memory, power and temperature of each GPU, as far as the card reports them.
        driver: Its version; empty without NVIDIA's driver: no GPU, and no problem.
        problem: Why the GPUs cannot be read, one sentence; empty when they could.
    """

    gpus: tuple[Gpu, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    uses: tuple[GpuUse, ...] = ()
    driver: str = ""
    problem: str = ""


class GpuReader:
    """Reads the GPUs and keeps NVML open in between: opening it takes much longer than a reading.

    Args:
        nvml: The module ``pynvml``, or a stand-in; None imports it at the first reading.
    """

    def __init__(self, slots_per_gpu: int, nvml: Any = None) -> None:
        self._slots = slots_per_gpu
        self._nvml = nvml
        self._is_open = False
        self._no_driver_until = 0.0

    def read(self, node: str) -> GpuReport:
        """Read every GPU. Blocks for some milliseconds each, longer while a driver wakes."""
        if time.monotonic() < self._no_driver_until:
            return GpuReport()
        if self._nvml is None:
            try:
                self._nvml = importlib.import_module("pynvml")
            except ImportError as error:
                return GpuReport(problem=f"the GPUs cannot be read: {error}")
        nvml = self._nvml
        try:
            if not self._is_open:
                nvml.nvmlInit()
                self._is_open = True
            return self._report(nvml, node)
        # No driver is the normal case of a CPU node, and no problem to report.
        except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded):
            self._no_driver_until = time.monotonic() + _NO_DRIVER_SECONDS
            return GpuReport()
        except nvml.NVMLError as error:
            # After an upgrade of the driver this handle stays broken; only another nvmlInit() can succeed.
            self.close()
            return GpuReport(problem=f"the GPUs cannot be read: NVML says {error}")

    def close(self) -> None:
        """Close NVML; a later reading opens it again."""
        if self._is_open:
            self._is_open = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                pass  # the connection to the driver was lost before

    def _report(self, nvml: Any, node: str) -> GpuReport:
        gpus: list[Gpu] = []
        processes: list[GpuProcess] = []
        uses: list[GpuUse] = []
        problem, driver = "", _text(nvml.nvmlSystemGetDriverVersion())
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                device = nvml.nvmlDeviceGetHandleByIndex(index)
                state, pids = read_state(nvml, device), _pids(nvml, device)
                uuid, model = _text(nvml.nvmlDeviceGetUUID(device)), _text(nvml.nvmlDeviceGetName(device))
            except nvml.NVMLError as error:
                # A card that fell off the bus is still counted; the others can be used.
                problem = problem or f"GPU{index} cannot be read: NVML says {error}"
                continue
            gpus.append(Gpu(node, index, uuid, model, state.memory_bytes or 0, self._slots))
            uses.append(_use(index, state))
            processes.extend(GpuProcess(pid, DeviceUsage(index)) for pid in pids)
        if problem:
            self.close()  # as for errors of the whole driver: a reset card needs another nvmlInit()
        return GpuReport(tuple(gpus), tuple(processes), tuple(uses), driver, problem)


def _use(index: int, state: GpuState) -> GpuUse:
    return GpuUse(
        index, state.percent, state.memory_used_bytes, state.memory_bytes or 0, state.watts, state.celsius
    )


def _pids(nvml: Any, device: Any) -> list[int]:
    # A process with a CUDA and an OpenGL context is in both lists.
    pids: set[int] = set()
    for list_processes in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        try:
            pids.update(process.pid for process in list_processes(device))
        except nvml.NVMLError_NotSupported:
            pass  # cards without graphics, and drivers in a virtual machine
    return sorted(pids)


def cpu_device(node: str, cores: float, slots_per_core: int, max_slots: int, *, index: int = 0) -> Gpu:
    """Return the device that carries the slots of a node's CPU; beside GPUs its index is ``domain.node.CPU``."""
    return Gpu(node, index, slots=max(1, min(max_slots, int(slots_per_core * cores))), is_cpu=True)


def _text(value: str | bytes) -> str:
    # Older releases of pynvml give bytes.
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
