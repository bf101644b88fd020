"""Updates that gather their own batches: several of them are one launch of a CUDA graph.

Launched one by one, an update of a small network waits for the host: between two graphs of 0.3 ms the rows of a
batch are copied, gathered and copied again, in ten launches. Here the host draws the rows of several batches, sends
them in one copy, and launches one graph that gathers each batch from the replay and learns from it. The replay's
own generator draws the rows, so a seed gives the same batches however they are launched.

Prioritised sampling is part of the graph (`DevicePriorities`), since it depends on the errors of the previous
update: the host launches and sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from runtime.rl.algos.algorithm import Stats
from runtime.rl.algos.off_policy.critics import LearnFunction, ReplayMethod
from runtime.rl.buffers.device_replay import DevicePriorities, DeviceRows
from runtime.rl.buffers.replay import Replay
from runtime.rl.device.captured import Captured

T = TypeVar("T")


class Locked(Protocol):
    """Runs a function while nothing is put into the store."""

    def __call__(self, sample: Callable[[], T], /) -> T:
        """Return what ``sample`` returns."""


LARGE_BATCH_BYTES: Final = 32 * 2**20
"""Size of a batch's observations from which its updates are launched one by one.

128 pairs of 512x384x3 have 144 MiB, 256 of 84x84x4 have 14.
"""


class GraphUpdates:
    """Updates of a method on batches of a replay on the method's device.

    Args:
        size: Transitions in a batch.
        locked: Runs the draws (with priorities also the launch) while nothing is put into the replay.
        enabled: True captures; False runs the same functions eagerly, as tests do on a CPU.
    """

    def __init__(
        self, method: ReplayMethod, replay: Replay, size: int, locked: Locked, *, enabled: bool = True
    ) -> None:
        assert isinstance(replay.rows, DeviceRows)  # noqa: S101  (the caller's choice of this class)
        self._priorities = replay.priorities if isinstance(replay.priorities, DevicePriorities) else None
        assert self._priorities is replay.priorities  # noqa: S101  (updates draw from them, or the host evenly)
        self._method = method
        self._replay = replay
        self._rows = replay.rows
        self._size = size
        self._locked = locked
        self._enabled = enabled
        self._is_large = 2 * size * replay.layout.tail_bytes > LARGE_BATCH_BYTES
        self._obs: Tensor | None = None
        """Memory of the ring that the graphs read; they reference it, so graphs of a ring that has grown are
        dropped.
        """
        self._graphs: dict[tuple[LearnFunction, ...], Captured] = {}

    def count_of(self, most: int) -> int:
        """Return how many of the next ``most`` updates can be launched together."""
        done = self._method.updates
        # The host lowers step sizes before each; and updates on large images take longer than their launch.
        if self._method.anneals or self._is_large:
            most = 1
        ends = (number + 1 for number in range(most) if self._method.ends_launch(done + number))
        return next(ends, most)

    def run(self, count: int) -> Stats:
        """Launch ``count`` updates, at most `count_of`; return the statistics of the last one.

        Raises ValueError on an empty replay.
        """
        method, done = self._method, self._method.updates
        functions = tuple(method.learn_function(done + number) for number in range(count))
        method.begin_updates()
        if self._priorities is not None:
            with self._rows.turn():
                stats, td_error = self._locked(lambda: self._run_by_priority(functions))
            return method.end_updates(count, stats, td_error)
        draws = self._locked(lambda: [self._replay.draw(self._size) for _ in range(count)])
        rows = np.stack([np.concatenate([draw.slots, draw.following]) for draw in draws])
        with self._replay.reading(), self._rows.drawing():
            graph = self._graph(functions, draws[0].obs)
            buffer = graph.inputs[0]
            assert buffer is not None  # noqa: S101  (it was given an example)
            self._rows.send(buffer, rows)
            stats, td_error = graph(buffer)
        return method.end_updates(count, stats, td_error)

    def _run_by_priority(self, functions: tuple[LearnFunction, ...]) -> tuple[Tensor, Tensor]:
        """Launch updates that draw their own batches; under the lock, so that rows arrive before or after them."""
        if not self._replay.inserted:
            raise ValueError("the replay buffer is empty; wait for the first rollout before sampling")
        with self._rows.ordered():
            results: tuple[Tensor, Tensor] = self._graph(functions, self._rows.reader())(None)
        return results

    def _graph(self, functions: tuple[LearnFunction, ...], obs: Tensor) -> Captured:
        """Return the graph of these updates for the ring's current memory."""
        if obs is not self._obs:
            self._graphs.clear()
            self._obs = obs
        graph = self._graphs.get(functions)
        if graph is None:
            # The example consists of existing rows: warm-up calls gather by them.
            shape, priorities = (len(functions), 2 * self._size), self._priorities
            rows = torch.zeros(shape, dtype=torch.int64, device=obs.device) if priorities is None else None
            own_state, own_draws = ((), ()) if priorities is None else (priorities.tensors, (priorities.generator,))
            graph = self._graphs[functions] = Captured(
                lambda rows: self._learn(functions, obs, rows),
                rows,
                generators=(*self._method.generators().values(), *own_draws),
                state=(*self._method.tensors().values(), *own_state),
                enabled=self._enabled,
            )
        return graph

    def _learn(
        self, functions: tuple[LearnFunction, ...], obs: Tensor, rows: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Gather each batch, from given or drawn rows, and learn from it; return the results of the last."""
        results = (obs.new_empty(0), obs.new_empty(0))
        for number, function in enumerate(functions):
            if rows is not None:
                batch = self._replay.batch_of(self._rows.gathered(obs, rows[number]))
                results = function(*batch.parts)
            elif self._priorities is not None:
                drawn, weight = self._priorities.draw(self._size)
                batch = replace(self._replay.batch_of(self._rows.gathered(obs, drawn)), weight=weight)
                results = function(*batch.parts)
                self._priorities.update(drawn[: self._size], results[1])
        return results
