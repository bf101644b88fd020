"""Updates that gather their own batches: several of them are one launch of a CUDA graph.

Launched one by one, an update of a small network waits for the host: between two graphs of 0.3 ms the rows of a
batch are copied, gathered and copied again, in ten launches. Here the host draws the rows of several batches, sends
them by one copy, and launches one graph that gathers each batch from the replay and learns from it. Rows are drawn
by the replay's own generator, so a seed gives the same batches whatever launches them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from runtime.rl.algos.algorithm import Stats
from runtime.rl.algos.off_policy.targets import LearnFunction, ReplayMethod
from runtime.rl.buffers.device_rows import DeviceRows
from runtime.rl.buffers.replay import Draw, Replay
from runtime.rl.device.captured import Captured


class Locked(Protocol):
    """Run a function while nothing is put into the store."""

    def __call__(self, sample: Callable[[], list[Draw]], /) -> list[Draw]:
        """Return what ``sample`` returns."""


LARGE_BATCH_BYTES: Final = 32 * 2**20
"""Observations of a batch from which on its updates are launched one by one.

128 pairs of 512x384x3 have 144 MiB, 256 of 84x84x4 have 14.
"""


class GraphUpdates:
    """Updates of a method on batches of a replay that lives on the method's device.

    Args:
        size: Transitions in a batch.
        locked: Runs the draws while nothing is put into the replay.
        enabled: True captures; False runs the same functions eagerly, which is how tests cover them on a CPU.
    """

    def __init__(
        self, method: ReplayMethod, replay: Replay, size: int, locked: Locked, *, enabled: bool = True
    ) -> None:
        assert isinstance(replay.rows, DeviceRows)  # noqa: S101  (the caller's choice of this class)
        self._method = method
        self._replay = replay
        self._rows = replay.rows
        self._size = size
        self._locked = locked
        self._enabled = enabled
        self._is_large = 2 * size * replay.layout.tail_bytes > LARGE_BATCH_BYTES
        self._obs: Tensor | None = None
        """Memory of the ring that the graphs read; they keep it, so those of a ring that has grown are dropped."""
        self._graphs: dict[tuple[LearnFunction | None, ...], Captured] = {}
        self.slots = np.zeros(0, dtype=np.intp)
        """(B,) rows of the batch of the latest update."""

    def count_of(self, most: int) -> int:
        """Return how many of the next ``most`` updates can be launched together; 0 if the first one cannot."""
        done = self._method.updates
        # The host lowers step sizes before each; and updates on large pictures take longer than their launch.
        if self._method.anneals or self._is_large:
            most = 1
        counts = (count for count in range(most) if self._method.learn_function(done + count) is None)
        return next(counts, most)

    def run(self, count: int) -> Stats:
        """Launch ``count`` updates, at most `count_of`; return the statistics of the last one.

        ValueError on an empty replay.
        """
        method, done = self._method, self._method.updates
        functions = tuple(method.learn_function(done + number) for number in range(count))
        draws = self._locked(lambda: [self._replay.draw(self._size) for _ in range(count)])
        self.slots = draws[-1].slots
        rows = np.stack([np.concatenate([draw.slots, draw.following]) for draw in draws])
        weights = [draw.weight for draw in draws if draw.weight is not None]
        method.begin_updates()
        with self._replay.reading(), self._rows.drawing():
            graph = self._graph(functions, draws[0].obs, rows.shape, has_weights=bool(weights))
            row_buffer, weight_buffer = graph.inputs
            assert row_buffer is not None  # noqa: S101  (it was given an example)
            self._rows.send(row_buffer, rows)
            if weight_buffer is not None:
                self._rows.send(weight_buffer, np.stack(weights).astype(np.float32))
            stats, td_error = graph(row_buffer, weight_buffer)
        return method.end_updates(count, stats, td_error)

    def _graph(
        self, functions: tuple[LearnFunction | None, ...], obs: Tensor, shape: tuple[int, ...], *, has_weights: bool
    ) -> Captured:
        """Return the graph of these updates over the ring's present memory."""
        if obs is not self._obs:
            self._graphs.clear()
            self._obs = obs
        graph = self._graphs.get(functions)
        if graph is None:
            count, width = shape
            # The first example is rows that exist: warm-up calls gather by them.
            rows = torch.zeros(shape, dtype=torch.int64, device=obs.device)
            weights = torch.ones((count, width // 2), device=obs.device) if has_weights else None
            graph = self._graphs[functions] = Captured(
                lambda rows, weights: self._learn(functions, obs, rows, weights),
                rows,
                weights,
                generators=tuple(self._method.generators().values()),
                state=tuple(self._method.tensors().values()),
                enabled=self._enabled,
            )
        return graph

    def _learn(
        self, functions: tuple[LearnFunction | None, ...], obs: Tensor, rows: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Gather each batch and learn from it; return statistics and TD errors of the last."""
        results = (obs.new_empty(0), obs.new_empty(0))
        for number, function in enumerate(functions):
            assert function is not None  # noqa: S101  (`count_of` leaves those out)
            batch = self._replay.batch_of(self._rows.gathered(obs, rows[number]))
            if weights is not None:
                batch = replace(batch, weight=weights[number])
            results = function(*batch.parts)
        return results
