"""Puts the simulated device behind `torch.cuda`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import torch

from tests.fakes.cuda import accesses, graphs, kernels, streams
from tests.fakes.cuda.library import clocks

MEMORY: Final = 8 * 2**30
NAME: Final = "Simulated CUDA device"
PROPERTIES: Final = SimpleNamespace(
    name=NAME, total_memory=MEMORY, major=9, minor=0, multi_processor_count=132, uuid="simulated"
)


def install() -> None:
    """Make torch find CUDA devices. Once per process, before any code asks for them."""
    kernels.register()
    kernels.default_generators.extend(torch.Generator(f"cuda:{index}") for index in range(clocks.device_count()))
    replaced = _constants() | _streams() | {"_sleep": _sleep, "manual_seed": _seed, "manual_seed_all": _seed}
    for name, value in replaced.items():
        setattr(torch.cuda, name, value)
    tensor: Any = torch.Tensor
    tensor.record_stream = lambda self, stream: accesses.record_stream(self, stream.number)


def always(value: Any) -> Callable[..., Any]:
    """Return a function that returns a value for any arguments."""
    return lambda *_, **__: value


def _constants() -> dict[str, Any]:
    in_use = lambda device=None: clocks.bytes_in_use(streams.index_of(device))  # noqa: E731
    return {
        "_lazy_init": always(None),
        "current_device": lambda: clocks.current_device(),  # noqa: PLW0108  (torch looks it up in a set)
        "default_generators": tuple(kernels.default_generators),
        "device_count": always(clocks.device_count()),
        "empty_cache": always(None),
        "get_device_capability": always((9, 0)),
        "get_device_name": always(NAME),
        "get_device_properties": always(PROPERTIES),
        "is_available": always(True),
        "is_bf16_supported": always(True),
        "is_initialized": always(True),
        "mem_get_info": lambda device=None: (MEMORY - in_use(device), MEMORY),
        "max_memory_allocated": lambda device=None: clocks.most_bytes_in_use(streams.index_of(device)),
        "memory_allocated": in_use,
        "memory_reserved": in_use,
        "reset_peak_memory_stats": lambda device=None: clocks.reset_most_bytes(streams.index_of(device)),
    }


def _streams() -> dict[str, Any]:
    return {
        "CUDAGraph": graphs.CUDAGraph,
        "graph_pool_handle": graphs.Pool,
        "Event": streams.Event,
        "Stream": streams.Stream,
        "StreamContext": streams.StreamContext,
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
        "device": streams.DeviceContext,
        "graph": graphs.graph,
        "is_current_stream_capturing": streams.is_current_stream_capturing,
        "set_device": streams.set_device,
        "stream": streams.StreamContext,
        "synchronize": streams.synchronize,
    }


def _seed(seed: int) -> None:
    for generator in kernels.default_generators:
        generator.manual_seed(seed)


def _sleep(cycles: int) -> None:
    """Keep the stream busy: until the host waits for it."""
    del cycles
    accesses.note(clocks.current_stream(-1), "sleep", [], [])
