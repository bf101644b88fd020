"""Devices that a learner computes on: their name, utilisation and memory, for its records.

Utilisation and memory of the whole GPU come from NVML (`runtime.base.gpu_meter`), as nvidia-smi shows them. Memory
that this process has reserved comes from torch: the driver numbers processes as the host does, so that a process in
a container cannot find itself there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from runtime.base.gpu_meter import GpuMeter


class DeviceMeter:
    """Meter of the devices of one process.

    Args:
        devices: As torch writes them (`cpu`, `cuda`, `cuda:1`, `mps`), all of one type.
        nvml: The module `pynvml`, or a stand-in; None imports it.
        cuda: `torch.cuda`, or a stand-in.

    Attributes:
        device: For people: `cpu`, `cuda:0 NVIDIA H100 80GB HBM3`, with several `cuda:0,1 …`.
        latest: The fields of the last report; empty before the first.
    """

    def __init__(self, devices: Sequence[str], *, nvml: Any = None, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        kinds = {device.partition(":")[0] for device in devices}
        self._indices = [_index(device, cuda) for device in devices] if kinds == {"cuda"} else []
        self.device = self._describe() if self._indices else ", ".join(sorted(kinds))
        # By UUID: CUDA counts the visible devices, fastest first, and NVML all of them by their bus address.
        self._meter = GpuMeter(*(_uuids(cuda.get_device_properties(index)) for index in self._indices), nvml=nvml)
        self.latest: Mapping[str, Any] = {}

    def report(self) -> Mapping[str, Any]:
        """Return the fields of a record; does not wait for the device.

        `device`; on a GPU as far as known `gpu_percent` and `gpu_memory_bytes` (of the whole GPU, all processes),
        and `gpu_reserved_bytes` (of this process's allocator: tensors and what it keeps for the next ones).
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
        """Return `gpu_memory_bytes` from the CUDA driver, where NVML does not answer; empty where CUDA fails."""
        try:
            infos = [self._cuda.mem_get_info(index) for index in self._indices]
        except RuntimeError:  # an unknown figure must not end the training; a broken device will by itself
            return {}
        return {"gpu_memory_bytes": sum(total - free for free, total in infos)}


def _index(device: str, cuda: Any) -> int:
    """Return the index of a CUDA device; without a number it is the current one."""
    _, _, number = device.partition(":")
    return int(number) if number else int(cuda.current_device())


def _uuids(properties: Any) -> tuple[str, ...]:
    """Return the names that NVML may have for a device; none for a build of torch that does not tell the UUID."""
    uuid = getattr(properties, "uuid", None)
    # CUDA gives the bytes alone; NVML writes before them whether it is a GPU or an instance of one.
    return () if uuid is None else (f"GPU-{uuid}", f"MIG-{uuid}")
