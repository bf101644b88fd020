"""Device of a learner in its records, on a CPU and through a stand-in for CUDA's own figures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from runtime.rl.device.accelerator import DeviceMeter
from tests.fakes.nvml import GIB, FakeGpu, FakeNvml


class FakeCuda:
    """The functions of `torch.cuda` called by a meter; devices in CUDA's order, which is not NVML's."""

    def __init__(self, *uuids, error=None):
        self.uuids = uuids
        self.error = error

    def current_device(self):
        return 0

    def get_device_properties(self, index):
        uuid = self.uuids[index]
        properties = {"name": "NVIDIA H100 80GB HBM3", "uuid": uuid} if uuid else {"name": "old"}
        return SimpleNamespace(**properties)

    def memory_reserved(self, index):
        return (index + 1) * GIB

    def mem_get_info(self, index):
        if self.error:
            raise self.error
        return 70 * GIB, 80 * GIB


def test_a_cpu_has_its_name_alone():
    meter = DeviceMeter(["cpu"])
    assert meter.latest == {}
    assert meter.report() == meter.latest == {"device": "cpu"}
    assert DeviceMeter(["mps"]).report() == {"device": "mps"}
    assert DeviceMeter(["cpu", "cpu"]).device == "cpu"


def test_a_device_is_read_by_its_uuid_and_not_by_its_index():
    nvml = FakeNvml(FakeGpu(uuid="GPU-bb", percent=1), FakeGpu(uuid="GPU-aa", percent=77, used_bytes=9 * GIB))
    meter = DeviceMeter(["cuda"], nvml=nvml, cuda=FakeCuda("aa", "bb"))
    assert meter.report() == {
        "device": "cuda:0 NVIDIA H100 80GB HBM3",
        "gpu_percent": 77.0,
        "gpu_memory_bytes": 9 * GIB,
        "gpu_reserved_bytes": GIB,
    }


def test_several_devices_are_one_figure():
    nvml = FakeNvml(FakeGpu(uuid="GPU-aa", percent=40), FakeGpu(uuid="GPU-bb", percent=60))
    fields = DeviceMeter(["cuda:0", "cuda:1"], nvml=nvml, cuda=FakeCuda("aa", "bb")).report()
    assert fields["device"] == "cuda:0,1 NVIDIA H100 80GB HBM3"
    assert (fields["gpu_percent"], fields["gpu_reserved_bytes"]) == (50.0, 3 * GIB)


@pytest.mark.parametrize("nvml", [FakeNvml(error=12), FakeNvml(FakeGpu(uuid="GPU-other"))])
def test_where_nvml_does_not_answer_cuda_tells_the_memory_and_the_rest_is_left_out(nvml):
    fields = DeviceMeter(["cuda:1"], nvml=nvml, cuda=FakeCuda("aa", None)).report()
    assert fields == {"device": "cuda:1 old", "gpu_memory_bytes": 10 * GIB, "gpu_reserved_bytes": 2 * GIB}


def test_a_device_that_fails_does_not_end_the_training():
    meter = DeviceMeter(["cuda"], nvml=FakeNvml(error=12), cuda=FakeCuda("aa", error=RuntimeError("CUDA error")))
    assert meter.report() == {"device": "cuda:0 NVIDIA H100 80GB HBM3", "gpu_reserved_bytes": GIB}
