"""A learner's device meter against the card itself."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_the_meter_reads_the_card_that_torch_computes_on():
    from runtime.rl.device.accelerator import DeviceMeter

    meter = DeviceMeter(["cuda"])
    before = meter.report()
    block = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    after = meter.report()
    assert torch.cuda.get_device_name() in after["device"]
    assert after["gpu_reserved_bytes"] - before["gpu_reserved_bytes"] >= block.numel()
    # Of the entire card: other processes may free memory in between, but hardly half a gibibyte.
    assert after["gpu_memory_bytes"] - before["gpu_memory_bytes"] >= block.numel() // 2
    assert after["gpu_memory_bytes"] <= torch.cuda.get_device_properties(0).total_memory + (1 << 30)
