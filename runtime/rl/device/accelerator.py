"""Device of a process: utilisation, memory, failures as sentences, precision, and random number generators.

Utilisation and memory of the whole GPU come from NVML (`runtime.base.gpu_meter`), as in nvidia-smi. Memory
reserved by this process comes from torch: the driver uses the host's process ids, so a process in a container
cannot find itself there.

The saved state of a generator can move to another type of device. Each type has its own generator: the Mersenne
Twister on a CPU (5,056 bytes), Philox on a GPU (seed and offset, 16 bytes). The state of one cannot be used by the
other. On another type the generator is therefore seeded with a hash of the saved state, so that the same
checkpoint always continues in the same way.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from runtime.base.cgroups import CGROUP, memory_limits
from runtime.base.errors import FailedError, first_line
from runtime.base.gpu_meter import GpuMeter

DTYPES: Final = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
"""Type of weights and activations in matrix products and convolutions, by the setting ``precision``."""


def chosen_precision(setting: str, device: str, *, has_images: bool) -> str:
    """Return the precision that ``auto`` selects; other settings are returned unchanged.

    Convolutions in exact float32 use no tensor cores: an update of SAC on 84x84x4 took 3.1 ms on an H200 and 1.8 ms
    in TF32, which is also torch's default for convolutions. Small networks on vectors gain nothing.
    """
    if setting != "auto":
        return setting
    return "tf32" if has_images and device.startswith("cuda") else "float32"


def set_float32_products(precision: str) -> None:
    """Use TF32 (10 mantissa bits instead of 23) for this process's float32 products if ``tf32``, else exact ones.

    Torch's own default is a mixture: exact matrix products, TF32 convolutions (PyTorch, *CUDA semantics: TF32*).
    """
    is_tf32 = precision == "tf32"
    # Torch 2.9 added `fp32_precision` alongside these two, and getters raise if only the new way was used. The
    # older functions set both; depending on the release they warn about it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.set_float32_matmul_precision("high" if is_tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = is_tf32


_MARK: Final = ".device"
"""Suffix of the name under which the device type is saved, as bytes."""
_SIZES: Final = {5056: "cpu", 16: "cuda"}
"""Device types by the size of their state in bytes, for checkpoints of earlier versions without that entry."""


def saved_generators(generators: Mapping[str, torch.Generator]) -> dict[str, Tensor]:
    """Return the states by name, each with an entry for the type of its device."""
    states = {name: generator.get_state() for name, generator in generators.items()}
    marks = {name + _MARK: _text(generator.device.type) for name, generator in generators.items()}
    return states | marks


def check_generator(name: str, generator: torch.Generator, state: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless `load_generator` accepts the state with this name."""
    saved = state[name]
    sentence = f"the saved {name} is not the state of a random number generator"
    if saved.dtype != torch.uint8 or saved.dim() != 1:
        raise ValueError(sentence)
    if _device_type(name, state) == generator.device.type:
        try:
            torch.Generator(generator.device).set_state(saved)
        except RuntimeError as error:
            raise ValueError(f"{sentence}: {error}") from error


def load_generator(name: str, generator: torch.Generator, state: Mapping[str, Tensor]) -> str | None:
    """Set a generator to a saved state; return a sentence if it continues with different numbers."""
    saved, origin, target = state[name], _device_type(name, state), generator.device.type
    if origin == target:
        # In place: a CUDA graph that registered the generator reads the new seed and offset at its next replay.
        generator.set_state(saved)
        return None
    digest = hashlib.blake2b(saved.numpy().tobytes(), digest_size=8).digest()
    generator.manual_seed(int.from_bytes(digest, "little") % 2**63)
    return f"{name} was saved on {origin or 'another device'} and draws other numbers on {target}"


def _device_type(name: str, state: Mapping[str, Tensor]) -> str | None:
    """Return the type of device that a state was saved on; None if it is unknown."""
    mark = state.get(name + _MARK)
    return _SIZES.get(state[name].numel()) if mark is None else mark.numpy().tobytes().decode("ascii", "replace")


def _text(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


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
