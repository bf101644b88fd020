"""Order of the observations in a segment, and the observation that follows each transition, as index arithmetic.

A segment of T steps of N copies has T * N transitions in time order, and each observation once: first those that
transitions start with, then the *tail*. The tail's first N rows are the observations after the last step. The
others are the final observations of truncated transitions in order, including those of the last step. Observation r
+ N therefore follows transition r, unless its episode was truncated: then observation r + N is the first one of the
next episode. After a termination no observation is needed: nothing can follow (Sutton and Barto 2018, section 3.4),
and targets multiply the next value by 0.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

GOES_ON: Final = 0
TERMINATED: Final = 1
TRUNCATED: Final = 2
ABSENT: Final = 3
"""Padding for an agent that has left its game: the row is not learned from, and no observation follows it."""


def copies_in(ended: NDArray[np.uint8], tail: int) -> NDArray[np.intp]:
    """Return the number of copies in each of S segments, from the ends (S, count) and the number of ``tail``
    rows.
    """
    segments, count = ended.shape
    # Count segments of the few truncated transitions: a sum along an axis takes several times as long.
    truncated = np.flatnonzero(ended == TRUNCATED) // max(count, 1)
    copies: NDArray[np.intp] = tail - np.bincount(truncated, minlength=segments)
    return copies


def common_copies(ended: NDArray[np.uint8], tail: int) -> int | None:
    """Return the number of copies in each of S segments, or None if it differs between them."""
    if ended.max() < TRUNCATED:  # as in most messages
        return tail
    copies = copies_in(ended, tail)
    return int(copies[0]) if len(copies) == 1 or (copies == copies[0]).all() else None


def are_sound(ended: NDArray[np.uint8], steps: NDArray[np.uint8] | None, tail: int) -> NDArray[np.bool_]:
    """Return for each of S segments whether its tail matches its ends and its reward sums stay inside it."""
    count = ended.shape[1]
    copies = copies_in(ended, tail)
    # Avoids a modulo by 0; the first term rejects a segment without copies.
    sound = (copies > 0) & (count % np.maximum(copies, 1) == 0)
    if ended.max() > ABSENT:
        sound &= ended.max(axis=1) <= ABSENT
    if steps is not None:
        sound &= (steps.min(axis=1) >= 1) & (_last(steps, copies[:, None]).max(axis=1) < count)
    return np.asarray(sound, dtype=np.bool_)


def are_all_sound(ended: NDArray[np.uint8], steps: NDArray[np.uint8] | None, tail: int) -> bool:
    """Return True if all S segments are sound; checks them at once if all have the same number of copies."""
    count, highest = ended.shape[1], ended.max()
    copies = tail if highest < TRUNCATED else common_copies(ended, tail)
    if copies is None:
        return bool(are_sound(ended, steps, tail).all())
    if highest > ABSENT or copies < 1 or count % copies:
        return False
    return steps is None or bool(steps.min() >= 1 and _last(steps, copies).max() < count)


def _last(steps: NDArray[np.uint8], copies: int | NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the last transition whose reward is in each transition's sum, (S, count)."""
    last: NDArray[np.intp] = np.arange(steps.shape[1]) + (steps.astype(np.intp) - 1) * copies
    return last


def successors(
    ended: NDArray[np.uint8], steps: NDArray[np.uint8] | None, copies: int
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the index of the observation after each transition, and whether the episode terminated; both (S,
    count).

    Args:
        ended: (S, count) GOES_ON, TERMINATED, TRUNCATED or ABSENT of each step.
        steps: (S, count) number of steps whose rewards a transition sums; None means one each.
        copies: Copies of the environment in each segment.
    """
    segments, count = ended.shape
    highest = ended.max()
    last = np.broadcast_to(np.arange(count), ended.shape) if steps is None else _last(steps, copies)
    following, terminated = last + copies, ended == TERMINATED
    # Indices into all segments, concatenated.
    flat = last + count * np.arange(segments)[:, None] if steps is not None and highest else last
    if highest >= TRUNCATED:
        truncated = ended == TRUNCATED
        # In the tail, a truncated step's row is its rank among the segment's truncated steps, after the last
        # observations.
        final = count + copies - 1 + np.cumsum(truncated, axis=1)
        if steps is not None:
            final, truncated = final.take(flat), truncated.take(flat)
        following = np.where(truncated, final, following)
    return following, terminated.take(flat) if steps is not None and highest else terminated
