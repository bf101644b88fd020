"""Rollouts for on-policy methods: segments wait in order until there are enough for an update, to be used once."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runtime.layout import Columns, Field, Layout
from runtime.spaces import ActionSpace, ObsSpace

if TYPE_CHECKING:
    import torch


def rollout_layout(obs: ObsSpace, action: ActionSpace) -> Layout:
    """Lay out a step of a rollout: a transition, and how likely its action was to the policy that took it.

    ``ended`` is 1 for terminated and 2 for truncated; ``next_obs`` is from before any reset.
    """
    f32, u8 = np.dtype(np.float32), np.dtype(np.uint8)
    return Layout(
        (
            Field("obs", obs.dtype, (obs.width,)),
            Field("action", action.dtype, (action.size,)),
            Field("log_prob", f32),
            Field("reward", f32),
            Field("next_obs", obs.dtype, (obs.width,)),
            Field("ended", u8),
        )
    )


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """T steps of N copies of the environment, as they followed each other."""

    obs: torch.Tensor
    """(T, N, obs_dim)"""
    action: torch.Tensor
    """(T, N, act_dim)"""
    log_prob: torch.Tensor
    """(T, N) of the policy that acted."""
    reward: torch.Tensor
    """(T, N)"""
    next_obs: torch.Tensor
    """(T, N, obs_dim), before any reset."""
    ended: torch.Tensor
    """(T, N) 1 for terminated, 2 for truncated, 0 for neither."""

    def to(self, device: str) -> RolloutBatch:
        """Copy to another device."""
        return RolloutBatch(*(each.to(device) for each in self._parts))

    def shares(self, count: int) -> list[RolloutBatch]:
        """Return equal parts, each with all steps of its copies."""
        return [
            RolloutBatch(*parts) for parts in zip(*(each.chunk(count, dim=1) for each in self._parts), strict=True)
        ]

    @property
    def _parts(self) -> tuple[torch.Tensor, ...]:
        return (self.obs, self.action, self.log_prob, self.reward, self.next_obs, self.ended)


class Rollouts:
    """Segments of ``num_envs`` copies, time step by time step, in the order in which they came in."""

    def __init__(self, layout: Layout, num_envs: int, segment_transitions: int, batch_steps: int) -> None:
        if batch_steps % segment_transitions:
            raise ValueError(
                f"batch_steps is {batch_steps}; it must be a multiple of num_envs x segment_steps = "
                f"{segment_transitions}"
            )
        self.layout = layout
        self._num_envs = num_envs
        self._each = segment_transitions
        self._count = batch_steps // segment_transitions
        self._waiting: deque[Columns] = deque()

    def __len__(self) -> int:
        return len(self._waiting) * self._each

    def put(self, columns: Columns) -> None:
        """Copy a segment in. ValueError if it is not a full one."""
        if len(columns[0]) != self._each:
            raise ValueError(f"a rollout has {self._each} steps, this one {len(columns[0])}")
        self._waiting.append(tuple(column.copy() for column in columns))

    def take(self) -> RolloutBatch | None:
        """Return the oldest ``batch_steps`` steps, once there are as many; they are gone then."""
        import torch

        if len(self._waiting) < self._count:
            return None
        segments = [self._waiting.popleft() for _ in range(self._count)]
        parts: dict[str, Any] = {}
        for number, field in enumerate(self.layout.fields):
            pieces = [each[number].reshape(-1, self._num_envs, *field.shape_tail) for each in segments]
            parts[field.name] = torch.from_numpy(np.concatenate(pieces, axis=1) if len(pieces) > 1 else pieces[0])
        return RolloutBatch(**parts)

    def state(self, most_bytes: int | None = None) -> dict[str, NDArray[Any]]:
        """Copies of the segments that wait, one behind the other; they are few, so ``most_bytes`` is not asked."""
        del most_bytes
        return {
            field.name: np.concatenate([np.zeros((0, *field.shape_tail), field.dtype), *pieces])
            for field, pieces in (
                (field, [each[number] for each in self._waiting]) for number, field in enumerate(self.layout.fields)
            )
        }

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what ``state`` gave. ValueError if it is of another layout."""
        if not state:
            return
        for field in self.layout.fields:
            saved = state.get(field.name, np.zeros(0))
            if saved.shape[1:] != field.shape_tail or saved.dtype != field.dtype or len(saved) % self._each:
                raise ValueError(
                    f"the saved rollouts have {field.name} as {saved.dtype} {saved.shape}; this run needs "
                    f"{field.dtype} in segments of {self._each}"
                )
        for first in range(0, len(state["reward"]), self._each):
            self.put(tuple(state[name][first : first + self._each] for name in self.layout.names))
