"""Copies of tensors from the device to the host, while the device continues computing.

With a copy to the host on the computing stream, the reader waits for every kernel before it, and every later kernel
waits for the copy. Here the tensors are cloned on the computing stream, which takes a fraction of a millisecond at
memory speed, and a second stream copies the clones into pinned memory (CUDA C++ Programming Guide, *Overlapping
Behavior*); an event marks their arrival. The next update may write to the tensors at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


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
