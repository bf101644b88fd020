"""Copies from the host to the device beside the computation: pinned buffers and a stream of their own.

A copy from pageable memory waits for the stream and blocks the host; one from pinned memory does neither (CUDA C++
Programming Guide, *Asynchronous Concurrent Execution*). On a CPU the same calls copy at once, so that tests run
through them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BUFFERS: Final = 4
"""Pinned buffers of one stream of copies: so many copies may wait for the device before the host waits for them."""
MOST_PINNED_BYTES: Final = 256 * 2**20
"""Largest array that goes through a buffer. Buffers are kept, and pinned memory is memory that the host lacks."""
ALIGNMENT: Final = 64
"""Bytes to which arrays in a buffer are aligned; views of other types need 8, and copies are faster with more."""


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


class CopyStream:
    """Order of copies and of the computation that uses them, on a stream of its own where the device has streams.

    Copies run between two marks: they begin after all that the computing stream was given before (it may still read
    what they overwrite), and that stream waits for them when it is told to, not before.
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
        """Run the copies of the block on the stream, behind the latest `mark_read`."""
        if self.stream is None or self._read is None or self._written is None:
            yield
            return
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self._read)
            yield
            self._written.record(self.stream)

    def on_stream(self) -> AbstractContextManager[object]:
        """Return the context in which the stream of copies is the present one."""
        return torch.cuda.stream(self.stream) if self.stream is not None else nullcontext()

    def keep(self, tensor: Tensor) -> Tensor:
        """Return a tensor whose memory, once it is dropped, is not given away before the copies so far are done."""
        if self.stream is not None:
            tensor.record_stream(self.stream)
        return tensor

    def await_copies(self) -> None:
        """Let the present stream wait for all copies so far; the host does not wait."""
        if self._written is not None:
            torch.cuda.current_stream(self.device).wait_event(self._written)

    def finish_copies(self) -> None:
        """Wait on the host for all copies so far, so that what they read may be written."""
        if self._written is not None:
            self._written.synchronize()

    def mark_read(self) -> None:
        """Let later copies wait for all that the present stream has been given so far."""
        if self._read is not None:
            self._read.record(torch.cuda.current_stream(self.device))


class PinnedBuffers:
    """Buffers in turn, each used again once the copy out of it is done. For one thread at a time."""

    def __init__(self, device: str | torch.device, count: int = BUFFERS) -> None:
        self._is_pinned = torch.device(device).type == "cuda"
        self._buffers = [torch.empty(0, dtype=torch.uint8)] * count
        self._copied: list[torch.cuda.Event | None] = [None] * count
        self._turn = 0

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Use one buffer for the copies of the block, which all go to the present stream."""
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

        With a ``pitch``, rows (n, width) come as (n, pitch), any numbers behind each. A very large array, such as a
        ring that a checkpoint has held, is returned itself or as a padded copy: that copy waits.
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
            # What the block has copied from so far must live until the device has read it.
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
    """Tensors of a batch in pinned memory → tensors on the device, in one of ``sets`` sets of them in turn.

    With two sets a batch is copied while the one before is learned from.
    """

    def __init__(self, device: str, sets: int = 2) -> None:
        self._streams = [CopyStream(device) for _ in range(sets)]
        self._targets: list[list[Tensor]] = [[] for _ in range(sets)]
        self._device = device

    def copy(self, tensors: list[Tensor], number: int) -> list[Tensor]:
        """Begin to copy to set ``number``, which nothing may use that is started later; return its tensors."""
        targets = self._targets[number]
        if [target.shape for target in targets] != [tensor.shape for tensor in tensors]:
            keep = self._streams[number].keep
            targets = [keep(torch.empty_like(tensor, device=self._device)) for tensor in tensors]
            self._targets[number] = targets
            # The allocator gives memory that the present stream has freed and may still read: the copy, on another
            # stream, comes behind that.
            self._streams[number].mark_read()
        with self._streams[number].copying():
            for target, tensor in zip(targets, tensors, strict=True):
                target.copy_(tensor, non_blocking=True)
        return targets

    def finish_copy(self, number: int) -> None:
        """Wait on the host for the latest copy to set ``number``: then its pinned source may be written."""
        self._streams[number].finish_copies()

    def await_copy(self, number: int) -> None:
        """Let the present stream wait for the copy to set ``number``."""
        self._streams[number].await_copies()

    def mark_used(self, number: int) -> None:
        """Say that all work on set ``number`` has been started."""
        self._streams[number].mark_read()
