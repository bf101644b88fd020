"""Figures of GPUs in metric records: the process's own GPU, and unknown figures, which are left out."""

from __future__ import annotations

import sys

import pytest

from runtime.base.gpu_meter import GpuMeter, own_devices, read_state
from tests.fakes.nvml import GIB, FakeGpu, FakeNvml


@pytest.mark.parametrize(
    ("env", "device"),
    [
        ({}, "0"),
        ({"CUDA_VISIBLE_DEVICES": "3"}, "3"),
        ({"CUDA_VISIBLE_DEVICES": " GPU-7 ,GPU-8", "NVIDIA_VISIBLE_DEVICES": "GPU-7,GPU-8"}, "GPU-7"),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, None),
        ({"NVIDIA_VISIBLE_DEVICES": "none", "CUDA_VISIBLE_DEVICES": "0"}, None),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, None),
    ],
)
def test_the_variables_tell_which_gpu_is_its_own(env, device):
    assert own_devices(env) == (((device,),) if device else ())


@pytest.mark.parametrize("names", [(), ("4095",), ("GPU-00000000-0000-0000-0000-000000000000",)])
def test_without_such_a_gpu_there_are_no_fields(names):
    assert GpuMeter(*([names] if names else [])).report() == {}
    assert GpuMeter(names, nvml=FakeNvml(FakeGpu())).report() == {}


def test_without_the_module_there_are_no_fields(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuMeter(("0",)).report() == {}


@pytest.mark.parametrize("name", ["1", "GPU-b"])
def test_a_gpu_is_read_by_its_index_or_its_uuid(name):
    nvml = FakeNvml(FakeGpu(percent=1), FakeGpu(uuid="GPU-b", percent=64, used_bytes=3 * GIB))
    assert GpuMeter((name,), nvml=nvml).report() == {"gpu_percent": 64.0, "gpu_memory_bytes": 3 * GIB}


def test_several_gpus_give_their_mean_and_their_sum():
    nvml = FakeNvml(FakeGpu(percent=20, used_bytes=GIB), FakeGpu(percent=60, used_bytes=2 * GIB))
    assert GpuMeter(("0",), ("1",), nvml=nvml).report() == {"gpu_percent": 40.0, "gpu_memory_bytes": 3 * GIB}


def test_the_first_name_that_exists_counts_and_a_mig_instance_has_memory_alone():
    nvml = FakeNvml(FakeGpu(mig=[FakeGpu(uuid="MIG-7", used_bytes=5 * GIB)]))
    assert GpuMeter(("GPU-7", "MIG-7"), nvml=nvml).report() == {"gpu_memory_bytes": 5 * GIB}


def test_a_figure_of_some_gpus_is_no_figure_of_all():
    nvml = FakeNvml(FakeGpu(), FakeGpu(unsupported=["nvmlDeviceGetUtilizationRates"]))
    assert GpuMeter(("0",), ("1",), nvml=nvml).report() == {"gpu_memory_bytes": 4 * GIB}
    assert GpuMeter(("0",), ("GPU-missing",), nvml=nvml).report() == {}


def test_a_lost_card_and_a_broken_driver_leave_the_fields_out_until_they_are_back():
    nvml = FakeNvml(FakeGpu(percent=5))
    meter = GpuMeter(("0",), nvml=nvml)
    nvml.gpus[0].is_lost = True
    assert meter.report() == {}
    nvml.gpus[0].is_lost, nvml.error = False, 18
    assert meter.report() == {}
    nvml.error = None
    assert meter.report()["gpu_percent"] == 5.0
    assert GpuMeter(("0",), nvml=FakeNvml(error=12)).report() == {}


def test_a_state_has_all_that_a_card_reports_and_none_for_the_rest():
    nvml = FakeNvml(FakeGpu(watts=312.5, celsius=61), FakeGpu(unsupported=["nvmlDeviceGetPowerUsage"]))
    nvml.nvmlInit()
    state = read_state(nvml, nvml.nvmlDeviceGetHandleByIndex(0))
    assert (state.watts, state.celsius, state.memory_bytes) == (312.5, 61.0, 80 * GIB)
    state = read_state(nvml, nvml.nvmlDeviceGetHandleByIndex(1))
    assert (state.watts, state.percent) == (None, 37.0)
