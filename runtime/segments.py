"""Segments of transitions: one arena of bytes, laid out column by column as `replay.fields` has them.

The layout is a pure function of (obs_dim, act_dim, number of transitions), so an arena carries neither names nor
shapes, and taking one in is one copy per column.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.replay import fields

Columns = tuple[NDArray[Any], ...]


def transition_bytes(obs_dim: int, act_dim: int) -> int:
    """Return the bytes of one transition."""
    return sum(field.item_bytes for field in fields(obs_dim, act_dim))


def is_finite(values: Columns) -> bool:
    """Say whether every number in the columns is finite: one that is not spoils the networks and never leaves."""
    return all(bool(np.isfinite(each).all()) for each in values)


def columns(arena: memoryview | NDArray[np.uint8], count: int, obs_dim: int, act_dim: int) -> Columns:
    """Return views of the columns of `count` transitions in `arena`, in the order of `replay.fields`.

    Raises ValueError if the arena has not exactly their size.
    """
    expected = count * transition_bytes(obs_dim, act_dim)
    if arena.nbytes != expected:
        raise ValueError(f"a segment of {count} transitions has {expected} bytes, not {arena.nbytes}")
    views = []
    start = 0
    for field in fields(obs_dim, act_dim):
        stop = start + count * field.item_bytes
        views.append(np.frombuffer(arena[start:stop], dtype=field.dtype).reshape(count, *field.shape_tail))
        start = stop
    return tuple(views)
