"""Functions on tensors that run as one CUDA graph: a single launch instead of one per kernel.

A small kernel takes about 7 microseconds to launch and 1 as a node of a graph, so updates of small networks spend
their time on launches (NVIDIA, *Getting Started with CUDA Graphs*; PyTorch, *CUDA semantics: CUDA Graphs*). A graph
reads and writes memory by address. Three rules follow for a captured function:

- its tensor arguments are copied into static buffers, and the next call overwrites its results;
- tensors that it changes are changed in place, including by code that loads a checkpoint;
- numbers that change between calls are tensors: a Python number keeps its value from the capture.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from runtime.base.errors import FailedError, first_line

WARMUP_CALLS: Final = 3
"""Calls before a capture: they allocate cuBLAS and cuDNN workspaces and load kernels, which is forbidden during
capture. PyTorch's documentation recommends 3 (11 only below DistributedDataParallel).
"""

_CAPTURE: Final = threading.Lock()
"""Torch allows one capture at a time per process."""
Outputs = Any
"""A tensor, or any structure of tensors."""


class Captured:
    """Function as one CUDA graph for arguments of fixed shapes; on other devices the function is called eagerly.

    Not thread-safe. Every call returns the same output tensors: read or copy them before the next call, and before
    another graph of the same stream runs, because it shares their memory.
    """

    def __init__(
        self,
        function: Callable[..., Outputs],
        *examples: Tensor | None,
        generators: Sequence[torch.Generator] = (),
        state: Sequence[Tensor] = (),
        enabled: bool = True,
    ) -> None:
        """Allocate static buffers and capture. Has no effect on training: ``state`` and ``generators`` are
        restored.

        Args:
            function: called with one tensor (or None) per example; it must not wait for the device
                (``item``, boolean indices, copies to the host).
            examples: arguments with the shapes, dtypes and device to capture for; None stays None.
            generators: all generators that the function draws from.
            state: all tensors that the function changes in place.
            enabled: False runs the function eagerly on the same buffers.

        Raises FailedError if the function cannot be captured.
        """
        self._function = function
        self.inputs = tuple(None if example is None else static_copy(example) for example in examples)
        """Static buffers, one per example; a caller that writes a batch into them and passes them saves a copy."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._outputs: Outputs = None
        devices = (tensor.device for tensor in (*self.inputs, *state) if tensor is not None)
        device = next(devices, torch.device("cpu"))
        if enabled and device.type == "cuda":
            with torch.cuda.device(device):
                self._capture(generators, state)

    @property
    def is_graph(self) -> bool:
        """True if calls replay a CUDA graph."""
        return self._graph is not None

    def __call__(self, *arguments: Tensor | None) -> Outputs:
        """Run with ``arguments``, which have the examples' shapes, and return the function's outputs."""
        pairs = [
            (buffer, argument)
            for buffer, argument in zip(self.inputs, arguments, strict=True)
            if buffer is not None and argument is not None and argument is not buffer
        ]
        copy_columns(pairs)
        if self._graph is None:
            return self._function(*self.inputs)
        self._graph.replay()
        return self._outputs

    def _capture(self, generators: Sequence[torch.Generator], state: Sequence[Tensor]) -> None:
        """Warm up on a side stream, restore the state, and capture one call."""
        # Capture is not allowed on the default stream, and workspaces belong to a stream, so warm up and capture on
        # the same stream. The lock also covers the warm-up: another thread's kernel on a stream being captured
        # would become part of its graph.
        with _CAPTURE, _garbage_kept():
            stream = _side_stream(torch.cuda.current_stream())
            self._warm_up(stream, generators, state)
            self._record(stream, generators)

    def _warm_up(
        self, stream: torch.cuda.Stream, generators: Sequence[torch.Generator], state: Sequence[Tensor]
    ) -> None:
        """Call the function as often as capture requires, and restore the state."""
        tensors = [tensor.detach() for tensor in state]
        saved = [tensor.clone() for tensor in tensors]
        drawn = [generator.get_state() for generator in generators]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP_CALLS):
                # Not bound to a name: a live output keeps autograd nodes with this call's streams.
                self._function(*self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, value in zip(tensors, saved, strict=True):
            tensor.copy_(value)
        for generator, value in zip(generators, drawn, strict=True):
            generator.set_state(value)

    def _record(self, stream: torch.cuda.Stream, generators: Sequence[torch.Generator]) -> None:
        """Capture one call. Raises FailedError."""
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            # From now on each replay advances the generator like an eager call, and draws the same numbers.
            graph.register_generator_state(generator)
        try:
            # "thread_local": threads that answer observations or copy weights continue meanwhile; with the default,
            # "global", a synchronisation in any of them would abort the capture.
            with torch.cuda.graph(graph, _pool(stream).handle, stream, capture_error_mode="thread_local"):
                self._outputs = self._function(*self.inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise FailedError(
                f"torch could not capture a CUDA graph ({first_line(error)}); "
                "with cuda_graphs set to false it takes none"
            ) from error
        self._graph = graph


class CapturedByShape:
    """`Captured` for arguments of varying shapes: one graph per set of shapes and dtypes.

    ``enabled`` None captures if the arguments are on a GPU and calls the function directly otherwise; False never
    captures; True uses static buffers on every device, so that tests on a CPU cover them.
    """

    def __init__(
        self,
        function: Callable[..., Outputs],
        *,
        generators: Callable[[], Sequence[torch.Generator]] = tuple,
        state: Callable[[], Sequence[Tensor]] = tuple,
        enabled: bool | None = None,
    ) -> None:
        self._function = function
        self._generators = generators
        self._state = state
        self._enabled = enabled
        self._captured: dict[tuple[Any, ...], Captured] = {}

    def __call__(self, *arguments: Tensor | None) -> Outputs:
        """Run with ``arguments``; the outputs belong to the graph of their shapes."""
        if not is_captured(self._enabled, *arguments):
            return self._function(*arguments)
        key = shapes_of(arguments)
        captured = self._captured.get(key)
        if captured is None:
            captured = self._captured[key] = Captured(
                self._function, *arguments, generators=self._generators(), state=self._state()
            )
        return captured(*arguments)


def copy_columns(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy columns into their static buffers, given as pairs of buffer and column; one launch per type.

    Copies from the host are synchronous: their pinned source may be overwritten as soon as this returns. To overlap
    copies, pass tensors on the device.
    """
    # Grouped by hand: `_foreach_copy_` launches once for a list with one type, one device and the buffers' strides.
    # If one column differs, such as images next to rewards, it copies the whole list column by column
    # (`foreach_tensor_copy_list_kernel_cuda_` in ATen, at least up to torch 2.13).
    groups: dict[tuple[Any, ...], tuple[list[Tensor], list[Tensor]]] = {}
    for buffer, column in pairs:
        buffers, columns = groups.setdefault((column.dtype, column.device, column.is_contiguous()), ([], []))
        buffers.append(buffer)
        columns.append(column)
    for buffers, columns in groups.values():
        torch._foreach_copy_(buffers, columns)


def is_captured(enabled: bool | None, *arguments: Tensor | None) -> bool:
    """Return whether ``arguments`` use static buffers; see `CapturedByShape`."""
    if enabled is not None:
        return enabled
    return any(argument is not None and argument.is_cuda for argument in arguments)


def shapes_of(arguments: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """Return shape and dtype of each argument, which identify a graph."""
    return tuple(None if argument is None else (argument.shape, argument.dtype) for argument in arguments)


def static_copy(example: Tensor) -> Tensor:
    """Return a contiguous copy of ``example`` on its device, to be overwritten before each replay."""
    return example.detach().clone(memory_format=torch.contiguous_format)


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Prevent the garbage collector from destroying other graphs during a capture.

    A method without references is a cycle with its graphs, and CUDA may abort a capture when other graphs are
    destroyed. On an H200 the fifth learner of one process failed with `cudaErrorStreamCaptureInvalidated`, and no
    longer does.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Pool:
    """Memory pool of the graphs captured on one stream, kept for the life of the process.

    The graphs are replayed one after another, so their intermediate results can share memory. A pool per graph
    would keep activations for every batch size: gigabytes with large images.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        # The allocator gives up a pool with its last graph, and then refuses captures into it ("use_count > 0",
        # seen on an H200). So the pool has a graph that is never replayed.
        self._first = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._first, self.handle, stream, capture_error_mode="thread_local"):
            self._node = torch.zeros(1, device=stream.device)


_pool = cache(_Pool)


@cache
def _side_stream(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    """Return the capture stream for graphs that will be replayed on ``stream``; it has the same priority.

    One for all graphs: torch hands out 32 streams in turn, so a new stream for each graph would eventually be the
    one that copies run on, and each stream has cuBLAS workspaces, 32 MiB on Hopper. Graphs that share it are
    replayed in order. A graph's kernels have the priority of the stream of their capture, not of their replay.
    """
    return torch.cuda.Stream(stream.device, stream.priority)  # type: ignore[no-untyped-call]
