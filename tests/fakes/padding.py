"""Rollouts in which agents have left their games."""

from __future__ import annotations

from dataclasses import replace

import torch

from runtime.rl.buffers.ring_index import TERMINATED
from runtime.rl.buffers.rollout_buffer import RolloutBatch


def padded(batch: RolloutBatch, value: int) -> RolloutBatch:
    """Return a batch in which one agent leaves after two steps, and another is absent at first; padding is
    ``value``.

    At least four steps of two copies.
    """
    absent = torch.zeros_like(batch.reward, dtype=torch.bool)
    absent[2:, 0] = absent[:3, 1] = True
    columns = {name: part.clone() for name, part in batch.columns().items() if name != "state"}
    for name, column in columns.items():
        column[absent] = TERMINATED if name == "ended" else value
    columns["ended"][1, 0] = TERMINATED
    return replace(batch, **columns, absent=absent)
