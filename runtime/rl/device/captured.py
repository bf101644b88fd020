"""Functions on tensors that run as one CUDA graph: launched once, where eager kernels are launched one by one.

A small kernel takes about 7 microseconds to launch and 1 as a node of a graph, so updates of small networks are all
launching (NVIDIA, *Getting Started with CUDA Graphs*; PyTorch, *CUDA semantics: CUDA Graphs*). A graph reads and
writes memory by address. Three rules follow for a function that is captured:

- its tensor arguments are copied into static buffers, and what it returns is overwritten by the next call;
- tensors that it changes are changed in place, also by whoever loads a checkpoint;
- numbers that change between calls are tensors: a Python number is frozen at its value during capture.
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
"""Calls before a capture: they allocate workspaces of cuBLAS and cuDNN and load kernels, which capture forbids.
PyTorch's documentation names 3 (11 only below DistributedDataParallel)."""

_CAPTURE: Final = threading.Lock()
"""Torch allows a single capture at a time in a process."""
Outputs = Any
"""Tensor, or any structure of tensors."""


class Captured:
    """Function as one CUDA graph for arguments of fixed shapes; on other devices the function, called eagerly.

    Not thread-safe. The outputs are the same tensors at each call: read or copy them before the next one, and
    before any other graph of the same stream runs, which shares their memory.
    """

    def __init__(
        self,
        function: Callable[..., Outputs],
        *examples: Tensor | None,
        generators: Sequence[torch.Generator] = (),
        state: Sequence[Tensor] = (),
        enabled: bool = True,
    ) -> None:
        """Allocate static buffers and capture; neither learns: ``state`` and ``generators`` are restored.

        Args:
            function: called with one tensor (or None) for each example; it must not wait for the device
                (``item``, boolean indices, copies to the host).
            examples: arguments of the shapes, dtypes and device to capture for; None stays None.
            generators: all that the function draws from.
            state: all tensors that the function changes in place.
            enabled: False runs the function eagerly on the same buffers.

        Raises FailedError if the function cannot be captured.
        """
        self._function = function
        self.inputs = tuple(None if example is None else static_copy(example) for example in examples)
        """Static buffers, one for each example; who writes a batch into them and passes them saves a copy."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._outputs: Outputs = None
        devices = (tensor.device for tensor in (*self.inputs, *state) if tensor is not None)
        device = next(devices, torch.device("cpu"))
        if enabled and device.type == "cuda":
            with torch.cuda.device(device):
                self._capture(generators, state)

    @property
    def is_graph(self) -> bool:
        """True where calls replay a CUDA graph."""
        return self._graph is not None

    def __call__(self, *arguments: Tensor | None) -> Outputs:
        """Run on ``arguments``, which have the examples' shapes; returns what the function returns."""
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
        """Warm up on a side stream, restore what that changed, and capture one call."""
        # Capture is not allowed on the default stream, and workspaces belong to a stream: both on the same one.
        # The lock covers the warm-up too: a kernel of another thread on a stream that is captured would be in its
        # graph.
        with _CAPTURE, _garbage_kept():
            stream = _side_stream(torch.cuda.current_stream())
            self._warm_up(stream, generators, state)
            self._record(stream, generators)

    def _warm_up(
        self, stream: torch.cuda.Stream, generators: Sequence[torch.Generator], state: Sequence[Tensor]
    ) -> None:
        """Call the function as often as capture needs it, and restore what that changed."""
        tensors = [tensor.detach() for tensor in state]
        saved = [tensor.clone() for tensor in tensors]
        drawn = [generator.get_state() for generator in generators]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP_CALLS):
                # Not bound to a name: an output that is alive keeps nodes of autograd with this call's streams.
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
            # From here on each replay advances the generator as an eager call would, and draws the same numbers.
            graph.register_generator_state(generator)
        try:
            # "thread_local": threads that answer observations or copy weights go on meanwhile; with the default,
            # "global", a synchronisation in any of them would end the capture with an error.
            with torch.cuda.graph(graph, _pool(stream), stream, capture_error_mode="thread_local"):
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
    """`Captured` for arguments whose shapes may differ: one graph for each set of shapes and dtypes.

    ``enabled`` None captures where the arguments are on a GPU and calls the function itself elsewhere; False never
    captures; True goes through static buffers on every device, which is how tests on a CPU cover them.
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
        """Run on ``arguments``; the outputs belong to the graph of these shapes."""
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
    """Copy columns into their static buffers, each a pair of buffer and column; one launch for each type.

    From the host it waits: a pinned source may be overwritten by its owner as soon as this returns, so whoever
    wants to overlap copies hands in tensors of the device.
    """
    # Sorted by hand: `_foreach_copy_` launches once for a list of one type, one device and the buffers' strides.
    # Where one column differs, such as pictures beside rewards, it copies the whole list column by column
    # (`foreach_tensor_copy_list_kernel_cuda_` in ATen, to torch 2.13 at least).
    groups: dict[tuple[Any, ...], tuple[list[Tensor], list[Tensor]]] = {}
    for buffer, column in pairs:
        buffers, columns = groups.setdefault((column.dtype, column.device, column.is_contiguous()), ([], []))
        buffers.append(buffer)
        columns.append(column)
    for buffers, columns in groups.values():
        torch._foreach_copy_(buffers, columns)


def is_captured(enabled: bool | None, *arguments: Tensor | None) -> bool:
    """Return whether ``arguments`` go through static buffers; see `CapturedByShape`."""
    if enabled is not None:
        return enabled
    return any(argument is not None and argument.is_cuda for argument in arguments)


def shapes_of(arguments: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """Return shape and dtype of each argument: what a graph is captured for."""
    return tuple(None if argument is None else (argument.shape, argument.dtype) for argument in arguments)


def static_copy(example: Tensor) -> Tensor:
    """Return a contiguous copy of ``example`` on its device, to be written again before each replay."""
    return example.detach().clone(memory_format=torch.contiguous_format)


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Keep the garbage collector from destroying other graphs in the middle of a capture.

    A method that nobody has any more is a cycle with its graphs, and CUDA may end a capture when others are
    destroyed. On an H200 the fifth learner of one process failed by `cudaErrorStreamCaptureInvalidated`; that this
    was the cause is likely and not proved.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def _pool(stream: torch.cuda.Stream) -> Any:  # noqa: ARG001  (one for each)
    """Return the memory pool of the graphs that are captured on ``stream``.

    They are replayed one after the other, so intermediate results of one may lie where those of another did. A pool
    each would keep activations for every size of a batch: gigabytes with large pictures.
    """
    return torch.cuda.graph_pool_handle()


@cache
def _side_stream(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    """Return the stream on which graphs are captured that will be replayed on ``stream``, of the same priority.

    One for all of them: torch hands out 32 streams in turn, so that a new one for each graph would some day be the
    one that copies run on; and each has workspaces of cuBLAS, 32 MiB on Hopper. Graphs that share one are replayed
    in order. Kernels of a graph have the priority of the stream that they were captured on, not of the replay's.
    """
    return torch.cuda.Stream(stream.device, stream.priority)  # type: ignore[no-untyped-call]
