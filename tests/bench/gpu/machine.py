"""Machine: products of matrices, launches of kernels and copies, on which every other figure depends."""

from __future__ import annotations

import os
import platform

import torch

from runtime.rl.device.accelerator import DTYPES, DeviceMeter, set_float32_products
from runtime.rl.device.captured import Captured
from tests.bench.gpu.measuring import Bench, await_device, call_seconds, show

COPY_BYTES = 16 * 2**20


def measure(bench: Bench) -> None:
    device = bench.device
    show(
        DeviceMeter([device]).device,
        {"torch": torch.__version__, "CUDA": torch.version.cuda, "cores": os.cpu_count()},
    )
    show(platform.platform(), {"Python": platform.python_version()})
    size = 512 if bench.is_tiny or not bench.is_gpu else 8192
    for precision, dtype in DTYPES.items():
        set_float32_products(precision)
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        seconds = call_seconds(lambda left=left, right=right: left @ right, device, 0.3)
        show(f"product {size} x {size}, {precision}", {"TFLOP/s": 2 * size**3 / seconds / 1e12})
    set_float32_products("float32")
    launches(device)
    if bench.is_gpu:
        copies(device)


def launches(device: str) -> None:
    """Print the cost of a small kernel by itself, with a wait after it, and as a node of a graph of a hundred."""
    value = torch.zeros(1024, device=device)

    def add_and_wait() -> None:
        value.add_(1.0)
        await_device(device)

    def add_often(target: torch.Tensor) -> torch.Tensor:
        for _ in range(100):
            target.add_(1.0)
        return target

    graph = Captured(add_often, value)
    show(
        "one small kernel, microseconds",
        {
            "eager": 1e6 * call_seconds(lambda: value.add_(1.0), device, 0.2),
            "with a wait": 1e6 * call_seconds(add_and_wait, device, 0.2),
            "in a graph": 1e4 * call_seconds(lambda: graph(graph.inputs[0]), device, 0.2),
        },
    )


def copies(device: str) -> None:
    """Print the rates of copies from the host."""
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    pageable = torch.empty(COPY_BYTES, dtype=torch.uint8)
    pinned = pageable.pin_memory()
    gibibytes = COPY_BYTES / 2**30
    show(
        "host to device, 16 MiB, GiB/s",
        {
            "pageable": gibibytes / call_seconds(lambda: target.copy_(pageable), device, 0.2),
            "pinned": gibibytes / call_seconds(lambda: target.copy_(pinned), device, 0.2),
            "asynchronous": gibibytes / call_seconds(lambda: target.copy_(pinned, non_blocking=True), device, 0.2),
        },
    )
