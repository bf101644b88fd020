"""Which GPU a process may use, and that nothing is told where there is none."""

from __future__ import annotations

import pytest

from runtime.rl.roles.gpu_meter import GpuMeter, own_device


@pytest.mark.parametrize(
    ("env", "device"),
    [
        ({}, "0"),
        ({"CUDA_VISIBLE_DEVICES": "3"}, "3"),
        ({"CUDA_VISIBLE_DEVICES": " GPU-7 ,GPU-8", "NVIDIA_VISIBLE_DEVICES": "GPU-7,GPU-8"}, "GPU-7"),
        ({"CUDA_VISIBLE_DEVICES": ""}, ""),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ""),
        ({"NVIDIA_VISIBLE_DEVICES": "none", "CUDA_VISIBLE_DEVICES": "0"}, ""),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, ""),
    ],
)
def test_the_variables_tell_which_gpu_is_its_own(env, device):
    assert own_device(env) == device


@pytest.mark.parametrize("device", ["", "4095", "GPU-00000000-0000-0000-0000-000000000000"])
def test_where_there_is_no_such_gpu_nothing_is_told(device):
    assert GpuMeter(device).report() == {}
