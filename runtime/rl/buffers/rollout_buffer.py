"""Rollouts for on-policy methods: segments wait in order until there are enough for an update, to be used once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.exchange.protocol.segment_schema import Layout, SegmentField
from runtime.rl.buffers.segment_queue import SegmentQueue
from runtime.rl.buffers.tensor_batch import TensorBatch
from runtime.rl.spaces import ActionSpace, ObsSpace

if TYPE_CHECKING:
    import torch


def rollout_layout(obs: ObsSpace, action: ActionSpace) -> Layout:
    """Lay out a step of a rollout: a transition, and how likely its action was to the policy that took it.

    ``ended`` is 1 for terminated and 2 for truncated; ``next_obs`` is from before any reset.
    """
    f32, u8 = np.dtype(np.float32), np.dtype(np.uint8)
    return Layout(
        (
            SegmentField("obs", obs.dtype, (obs.width,)),
            SegmentField("action", action.dtype, (action.size,)),
            SegmentField("log_prob", f32),
            SegmentField("reward", f32),
            SegmentField("next_obs", obs.dtype, (obs.width,)),
            SegmentField("ended", u8),
        )
    )


@dataclass(frozen=True, slots=True)
class RolloutBatch(TensorBatch):
    """T consecutive steps of N copies of the environment. A share has all steps of its copies."""

    axis = 1

    obs: torch.Tensor
    """(T, N, obs_dim)"""
    action: torch.Tensor
    """(T, N, act_dim)"""
    log_prob: torch.Tensor
    """(T, N) log probability of the action under the policy that acted."""
    reward: torch.Tensor
    """(T, N)"""
    next_obs: torch.Tensor
    """(T, N, obs_dim), before any reset."""
    ended: torch.Tensor
    """(T, N) 1 for terminated, 2 for truncated, 0 for neither."""


class Rollouts(SegmentQueue):
    """FIFO of segments of ``num_envs`` copies, each in time-major order."""

    noun = "rollouts"

    def __init__(self, layout: Layout, num_envs: int, segment_transitions: int, batch_steps: int) -> None:
        if batch_steps % segment_transitions:
            raise ValueError(
                f"batch_steps is {batch_steps}; it must be a multiple of num_envs x segment_steps = "
                f"{segment_transitions}"
            )
        super().__init__(layout, segment_transitions, batch_steps // segment_transitions)
        self._num_envs = num_envs

    def take(self) -> RolloutBatch | None:
        """Remove and return the oldest ``batch_steps`` steps; None while there are fewer."""
        import torch

        if (segments := self._take_oldest()) is None:
            return None
        parts: dict[str, Any] = {}
        for number, field in enumerate(self.layout.fields):
            pieces = [columns[number].reshape(-1, self._num_envs, *field.shape_tail) for columns in segments]
            parts[field.name] = torch.from_numpy(np.concatenate(pieces, axis=1) if len(pieces) > 1 else pieces[0])
        return RolloutBatch(**parts)
