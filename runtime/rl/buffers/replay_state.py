"""Replay to the arrays of a checkpoint and back: each observation once, transitions from oldest to newest.

``obs`` contains the n observations that transitions start with, then the others in the order of their first use.
``next`` (n,) is the row in ``obs`` of the observation after each transition. Checkpoints before version 4 of the
exchange contain ``next_obs`` in full instead, and rows in the order of the ring.

Snapshots of experience that are copied out bit by bit while the store continues.

A checkpoint needs experience and counts of the same moment. Copying all rows at that moment would stop the learner
and its exchange for tens of milliseconds. Here they stop for one chunk at a time, and a writer that is about to
overwrite a row of the snapshot has it copied first (copy on write).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.base import bounded_json
from runtime.exchange.protocol.segment_schema import Layout, SegmentField
from runtime.rl.buffers.priorities import SAVED, Arrays, RowPriorities
from runtime.rl.buffers.ring_index import RingIndex

CHUNK_BYTES: Final = 1024 * 1024
"""Bytes per chunk: the copy takes less than a millisecond."""
ReadRows = Callable[[NDArray[np.intp], NDArray[np.intp]], list[NDArray[Any]]]
"""(rows of transitions, rows of observations) → copies: the observations, then the other columns."""


class RingCut:
    """Copy of transitions ``first`` to ``first + n`` of a ring, with the observations that belong to them.

    Transitions are numbered from the start of the run. ``tails`` are rows of observations that no transition starts
    with. ``first_use``, ascending, is for each of them the first transition, counted from 0, that leads to it: the
    row is not overwritten while that transition is in the ring. Not thread-safe: the caller holds the ring's lock,
    except in ``columns``.
    """

    def __init__(
        self,
        read: ReadRows,
        fields: Sequence[SegmentField],
        first: int,
        slots: NDArray[np.intp],
        tails: NDArray[np.intp],
        first_use: NDArray[np.intp],
    ) -> None:
        """``fields`` are those of a transition in the ring, the observation first; ``slots`` (n,) are its rows."""
        self._read = read
        self._first = first
        self._done = 0
        self._slots, self._tails, self._first_use = slots, tails, first_use
        obs, *rest = fields
        # Not touched before rows are copied in: a large copy's pages are allocated in the writer's time.
        self._obs = np.empty((len(slots) + len(tails), *obs.shape_tail), obs.dtype)
        self._rest = [np.empty((len(slots), *field.shape_tail), field.dtype) for field in rest]
        row_bytes = sum(field.item_bytes for field in fields)
        self._chunk_rows = max(1, CHUNK_BYTES // max(1, row_bytes))

    @property
    def is_complete(self) -> bool:
        """True once every row is copied."""
        return self._done >= len(self._slots)

    def copy_next(self) -> bool:
        """Copy one chunk; return True if more is left."""
        self._copy(self._done + self._chunk_rows)
        return not self.is_complete

    def copy_before(self, number: int) -> None:
        """Copy all transitions before ``number``, because they may be overwritten next."""
        if number - self._first > self._done:
            self._copy(number - self._first)

    def copy_all(self) -> None:
        """Copy everything that is left, because rows are about to move."""
        self._copy(len(self._slots))

    def _copy(self, end: int) -> None:
        start, end, count = self._done, min(end, len(self._slots)), len(self._slots)
        low, high = np.searchsorted(self._first_use, (start, end)).tolist()
        obs, *rest = self._read(
            self._slots[start:end], np.concatenate([self._slots[start:end], self._tails[low:high]])
        )
        self._obs[start:end] = obs[: end - start]
        self._obs[count + low : count + high] = obs[end - start :]
        for copy, column in zip(self._rest, rest, strict=True):
            copy[start:end] = column
        self._done = end

    def columns(self) -> tuple[NDArray[Any], ...]:
        """Return the copied columns, observations first; they are complete once ``is_complete`` is True."""
        return self._obs, *self._rest


class ReplayCut:
    """Snapshot of a replay buffer: the columns of a ``RingCut`` by name, and data that needs no copy.

    ``arriving`` returns data that is still in transit from the device.
    """

    def __init__(
        self,
        names: Sequence[str],
        rows: RingCut,
        facts: Mapping[str, NDArray[Any]],
        arriving: Callable[[], Mapping[str, NDArray[Any]]] = dict,
    ) -> None:
        self._names = tuple(names)
        self._rows = rows
        self._facts = facts
        self._arriving = arriving

    def copy_next(self) -> bool:
        """Copy one chunk; return True if more is left."""
        return self._rows.copy_next()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state that the buffer loads, once everything is copied; needs no lock."""
        rows = dict(zip(self._names, self._rows.columns(), strict=True))
        return {**rows, **self._facts, **self._arriving()}


class ConstantCut:
    """State whose parts are never modified, such as waiting segments: nothing is copied under the lock."""

    def __init__(self, join: Callable[[], dict[str, NDArray[Any]]]) -> None:
        """`join` combines the parts into the state that the store loads."""
        self._join = join

    def copy_next(self) -> bool:
        """Return false: there is nothing to copy."""
        return False

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the joined parts; the caller needs no lock."""
        return self._join()


_NEXT: Final = "next"
_NEXT_BYTES: Final = 8
_SEQUENCE: Final = "sequence"


class Rows(Protocol):
    """Memory of a ring."""

    @property
    def read(self) -> ReadRows:
        """Return copies of rows."""


class ReplayRing(Protocol):
    """Parts of a replay buffer that are saved and loaded."""

    capacity: int
    layout: Layout
    fields: tuple[SegmentField, ...]
    rng: np.random.Generator
    index: RingIndex
    sequence: tuple[int, int] | None

    @property
    def rows(self) -> Rows:
        """Memory of the ring."""

    @property
    def priorities(self) -> RowPriorities | None:
        """Priorities of the rows; None for uniform draws."""

    @property
    def inserted(self) -> int:
        """Number of transitions so far."""

    def __len__(self) -> int:
        """Return the number of transitions."""

    def put_saved(self, columns: list[NDArray[Any]], following: NDArray[np.intp], tail: NDArray[Any]) -> None:
        """Insert a saved history, oldest first."""


def cut_of(replay: ReplayRing, most_bytes: int | None) -> tuple[ReplayCut, RingCut]:
    """Return the state for a resumed run as of now; ``most_bytes`` limits it to the newest transitions.

    The second value is the part whose rows must be copied before they are overwritten.
    """
    count = len(replay)
    newest = _newest_within(replay, count, most_bytes)
    slots, following, tails, first_use = _following(replay, newest)
    rows = RingCut(replay.rows.read, replay.fields, replay.inserted - newest, slots, tails, first_use)
    facts = {_NEXT: following.astype(np.int64)}
    if replay.sequence is not None:
        facts[_SEQUENCE] = np.array(replay.sequence, dtype=np.int64)
    names = [field.name for field in replay.fields]
    if newest < count:
        return ReplayCut(names, rows, facts), rows
    facts |= _facts(replay)
    if replay.priorities is None:
        return ReplayCut(names, rows, facts), rows
    return ReplayCut(names, rows, facts, replay.priorities.saved(slots)), rows


def _facts(replay: ReplayRing) -> Arrays:
    """Return a complete state without the transitions."""
    # The state of the generator is a nested dict of big integers: JSON stores it exactly, an array cannot.
    generator = json.dumps(replay.rng.bit_generator.state).encode()
    return {
        "inserted": np.array(replay.inserted, dtype=np.int64),
        "capacity": np.array(replay.capacity, dtype=np.int64),
        "generator": np.frombuffer(generator, dtype=np.uint8),
    }


def _newest_within(replay: ReplayRing, count: int, most_bytes: int | None) -> int:
    """Return how many of the newest transitions fit into ``most_bytes`` with all observations that they need."""
    if most_bytes is None:
        return count
    index, obs = replay.index, replay.layout.tail_bytes
    item = sum(field.item_bytes for field in replay.fields) + _NEXT_BYTES
    # The learner's loop waits for this: skip transitions that cannot fit even without a tail.
    count = min(count, most_bytes // item)
    slots = np.arange(index.inserted - count, index.inserted) % index.rows
    # Cumulated from the newest. N-step transitions share tail rows, so for them this is an upper bound.
    tails = np.cumsum(index.following[slots][::-1] >= index.rows)
    newest = int(np.searchsorted(item * np.arange(1, count + 1) + obs * tails, most_bytes, side="right"))
    # Sequences: whole segments only, because a part of one is never drawn.
    return newest if replay.sequence is None else newest - newest % math.prod(replay.sequence)


def _following(replay: ReplayRing, newest: int) -> tuple[NDArray[np.intp], ...]:
    """Return rows and ``next`` of the newest transitions, and rows and first uses of the tails after them."""
    index = replay.index
    slots = np.arange(index.inserted - newest, index.inserted) % index.rows
    following = index.following[slots]
    users = np.flatnonzero(following >= index.rows)
    tails, first_use, number = np.unique(following[users], return_index=True, return_inverse=True)
    order = np.argsort(first_use)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    following = (following - slots[:1]) % index.rows
    following[users] = newest + rank[number]
    return slots, following, tails[order], users[first_use[order]]


def load_into(replay: ReplayRing, state: Mapping[str, NDArray[Any]]) -> None:
    """Load the arrays of `cut_of`, of any version. Raises ValueError if another capacity or layout wrote them.

    A complete state is restored exactly; a state with only the newest transitions is inserted.
    """
    if not state:
        return
    count = len(state["reward"])
    _check(replay, state, count)
    is_complete = "generator" in state
    if is_complete and int(state["capacity"]) != replay.capacity:
        raise ValueError(
            f"the saved replay buffer holds {int(state['capacity'])} transitions and this one {replay.capacity}; "
            "resume with the same replay capacity, or without the saved experience"
        )
    order = np.arange(count)
    if _NEXT in state:
        obs, following = state["obs"], state[_NEXT].astype(np.intp)
    else:
        # The rows of the ring, each with both observations: from the oldest, the second ones after the first.
        order = (order + (int(state["inserted"]) if is_complete else 0)) % max(count, 1)
        if is_complete and int(state["inserted"]) <= count:
            order = np.arange(count)
        obs, following = np.concatenate([state["obs"][order], state["next_obs"][order]]), count + np.arange(count)
    if is_complete:
        replay.index.inserted = int(state["inserted"]) - count
    if count:
        columns = [obs[:count], *(state[field.name][order] for field in replay.fields[1:])]
        replay.put_saved(columns, following, obs[count:])
    if not is_complete:
        return
    replay.rng.bit_generator.state = bounded_json.loads(state["generator"].tobytes())
    if replay.priorities is not None and count:
        slots = replay.index.slots(np.arange(count))
        ordered = {**state, SAVED: state[SAVED][order]} if SAVED in state else state
        replay.priorities.load(slots, ordered, replay.rng)


def _check(replay: ReplayRing, state: Mapping[str, NDArray[Any]], count: int) -> None:
    """Raise ValueError unless every array has the type and shape that this replay requires."""
    segment = tuple(state.get(_SEQUENCE, np.zeros(0)).tolist())
    if replay.sequence is not None and segment != replay.sequence:
        raise ValueError(
            f"the saved replay buffer has segments of {_segment_text(segment)} and this one of "
            f"{_segment_text(replay.sequence)}; with memory resume with the same num_envs and segment_steps"
        )
    obs = replay.layout.fields[0]
    rows = len(state["obs"]) if _NEXT in state else count
    needed = {"obs": (obs.dtype, (rows, *obs.shape_tail))}
    needed |= {field.name: (field.dtype, (count, *field.shape_tail)) for field in replay.fields[1:]}
    if _NEXT in state:
        needed[_NEXT] = np.dtype(np.int64), (count,)
    else:
        needed["next_obs"] = needed["obs"]
    for name, (dtype, shape) in needed.items():
        saved = state.get(name, np.zeros(0))
        if saved.shape != shape or saved.dtype != dtype:
            raise ValueError(
                f"the saved replay buffer has {name} as {saved.dtype} {saved.shape}; "
                f"this environment needs {dtype} {shape}"
            )
    if _NEXT in state and count and not (state[_NEXT].min() >= 0 and state[_NEXT].max() < rows >= count):
        raise ValueError(f"the saved replay buffer names observations that it lacks; it has {rows}")


def _segment_text(sequence: tuple[int, ...]) -> str:
    return " x ".join(map(str, sequence)) or "no fixed size"
