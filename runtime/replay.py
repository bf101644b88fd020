"""The replay buffer: a ring of transitions in arrays that are allocated once.

How one transition is laid out (``fields``) is also what a worker sends, so this module imports torch only where a
batch is made: a worker reads the layout without paying for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

TRANSITION_FIELDS: Final = ("obs", "action", "reward", "next_obs", "terminated")
"""Names and order of the parts of a transition."""


@dataclass(frozen=True, slots=True)
class Field:
    """One part of a transition."""

    name: str
    dtype: np.dtype[Any]
    shape_tail: tuple[int, ...]
    """Shape of one item; a rollout of N has (N, *shape_tail)."""

    @property
    def item_bytes(self) -> int:
        """Bytes of one item."""
        return int(self.dtype.itemsize * np.prod(self.shape_tail, dtype=np.int64))


def fields(obs_dim: int, act_dim: int) -> tuple[Field, ...]:
    """Lay out a transition with vector observations.

    ``terminated`` is 1 where nothing more could be earned; a truncated transition has 0 there and the true
    ``next_obs`` from before the reset.
    """
    f32, u8 = np.dtype(np.float32), np.dtype(np.uint8)
    return (
        Field("obs", f32, (obs_dim,)),
        Field("action", f32, (act_dim,)),
        Field("reward", f32, ()),
        Field("next_obs", f32, (obs_dim,)),
        Field("terminated", u8, ()),
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """B transitions as float32 tensors; see ``fields``."""

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


class Replay:
    """The latest ``capacity`` transitions, sampled evenly with replacement."""

    def __init__(self, capacity: int, obs_dim: int, act_dim: int, seed: int) -> None:
        if capacity < 1:
            raise ValueError(f"replay capacity is {capacity}; it must be at least 1 transition")
        self.capacity = capacity
        self.fields = fields(obs_dim, act_dim)
        self.inserted = 0
        """Transitions ever put in; the slot of the next one is this modulo the capacity."""
        self._rng = np.random.default_rng(seed)
        # np.empty maps memory without touching it: a large ring costs what it holds.
        self._columns = tuple(np.empty((capacity, *field.shape_tail), dtype=field.dtype) for field in self.fields)
        self._batches: dict[int, tuple[tuple[NDArray[Any], ...], Batch]] = {}

    def __len__(self) -> int:
        return min(self.inserted, self.capacity)

    def extend(
        self,
        obs: NDArray[np.float32],
        action: NDArray[np.float32],
        reward: NDArray[np.float32],
        next_obs: NDArray[np.float32],
        terminated: NDArray[np.bool_] | NDArray[np.uint8],
    ) -> None:
        """Put N transitions in, over the oldest ones when full. ValueError if a shape does not fit."""
        values = (obs, action, reward, next_obs, terminated)
        count = len(reward)
        for field, value in zip(self.fields, values, strict=True):
            if value.shape != (count, *field.shape_tail):
                expected = (count, *field.shape_tail)
                raise ValueError(
                    f"replay: {field.name} has shape {value.shape}; {count} transitions need {expected}"
                )
        skipped = max(0, count - self.capacity)
        first = (self.inserted + skipped) % self.capacity
        until_end = min(count - skipped, self.capacity - first)
        for column, value in zip(self._columns, values, strict=True):
            column[first : first + until_end] = value[skipped : skipped + until_end]
            column[: count - skipped - until_end] = value[skipped + until_end :]
        self.inserted += count

    def sample(self, batch_size: int) -> Batch:
        """Draw a batch; its tensors are overwritten by the next batch of the same size.

        ValueError on an empty buffer.
        """
        if not self.inserted:
            raise ValueError("the replay buffer is empty; wait for the first rollout before sampling")
        arrays, batch = self._batches.get(batch_size) or self._make_batch(batch_size)
        rows = self._rng.integers(len(self), size=batch_size)
        for column, array in zip(self._columns, arrays, strict=True):
            if column.dtype == array.dtype:
                # mode="clip" writes straight into `out`; the default would go through a buffer.
                np.take(column, rows, axis=0, out=array, mode="clip")
            else:
                array[:] = column[rows]
        return batch

    def _make_batch(self, batch_size: int) -> tuple[tuple[NDArray[Any], ...], Batch]:
        """Allocate the arrays of a batch and the tensors that look into them."""
        import torch

        arrays = tuple(np.empty((batch_size, *field.shape_tail), dtype=np.float32) for field in self.fields)
        self._batches[batch_size] = arrays, Batch(*(torch.from_numpy(array) for array in arrays))
        return self._batches[batch_size]

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that a resumed run needs: the filled part of each column (views), counters, generator."""
        generator = json.dumps(self._rng.bit_generator.state).encode()
        return {
            **{field.name: column[: len(self)] for field, column in zip(self.fields, self._columns, strict=True)},
            "inserted": np.array(self.inserted, dtype=np.int64),
            "capacity": np.array(self.capacity, dtype=np.int64),
            "generator": np.frombuffer(generator, dtype=np.uint8),
        }

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what ``state`` gave, exactly; ValueError if it came from another capacity or layout."""
        capacity = int(state["capacity"])
        inserted = int(state["inserted"])
        if capacity != self.capacity:
            raise ValueError(
                f"the saved replay buffer holds {capacity} transitions and this one {self.capacity}; "
                "resume with the same replay capacity, or without the saved experience"
            )
        for field in self.fields:
            expected = (min(inserted, capacity), *field.shape_tail)
            saved = state[field.name]
            if saved.shape != expected or saved.dtype != field.dtype:
                raise ValueError(
                    f"the saved replay buffer has {field.name} as {saved.dtype} {saved.shape}; "
                    f"this environment needs {field.dtype} {expected}"
                )
        for field, column in zip(self.fields, self._columns, strict=True):
            column[: len(state[field.name])] = state[field.name]
        self.inserted = inserted
        self._rng.bit_generator.state = json.loads(state["generator"].tobytes())
