# ruff: noqa: N802  (the names come from pynvml)
"""NVML without a driver: the functions of `pynvml` that this project calls, over GPUs described by a test.

`FakeNvml(FakeGpu(...))` is passed to code that takes `nvml=`. A process gets it as its module `pynvml`:

    env = {"PYTHONPATH": f"{pynvml_folder(tmp_path, FakeGpu())}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}

Calling `pynvml_folder` again changes the values that a running process reads next. Like the real library it refuses
calls before `nvmlInit`, answers "Not Supported" for values that a card lacks, and every call about a lost card
fails.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

GIB = 1 << 30
# Codes and sentences of nvml.h as printed by pynvml; a test compares them with the module.
_SENTENCES = {
    1: ("Uninitialized", "Uninitialized"),
    2: ("InvalidArgument", "Invalid Argument"),
    3: ("NotSupported", "Not Supported"),
    4: ("NoPermission", "Insufficient Permissions"),
    6: ("NotFound", "Not Found"),
    9: ("DriverNotLoaded", "Driver Not Loaded"),
    12: ("LibraryNotFound", "NVML Shared Library Not Found"),
    13: ("FunctionNotFound", "Function Not Found"),
    15: ("GpuIsLost", "GPU is lost"),
    18: ("LibRmVersionMismatch", "RM has detected an NVML/RM version mismatch."),
    999: ("Unknown", "Unknown Error"),
}


class NVMLError(Exception):
    """Error of NVML; each code has a separate class, as in pynvml."""

    classes: ClassVar[dict[int, type[NVMLError]]] = {}
    value = 999

    def __new__(cls, value: int = 999) -> Self:
        error = Exception.__new__(cls.classes.get(value, cls) if cls is NVMLError else cls)
        error.value = value if cls is NVMLError else cls.value
        return error

    def __str__(self) -> str:
        return _SENTENCES.get(self.value, ("", f"NVML Error with code {self.value}"))[1]


for _code, (_name, _) in _SENTENCES.items():
    NVMLError.classes[_code] = type(f"NVMLError_{_name}", (NVMLError,), {"value": _code})


@dataclass
class FakeGpu:
    """One card in NVML's terms.

    Attributes:
        uuid: If empty, it is made from its index.
        pids: Processes with a CUDA context. graphics_pids: with a graphics context.
        pid_bytes: Memory of processes, by pid; others are "not available". pid_percents: samples of processes that
            computed, each with its time in microseconds.
        unsupported: Names of functions that this card answers with "Not Supported".
        is_lost: It fell off the bus: it is counted, and every call about it fails.
        mig: Instances, which have a handle by their UUID (``MIG-…``); while there are any, the card is in MIG mode.
    """

    name: str = "NVIDIA H100 80GB HBM3"
    uuid: str = ""
    memory_bytes: int = 80 * GIB
    used_bytes: int = 2 * GIB
    percent: int = 37
    watts: float = 310.5
    celsius: int = 54
    bus_id: str = "00000000:3B:00.0"
    pids: list[int] = field(default_factory=list)
    graphics_pids: list[int] = field(default_factory=list)
    pid_bytes: list[tuple[int, int]] = field(default_factory=list)
    pid_percents: list[tuple[int, int, int]] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    is_lost: bool = False
    mig: list[FakeGpu] = field(default_factory=list)


class FakeNvml:
    """The module `pynvml` over a list of cards; change `gpus` or `error` at any time.

    Attributes:
        error: Raised by every call except `nvmlShutdown`: a driver that is missing, broken or upgraded.
        opened: Calls of `nvmlInit` without their `nvmlShutdown`.
        calls: Names of all functions called so far, in order.
    """

    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *gpus: FakeGpu, error: int | None = None, state: Path | None = None) -> None:
        self.gpus = list(gpus)
        self.error = error
        self.opened = 0
        self.calls: list[str] = []
        self._state = state

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVMLError_"):
            for error in NVMLError.classes.values():
                if error.__name__ == name:
                    return error
        if name.startswith("NVML_ERROR_"):
            suffix = string.capwords(name.removeprefix("NVML_ERROR_"), "_").replace("_", "")
            return next(code for code, (word, _) in _SENTENCES.items() if word == suffix)
        raise AttributeError(f"the stand-in for pynvml has no {name}: add it to tests/fakes/nvml.py")

    # --- the library ------------------------------------------------------------------------------------------
    def nvmlInit(self) -> None:
        self._enter("nvmlInit", needs_init=False)
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.calls.append("nvmlShutdown")
        if not self.opened:
            raise NVMLError(1)
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        self._enter("nvmlSystemGetDriverVersion")
        return "580.95.05"

    def nvmlDeviceGetCount(self) -> int:
        self._enter("nvmlDeviceGetCount")
        return len(self.gpus)

    # --- handles: the address of a card in `gpus`, so that they outlive a change of its figures ---------------
    def nvmlDeviceGetHandleByIndex(self, index: int) -> tuple[int, ...]:
        self._enter("nvmlDeviceGetHandleByIndex")
        if not 0 <= index < len(self.gpus):
            raise NVMLError(2)
        self._check("nvmlDeviceGetHandleByIndex", self.gpus[index])
        return (index,)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> tuple[int, ...]:
        self._enter("nvmlDeviceGetHandleByUUID")
        for index, gpu in enumerate(self.gpus):
            if self._uuid((index,)) == uuid:
                return (index,)
            for instance, mig in enumerate(gpu.mig):
                if mig.uuid == uuid:
                    return (index, instance)
        raise NVMLError(6)

    # --- one card ---------------------------------------------------------------------------------------------
    def nvmlDeviceGetUUID(self, device: tuple[int, ...]) -> str:
        self._gpu("nvmlDeviceGetUUID", device)
        return self._uuid(device)

    def nvmlDeviceGetName(self, device: tuple[int, ...]) -> bytes:
        # Releases before 12 return bytes, and code has to read both.
        return self._gpu("nvmlDeviceGetName", device).name.encode()

    def nvmlDeviceGetPciInfo(self, device: tuple[int, ...]) -> SimpleNamespace:
        return SimpleNamespace(busId=self._gpu("nvmlDeviceGetPciInfo", device).bus_id)

    def nvmlDeviceGetMemoryInfo(self, device: tuple[int, ...]) -> SimpleNamespace:
        gpu = self._gpu("nvmlDeviceGetMemoryInfo", device)
        return SimpleNamespace(total=gpu.memory_bytes, used=gpu.used_bytes, free=gpu.memory_bytes - gpu.used_bytes)

    def nvmlDeviceGetUtilizationRates(self, device: tuple[int, ...]) -> SimpleNamespace:
        gpu = self._gpu("nvmlDeviceGetUtilizationRates", device)
        # NVML documentation: "On MIG-enabled GPUs, querying device utilization rates is not currently supported."
        if gpu.mig or len(device) > 1:
            raise NVMLError(3)
        return SimpleNamespace(gpu=gpu.percent, memory=gpu.percent // 2)

    def nvmlDeviceGetPowerUsage(self, device: tuple[int, ...]) -> int:
        return round(self._gpu("nvmlDeviceGetPowerUsage", device).watts * 1000)

    def nvmlDeviceGetTemperature(self, device: tuple[int, ...], sensor: int) -> int:
        gpu = self._gpu("nvmlDeviceGetTemperature", device)
        if sensor != self.NVML_TEMPERATURE_GPU:
            raise NVMLError(2)
        return gpu.celsius

    def nvmlDeviceGetComputeRunningProcesses(self, device: tuple[int, ...]) -> list[SimpleNamespace]:
        gpu = self._gpu("nvmlDeviceGetComputeRunningProcesses", device)
        return [SimpleNamespace(pid=pid, usedGpuMemory=dict(gpu.pid_bytes).get(pid)) for pid in gpu.pids]

    def nvmlDeviceGetGraphicsRunningProcesses(self, device: tuple[int, ...]) -> list[SimpleNamespace]:
        gpu = self._gpu("nvmlDeviceGetGraphicsRunningProcesses", device)
        return [SimpleNamespace(pid=pid, usedGpuMemory=dict(gpu.pid_bytes).get(pid)) for pid in gpu.graphics_pids]

    def nvmlDeviceGetProcessUtilization(self, device: tuple[int, ...], since: int) -> list[SimpleNamespace]:
        gpu = self._gpu("nvmlDeviceGetProcessUtilization", device)
        newer = [sample for sample in gpu.pid_percents if sample[0] > since]
        if not newer:
            raise NVMLError(6)  # nvml.h: "if sample entries are not found"
        return [SimpleNamespace(timeStamp=time, pid=pid, smUtil=percent) for time, pid, percent in newer]

    # --- checks -----------------------------------------------------------------------------------------------
    def _enter(self, name: str, *, needs_init: bool = True) -> None:
        self.calls.append(name)
        if self._state is not None:
            self._load(self._state)
        if self.error is not None:
            raise NVMLError(self.error)
        if needs_init and not self.opened:
            raise NVMLError(1)

    def _gpu(self, name: str, device: tuple[int, ...]) -> FakeGpu:
        self._enter(name)
        gpu = self.gpus[device[0]]
        self._check(name, gpu)
        return gpu.mig[device[1]] if len(device) > 1 else gpu

    @staticmethod
    def _check(name: str, gpu: FakeGpu) -> None:
        if gpu.is_lost:
            raise NVMLError(15)
        if name in gpu.unsupported:
            raise NVMLError(3)

    def _uuid(self, device: tuple[int, ...]) -> str:
        gpu = self.gpus[device[0]]
        return gpu.mig[device[1]].uuid if len(device) > 1 else gpu.uuid or f"GPU-{device[0]:08x}"

    def _load(self, path: Path) -> None:
        state = json.loads(path.read_text())
        self.error = state["error"]
        self.gpus = [
            FakeGpu(**{**fields, "mig": [FakeGpu(**instance) for instance in fields["mig"]]})
            for fields in state["gpus"]
        ]


_MODULE = '''"""Stand-in for pynvml in a process of a test."""
import importlib.util, pathlib, sys
_spec = importlib.util.spec_from_file_location("l2r_fake_nvml", {path!r})
_module = importlib.util.module_from_spec(_spec)
sys.modules["l2r_fake_nvml"] = _module  # its dataclasses look their module up
_spec.loader.exec_module(_module)
__getattr__ = _module.module_getattr(pathlib.Path(__file__).with_name("gpus.json"))
'''


def module_getattr(state: Path) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module that replaces pynvml and reads its cards from a file."""
    return partial(getattr, FakeNvml(state=state))


def pynvml_folder(folder: Path, *gpus: FakeGpu, error: int | None = None) -> Path:
    """Write a module `pynvml` and its cards into `folder`, for the PYTHONPATH of a process; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / "gpus.json.new"
    state.write_text(json.dumps({"error": error, "gpus": [asdict(gpu) for gpu in gpus]}))
    state.replace(folder / "gpus.json")  # a process may be reading it
    (folder / "pynvml.py").write_text(_MODULE.format(path=str(Path(__file__).resolve())))
    return folder
