"""Gradient steps on minibatches: equal parts of shuffled rows, one launch per pass over a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from runtime.rl.device.captured import CapturedByShape, copy_columns, is_captured, shapes_of, static_copy

Step = Callable[..., Tensor]
"""Gradient step on columns of B rows each; returns its statistics, a vector."""
Pass = Callable[[Tensor], Tensor]
"""Gradient steps on all minibatches of a batch, given shuffled row indices (B,); returns mean statistics."""

MINIBATCHES_PER_GRAPH: Final = 32
"""Gradient steps per CUDA graph: PPO needs about 90 kernels per step, so more would only take memory."""


class MinibatchSteps:
    """Gradient steps on rows of a batch.

    If captured, the batch is copied once into static buffers; a graph gathers the rows of its minibatches from
    them, so that a pass over a batch is one launch and a small copy of row indices.
    """

    def __init__(
        self, step: Step, captured: Callable[[Pass], CapturedByShape], *, capture: bool | None = None
    ) -> None:
        """``captured`` makes graphs of a function, like `Algorithm.captured`."""
        self._step = step
        self._captured = captured
        self._capture = capture
        self._buffers: dict[tuple[Any, ...], list[Tensor]] = {}
        self._graphs: dict[tuple[Any, ...], CapturedByShape] = {}

    def of(self, columns: Sequence[Tensor], size: int) -> Pass:
        """Return a pass over ``columns`` in minibatches of about ``size`` rows; only the newest may be called."""
        if not is_captured(self._capture, *columns):
            return lambda order: self._mean(columns, split_rows(order, size))
        key = shapes_of(columns)
        if key not in self._buffers:
            self._buffers[key] = [static_copy(column) for column in columns]
        buffers = self._buffers[key]
        copy_columns(zip(buffers, columns, strict=True))
        return lambda order: self._launch(key, buffers, order, size)

    def _launch(self, key: tuple[Any, ...], buffers: list[Tensor], order: Tensor, size: int) -> Tensor:
        parts = split_rows(order, size)
        total: Tensor | None = None
        first = 0
        for start in range(0, len(parts), MINIBATCHES_PER_GRAPH):
            count = len(parts[start : start + MINIBATCHES_PER_GRAPH])
            rows = sum(map(len, parts[start : start + count]))
            if (key, count) not in self._graphs:
                self._graphs[key, count] = self._captured(self._group(buffers, count))
            sums: Tensor = self._graphs[key, count](order[first : first + rows])
            total = sums.clone() if total is None else total + sums  # the next launch overwrites them
            first += rows
        assert total is not None  # noqa: S101  (a batch has a row)
        return total / len(parts)

    def _group(self, buffers: list[Tensor], count: int) -> Pass:
        """Return the function of consecutive minibatches; equally sized ones are cut like in `split_rows`."""
        return lambda rows: self._sum(buffers, torch.tensor_split(rows, count))

    def _mean(self, columns: Sequence[Tensor], minibatches: Sequence[Tensor]) -> Tensor:
        return self._sum(columns, minibatches) / len(minibatches)

    def _sum(self, columns: Sequence[Tensor], minibatches: Sequence[Tensor]) -> Tensor:
        first, *others = minibatches
        sums = self._step(*(column[first] for column in columns))
        for rows in others:
            sums = sums + self._step(*(column[rows] for column in columns))
        return sums


def split_rows(order: Tensor, size: int) -> tuple[Tensor, ...]:
    """Split ``order`` (B,) into minibatches of about ``size`` rows, whose sizes differ by at most one.

    If ``size`` divides B, all have that size. A remainder is spread over them: a smaller last minibatch would have
    the same weight, and a single row has no deviation to normalise its advantage by.
    """
    return torch.tensor_split(order, max(1, min(round(len(order) / size), len(order) // 2)))
