"""Replay buffer: a ring of transitions, sampled uniformly or by TD error (prioritised replay).

Prioritised replay is that of Schaul et al. 2016 (arXiv:1511.05952), the proportional variant: `Replay.sample` draws
by priority and weights by importance, `Replay.update_priorities` takes the TD error of the batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from runtime.exchange.protocol.segment_schema import Columns, Layout, SegmentField
from runtime.rl.buffers.store_cuts import ReplayCut, RingCut
from runtime.rl.buffers.tensor_batch import TensorBatch
from runtime.rl.spaces import ActionSpace, ObsSpace

if TYPE_CHECKING:
    import torch

TRANSITION_FIELDS: Final = ("obs", "action", "reward", "next_obs", "terminated")
"""Names and order of the fields of a transition; n-step transitions have ``steps`` behind them."""
_PRIORITY: Final = "priority"
_LARGEST: Final = "largest_priority"


def transition_layout(obs: ObsSpace, action: ActionSpace, n_step: int = 1) -> Layout:
    """Return the schema of a transition.

    ``terminated`` is 1 where no reward can follow; a truncated transition has 0 there and the true ``next_obs``
    from before the reset. With ``n_step`` above 1, ``reward`` is the discounted sum over ``steps`` steps and
    ``next_obs`` the observation after them.
    """
    f32, u8 = np.dtype(np.float32), np.dtype(np.uint8)
    fields = (
        SegmentField("obs", obs.dtype, (obs.width,)),
        SegmentField("action", action.dtype, (action.size,)),
        SegmentField("reward", f32),
        SegmentField("next_obs", obs.dtype, (obs.width,)),
        SegmentField("terminated", u8),
    )
    return Layout((*fields, SegmentField("steps", u8)) if n_step > 1 else fields)


@dataclass(frozen=True, slots=True)
class Batch(TensorBatch):
    """B transitions; see ``transition_layout``. All float32, except observations with images: bytes."""

    obs: torch.Tensor
    """(B, obs_dim)"""
    action: torch.Tensor
    """(B, act_dim)"""
    reward: torch.Tensor
    """(B,)"""
    next_obs: torch.Tensor
    """(B, obs_dim)"""
    terminated: torch.Tensor
    """(B,) 0 or 1"""
    steps: torch.Tensor | None = None
    """(B,) env steps from ``obs`` to ``next_obs``; None means one each."""
    weight: torch.Tensor | None = None
    """(B,) importance sampling weights, at most 1; None means 1 for all."""


class Priorities:
    """Sum tree over the priorities of a ring's rows; setting and sampling cost its depth.

    Schaul et al. 2016, section 3.3 and appendix B.2.1. Node 1 is the root, the children of node n are 2n and 2n +
    1.
    """

    def __init__(self, capacity: int) -> None:
        self._leaves = 1 << max(0, capacity - 1).bit_length()
        self._sums = np.zeros(2 * self._leaves)
        self.largest = 1.0
        """Largest priority so far. New rows get it, so that each is sampled at least once soon."""

    def set(self, slots: NDArray[np.intp], values: NDArray[Any]) -> None:
        """Set priorities of rows; where a row is named twice the last value counts."""
        nodes = slots + self._leaves
        self._sums[nodes] = values
        self.largest = max(self.largest, float(values.max(initial=0.0)))
        # All rows are at the same depth, so every pass moves the whole set one level up.
        while nodes[0] > 1:
            nodes = np.unique(nodes >> 1)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def draw(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Return rows, one from each of ``count`` equal strata of the total, and their probabilities."""
        total = self._sums[1]
        aim = (np.arange(count) + rng.random(count)) * (total / count)
        nodes = np.ones(count, dtype=np.intp)
        while nodes[0] < self._leaves:
            nodes *= 2
            left = self._sums[nodes]
            # Rounding can leave `aim` at the very end of the total: never descend into a subtree without weight.
            right = (aim >= left) & (self._sums[nodes + 1] > 0)
            aim -= np.where(right, left, 0.0)
            nodes += right
        return nodes - self._leaves, self._sums[nodes] / total

    def values(self, count: int) -> NDArray[np.float64]:
        """Return the priorities of the first ``count`` rows."""
        return self._sums[self._leaves : self._leaves + count].copy()


class Replay:
    """The latest ``capacity`` transitions, sampled with replacement: uniformly, or by priority."""

    def __init__(
        self,
        capacity: int,
        layout: Layout,
        seed: int,
        *,
        priority: tuple[float, float] | None = None,
        pinned: bool = False,
    ) -> None:
        """``priority`` is (exponent alpha, correction beta); ``pinned`` batches are copied to a GPU faster."""
        if capacity < 1:
            raise ValueError(f"replay capacity is {capacity}; it must be at least 1 transition")
        self.capacity = capacity
        self.layout = layout
        self.inserted = 0
        """Transitions put in so far; the row of the next is this modulo the capacity."""
        self._rng = np.random.default_rng(seed)
        self._exponent, self._correction = priority or (0.0, 0.0)
        self._priorities = Priorities(capacity) if priority else None
        self._sampled: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._pinned = pinned
        # np.empty reserves memory without touching it: a large ring costs only what it holds.
        self._columns = tuple(np.empty((capacity, *field.shape_tail), dtype=field.dtype) for field in layout.fields)
        # Weak: the cut of a checkpoint that failed is forgotten with it.
        self._cuts: WeakSet[RingCut] = WeakSet()
        """Rows that checkpoints are still copying."""
        self._batches: dict[int, tuple[list[NDArray[Any]], list[torch.Tensor]]] = {}

    def __len__(self) -> int:
        return min(self.inserted, self.capacity)

    def put(self, columns: Columns) -> None:
        """Insert N transitions, over the oldest when full. ValueError if a shape does not fit."""
        count = len(columns[0])
        for field, value in zip(self.layout.fields, columns, strict=True):
            if value.shape != (count, *field.shape_tail):
                needed = f"{count} transitions need {(count, *field.shape_tail)}"
                raise ValueError(f"replay: {field.name} has shape {value.shape}; {needed}")
        # More rows than the ring holds: only the newest survive, as if they had been inserted one by one.
        skipped = max(0, count - self.capacity)
        rest = count - skipped
        self._before_overwriting(count)
        first = (self.inserted + skipped) % self.capacity
        until_end = min(rest, self.capacity - first)
        for column, value in zip(self._columns, columns, strict=True):
            column[first : first + until_end] = value[skipped : skipped + until_end]
            column[: rest - until_end] = value[skipped + until_end :]
        self.inserted += count
        if self._priorities is not None and rest:
            slots = (first + np.arange(rest)) % self.capacity
            self._priorities.set(slots, np.full(rest, self._priorities.largest))

    def put_arena(self, arena: memoryview, segments: int) -> None:
        """Insert ``segments`` equal consecutive segments, each column of all of them by one copy.

        ValueError if they do not fill the arena.
        """
        stride = arena.nbytes // segments
        count = stride // self.layout.item_bytes
        first = self.inserted % self.capacity
        total = count * segments
        if arena.nbytes != total * self.layout.item_bytes:
            raise ValueError(f"{arena.nbytes} bytes are not {segments} segments of {self.layout.text}")
        if first + total > self.capacity:  # they wrap around the end of the ring
            for start in range(0, arena.nbytes, stride):
                self.put(self.layout.columns(arena[start : start + stride], count))
            return
        self._before_overwriting(total)
        start = 0
        for field, column in zip(self.layout.fields, self._columns, strict=True):
            shape = segments, count * field.item_bytes
            into = column[first : first + total].reshape(-1).view(np.uint8).reshape(shape)
            # The arena is segment by segment, column by column; strides make one column of all segments one copy.
            into[:] = np.ndarray(shape, np.uint8, arena, start, (stride, 1))
            start += count * field.item_bytes
        self.inserted += total
        if self._priorities is not None:
            self._priorities.set(first + np.arange(total), np.full(total, self._priorities.largest))

    def sample(self, batch_size: int) -> Batch:
        """Return a sampled batch; its tensors are overwritten by the next one of the same size.

        ValueError on an empty buffer.
        """
        if not self.inserted:
            raise ValueError("the replay buffer is empty; wait for the first rollout before sampling")
        weight: NDArray[np.float64] | None = None
        if self._priorities is None:
            self._sampled = self._rng.integers(len(self), size=batch_size)
        else:
            self._sampled, probability = self._priorities.draw(batch_size, self._rng)
            weight = (len(self) * probability) ** -self._correction
            weight /= weight.max()  # section 3.4: weights only ever scale updates down
        arrays, tensors = self._batches.get(batch_size) or self._make_batch(batch_size)
        for column, array in zip(self._columns, arrays, strict=False):
            if column.dtype == array.dtype:
                # mode="clip" writes straight into `out`; the default would go through a buffer.
                np.take(column, self._sampled, axis=0, out=array, mode="clip")
            else:
                array[:] = column[self._sampled]
        parts: dict[str, torch.Tensor] = dict(zip(self.layout.names, tensors, strict=False))
        if weight is not None:
            arrays[-1][:] = weight
            parts["weight"] = tensors[-1]
        return Batch(**parts)

    @property
    def sampled(self) -> NDArray[np.intp]:
        """(B,) rows of the latest batch."""
        return self._sampled

    def update_priorities(self, td_error: NDArray[Any], rows: NDArray[np.intp] | None = None) -> None:
        """Set the priorities of a batch, the latest one without its ``rows``, from its absolute TD error (B,).

        No effect on a uniform buffer.
        """
        if self._priorities is not None:
            # The constant keeps rows of no error reachable.
            self._priorities.set(self._sampled if rows is None else rows, (td_error + 1e-6) ** self._exponent)

    def _make_batch(self, batch_size: int) -> tuple[list[NDArray[Any]], list[torch.Tensor]]:
        """Allocate the tensors of a batch, weights last, and NumPy views of them."""
        import torch

        f32 = np.dtype(np.float32)
        shapes = [
            ((batch_size, *field.shape_tail), field.dtype if field.name in {"obs", "next_obs"} else f32)
            for field in self.layout.fields
        ]
        tensors = [
            torch.empty(shape, dtype=torch.float32 if dtype == f32 else torch.uint8, pin_memory=self._pinned)
            for shape, dtype in (*shapes, ((batch_size,), f32))
        ]
        self._batches[batch_size] = [tensor.numpy() for tensor in tensors], tensors
        return self._batches[batch_size]

    def _before_overwriting(self, count: int) -> None:
        """Let a checkpoint copy the rows that the next ``count`` will overwrite."""
        for cut in self._cuts:
            cut.copy_before(self.inserted + count - self.capacity)

    def cut(self, most_bytes: int | None = None) -> ReplayCut:
        """Return all that a resumed run needs, as it is now, to be copied out later.

        That is the filled part of each column, counters and generator; if it is more than ``most_bytes``, only the
        columns of the newest transitions.
        """
        count, facts = len(self), {}
        if most_bytes is not None and count * self.layout.item_bytes > most_bytes:
            count = most_bytes // self.layout.item_bytes
        else:
            facts = self._facts()
        cut = RingCut(self._columns, self.inserted - count, count)
        self._cuts.add(cut)
        return ReplayCut(self.layout.names, cut, facts, (self.inserted - count) % self.capacity)

    def state(self, most_bytes: int | None = None) -> dict[str, NDArray[Any]]:
        """Return ``cut`` copied at once."""
        cut = self.cut(most_bytes)
        while cut.copy_next():
            pass
        return cut.arrays()

    def _facts(self) -> dict[str, NDArray[Any]]:
        """Return what a whole state has beside the columns."""
        count = len(self)
        # The state of the generator is a nested dict of big integers: JSON keeps it exactly, an array cannot.
        generator = json.dumps(self._rng.bit_generator.state).encode()
        state: dict[str, NDArray[Any]] = {
            "inserted": np.array(self.inserted, dtype=np.int64),
            "capacity": np.array(self.capacity, dtype=np.int64),
            "generator": np.frombuffer(generator, dtype=np.uint8),
        }
        if self._priorities is not None:
            state[_PRIORITY] = self._priorities.values(count)
            # Its slot may have a lower one by now, so it cannot be told from the others.
            state[_LARGEST] = np.array(self._priorities.largest)
        return state

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what ``state`` gave; ValueError if it came from another capacity or layout.

        A whole state is taken over exactly, the newest transitions alone are put in.
        """
        if not state:
            return
        count = len(state["reward"])
        for field in self.layout.fields:
            expected = (count, *field.shape_tail)
            saved = state.get(field.name, np.zeros(0))
            if saved.shape != expected or saved.dtype != field.dtype:
                raise ValueError(
                    f"the saved replay buffer has {field.name} as {saved.dtype} {saved.shape}; "
                    f"this environment needs {field.dtype} {expected}"
                )
        if "generator" not in state:
            self.put(tuple(state[name] for name in self.layout.names))
            return
        capacity = int(state["capacity"])
        if capacity != self.capacity:
            raise ValueError(
                f"the saved replay buffer holds {capacity} transitions and this one {self.capacity}; "
                "resume with the same replay capacity, or without the saved experience"
            )
        for name, column in zip(self.layout.names, self._columns, strict=True):
            column[:count] = state[name]
        self.inserted = int(state["inserted"])
        self._rng.bit_generator.state = json.loads(state["generator"].tobytes())
        if self._priorities is not None and count:
            self._priorities.largest = float(state.get(_LARGEST, self._priorities.largest))
            fallback = np.full(count, self._priorities.largest)
            self._priorities.set(np.arange(count), state.get(_PRIORITY, fallback))
