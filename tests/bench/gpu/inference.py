"""Remote inference on the device, idle and while SAC learns: the exchange's own measurement of it."""

from __future__ import annotations

from tests.bench.exchange import inference_learning
from tests.bench.gpu.measuring import Bench


def measure(bench: Bench) -> None:
    sizes = ["--askers", "12", "--seconds", "2", "--cases", "84x84x4"]
    if bench.is_tiny:
        sizes = ["--askers", "2", "--seconds", "1", "--cases", "vector"]
    inference_learning.main([*sizes, "--rows", "16", "--rounds", "1", "--device", bench.device.partition(":")[0]])
