"""Segments in the form sent by workers, and the transitions in them, one by one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from runtime.rl.buffers.replay import Replay
from runtime.rl.buffers.ring_index import GOES_ON, TERMINATED, TRUNCATED


class Told(NamedTuple):
    """One transition, as a list would hold it; ``next_obs`` is None if it is not needed."""

    obs: float
    reward: float
    next_obs: float | None
    terminated: bool
    steps: int


def numbered(first: int, count: int, obs_dim: int = 3, act_dim: int = 2) -> tuple[np.ndarray, ...]:
    """A segment of one copy whose transitions carry their number in every part, and all end.

    Even numbers terminate. The next observation of a transition is its number and a half.
    """
    serial = np.arange(first, first + count, dtype=np.float32)
    ended = np.where(serial % 2 == 0, TERMINATED, TRUNCATED).astype(np.uint8)
    tail = np.concatenate([serial[-1:] + 0.5, serial[ended == TRUNCATED] + 0.5])
    return (
        np.repeat(serial[:, None], obs_dim, axis=1),
        np.repeat(serial[:, None] * 10, act_dim, axis=1),
        serial * 100,
        ended,
        np.repeat(tail[:, None], obs_dim, axis=1),
    )


def segment_of(
    first: int, steps: int, copies: int, rng: np.random.Generator, *, n_step: int = 1, obs_dim: int = 3
) -> tuple[tuple[np.ndarray, ...], list[Told]]:
    """A segment of episodes that end at random, and its transitions. Observations are numbers from ``first`` on.

    Within an episode the next observation is that of the same copy one step later. Final ones have a quarter and
    last ones a half added to the number of their transition.
    """
    count = steps * copies
    serial = np.arange(first, first + count, dtype=np.float32)
    ended = rng.choice([GOES_ON, TERMINATED, TRUNCATED], count, p=[0.7, 0.15, 0.15]).astype(np.uint8)
    told, sums = [], np.ones(count, dtype=np.uint8)
    for row in range(count):
        last = row
        while sums[row] < n_step and ended[last] == GOES_ON and last + copies < count:
            last += copies
            sums[row] += 1
        if ended[last] == TERMINATED:
            after = None
        elif ended[last] == TRUNCATED:
            after = float(serial[last]) + 0.25
        else:
            after = float(serial[last]) + (copies if last + copies < count else 0.5)
        told.append(
            Told(float(serial[row]), float(serial[row]) * 100, after, ended[last] == TERMINATED, int(sums[row]))
        )
    tail = np.concatenate([serial[-copies:] + 0.5, serial[ended == TRUNCATED] + 0.25])
    columns: list[np.ndarray] = [
        np.repeat(serial[:, None], obs_dim, axis=1),
        np.repeat(serial[:, None] * 10, 2, axis=1),
        serial * 100,
        ended,
        *([sums] if n_step > 1 else []),
        np.repeat(tail[:, None], obs_dim, axis=1).astype(np.float32),
    ]
    return tuple(columns), told


def held_by(replay: Replay) -> list[Told]:
    """Contents of a replay, from the oldest on, read from its state."""
    state = replay.state()
    steps = state.get("steps", np.ones(len(state["reward"]), dtype=np.uint8))
    return [
        Told(
            float(state["obs"][row, 0]),
            float(state["reward"][row]),
            None if state["terminated"][row] else float(state["obs"][state["next"][row], 0]),
            bool(state["terminated"][row]),
            int(steps[row]),
        )
        for row in range(len(state["reward"]))
    ]


def told_by(batch: Any) -> list[Told]:
    """The transitions of a batch, in order, after a check that every row belongs to one transition."""
    obs, next_obs = batch.obs.numpy(), batch.next_obs.numpy()
    assert (obs == obs[:, :1]).all()
    assert (next_obs == next_obs[:, :1]).all()
    assert (batch.action.numpy() == obs[:, :1] * 10).all()
    steps = np.ones(len(obs)) if batch.steps is None else batch.steps.numpy()
    return [
        Told(float(o[0]), float(r), None if t else float(n[0]), bool(t), int(s))
        for o, r, n, t, s in zip(obs, batch.reward.numpy(), next_obs, batch.terminated.numpy(), steps, strict=True)
    ]
