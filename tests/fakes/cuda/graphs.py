"""CUDA graphs: calls recorded during a capture and repeated, on the same memory, at each replay."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from tests.fakes.cuda import kernels
from tests.fakes.cuda.library import clocks
from tests.fakes.cuda.streams import Stream, StreamContext, synchronize


class CUDAGraph:
    """`torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.nodes: list[kernels.Node | kernels.CopyNode] = []
        self.generators = list(kernels.default_generators)

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Let the graph draw from a generator."""
        self.generators.append(generator)

    def replay(self) -> None:
        """Repeat the calls on the current stream."""
        with torch._C._AutoDispatchBelowAutograd(), torch.no_grad():
            for node in self.nodes:
                node.replay()


class graph:  # noqa: N801  (torch's name)
    """`torch.cuda.graph`."""

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Any = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        del pool, capture_error_mode
        self._graph = cuda_graph
        self._stream = stream or Stream()
        if self._stream.number < clocks.device_count():
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        self._context = StreamContext(self._stream)

    def __enter__(self) -> None:
        synchronize()
        self._context.__enter__()
        kernels.captures[self._stream.number] = self._graph

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kernels.captures[self._stream.number]
        self._context.__exit__(kind, error, trace)
