"""Devices of a learner: name, utilisation, used and free memory, and their failures as sentences.

Utilisation and memory of the whole GPU come from NVML (`runtime.base.gpu_meter`), as in nvidia-smi. Memory
reserved by this process comes from torch: the driver uses the host's process ids, so a process in a container
cannot find itself there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from runtime.base.cgroups import CGROUP, memory_limits
from runtime.base.errors import FailedError, first_line
from runtime.base.gpu_meter import GpuMeter


class DeviceMeter:
    """Meter of one process's devices.

    Args:
        devices: In torch's notation (`cpu`, `cuda`, `cuda:1`, `mps`), all of one type.
        nvml: The module `pynvml`, or a test double; None imports it.
        cuda: `torch.cuda`, or a test double.

    Attributes:
        device: For display: `cpu`, `cuda:0 NVIDIA H100 80GB HBM3`, with several `cuda:0,1 …`.
        latest: The fields of the last report; empty before the first.
    """

    def __init__(self, devices: Sequence[str], *, nvml: Any = None, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        kinds = {device.partition(":")[0] for device in devices}
        self._indices = [_index(device, cuda) for device in devices] if kinds == {"cuda"} else []
        self.device = self._describe() if self._indices else ", ".join(sorted(kinds))
        # By UUID: CUDA counts only visible devices, fastest first; NVML counts all by bus address.
        self._meter = GpuMeter(*(_uuids(cuda.get_device_properties(index)) for index in self._indices), nvml=nvml)
        self.latest: Mapping[str, Any] = {}

    def report(self) -> Mapping[str, Any]:
        """Return the fields of a record; does not wait for the device.

        `device`; on a GPU, if known, `gpu_percent` and `gpu_memory_bytes` (of the whole GPU, all processes), and
        `gpu_reserved_bytes` (of this process's allocator: tensors and its cache).
        """
        fields: dict[str, Any] = {"device": self.device}
        if self._indices:
            fields |= self._meter.report()
            if "gpu_memory_bytes" not in fields:
                fields |= self._memory_by_cuda()
            fields["gpu_reserved_bytes"] = sum(self._cuda.memory_reserved(index) for index in self._indices)
        self.latest = fields
        return fields

    def _describe(self) -> str:
        names = dict.fromkeys(self._cuda.get_device_properties(index).name for index in self._indices)
        return f"cuda:{','.join(map(str, self._indices))} {', '.join(names)}"

    def _memory_by_cuda(self) -> dict[str, int]:
        """Return `gpu_memory_bytes` from the CUDA driver if NVML is unavailable; empty if CUDA fails."""
        try:
            infos = [self._cuda.mem_get_info(index) for index in self._indices]
        except RuntimeError:  # an unknown figure must not end training; a broken device fails anyway
            return {}
        return {"gpu_memory_bytes": sum(total - free for free, total in infos)}


def _index(device: str, cuda: Any) -> int:
    """Return the index of a CUDA device; without a number it is the current one."""
    _, _, number = device.partition(":")
    return int(number) if number else int(cuda.current_device())


def _uuids(properties: Any) -> tuple[str, ...]:
    """Return the names that NVML may use for a device; none if this build of torch has no UUIDs."""
    uuid = getattr(properties, "uuid", None)
    # CUDA returns only the bytes; NVML's prefix says whether it is a GPU or a MIG instance.
    return () if uuid is None else (f"GPU-{uuid}", f"MIG-{uuid}")


@contextmanager
def device_failures() -> Iterator[None]:
    """Raise FailedError for device errors in the block; other errors pass."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise FailedError(
            f"the device has too little memory: {first_line(error)}; lower the batch, hidden, convolutions or "
            "replay_capacity, set replay_device to host, or place fewer processes on this GPU"
        ) from error
    # A later call reports a kernel's error, and every call after it fails: only a new process helps.
    except torch.AcceleratorError as error:
        raise FailedError(
            f"the device failed: {first_line(error)}; a restart continues from the newest checkpoint"
        ) from error


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
