"""Exploration that is not part of the learned policy, in NumPy: random actions for a share, or noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def choose_greedily(
    values: NDArray[np.float32], share: NDArray[np.float32], rng: np.random.Generator | None
) -> NDArray[np.int32]:
    """Return (B, 1) choices with the largest of ``values`` (B, choices), random for a ``share`` (B,) of them."""
    best: NDArray[np.intp] = values.argmax(axis=1)
    if rng is not None:
        is_random = rng.random(len(values)) < share
        best = np.where(is_random, rng.integers(0, values.shape[1], len(values)), best)
    choices: NDArray[np.int32] = best[:, None].astype(np.int32)
    return choices


def with_noise(
    action: NDArray[np.float32], deviation: NDArray[np.float32], rng: np.random.Generator | None
) -> NDArray[np.float32]:
    """Return (B, act_dim) actions plus normal noise of ``deviation`` (B, 1), within [-1, 1]."""
    if rng is None:
        return action
    noise = deviation * rng.standard_normal(action.shape, dtype=np.float32)
    return np.clip(action + noise, -1.0, 1.0)


def linear_schedule(begin: float, end: float, updates: int, period: int) -> float:
    """Return the value after ``updates`` on a line from ``begin`` to ``end``, which is reached after ``period``."""
    return begin + min(1.0, updates / period) * (end - begin)
