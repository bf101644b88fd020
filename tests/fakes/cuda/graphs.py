"""CUDA graphs: calls recorded during a capture and repeated, on the same memory, at each replay."""

from __future__ import annotations

import weakref
from types import TracebackType

import torch

from tests.fakes.cuda import kernels
from tests.fakes.cuda.library import clocks
from tests.fakes.cuda.streams import Stream, StreamContext, synchronize


class Pool:
    """Memory of graphs. It is given up with its last graph; until torch's allocator has freed its blocks, it
    refuses a new capture into it (`CUDACachingAllocator.cpp`, `create_or_incref_pool`).
    """

    def __init__(self) -> None:
        self.graphs = 0
        self.is_gone = False

    def take(self, owner: CUDAGraph) -> None:
        if self.is_gone:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        self.graphs += 1
        weakref.finalize(owner, self._release)

    def _release(self) -> None:
        self.graphs -= 1
        self.is_gone = self.graphs == 0


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
        with kernels.below_autograd(), torch.no_grad():
            for node in self.nodes:
                node.replay()


class graph:  # noqa: N801  (torch's name)
    """`torch.cuda.graph`."""

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Pool | None = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        del capture_error_mode
        self._pool = pool
        self._graph = cuda_graph
        self._stream = stream or Stream()
        if self._stream.number < clocks.device_count():
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        self._context = StreamContext(self._stream)

    def __enter__(self) -> None:
        synchronize()
        if self._pool is not None:
            self._pool.take(self._graph)
        self._context.__enter__()
        kernels.captures[self._stream.number] = self._graph

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kernels.captures[self._stream.number]
        self._context.__exit__(kind, error, trace)
