"""Index of a replay's ring: the row of each transition, and the row of the observation that follows it.

Transitions share row numbers, 0 to ``rows`` - 1, with the observations that they start with. Observations that no
transition starts with (the tail of a segment) use rows of a second ring, which come after those. Each observation
is therefore stored once, and a transition is its row and the row of the next observation. The index does not
contain observations, so it works with any memory.

A segment of T steps of N copies has T * N transitions in time order, and each observation once: first those that
transitions start with, then the *tail*. The tail's first N rows are the observations after the last step. The
others are the final observations of truncated transitions in order, including those of the last step. Observation
r + N therefore follows transition r, unless its episode was truncated: then observation r + N is the first one of
the next episode. After a termination no observation is needed: nothing can follow (Sutton and Barto 2018, section
3.4), and targets multiply the next value by 0.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import count as count_from
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

SAVED_BLOCK: Final = 1_024
"""Number of transitions of a loaded history whose tail rows are freed together."""


@dataclass(frozen=True, slots=True)
class TailMove:
    """Rows of the observations to copy when the second ring grows: from ``source`` to ``target``."""

    source: NDArray[np.intp]
    target: NDArray[np.intp]


class RingIndex:
    """Rows of the latest ``capacity`` transitions; ``margin`` more may be written while those are being read.

    Attributes:
        inserted: Number of transitions so far.
        tail: Rows of the second ring; grows if it has too few for the live observations.
        following: (rows,) row of the observation that follows each transition.
    """

    def __init__(self, capacity: int, margin: int, tail: int) -> None:
        self.capacity = capacity
        self.rows = capacity + margin
        self.tail = tail
        self.inserted = 0
        self.following: NDArray[np.intp] = np.zeros(self.rows, dtype=np.intp)
        self._tail_inserted = 0
        self._segments: deque[tuple[int, int]] = deque()
        """For each segment in the ring, oldest first: number of transitions up to its end, and of tail rows before
        it.
        """

    def __len__(self) -> int:
        return min(self.inserted, self.capacity)

    @property
    def size(self) -> int:
        """Total number of observation rows."""
        return self.rows + self.tail

    @property
    def first(self) -> int:
        """Row of the next transition."""
        return self.inserted % self.rows

    @property
    def tail_first(self) -> int:
        """Row of the next observation in the second ring."""
        return self.rows + self._tail_inserted % self.tail

    def slots(self, ages: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the rows of transitions by age: 0 is the oldest live transition."""
        first = (self.inserted - len(self)) % self.rows
        return (first + ages) % self.rows if first else ages

    def would_overwrite(self, inserted: int, count: int) -> bool:
        """Return True if ``count`` more would overwrite rows that were live when there were ``inserted``
        transitions.
        """
        return self.inserted + count - self.rows > inserted - min(inserted, self.capacity)

    def make_room(self, transitions: int, tail: int) -> TailMove | None:
        """Make room for a segment; return the rows to move if the second ring had to grow."""
        dead = self.inserted + transitions - self.rows
        while self._segments and self._segments[0][0] <= dead:
            self._segments.popleft()
        oldest = self._segments[0][1] if self._segments else self._tail_inserted
        needed = self._tail_inserted - oldest + tail
        return self._grow(oldest, max(2 * self.tail, needed)) if needed > self.tail else None

    def _grow(self, oldest: int, tail: int) -> TailMove:
        before, self.tail = self.tail, tail
        living = np.arange(oldest, self._tail_inserted)
        is_tail = self.following >= self.rows
        # A row of the second ring is a number modulo its size; live numbers differ by less than `before`.
        numbers = oldest + (self.following[is_tail] - self.rows - oldest) % before
        self.following[is_tail] = self.rows + numbers % tail
        return TailMove(self.rows + living % before, self.rows + living % tail)

    def add(self, following: NDArray[np.intp], tail: int) -> None:
        """Add S equal segments whose rows were written; ``make_room`` was called for all of them.

        ``following`` is (S, count): for each transition, the index of the next observation in its segment. The
        ``tail`` rows come after the ``count`` observations that transitions start with.
        """
        segments, count = following.shape
        total, total_tail, first = segments * count, segments * tail, self.first
        if first + total <= self.rows and self.tail_first + total_tail <= self.size:
            # The usual case, nothing wraps: additions only, since here a modulo costs more than everything else.
            order = np.arange(segments)[:, None]
            own, behind = first + count * order, self.tail_first - count + tail * order
            rows = following + np.where(following < count, own, behind)
            self.following[first : first + total] = rows.reshape(-1)
        else:
            self._add_wrapped(following, tail)
        self._count(segments, count, tail)

    def add_steps(self, shape: tuple[int, int], copies: int, tail: int, truncated: NDArray[np.intp]) -> None:
        """Like `add`, for S equal segments of single-step transitions that do not wrap.

        ``shape`` is (S, count). ``truncated`` are the transitions with a final observation in the tail, numbered
        over all segments; every segment has the same number of them. Nothing is looked up: the next observation of
        a transition is ``copies`` rows ahead.
        """
        segments, count = shape
        first, total, behind = self.first, segments * count, self.tail_first
        following = self.following[first : first + total]
        following[:] = np.arange(first + copies, first + copies + total)
        tails = np.arange(behind, behind + segments * tail).reshape(segments, tail)
        following.reshape(shape)[:, count - copies :] = tails[:, :copies]
        if len(truncated):
            following[truncated] = tails[:, copies:].reshape(-1)
        self._count(segments, count, tail)

    def _count(self, segments: int, count: int, tail: int) -> None:
        ends = zip(count_from(self.inserted + count, count), count_from(self._tail_inserted, tail), strict=True)
        self._segments.extend(islice(ends, segments))
        self.inserted += segments * count
        self._tail_inserted += segments * tail

    def _add_wrapped(self, following: NDArray[np.intp], tail: int) -> None:
        segments, count = following.shape
        starts = self.inserted + count * np.arange(segments)[:, None]
        tails = self._tail_inserted + tail * np.arange(segments)[:, None] - count
        own, behind = (starts + following) % self.rows, self.rows + (tails + following) % self.tail
        rows = np.where(following < count, own, behind)
        # More than the ring holds: only the newest rows survive, as after one insertion at a time.
        numbers = np.arange(self.inserted, self.inserted + segments * count)[-self.rows :]
        self.following[numbers % self.rows] = rows.reshape(-1)[-self.rows :]

    def add_saved(self, following: NDArray[np.intp], tail: int) -> None:
        """Like `add` for one segment, with a history of transitions; their tail rows are in the order of their
        use.
        """
        self.add(following[None], tail)
        end, before = self._segments.pop()
        # In blocks, so that rows after the oldest transitions are freed before the newest transitions are
        # overwritten.
        count = len(following)
        first_used = np.minimum.accumulate(np.where(following < count, count + tail, following)[::-1])[::-1]
        for start in range(0, count, SAVED_BLOCK):
            number = before + int(first_used[start]) - count
            self._segments.append((end - count + min(count, start + SAVED_BLOCK), number))


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
