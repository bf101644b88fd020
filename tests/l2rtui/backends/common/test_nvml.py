"""GPUs of this machine through NVML: the values read, values that a card lacks, and the stand-in used by tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pynvml
import pytest

from l2rtui.backends.common.nvml import GpuReader
from tests.fakes.nvml import FakeGpu, FakeNvml, NVMLError, pynvml_folder


@pytest.mark.parametrize("code", sorted(NVMLError.classes))
def test_the_stand_in_fails_as_the_module_does(code):
    real, fake = pynvml.NVMLError(code), NVMLError(code)
    assert type(fake).__name__ == type(real).__name__
    assert (str(fake), fake.value) == (str(real), real.value)
    assert getattr(FakeNvml(), type(real).__name__) is type(fake)


def test_the_stand_in_has_only_functions_of_the_module():
    own = [name for name in dir(FakeNvml) if name.startswith(("nvml", "NVML"))]
    assert [name for name in own if not hasattr(pynvml, name)] == []


def test_the_stand_in_refuses_calls_before_it_is_open_and_about_a_lost_card():
    nvml = FakeNvml(FakeGpu(), FakeGpu(is_lost=True))
    with pytest.raises(nvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetCount()
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 2
    with pytest.raises(nvml.NVMLError_GpuIsLost):
        nvml.nvmlDeviceGetHandleByIndex(1)


@pytest.mark.parametrize(
    ("bus_id", "text", "numa"),
    [
        ("00000000:3B:00.0", "1\n", 1),
        ("00000000:3B:00.0", "-1\n", None),
        ("00000000:3B:00.0", "odd\n", None),
        ("00000000:5E:00.0", "1\n", None),
    ],
)
def test_the_kernel_names_the_numa_node_of_a_gpu(tmp_path, bus_id, text, numa):
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "numa_node").write_text(text)
    reader = GpuReader(4, FakeNvml(FakeGpu(bus_id=bus_id)), tmp_path)
    assert [gpu.numa for gpu in reader.read("n").gpus] == [numa]


def test_a_gpu_without_a_bus_has_no_numa_node(tmp_path):
    reader = GpuReader(4, FakeNvml(FakeGpu(unsupported=["nvmlDeviceGetPciInfo"])), tmp_path)
    (gpu,) = reader.read("n").gpus
    assert gpu.numa is None


_PROGRAM = """
import json, pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
try:
    watts = pynvml.nvmlDeviceGetPowerUsage(card)
except pynvml.NVMLError_NotSupported as error:
    watts = str(error)
print(json.dumps([pynvml.nvmlDeviceGetMemoryInfo(card).used, watts]))
"""


@pytest.mark.process
def test_a_process_gets_the_stand_in_as_its_module(tmp_path):
    folder = pynvml_folder(tmp_path, FakeGpu(used_bytes=7, unsupported=["nvmlDeviceGetPowerUsage"]))
    env = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [7, "Not Supported"]
