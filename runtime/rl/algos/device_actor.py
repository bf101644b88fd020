"""Policy network in torch, forward only, on the learner's device: for remote inference of large policies.

On a GPU each number of rows would need its own graph, so batches are rounded up to a few sizes and the extra rows
are computed but ignored. Observations and outputs are in pinned memory. A high-priority stream carries a batch to
the device, through the graph and back; an event tells the host when it ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.networks import Network
from runtime.rl.device.accelerator import DTYPES, set_float32_products
from runtime.rl.device.captured import Captured

_HIGH_PRIORITY = -1
"""Priority of a stream: lower numbers go first (CUDA C++ Programming Guide, *Stream Priorities*)."""


class DeviceActor:
    """Forward pass with the outputs of `NumpyActor.outputs`, up to rounding: a `PolicyNetwork` for remote
    inference.
    """

    def __init__(
        self,
        shape: ActorShape,
        device: str,
        sizes: Sequence[int],
        *,
        precision: str = "float32",
        captures: bool = True,
        is_rounded: bool | None = None,
    ) -> None:
        """Allocate for batches of up to the last of the increasing ``sizes``.

        ``is_rounded`` rounds batches up to a size and computes them from static buffers; None does so only on a
        GPU, since a CPU would pay for every row. There ``captures`` makes a CUDA graph for each size.
        """
        self.shape = shape
        self._device = torch.device(device)
        # Elsewhere, as on MPS, there is no event to wait for, so copies are synchronous.
        on_gpu = self._is_async = self._device.type == "cuda"
        self._sizes = tuple(sizes)
        self._is_rounded = on_gpu if is_rounded is None else is_rounded
        self._network = Network(shape, torch.Generator().manual_seed(0), device, dtype=DTYPES[precision])
        self._captures = captures
        self._captured: dict[int, Captured] = {}
        """By number of rows."""
        self._stream = _stream(self._device) if on_gpu else None
        # Two concurrent batches if the device computes asynchronously: one is copied while the other is computed.
        slots = 2 if on_gpu else 1
        self._weights = torch.zeros(shape.size, pin_memory=on_gpu)
        self._inputs = [self._pinned((sizes[-1], shape.obs_dim), shape.obs_space.dtype) for _ in range(slots)]
        self._results = [self._pinned((sizes[-1], shape.answer_floats), np.dtype(np.float32)) for _ in range(slots)]
        self._events = [_event() for _ in range(slots)] if on_gpu else []
        self._counts = [0] * slots
        self.weights: NDArray[np.float32] = self._weights.numpy()
        """(shape.size,) host memory for new weights; `refresh` takes them over."""
        self.buffers: Sequence[NDArray[Any]] = [tensor.numpy() for tensor in self._inputs]
        """(maximum rows, obs_dim) host memory for the observations of a batch."""
        if on_gpu:
            torch.cuda.synchronize(self._device)  # the network was filled on another stream than the one it runs on

    def _pinned(self, size: tuple[int, int], dtype: np.dtype[Any]) -> Tensor:
        kind = torch.uint8 if dtype == np.uint8 else torch.float32
        return torch.empty(size, dtype=kind, pin_memory=self._is_async)

    @torch.no_grad()
    def refresh(self) -> None:
        """Use the content of `weights`, without those that acting does not need (a value network's)."""
        with torch.cuda.stream(self._stream):
            self._network.arena.flat.copy_(self._weights[: self.shape.policy_size], non_blocking=self._is_async)
            self._network.arena.refresh()
        if self._stream is not None:
            self._stream.synchronize()  # the caller may write the next weights as soon as this returns

    @torch.no_grad()
    def begin(self, slot: int, count: int) -> None:
        """Start computing the first ``count`` rows of ``buffers[slot]``."""
        size = self._sizes[bisect_left(self._sizes, count)] if self._is_rounded else count
        with torch.cuda.stream(self._stream):
            outputs = self._forward(self._inputs[slot][:size])
            self._results[slot][:size].copy_(outputs, non_blocking=self._is_async)
            if self._stream is not None:
                self._events[slot].record(self._stream)
        self._counts[slot] = count

    def finish(self, slot: int) -> NDArray[np.float32]:
        """Return the outputs (count, ``shape.answer_floats``), valid until the slot's next batch begins."""
        if self._stream is not None:
            self._events[slot].synchronize()
        outputs: NDArray[np.float32] = self._results[slot][: self._counts[slot]].numpy()
        return outputs

    def _forward(self, rows: Tensor) -> Tensor:
        """Return the outputs for rows in host memory."""
        if not self._is_rounded:
            return self._outputs(rows.to(self._device, non_blocking=self._is_async))
        captured = self._captured.get(len(rows))
        if captured is None:
            # At the first batch of a size, while the questions of the next one are gathered.
            example = rows.to(self._device)
            captured = self._captured[len(rows)] = Captured(self._outputs, example, enabled=self._captures)
        (buffer,) = captured.inputs
        assert buffer is not None  # noqa: S101  (the example was a tensor)
        # Directly into the graph's own input, asynchronously: the slot is not written before its batch is finished.
        buffer.copy_(rows, non_blocking=self._is_async)
        outputs: Tensor = captured(buffer)
        return outputs

    def _outputs(self, rows: Tensor) -> Tensor:
        """Return (B, ``shape.answer_floats``) for observations (B, obs_dim)."""
        outputs = self._network(rows)
        if self.shape.draw_size:
            outputs = torch.cat([outputs, self._network.drawing.expand(len(outputs), -1)], dim=1)
        return outputs


def set_up_process(threads: int, precision: str) -> None:
    """Configure torch for the whole process: numerical threads, and precision of float32 products."""
    torch.set_num_threads(threads)
    set_float32_products(precision)


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, _HIGH_PRIORITY)  # type: ignore[no-untyped-call]


def _event() -> torch.cuda.Event:
    # Blocking: the waiting thread sleeps, and its core is free for the workers of this host.
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
