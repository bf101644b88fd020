"""Copies between host and device in parallel with the computation: pinned buffers and separate streams.

A copy from pageable memory waits for the stream and blocks the host; one from pinned memory does neither (CUDA C++
Programming Guide, *Asynchronous Concurrent Execution*). On a CPU the same calls copy synchronously, so that tests
cover them.

With a copy to the host on the computing stream, the reader waits for every kernel before it, and every later
kernel waits for the copy. Here the tensors are cloned on the computing stream, which takes a fraction of a
millisecond at memory speed, and a second stream copies the clones into pinned memory (CUDA C++ Programming Guide,
*Overlapping Behavior*); an event marks their arrival. The next update may write to the tensors at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BUFFERS: Final = 4
"""Pinned buffers per copy stream: this many copies may wait for the device before the host waits for them."""
MOST_PINNED_BYTES: Final = 256 * 2**20
"""Largest array that uses a buffer. Buffers are kept, and pinned memory is lost to the host."""
ALIGNMENT: Final = 64
"""Alignment of arrays in a buffer; views of other types need 8 bytes, and copies are faster with more."""


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


class CopyStream:
    """Orders copies and the computation that uses them, on a separate stream if the device has streams.

    Copies run between two marks: they start after all work queued so far on the computing stream (which may still
    read what they overwrite), and that stream waits for them only when told to.
    """

    def __init__(self, device: str | torch.device) -> None:
        self.device = torch.device(device)
        self.stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._read = self._event()
        self._written = self._event()

    def _event(self) -> torch.cuda.Event | None:
        return _event() if self.stream is not None else None

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Run the copies of the block on the copy stream, after the latest `mark_read`."""
        if self.stream is None or self._read is None or self._written is None:
            yield
            return
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self._read)
            yield
            self._written.record(self.stream)

    def on_stream(self) -> AbstractContextManager[object]:
        """Return the context in which the copy stream is the current one."""
        return torch.cuda.stream(self.stream) if self.stream is not None else nullcontext()

    def keep(self, tensor: Tensor) -> Tensor:
        """Return a tensor whose memory is not reused before all copies so far are done, even if the tensor is
        dropped.
        """
        if self.stream is not None:
            tensor.record_stream(self.stream)
        return tensor

    def await_copies(self) -> None:
        """Make the current stream wait for all copies so far; the host does not wait."""
        if self._written is not None:
            torch.cuda.current_stream(self.device).wait_event(self._written)

    def finish_copies(self) -> None:
        """Wait on the host for all copies so far, so that their sources may be overwritten."""
        if self._written is not None:
            self._written.synchronize()

    def mark_read(self) -> None:
        """Make later copies wait for all work queued so far on the current stream."""
        if self._read is not None:
            self._read.record(torch.cuda.current_stream(self.device))


class PinnedBuffers:
    """Buffers used in turn, each only after the copy from it is done. Not thread-safe."""

    def __init__(self, device: str | torch.device, count: int = BUFFERS) -> None:
        self._is_pinned = torch.device(device).type == "cuda"
        self._buffers = [torch.empty(0, dtype=torch.uint8)] * count
        self._copied: list[torch.cuda.Event | None] = [None] * count
        self._turn = 0

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Use one buffer for the copies of the block, all on the current stream."""
        self._turn = (self._turn + 1) % len(self._buffers)
        event = self._copied[self._turn]
        if event is not None:
            event.synchronize()
        self._used = 0
        self._outgrown: list[Tensor] = []
        yield
        if self._is_pinned:
            event = event or _event()
            event.record()
            self._copied[self._turn] = event

    def hold(self, values: NDArray[Any], pitch: int | None = None) -> Tensor:
        """Return an array's values in the buffer, contiguous, to be copied to the device before the block ends.

        With a ``pitch``, rows (n, width) become (n, pitch), padded with arbitrary numbers. A very large array, such
        as a ring from a checkpoint, is returned as is or as a padded copy; copying it to the device is synchronous.
        """
        shape = values.shape if pitch is None else (len(values), pitch)
        size = math.prod(shape) * values.itemsize
        if size > MOST_PINNED_BYTES:
            if shape != values.shape:
                values = np.pad(values, ((0, 0), (0, shape[1] - values.shape[1])))
            return torch.from_numpy(np.require(values, requirements=["C", "W"]))
        start = -(-self._used // ALIGNMENT) * ALIGNMENT
        self._used = start + size
        buffer = self._buffers[self._turn]
        if self._used > buffer.nbytes:
            # The source of the block's earlier copies must stay alive until the device has read it.
            self._outgrown.append(buffer)
            size = max(2 * buffer.nbytes, self._used)
            buffer = torch.empty(size, dtype=torch.uint8, pin_memory=self._is_pinned)
            self._buffers[self._turn] = buffer
        kind = torch.from_numpy(np.empty(0, values.dtype)).dtype
        tensor = buffer[start : self._used].view(kind).view(shape)
        target = tensor.numpy()
        np.copyto(target if shape == values.shape else target[:, : values.shape[1]], values)
        return tensor


class DeviceCopier:
    """Copies a batch from pinned memory to tensors on the device, into one of ``sets`` sets of them in turn.

    With two sets, a batch is copied while the previous one is used.
    """

    def __init__(self, device: str, sets: int = 2) -> None:
        self._streams = [CopyStream(device) for _ in range(sets)]
        self._targets: list[list[Tensor]] = [[] for _ in range(sets)]
        self._device = device

    def copy(self, tensors: list[Tensor], number: int) -> list[Tensor]:
        """Start copying to set ``number`` and return its tensors; work started from now on must not use the old
        contents.
        """
        targets = self._targets[number]
        if [target.shape for target in targets] != [tensor.shape for tensor in tensors]:
            keep = self._streams[number].keep
            targets = [keep(torch.empty_like(tensor, device=self._device)) for tensor in tensors]
            self._targets[number] = targets
            # The allocator may return memory that the current stream has freed but still reads; the copy runs on
            # another stream and must wait for that.
            self._streams[number].mark_read()
        with self._streams[number].copying():
            for target, tensor in zip(targets, tensors, strict=True):
                target.copy_(tensor, non_blocking=True)
        return targets

    def finish_copy(self, number: int) -> None:
        """Wait on the host for the latest copy to set ``number``: then its pinned source may be overwritten."""
        self._streams[number].finish_copies()

    def await_copy(self, number: int) -> None:
        """Make the current stream wait for the copy to set ``number``."""
        self._streams[number].await_copies()

    def mark_used(self, number: int) -> None:
        """Mark that all work on set ``number`` was started."""
        self._streams[number].mark_read()


class HostCopy:
    """Copies of tensors as of construction; any thread may wait for them.

    On a GPU they arrive later; otherwise they are available immediately, through the same methods.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Start copying. On each device, the caller's current stream must be the one that wrote ``tensors``."""
        self._events: list[torch.cuda.Event] = []
        # All names from the start, so that the order is the caller's whichever device comes first.
        self._arrived: dict[str, Tensor] = dict(tensors)
        devices = {tensor.device for tensor in tensors.values() if tensor.is_cuda}
        for name, tensor in tensors.items():
            if not tensor.is_cuda:
                self._arrived[name] = tensor.detach().to("cpu", copy=True)
        for device in devices:
            self._begin(device, {name: tensor for name, tensor in tensors.items() if tensor.device == device})

    def _begin(self, device: torch.device, tensors: Mapping[str, Tensor]) -> None:
        stream = _copy_stream(device)
        snapshots = {
            name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
        }
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for name, snapshot in snapshots.items():
                # PyTorch caches pinned blocks and reuses them once the array is dropped: only the first copies of a
                # run allocate.
                host = torch.empty(snapshot.shape, dtype=snapshot.dtype, pin_memory=True)
                host.copy_(snapshot, non_blocking=True)
                # The snapshot is dropped below; its memory must not be given to a kernel before it was read.
                snapshot.record_stream(stream)
                self._arrived[name] = host
            # Blocking: a waiting thread sleeps and leaves the core to the learner, instead of spinning.
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(stream)
        self._events.append(event)

    def ready(self) -> bool:
        """Return True once everything has arrived; never waits."""
        return all(event.query() for event in self._events)  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Return once everything has arrived. Raises RuntimeError if the device failed."""
        for event in self._events:
            event.synchronize()

    def numpy(self) -> dict[str, NDArray[Any]]:
        """Return the copies by name, after waiting if necessary; they are no longer written to."""
        self.wait()
        return {name: tensor.numpy() for name, tensor in self._arrived.items()}


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for copies to the host; one per device, since it has one engine for each direction."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
