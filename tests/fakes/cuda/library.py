"""The device's C++ part: compiled once for each version of torch, and its functions."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("device.cpp")


def built(root: Path) -> Path:
    """Return the shared library; compile it if this version of it is missing."""
    version = importlib.metadata.version("torch")
    digest = hashlib.blake2b(SOURCE.read_bytes() + version.encode(), digest_size=8).hexdigest()
    library = Path(tempfile.gettempdir()) / f"l2r-simulated-cuda-{digest}.so"
    if not library.exists():
        with tempfile.NamedTemporaryFile(dir=library.parent, suffix=".so", delete=False) as made:
            pass
        includes = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}"]
        words = ["g++", "-O1", "-std=c++20", "-fPIC", "-shared", "-w", *includes, str(SOURCE), "-o", made.name]
        if shutil.which("g++") is None:
            raise RuntimeError("the simulated device needs g++ (Debian: apt install g++)")
        subprocess.run([*words, f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10", "-ltorch"], check=True)
        Path(made.name).rename(library)
    return library


def load() -> ctypes.CDLL:
    """Register the device with torch and return the functions of its clocks.

    Torch looks for CUDA once, while it is imported, and keeps the result.
    """
    assert "torch" not in sys.modules, "the simulated device must be there before torch is imported"
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    if (root / "lib" / "libtorch_cuda.so").exists():
        raise RuntimeError("the simulated device needs torch's CPU build, and this one is for CUDA")
    for name in ("libtorch_cpu.so", "libtorch.so"):
        ctypes.CDLL(str(root / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    path = built(root)
    functions = ctypes.PyDLL(str(path))
    number = ctypes.c_int64
    results = ("current_device", "current_stream", "new_stream", "device_of_stream", "launch", "record_event")
    for name in (*results, "device_count", "bytes_in_use", "most_bytes_in_use", "take_freed"):
        getattr(functions, name).restype = number
    for name, arguments in {
        "bytes_in_use": [number],
        "most_bytes_in_use": [number],
        "reset_most_bytes": [number],
        "current_stream": [number],
        "device_of_stream": [number],
        "set_current_device": [number],
        "set_current_stream": [number],
        "new_stream": [number, ctypes.c_int],
        "priority_of": [number],
        "launch": [number],
        "is_after": [number] * 3,
        "host_is_after": [number] * 2,
        "record_event": [number],
        "stream_waits": [number] * 2,
        "host_waits": [number],
        "host_is_after_event": [number],
        "host_waits_for_stream": [number],
        "host_is_after_stream": [number],
        "take_freed": [ctypes.POINTER(number), number],
    }.items():
        getattr(functions, name).argtypes = arguments
    return functions


clocks = load()
