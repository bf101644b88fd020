"""Gradient steps on minibatches: equal parts of shuffled rows, a pass over a batch as one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from runtime.rl.device.captured import CapturedByShape, copy_columns, is_captured, shapes_of, static_copy

Step = Callable[..., Tensor]
"""Gradient step on columns of B rows each; returns its statistics, a vector."""
Pass = Callable[[Tensor], Tensor]
"""Gradient steps on all minibatches of a batch, by its shuffled row numbers (B,); returns mean statistics."""

MINIBATCHES_PER_GRAPH: Final = 32
"""Gradient steps of one CUDA graph: of PPO about 90 kernels each, so that more would only take memory."""


class MinibatchSteps:
    """Gradient steps on rows of a batch.

    Captured, the batch is copied once into static buffers; a graph gathers the rows of its minibatches from them
    itself, so that a pass over a batch is one launch and a small copy of row numbers.
    """

    def __init__(
        self, step: Step, captured: Callable[[Pass], CapturedByShape], *, capture: bool | None = None
    ) -> None:
        """``captured`` makes graphs of a function, as `Algorithm.captured` does."""
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
        """Return the function of consecutive minibatches; of equal rows it cuts the same as `split_rows`."""
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
    """Return ``order`` (B,) in minibatches of about ``size`` rows, none of which has one row more than another.

    Where ``size`` divides B they all have it. A remainder is spread over them: a last minibatch of its own would be
    smaller and weigh as much, and one of a single row has no deviation to normalise its advantage by.
    """
    return torch.tensor_split(order, max(1, min(round(len(order) / size), len(order) // 2)))
