"""GPUs of this node and their compute processes, read through NVML; a cpu device on a node without GPUs.

The only code that uses ``pynvml``. Tests pass another object with the few functions that are used here.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.node import Gpu, GpuShare, GpuUse
from runtime.base.gpu_meter import GpuState, read_state

_PCI = Path("/sys/bus/pci/devices")
_NO_DRIVER_SECONDS = 60.0
"""Pause between two searches for a missing driver: each search reads every library folder."""


class GpuProcess(Struct, frozen=True):
    """A process on a GPU.

    Attributes:
        percent: Share of time in which one of its kernels ran, 0 to 100. memory_bytes: Its memory on that GPU. Both
            are None if the driver does not report them.
    """

    pid: int
    claim: DeviceUsage
    percent: float | None = None
    memory_bytes: int | None = None


class GpuReport(Struct, frozen=True):
    """GPUs and their processes at one moment.

    Attributes:
        uses: Utilisation, memory, power and temperature of each GPU, as far as the card reports them.
        driver: Driver version; empty without NVIDIA's driver, which means no GPUs and is not a problem.
        problem: Sentence on why the GPUs cannot be read; empty on success.
    """

    gpus: tuple[Gpu, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    uses: tuple[GpuUse, ...] = ()
    driver: str = ""
    problem: str = ""


class GpuReader:
    """Reads the GPUs and keeps NVML open in between: opening it takes much longer than a reading.

    Args:
        nvml: The module ``pynvml``, or a replacement; None imports it at the first reading.
        pci: Folder with the kernel's facts about PCI devices.
    """

    def __init__(self, slots_per_gpu: int, nvml: Any = None, pci: Path = _PCI) -> None:
        self._slots = slots_per_gpu
        self._pci = pci
        self._nvml = nvml
        self._is_open = False
        self._no_driver_until = 0.0
        self._reading = threading.Lock()
        self._sampled: dict[int, int] = {}
        """Time of the newest process sample of each GPU, in microseconds of the driver's clock."""

    def read(self, node: str) -> GpuReport:
        """Read every GPU. Blocks for a few milliseconds per GPU, longer while a driver wakes up.

        Several threads may call it.
        """
        with self._reading:
            return self._read(node)

    def close(self) -> None:
        """Close NVML; a later reading opens it again."""
        if self._is_open:
            self._is_open = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                pass  # the connection to the driver was already lost

    def _read(self, node: str) -> GpuReport:
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
        # No driver is the normal case of a CPU node, not a problem to report.
        except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded):
            self._no_driver_until = time.monotonic() + _NO_DRIVER_SECONDS
            return GpuReport()
        except nvml.NVMLError as error:
            # After a driver upgrade this handle stays broken; only another nvmlInit() can succeed.
            self.close()
            return GpuReport(problem=f"the GPUs cannot be read: NVML says {error}")

    def _report(self, nvml: Any, node: str) -> GpuReport:
        gpus: list[Gpu] = []
        processes: list[GpuProcess] = []
        uses: list[GpuUse] = []
        problem, driver = "", _text(nvml.nvmlSystemGetDriverVersion())
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                device = nvml.nvmlDeviceGetHandleByIndex(index)
                state, memory = read_state(nvml, device), _memory_by_pid(nvml, device)
                percents = self._percents(nvml, device, index) if memory else {}
                uuid, model = _text(nvml.nvmlDeviceGetUUID(device)), _text(nvml.nvmlDeviceGetName(device))
            except nvml.NVMLError as error:
                # A card that fell off the bus is still counted; the others can be used.
                problem = problem or f"GPU{index} cannot be read: NVML says {error}"
                continue
            numa = self._numa(nvml, device)
            gpus.append(Gpu(node, index, uuid, model, state.memory_bytes or 0, self._slots, numa=numa))
            uses.append(_use(index, state))
            # The driver only samples processes that computed: if others have samples, a missing one means 0.
            other = 0.0 if percents or state.percent == 0 else None
            processes.extend(
                GpuProcess(pid, DeviceUsage(index), percents.get(pid, other), used) for pid, used in memory.items()
            )
        if problem:
            self.close()  # as for errors of the whole driver: after a card reset nvmlInit() is needed again
        return GpuReport(tuple(gpus), tuple(processes), tuple(uses), driver, problem)

    def _numa(self, nvml: Any, device: Any) -> int | None:
        """Return the NUMA node of a GPU as the kernel knows it; None on a machine without, and in most VMs."""
        try:
            domain, _, rest = _text(nvml.nvmlDeviceGetPciInfo(device).busId).lower().partition(":")
            # NVML writes eight digits of the domain, the kernel four.
            node = int((self._pci / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
        except (nvml.NVMLError, OSError, ValueError):
            return None
        return node if node >= 0 else None

    def _percents(self, nvml: Any, device: Any, index: int) -> dict[int, float]:
        """Return the utilisation of each process that has computed since the last reading; empty if unknown."""
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(device, self._sampled.get(index, 0))
        # NOT_FOUND: no sample since then. Cards before Maxwell and MIG instances never have samples (nvml.h).
        except (nvml.NVMLError_NotFound, nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission):
            return {}
        except nvml.NVMLError_FunctionNotFound:  # a driver older than the module
            return {}
        ordered = sorted(samples, key=lambda sample: int(sample.timeStamp))
        if ordered:
            self._sampled[index] = int(ordered[-1].timeStamp)
        return {int(sample.pid): float(sample.smUtil) for sample in ordered}


def shares_of(report: GpuReport, pod_of: Callable[[GpuProcess], str]) -> tuple[GpuUse, ...]:
    """Return the uses of a report with the parts of single pods.

    Args:
        pod_of: Returns the uid of the pod that a process belongs to; empty if it belongs to none.
    """
    by_pod: dict[int, dict[str, list[GpuProcess]]] = {}
    for process in report.processes:
        if (uid := pod_of(process)) and process.claim.gpu is not None:
            by_pod.setdefault(process.claim.gpu, {}).setdefault(uid, []).append(process)
    pods_by_use = ((use, by_pod.get(use.gpu, {})) for use in report.uses)
    return tuple(
        replace(use, shares=tuple(_share(uid, pods[uid]) for uid in sorted(pods))) for use, pods in pods_by_use
    )


def _share(uid: str, processes: Sequence[GpuProcess]) -> GpuShare:
    percents = [process.percent for process in processes if process.percent is not None]
    sizes = [process.memory_bytes for process in processes if process.memory_bytes is not None]
    # Partial data would look like the data of all processes.
    return GpuShare(
        uid,
        min(100.0, sum(percents)) if len(percents) == len(processes) else None,
        sum(sizes) if len(sizes) == len(processes) else None,
    )


def _use(index: int, state: GpuState) -> GpuUse:
    return GpuUse(
        index, state.percent, state.memory_used_bytes, state.memory_bytes or 0, state.watts, state.celsius
    )


def _memory_by_pid(nvml: Any, device: Any) -> dict[int, int | None]:
    """Return the memory of each process on a GPU; None if the driver does not report it (containers, Windows)."""
    # A process with a CUDA and an OpenGL context is in both lists, with the same value.
    memory: dict[int, int | None] = {}
    for list_processes in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        try:
            memory.update((process.pid, process.usedGpuMemory) for process in list_processes(device))
        except nvml.NVMLError_NotSupported:
            pass  # cards without graphics, and drivers in a virtual machine
    return dict(sorted(memory.items()))


def cpu_device(node: str, cores: float, slots_per_core: int, max_slots: int, *, index: int = 0) -> Gpu:
    """Return the device with the CPU slots of a node; on a node with GPUs its index is ``domain.node.CPU``."""
    return Gpu(node, index, slots=max(1, min(max_slots, int(slots_per_core * cores))), is_cpu=True)


def _text(value: str | bytes) -> str:
    # Older releases of pynvml return bytes.
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
