"""Replay buffer: a ring of transitions, sampled uniformly or by TD error (prioritised replay).

Prioritised replay is the proportional variant of Schaul et al. 2016 (arXiv:1511.05952): `Replay.sample` draws by
priority and computes importance weights, `Replay.update_priorities` takes the batch's TD error. With
``draws_on_device`` the learner's updates do both through `DevicePriorities`.

Each observation is stored once. `RingIndex` knows the rows; `HostRows` or `DeviceRows` hold the memory. Draws on
the host do not depend on the memory, so a seed gives the same batches wherever the data is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from runtime.base.replay_memory import NUM_ENVS, SEGMENT_STEPS, margin_rows, tail_rows
from runtime.exchange.protocol.segment_schema import Columns, Layout, SegmentField
from runtime.exchange.segments import SegmentBundle
from runtime.rl.buffers import replay_state
from runtime.rl.buffers.host_rows import HostRows
from runtime.rl.buffers.priorities import LEAST_ERROR, Priorities, Priority
from runtime.rl.buffers.replay_state import ReplayCut, RingCut
from runtime.rl.buffers.ring_index import (
    ABSENT,
    TERMINATED,
    TRUNCATED,
    RingIndex,
    are_all_sound,
    are_sound,
    common_copies,
    copies_in,
    successors,
)
from runtime.rl.spaces import ActionSpace, ObsSpace

if TYPE_CHECKING:
    import torch

    from runtime.rl.buffers.device_replay import DevicePriorities, DeviceRows


class TensorBatch:
    """Base of frozen dataclasses with slots whose fields are tensors, or None if a batch does not have that
    column.
    """

    __slots__: tuple[str, ...] = ()
    axis: ClassVar[int] = 0
    """Dimension along which a batch is split."""

    def to(self, device: str) -> Self:
        """Copy to another device."""
        return self.replaced([part.to(device) for part in self.tensors])

    @property
    def tensors(self) -> list[Any]:
        """The columns that this batch has."""
        return [part for part in self.parts if part is not None]

    def replaced(self, tensors: list[Any]) -> Self:
        """Return a batch with other tensors for the columns of this one."""
        rest = iter(tensors)
        return type(self)(*(None if part is None else next(rest) for part in self.parts))

    def shares(self, count: int) -> list[Self]:
        """Return ``count`` consecutive equal parts."""
        chunks = [[part] * count if part is None else part.chunk(count, dim=self.axis) for part in self.parts]
        return [type(self)(*parts) for parts in zip(*chunks, strict=True)]

    def columns(self) -> dict[str, Any]:
        """Return the tensors by name, without missing columns."""
        return {name: part for name, part in zip(self.__slots__, self.parts, strict=True) if part is not None}

    @property
    def parts(self) -> tuple[Any, ...]:
        """All columns in order, None for missing ones."""
        return tuple(getattr(self, name) for name in self.__slots__)


TRANSITION_FIELDS: Final = ("obs", "action", "reward", "ended")
"""Names and order of a transition's fields; n-step transitions also have ``steps``, as the last field."""
STATE: Final = "state"
"""Name of the column with the states of the policy's memory at the start of a segment."""


def transition_layout(obs: ObsSpace, action: ActionSpace, n_step: int = 1, state_width: int = 0) -> Layout:
    """Return the schema of a transition.

    ``ended`` is 1 if the episode terminated, so that no reward can follow, and 2 if it was truncated. Following
    observations are in ``successors``. With ``n_step`` above 1, ``reward`` is the discounted sum over ``steps``
    steps, and the transition leads to the observation after the last one. ``state_width`` is the width of memory
    states, `runtime.rl.algos.memory.spread_states`; 0 without memory.
    """
    f32, u8 = np.dtype(np.float32), np.dtype(np.uint8)
    tail = SegmentField("obs", obs.dtype, (obs.width,))
    fields = (
        tail,
        SegmentField("action", action.dtype, (action.size,)),
        SegmentField("reward", f32),
        SegmentField("ended", u8),
    )
    steps = (SegmentField("steps", u8),) if n_step > 1 else ()
    states = (SegmentField(STATE, f32, (state_width,)),) if state_width else ()
    return Layout((*fields, *steps, *states), tail=SegmentField(tail.name, tail.dtype, tail.shape_tail))


@dataclass(frozen=True, slots=True)
class Batch(TensorBatch):
    """B transitions. All columns are float32, except observations with images: bytes."""

    obs: torch.Tensor
    """(B, obs_dim)"""
    action: torch.Tensor
    """(B, act_dim)"""
    reward: torch.Tensor
    """(B,)"""
    next_obs: torch.Tensor
    """(B, obs_dim) after the transition, before any reset; arbitrary where it terminated."""
    terminated: torch.Tensor
    """(B,) 0 or 1"""
    steps: torch.Tensor | None = None
    """(B,) env steps from ``obs`` to ``next_obs``; None means one each."""
    weight: torch.Tensor | None = None
    """(B,) importance sampling weights, at most 1; None means 1 for all."""
    ended: torch.Tensor | None = None
    """(B,) 0 if the episode goes on after the step; only for sequences."""
    state: torch.Tensor | None = None
    """(sequences, at least state_size) memory state of the policy at the start of each sequence, whose steps are
    consecutive rows; None for transitions that are drawn individually.
    """
    absent: torch.Tensor | None = None
    """(B,) true for padding in sequences, which is not learned from; None without padding."""


_REDRAWS: Final = 32
"""Number of attempts to replace drawn padding: even if half of the rows are padding, practically none is left."""
_NONE: Final[NDArray[np.intp]] = np.zeros(0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Draw:
    """Rows of a batch, and the state of the ring when they were drawn. The rows are not overwritten before they
    were read.
    """

    slots: NDArray[np.intp]
    following: NDArray[np.intp]
    weight: NDArray[np.float64] | None
    obs: Any
    """Memory of the observations."""


RowsFactory = Callable[[tuple[SegmentField, ...], int, int], "HostRows | DeviceRows"]
"""(fields of a transition in the ring, rows, observations) → memory for them."""


class Replay:
    """The latest ``capacity`` transitions, sampled with replacement: uniformly, or by priority.

    One thread may put segments while another reads a drawn batch: `put` waits if it would overwrite rows that are
    being read. The caller ensures that draws and puts exclude each other.
    """

    def __init__(
        self,
        capacity: int,
        layout: Layout,
        seed: int,
        *,
        priority: Priority | None = None,
        rows: RowsFactory = HostRows,
        segment: tuple[int, int] = (NUM_ENVS, SEGMENT_STEPS),
        draws_on_device: bool = False,
    ) -> None:
        """``priority`` draws by TD error instead of uniformly; ``rows`` creates the memory.

        With ``draws_on_device`` and a ``priority`` no batch is drawn here: updates draw from `priorities`, and
        ``rows`` creates `DeviceRows`. ``segment`` is (copies, steps) of the expected segments; with others the ring
        of the tails grows.
        """
        if capacity < 1:
            raise ValueError(f"replay capacity is {capacity}; it must be at least 1 transition")
        self.capacity = capacity
        self.layout = layout
        self.rng = np.random.default_rng(seed)
        self._priority = priority or Priority(0.0, 0.0)
        obs, action, reward, ended, *others = layout.fields
        self._segment_fields = (*layout.fields, layout.tail or obs)
        self._has_steps = "steps" in layout.names
        # Sequences also store each step's own end: `terminated` describes the last of n steps.
        ends = (ended,) if STATE in layout.names else ()
        # Priorities belong to rows: with a margin, rows that are no longer drawn would have to lose theirs.
        margin = 0 if priority else margin_rows(capacity, layout.item_bytes)
        self.index = RingIndex(capacity, margin, tail_rows(capacity, *segment))
        self.fields = (obs, action, reward, SegmentField("terminated", ended.dtype), *others, *ends)
        """Fields of a transition in the ring."""
        self.rows = rows(self.fields, self.index.rows, self.index.size)
        self.priorities: Priorities | DevicePriorities | None = None
        if priority:
            self.priorities = self._on_device(seed) if draws_on_device else Priorities(self.index.rows)
        # Weak: the cut of a failed checkpoint is forgotten.
        self._cuts: WeakSet[RingCut] = WeakSet()
        """Rows that checkpoints are still copying."""
        self._absent: NDArray[np.bool_] | None = None
        """(rows,) true for padding, which is not drawn; None before the first padding."""
        self._sampled: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self.sequence: tuple[int, int] | None = None
        """Copies and steps per segment, if batches contain sequences: a saved state must have the same."""
        self._reading: int | None = None
        """Number of transitions at the time of the draw that is being read; None while nothing is read."""
        self._read = threading.Condition()

    def _on_device(self, seed: int) -> DevicePriorities:
        from runtime.rl.buffers.device_replay import DevicePriorities

        assert not isinstance(self.rows, HostRows)  # noqa: S101  (the caller's choice)
        return DevicePriorities(self._priority, self.rows, self.index, seed)

    @property
    def inserted(self) -> int:
        """Transitions put in so far."""
        return self.index.inserted

    def __len__(self) -> int:
        return len(self.index)

    # --- in ---
    def faulty_segments(self, bundle: SegmentBundle) -> frozenset[int]:
        """Return the indices of segments whose tails do not match their ends."""
        faulty: list[int] = []
        first = 0
        for part in bundle.uniform_parts():
            columns = part.columns()
            (ended, summed), rows = self._ends(columns), columns[-1].shape[1]
            if not are_all_sound(ended, summed, rows):
                faulty += (first + np.flatnonzero(~are_sound(ended, summed, rows))).tolist()
            first += len(part)
        return frozenset(faulty)

    def _ends(self, columns: Sequence[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
        """Return from segment columns the ends, and the numbers of summed steps if the segments have them."""
        return columns[3], columns[4] if self._has_steps else None

    def put(self, columns: Columns) -> None:
        """Insert one segment, over the oldest transitions if full. Raises ValueError if a shape does not fit."""
        count, rows = len(columns[0]), len(columns[-1])
        for field, value in zip(self._segment_fields, columns, strict=True):
            shape = (rows if field is self.layout.tail else count, *field.shape_tail)
            if value.shape != shape:
                raise ValueError(f"replay: {field.name} has shape {value.shape}; {count} transitions need {shape}")
        if not count:
            return
        segment = tuple([column[None] for column in columns])
        ended, summed = self._ends(segment)
        if not are_all_sound(ended, summed, rows):
            raise ValueError(f"replay: {rows} observations behind {count} transitions do not fit their ends")
        copies = common_copies(ended, rows)
        assert copies is not None  # noqa: S101  (of a single segment)
        self._put_segments(segment, copies)

    def put_bundle(self, bundle: SegmentBundle) -> None:
        """Insert valid segments of equal size, with one copy per column if they do not wrap."""
        columns, index = bundle.columns(), self.index
        ended, tail = columns[3], columns[-1].shape[1]
        segments, count = ended.shape
        copies, first = common_copies(ended, tail), 0
        if copies is None:
            for number, differing in enumerate(copies_in(ended, tail).tolist()):
                self._put_segments(tuple([column[number : number + 1] for column in columns]), differing)
            return
        while first < segments:
            # Up to the end of the nearer ring; a segment that crosses it is inserted by itself.
            some = min((index.rows - index.first) // count, (index.size - index.tail_first) // tail)
            end = min(segments, first + max(1, some))
            is_all = end - first == segments
            self._put_segments(columns if is_all else tuple([column[first:end] for column in columns]), copies)
            first = end

    def put_steps(
        self,
        obs: torch.Tensor,
        action: torch.Tensor,
        reward: torch.Tensor,
        next_obs: torch.Tensor,
        ended: torch.Tensor,
        steps: torch.Tensor | None = None,
    ) -> None:
        """Insert T steps of N copies from tensors (T, N, …), with ``next_obs`` after each step and before any
        reset.

        The tensors may already be on the replay's device: then only ``ended`` (0, 1 or 2) and ``steps`` pass
        through the host, with one wait for the device. ``steps`` is required for n-step transitions.
        """
        count, copies = ended.numel(), ended.shape[1]
        small = [
            part.reshape(1, count).cpu().numpy().astype(np.uint8) for part in (ended, steps) if part is not None
        ]
        rows = np.concatenate([np.arange(count - copies, count), np.flatnonzero(small[0] == TRUNCATED)])
        following = next_obs.reshape(count, -1)
        tail = following[_on_device_of(following, rows)]
        columns: list[Any] = [
            part[None] for part in (obs.reshape(count, -1), action.reshape(count, -1), reward.reshape(count), tail)
        ]
        if isinstance(self.rows, HostRows):
            columns = [column.cpu().numpy() for column in columns]
        with self.rows.joined():
            self._put_segments((*columns[:3], *small, columns[3]), copies)

    def _put_segments(self, columns: tuple[Any, ...], copies: int) -> None:
        """Write equal segments, columns (S, count, …) with the tail last; several at once only if nothing wraps."""
        obs, action, reward, _, *others, tail = columns
        ended, steps = self._ends(columns)
        if len(self.fields) > len(self.layout.fields):
            others.append(ended)
        index, shape, rows = self.index, ended.shape, tail.shape[1]
        count = shape[0] * shape[1]
        if self._reading is not None:  # Only `draw` sets it, and no put runs at the same time.
            with self._read:
                # Drawn rows must stay until they are read; reading takes no lock that this thread may hold.
                self._read.wait_for(
                    lambda: self._reading is None or not index.would_overwrite(self._reading, count)
                )
        if self._cuts:
            for cut in self._cuts:
                cut.copy_before(index.inserted + count - index.rows)
        self._make_room(count, shape[0] * rows)
        absent = ended == ABSENT if ended.max() == ABSENT else None
        if steps is not None or self._wraps(count, shape[0] * rows):
            following, terminated = successors(ended, steps, copies)
            self._write(obs, [action, reward, self._with_padding(terminated, absent), *others], tail)
            index.add(following, rows)
        elif rows == copies:
            # Nothing was truncated, so ends are terminations.
            ends = ended if absent is None else self._with_padding(ended == TERMINATED, absent)
            self._write(obs, [action, reward, ends, *others], tail)
            index.add_steps(shape, copies, rows, _NONE)
        else:
            self._write(obs, [action, reward, self._with_padding(ended == TERMINATED, absent), *others], tail)
            index.add_steps(shape, copies, rows, np.flatnonzero(ended == TRUNCATED))
        self._begin_draws(count, absent)

    def _wraps(self, transitions: int, tail: int) -> bool:
        """Return True if that many would cross the end of one of the rings."""
        index = self.index
        return index.first + transitions > index.rows or index.tail_first + tail > index.size

    def put_saved(self, columns: list[NDArray[Any]], following: NDArray[np.intp], tail: NDArray[Any]) -> None:
        """Insert a saved history of n transitions, oldest first: observation, action, reward, terminated, steps.

        ``following`` (n,) is the index of the observation after each transition: below n a later transition's, from
        n on a row of ``tail``. The rows of ``tail`` are in the order of their first use.
        """
        obs, *rest = (column[None] for column in columns)
        self._make_room(len(following), len(tail))
        self._write(obs, rest, tail[None])
        self.index.add_saved(following, len(tail))
        absent = columns[3] == ABSENT
        self._begin_draws(len(following), absent if absent.any() else None)

    def _make_room(self, transitions: int, tail: int) -> None:
        if (move := self.index.make_room(transitions, tail)) is not None:
            for cut in self._cuts:
                cut.copy_all()
            self.rows.resize(move, self.index.size)
            if self.priorities is not None:
                self.priorities.renumber()

    def _write(self, obs: Any, rest: list[Any], tail: Any) -> None:
        """Write the columns of equal segments to the next rows of both rings."""
        index = self.index
        with self.rows.writing():
            if not self._wraps(obs.shape[0] * obs.shape[1], tail.shape[0] * tail.shape[1]):
                self.rows.write_obs(index.first, obs)
                self.rows.write_rest(index.first, rest)
                self.rows.write_obs(index.tail_first, tail)
                return
            for first, part in _pieces([obs, *rest], index.inserted, 0, index.rows):
                self.rows.write_obs(first, part[0])
                self.rows.write_rest(first, part[1:])
            for first, part in _pieces([tail], index.tail_first - index.rows, index.rows, index.tail):
                self.rows.write_obs(first, part[0])

    def _with_padding(self, terminated: NDArray[np.bool_], absent: NDArray[np.bool_] | None) -> NDArray[np.uint8]:
        """Return the ring's column ``terminated``, with padding marked in it, which a resumed run also needs.

        Sequences are drawn whole: in them, padding counts as terminated.
        """
        if absent is None:
            return terminated.view(np.uint8)
        mark = ABSENT if self.sequence is None else TERMINATED
        return np.where(absent, np.uint8(mark), terminated.view(np.uint8))

    def _begin_draws(self, count: int, absent: NDArray[np.bool_] | None) -> None:
        """Make the newest rows except padding available to draws, with the largest priority so that each is drawn
        soon.
        """
        if self.priorities is None and self._absent is None and absent is None:
            return
        new = min(count, self.index.rows)
        slots = np.arange(self.inserted - new, self.inserted) % self.index.rows
        is_absent = np.zeros(new, np.bool_) if absent is None else absent.reshape(-1)[-new:]
        if self.priorities is not None:
            self.priorities.begin(slots, is_absent)
            return
        if self._absent is None:
            self._absent = np.zeros(self.index.rows, np.bool_)
        self._absent[slots] = is_absent

    def _drawn_evenly(self, batch_size: int) -> NDArray[np.intp]:
        """Return uniformly drawn rows; padding is redrawn."""
        slots = self.index.slots(self.rng.integers(len(self), size=batch_size))
        tries, absent = _REDRAWS, self._absent
        while tries and absent is not None and len(again := np.flatnonzero(absent[slots])):
            tries -= 1
            slots[again] = self.index.slots(self.rng.integers(len(self), size=len(again)))
        return slots

    # --- out ---
    def draw(self, batch_size: int) -> Draw:
        """Return the rows of a batch, to be read by `gather`. Raises ValueError if the buffer is empty."""
        if not self.inserted:
            raise ValueError("the replay buffer is empty; wait for the first rollout before sampling")
        slots, weight = self._drawn(batch_size)
        self._sampled = slots
        self._reading = self.inserted
        return Draw(slots, self.index.following.take(slots), weight, self.rows.reader())

    def _drawn(self, batch_size: int) -> tuple[NDArray[np.intp], NDArray[np.float64] | None]:
        """Return the rows of a batch, and their weights if they are not drawn uniformly."""
        if self.priorities is None:
            return self._drawn_evenly(batch_size), None
        assert isinstance(self.priorities, Priorities)  # noqa: S101  (others are drawn from by updates)
        slots, probability = self.priorities.draw(batch_size, self.rng)
        weight: NDArray[np.float64] = (len(self) * probability) ** -self._priority.correction_at(self.inserted)
        return slots, weight / weight.max()  # section 3.4: weights only ever scale updates down

    def gather(self, draw: Draw, number: int = 0) -> Batch:
        """Return the batch of a draw; the next one with the same size and ``number`` overwrites its tensors.

        It needs no lock: `put` waits if it would overwrite these rows.
        """
        with self.reading():
            tensors = self.rows.gather(draw.obs, draw.slots, draw.following, draw.weight, number)
        if draw.weight is None:
            return self.batch_of(tensors)
        return replace(self.batch_of(tensors[:-1]), weight=tensors[-1])

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read the latest draw in the block; after the block `put` may overwrite its rows."""
        try:
            yield
        finally:
            with self._read:
                self._reading = None
                self._read.notify_all()

    def batch_of(self, tensors: list[torch.Tensor]) -> Batch:
        """Return the batch of observations, next observations, and the remaining fields of transitions."""
        obs, next_obs, action, reward, terminated, *steps = tensors
        return Batch(obs, action, reward, next_obs, terminated, steps[0] if steps else None)

    def sample(self, batch_size: int) -> Batch:
        """Return a sampled batch; the next one of the same size overwrites its tensors.

        Raises ValueError if the buffer is empty.
        """
        return self.gather(self.draw(batch_size))

    @property
    def sampled(self) -> NDArray[np.intp]:
        """(B,) rows of the latest drawn batch."""
        return self._sampled

    def update_priorities(self, td_error: NDArray[Any], rows: NDArray[np.intp] | None = None) -> None:
        """Set the priorities of a batch from its absolute TD error (B,); without ``rows``, of the latest batch.

        No effect on a uniform buffer.
        """
        if isinstance(self.priorities, Priorities):
            values = (td_error + LEAST_ERROR) ** self._priority.exponent
            self.priorities.set(self._sampled if rows is None else rows, values)

    def cut(self, most_bytes: int | None = None) -> ReplayCut:
        """Return everything that a resumed run needs, as of now, to be copied out later.

        Above ``most_bytes``, only the newest transitions with the observations that they need.
        """
        cut, rows = replay_state.cut_of(self, most_bytes)
        self._cuts.add(rows)
        return cut

    def state(self, most_bytes: int | None = None) -> dict[str, NDArray[Any]]:
        """Return ``cut``, copied immediately."""
        cut = self.cut(most_bytes)
        while cut.copy_next():
            pass
        return cut.arrays()

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Load a result of `state`. Raises ValueError if it came from another capacity or layout."""
        replay_state.load_into(self, state)


def _pieces(columns: list[Any], inserted: int, base: int, rows: int) -> Iterator[tuple[int, list[Any]]]:
    """Yield the first row and the columns (S, n, …) of each piece that is written to a ring of ``rows``.

    The ring starts at row ``base``, and ``inserted`` is the number of the first value. Only a single segment may
    wrap around. If there are more values than rows, only the newest are written, as after one insertion at a time.
    """
    segments, count = columns[0].shape[:2]
    count *= segments
    low = max(0, count - rows)
    while low < count:
        first = (inserted + low) % rows
        high = min(count, low + rows - first)
        yield base + first, columns if high - low == count else [column[:, low:high] for column in columns]
        low = high


def _on_device_of(tensor: torch.Tensor, rows: NDArray[np.intp]) -> torch.Tensor:
    import torch

    return torch.from_numpy(rows).to(tensor.device)
