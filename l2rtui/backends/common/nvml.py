"""The GPUs of this machine, and who computes on them, by NVML; one cpu device where there is none.

The only code that talks to ``pynvml``. A test hands in another object with the few functions that are used here.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from l2rtui.domain.ledger import Claim
from l2rtui.domain.node import Gpu


@dataclass(frozen=True, slots=True)
class GpuUse:
    """A process on a GPU."""

    pid: int
    claim: Claim


@dataclass(frozen=True, slots=True)
class GpuReport:
    """What NVML says.

    Attributes:
        has_driver: False on a machine without NVIDIA's driver: no GPU, and nothing to complain of.
        problem: Why the GPUs cannot be read, one sentence; empty when all is well.
    """

    gpus: tuple[Gpu, ...] = ()
    uses: tuple[GpuUse, ...] = ()
    has_driver: bool = False
    problem: str = ""


class GpuReader:
    """Reads the GPUs, keeping NVML open in between.

    Args:
        nvml: The module ``pynvml``, or what stands for it; None imports it at the first look.
    """

    def __init__(self, node: str, slots_per_gpu: int, nvml: Any = None) -> None:
        self._node = node
        self._slots = slots_per_gpu
        self._nvml = nvml
        self._is_open = False

    def read(self) -> GpuReport:
        """Look at every GPU. Blocks for some milliseconds each, longer while a driver wakes."""
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
            return self._look(nvml)
        except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded):
            return GpuReport()
        except nvml.NVMLError as error:
            self.close()  # after a driver's upgrade only a new start helps
            return GpuReport(has_driver=True, problem=f"the GPUs cannot be read: NVML says {error}")

    def close(self) -> None:
        """Let go of the driver."""
        if self._is_open:
            self._is_open = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                pass  # it was lost already

    def _look(self, nvml: Any) -> GpuReport:
        gpus: list[Gpu] = []
        uses: list[GpuUse] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            gpus.append(
                Gpu(
                    self._node,
                    index,
                    uuid=_text(nvml.nvmlDeviceGetUUID(device)),
                    model=_text(nvml.nvmlDeviceGetName(device)),
                    memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(device).total),
                    slots=self._slots,
                )
            )
            pids: set[int] = set()
            for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
                try:
                    pids.update(one.pid for one in ask(device))
                except nvml.NVMLError_NotSupported:
                    pass  # cards without graphics, and drivers in a virtual machine
            uses.extend(GpuUse(pid, Claim(index)) for pid in sorted(pids))
        return GpuReport(tuple(gpus), tuple(uses), has_driver=True)


def cpu_device(node: str, cores: float, slots_per_core: int, max_slots: int) -> Gpu:
    """The device that carries the slots where there is no GPU."""
    return Gpu(node, 0, slots=max(1, min(max_slots, int(slots_per_core * cores))), is_cpu=True)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
