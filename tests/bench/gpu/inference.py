"""Remote inference on the device, idle and while SAC learns: uses the exchange's own measurement."""

from __future__ import annotations

from tests.bench.exchange import inference_learning
from tests.bench.gpu.measuring import Bench, show


def measure(bench: Bench) -> None:
    title, sizes = "84x84x4", ["--askers", "12", "--seconds", "2"]
    if bench.is_tiny:
        title, sizes = "vector", ["--askers", "2", "--seconds", "1"]
    if not bench.has_time(20.0, title):
        return
    sizes += ["--cases", title, "--rows", "16", "--rounds", "1", "--device", bench.device.partition(":")[0]]
    try:
        for row, figures in inference_learning.rows(sizes):
            show(row, figures)
    except (RuntimeError, EOFError) as error:  # a learner or an asker ended
        bench.fail(title, error or "a process ended before its time")
