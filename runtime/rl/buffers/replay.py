"""The replay buffer: a ring of transitions in arrays that are allocated once, drawn evenly or by priority."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.layout import Columns, Field, Layout
from runtime.spaces import ActionSpace, ObsSpace

if TYPE_CHECKING:
    import torch

TRANSITION_FIELDS: Final = ("obs", "action", "reward", "next_obs", "terminated")
"""Names and order of the parts of a transition; one of several steps has their number, ``steps``, behind them."""
_PRIORITY: Final = "priority"
_LARGEST: Final = "largest_priority"


def transition_layout(obs: ObsSpace, action: ActionSpace, n_step: int = 1) -> Layout:
    """Lay out a transition.

    ``terminated`` is 1 where nothing more could be earned; a truncated transition has 0 there and the true
    ``next_obs`` from before the reset. With ``n_step`` above 1, ``reward`` is the discounted sum over ``steps``
    steps and ``next_obs`` what was seen after them.
    """
    f32, u8 = np.dtype(np.float32), np.dtype(np.uint8)
    fields = (
        Field("obs", obs.dtype, (obs.width,)),
        Field("action", action.dtype, (action.size,)),
        Field("reward", f32),
        Field("next_obs", obs.dtype, (obs.width,)),
        Field("terminated", u8),
    )
    return Layout((*fields, Field("steps", u8)) if n_step > 1 else fields)


@dataclass(frozen=True, slots=True)
class Batch:
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
    """(B,) importance of each, at most 1; None means that all count alike."""

    def to(self, device: str) -> Batch:
        """Copy to another device."""
        return Batch(*(each if each is None else each.to(device) for each in self._parts))  # type: ignore[arg-type]

    def shares(self, count: int) -> list[Batch]:
        """Return equal parts, one behind the other."""
        chunks = [[each] * count if each is None else each.chunk(count) for each in self._parts]
        return [Batch(*parts) for parts in zip(*chunks, strict=True)]

    @property
    def _parts(self) -> tuple[torch.Tensor | None, ...]:
        return (self.obs, self.action, self.reward, self.next_obs, self.terminated, self.steps, self.weight)


class Priorities:
    """Weights of the slots of a ring in a binary tree of sums: setting and drawing cost the tree's depth.

    After Schaul et al. 2016, section 3.3. Node 1 is the root, the children of node n are 2n and 2n + 1.
    """

    def __init__(self, capacity: int) -> None:
        self._leaves = 1 << max(0, capacity - 1).bit_length()
        self._sums = np.zeros(2 * self._leaves)
        self.largest = 1.0
        """What a new item gets, so that each is drawn soon at least once."""

    def set(self, slots: NDArray[np.intp], values: NDArray[Any]) -> None:
        """Give slots new weights; of a slot that is named twice the last counts."""
        nodes = slots + self._leaves
        self._sums[nodes] = values
        self.largest = max(self.largest, float(values.max(initial=0.0)))
        while nodes[0] > 1:
            nodes = np.unique(nodes >> 1)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def draw(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Draw slots, one from each of ``count`` equal shares of the whole, and their probabilities."""
        total = self._sums[1]
        aim = (np.arange(count) + rng.random(count)) * (total / count)
        nodes = np.ones(count, dtype=np.intp)
        while nodes[0] < self._leaves:
            nodes *= 2
            left = self._sums[nodes]
            right = (aim >= left) & (self._sums[nodes + 1] > 0)
            aim -= np.where(right, left, 0.0)
            nodes += right
        return nodes - self._leaves, self._sums[nodes] / total

    def values(self, count: int) -> NDArray[np.float64]:
        """Weights of the first ``count`` slots."""
        return self._sums[self._leaves : self._leaves + count].copy()


class Replay:
    """The latest ``capacity`` transitions, sampled with replacement: evenly, or by priority if there are any."""

    def __init__(
        self,
        capacity: int,
        layout: Layout,
        seed: int,
        *,
        priority: tuple[float, float] | None = None,
        pinned: bool = False,
    ) -> None:
        """``priority`` is its exponent and correction; ``pinned`` batches go to a GPU faster."""
        if capacity < 1:
            raise ValueError(f"replay capacity is {capacity}; it must be at least 1 transition")
        self.capacity = capacity
        self.layout = layout
        self.inserted = 0
        """Transitions ever put in; the slot of the next one is this modulo the capacity."""
        self._rng = np.random.default_rng(seed)
        self._exponents = priority
        self._priorities = Priorities(capacity) if priority else None
        self._drawn: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._pinned = pinned
        # np.empty maps memory without touching it: a large ring costs what it holds.
        self._columns = tuple(np.empty((capacity, *field.shape_tail), dtype=field.dtype) for field in layout.fields)
        self._batches: dict[int, tuple[list[NDArray[Any]], list[torch.Tensor]]] = {}

    def __len__(self) -> int:
        return min(self.inserted, self.capacity)

    def put(self, columns: Columns) -> None:
        """Put N transitions in, over the oldest ones when full. ValueError if a shape does not fit."""
        count = len(columns[0])
        for field, value in zip(self.layout.fields, columns, strict=True):
            if value.shape != (count, *field.shape_tail):
                expected = (count, *field.shape_tail)
                raise ValueError(
                    f"replay: {field.name} has shape {value.shape}; {count} transitions need {expected}"
                )
        skipped = max(0, count - self.capacity)
        kept = count - skipped
        first = (self.inserted + skipped) % self.capacity
        until_end = min(kept, self.capacity - first)
        for column, value in zip(self._columns, columns, strict=True):
            column[first : first + until_end] = value[skipped : skipped + until_end]
            column[: kept - until_end] = value[skipped + until_end :]
        self.inserted += count
        if self._priorities is not None and kept:
            slots = (first + np.arange(kept)) % self.capacity
            self._priorities.set(slots, np.full(kept, self._priorities.largest))

    def put_arena(self, arena: memoryview, segments: int) -> None:
        """Put equal segments in that lie one behind the other, each column of all of them by one copy.

        ValueError if they do not fill the arena.
        """
        stride = arena.nbytes // segments
        count = stride // self.layout.item_bytes
        first = self.inserted % self.capacity
        total = count * segments
        if arena.nbytes != total * self.layout.item_bytes:
            raise ValueError(f"{arena.nbytes} bytes are not {segments} segments of {self.layout.text}")
        if first + total > self.capacity:  # they go around the ring's end
            for start in range(0, arena.nbytes, stride):
                self.put(self.layout.columns(arena[start : start + stride], count))
            return
        start = 0
        for field, column in zip(self.layout.fields, self._columns, strict=True):
            shape = segments, count * field.item_bytes
            into = column[first : first + total].reshape(-1).view(np.uint8).reshape(shape)
            into[:] = np.ndarray(shape, np.uint8, arena, start, (stride, 1))
            start += count * field.item_bytes
        self.inserted += total
        if self._priorities is not None:
            self._priorities.set(first + np.arange(total), np.full(total, self._priorities.largest))

    def sample(self, batch_size: int) -> Batch:
        """Draw a batch; its tensors are overwritten by the next one of the same size.

        ValueError on an empty buffer.
        """
        if not self.inserted:
            raise ValueError("the replay buffer is empty; wait for the first rollout before sampling")
        weight: NDArray[np.float64] | None = None
        if self._priorities is None:
            self._drawn = self._rng.integers(len(self), size=batch_size)
        else:
            self._drawn, chance = self._priorities.draw(batch_size, self._rng)
            weight = (len(self) * chance) ** -self._correction
            weight /= weight.max()
        arrays, tensors = self._batches.get(batch_size) or self._make_batch(batch_size)
        for column, array in zip(self._columns, arrays, strict=False):
            if column.dtype == array.dtype:
                # mode="clip" writes straight into `out`; the default would go through a buffer.
                np.take(column, self._drawn, axis=0, out=array, mode="clip")
            else:
                array[:] = column[self._drawn]
        parts: dict[str, torch.Tensor] = dict(zip(self.layout.names, tensors, strict=False))
        if weight is not None:
            arrays[-1][:] = weight
            parts["weight"] = tensors[-1]
        return Batch(**parts)

    def judge(self, misjudged: NDArray[Any]) -> None:
        """Tell how far the critics were off on the latest batch; without priorities that changes nothing."""
        if self._priorities is not None:
            self._priorities.set(self._drawn, (misjudged + 1e-6) ** self._exponent)

    @property
    def _exponent(self) -> float:
        return self._exponents[0] if self._exponents else 0.0

    @property
    def _correction(self) -> float:
        return self._exponents[1] if self._exponents else 0.0

    def _make_batch(self, batch_size: int) -> tuple[list[NDArray[Any]], list[torch.Tensor]]:
        """Allocate the tensors of a batch, weights last, and the arrays that look into them."""
        import torch

        f32 = np.dtype(np.float32)
        wanted = [
            ((batch_size, *field.shape_tail), field.dtype if field.name in {"obs", "next_obs"} else f32)
            for field in self.layout.fields
        ]
        tensors = [
            torch.empty(shape, dtype=torch.float32 if dtype == f32 else torch.uint8, pin_memory=self._pinned)
            for shape, dtype in (*wanted, ((batch_size,), f32))
        ]
        self._batches[batch_size] = [tensor.numpy() for tensor in tensors], tensors
        return self._batches[batch_size]

    def state(self, most_bytes: int | None = None) -> dict[str, NDArray[Any]]:
        """Copies of everything that a resumed run needs: the filled part of each column, counters, generator.

        If that is more than ``most_bytes``, the columns of the newest transitions alone.
        """
        count = len(self)
        if most_bytes is not None and count * self.layout.item_bytes > most_bytes:
            rows = most_bytes // self.layout.item_bytes
            newest = np.arange(self.inserted - rows, self.inserted) % self.capacity
            return {name: column[newest] for name, column in zip(self.layout.names, self._columns, strict=True)}
        generator = json.dumps(self._rng.bit_generator.state).encode()
        state = {
            **{name: column[:count].copy() for name, column in zip(self.layout.names, self._columns, strict=True)},
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
