"""Gradient steps on minibatches: equal parts of shuffled rows, captured with the batch in static buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from runtime.rl.device.captured import CapturedByShape, copy_columns, is_captured, shapes_of, static_copy

Step = Callable[..., Tensor]
"""Gradient step on columns of B rows each; returns its statistics, a vector."""
RowStep = Callable[[Tensor], Tensor]
"""Gradient step on the rows of a batch whose numbers (B,) it gets."""


class MinibatchSteps:
    """Gradient steps on rows of a batch.

    Captured, the batch is copied once into static buffers; the graph gathers its rows from them itself, so that a
    step is one launch and a small copy of row numbers.
    """

    def __init__(
        self, step: Step, captured: Callable[[RowStep], CapturedByShape], *, capture: bool | None = None
    ) -> None:
        """``captured`` makes graphs of a function, as `Algorithm.captured` does."""
        self._step = step
        self._captured = captured
        self._capture = capture
        self._batches: dict[tuple[Any, ...], tuple[list[Tensor], CapturedByShape]] = {}

    def of(self, columns: Sequence[Tensor]) -> RowStep:
        """Return the step on rows of ``columns``; only the newest one may be called."""
        if not is_captured(self._capture, *columns):
            return self._on_rows(columns)
        key = shapes_of(columns)
        if key not in self._batches:
            buffers = [static_copy(column) for column in columns]
            self._batches[key] = buffers, self._captured(self._on_rows(buffers))
        buffers, steps = self._batches[key]
        copy_columns(zip(buffers, columns, strict=True))
        return steps

    def _on_rows(self, columns: Sequence[Tensor]) -> RowStep:
        return lambda rows: self._step(*(column[rows] for column in columns))


def split_rows(order: Tensor, size: int) -> tuple[Tensor, ...]:
    """Return ``order`` (B,) in minibatches of about ``size`` rows, none of which has one row more than another.

    Where ``size`` divides B they all have it. A remainder is spread over them: a last minibatch of its own would be
    smaller and weigh as much, and one of a single row has no deviation to normalise its advantage by.
    """
    return torch.tensor_split(order, max(1, min(round(len(order) / size), len(order) // 2)))
