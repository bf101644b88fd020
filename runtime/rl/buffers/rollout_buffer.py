"""Rollouts for on-policy methods: segments wait in order until they suffice for an update, and are used once.

They wait as received, each observation once, on the learner's device; the next observations are built there. A
learner that collects on its device writes its single batch there itself.

Buffer of gradients that workers computed: distributed updates.

A gradient is sent as a segment with one item and one field, (parameters,). It is therefore counted, acknowledged,
and rejected if it is older than `max_policy_lag` versions, by the same rules: asynchronous gradient descent with
bounded staleness (Ho et al. 2013, *Stale Synchronous Parallel*). A worker whose weights are older than the bound
waits for new ones before it computes. The worker's part is `runtime.rl.roles.worker_gradients`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from runtime.exchange.protocol.segment_schema import Columns, Layout, SegmentField
from runtime.exchange.segments import SegmentBundle
from runtime.rl.buffers.replay import STATE, TensorBatch
from runtime.rl.buffers.replay_state import ConstantCut
from runtime.rl.buffers.ring_index import ABSENT, TERMINATED, TRUNCATED, common_copies, copies_in
from runtime.rl.spaces import ActionSpace, ObsSpace

if TYPE_CHECKING:
    import torch

    from runtime.rl.device.staging import CopyStream, PinnedBuffers


SegmentT = TypeVar("SegmentT")


class SegmentQueue(ABC, Generic[SegmentT]):
    """FIFO of segments of ``segment_transitions`` items; an update takes the oldest ``count``."""

    noun: ClassVar[str]
    """Plural noun for a segment's contents, for error messages."""

    def __init__(self, layout: Layout, segment_transitions: int, count: int) -> None:
        self.layout = layout
        self._segment_transitions = segment_transitions
        self._count = count
        self._waiting: deque[SegmentT] = deque()

    def __len__(self) -> int:
        return len(self._waiting) * self._segment_transitions

    def put(self, columns: Columns) -> None:
        """Copy in one segment. Raises ValueError if it is not full."""
        if not self._is_full(len(columns[0])):
            size = self._segment_transitions
            raise ValueError(f"{self.noun} come in segments of {size} items, not {len(columns[0])}")
        self._append(columns)

    def _is_full(self, count: int) -> bool:
        """Return True if that many items make a full segment."""
        return count == self._segment_transitions

    @abstractmethod
    def _append(self, columns: Columns) -> None:
        """Copy full segments in."""

    def _take_oldest(self) -> list[SegmentT] | None:
        """Remove and return the oldest ``count`` segments; None if there are fewer."""
        if len(self._waiting) < self._count:
            return None
        return [self._waiting.popleft() for _ in range(self._count)]

    def state(self, most_bytes: int | None = None) -> dict[str, NDArray[Any]]:
        """Return copies of all waiting segments, concatenated; they are few, so ``most_bytes`` has no effect."""
        return self.cut(most_bytes).arrays()

    def cut(self, most_bytes: int | None = None) -> ConstantCut:
        """Return the current state, to be concatenated later."""
        del most_bytes
        return ConstantCut(partial(self._join, list(self._waiting)))

    @abstractmethod
    def _join(self, waiting: list[SegmentT]) -> dict[str, NDArray[Any]]:
        """Return copies of segments, concatenated."""

    def _check(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Raise ValueError if saved arrays are not full segments of this layout."""
        size = self._segment_transitions
        for field in self.layout.fields:
            saved = state.get(field.name, np.zeros(0))
            if saved.shape[1:] != field.shape_tail or saved.dtype != field.dtype or len(saved) % size:
                raise ValueError(
                    f"the saved {self.noun} have {field.name} as {saved.dtype} {saved.shape}; this run needs "
                    f"{field.dtype} {field.shape_tail} in segments of {size}"
                )


DISCOUNTED: Final = "discounted"
"""Name of the column with a copy's return so far."""


def rollout_layout(
    obs: ObsSpace, action: ActionSpace, *, has_returns: bool = False, state_width: int = 0
) -> Layout:
    """Return the schema of a rollout step: a transition, and the log probability of its action under the policy
    that acted.

    ``ended`` is 1 for terminated, 2 for truncated and 3 for padding; following observations are in ``successors``.
    With ``has_returns`` there is a column with the discounted sum of the copy's rewards so far, for their variance.
    ``state_width`` is the width of memory states, `runtime.rl.algos.memory.spread_states`; 0 without memory.
    """
    f32, u8 = np.dtype(np.float32), np.dtype(np.uint8)
    returns = (SegmentField(DISCOUNTED, f32),) if has_returns else ()
    states = (SegmentField(STATE, f32, (state_width,)),) if state_width else ()
    return Layout(
        (
            SegmentField("obs", obs.dtype, (obs.width,)),
            SegmentField("action", action.dtype, (action.size,)),
            SegmentField("log_prob", f32),
            SegmentField("reward", f32),
            *returns,
            *states,
            SegmentField("ended", u8),
        ),
        tail=SegmentField("obs", obs.dtype, (obs.width,)),
    )


@dataclass(frozen=True, slots=True)
class RolloutBatch(TensorBatch):
    """T consecutive steps of N copies of the environment. A share contains all steps of its copies."""

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
    """(T, N, obs_dim), before any reset; arbitrary if the episode terminated."""
    ended: torch.Tensor
    """(T, N) 1 for terminated, 2 for truncated, 0 for neither."""
    state: torch.Tensor | None = None
    """(T, N, width) initial states of the policy's memory, spread over the steps; None without memory."""
    discounted: torch.Tensor | None = None
    """(T, N) R[t] = gamma R[t - 1] + reward[t] within each episode; None if returns are not normalised."""
    absent: torch.Tensor | None = None
    """(T, N) true for padding, which is not learned from and also counts as terminated. None without padding."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """Segment on the device."""

    columns: tuple[torch.Tensor, ...]
    """(T * N, …) of each field, in order, then the tail."""
    truncated: NDArray[np.intp]
    """Rows of the truncated steps; the tail's rows after the first N belong to them."""
    has_padding: bool
    """True if agents were absent in some steps."""


class Rollouts(SegmentQueue[_Segment]):
    """FIFO of segments of ``num_envs`` copies, each in time-major order, on ``device``."""

    noun = "rollouts"

    def __init__(
        self,
        layout: Layout,
        num_envs: int,
        segment_transitions: int,
        batch_steps: int,
        device: str = "cpu",
    ) -> None:
        if batch_steps % segment_transitions:
            raise ValueError(
                f"batch_steps is {batch_steps}; it must be a multiple of num_envs x segment_steps = "
                f"{segment_transitions}"
            )
        super().__init__(layout, segment_transitions, batch_steps // segment_transitions)
        self._num_envs = num_envs
        self._steps = segment_transitions // num_envs
        self._device = device
        self._streams: tuple[CopyStream, PinnedBuffers] | None = None

    def faulty_segments(self, bundle: SegmentBundle) -> frozenset[int]:
        """Return the indices of segments that are not full, or whose tails do not match their ends."""
        faulty: list[int] = []
        first = 0
        for part in bundle.uniform_parts():
            *_, ended, tail = part.columns()
            copies = self._num_envs if self._is_full(ended.shape[1]) else 0
            if not (copies and common_copies(ended, tail.shape[1]) == copies and ended.max() <= ABSENT):
                fits = (copies > 0) & (copies_in(ended, tail.shape[1]) == copies)
                faulty += (first + np.flatnonzero(~(fits & (ended.max(axis=1) <= ABSENT)))).tolist()
            first += len(part)
        return frozenset(faulty)

    def put_bundle(self, bundle: SegmentBundle) -> None:
        """Copy in valid segments of equal size."""
        columns = bundle.columns()
        for number in range(len(bundle)):
            self.put(tuple([column[number] for column in columns]))

    def _append(self, columns: Columns) -> None:
        """Copy one segment to the device; the host does not wait for it."""
        import torch

        truncated, copies = np.flatnonzero(columns[-2] == TRUNCATED), self._num_envs
        if len(columns[-1]) != copies + len(truncated):
            raise ValueError(f"{len(columns[-1])} observations do not fit the ends of {copies} copies")
        # Always copied: the columns are views of the receive buffer, which the next message overwrites.
        if self._device == "cpu":
            tensors = tuple(torch.from_numpy(column.copy()) for column in columns)
        else:
            stream, buffers = self._device_streams()
            with stream.copying(), buffers.taking():
                tensors = tuple(buffers.hold(column).to(self._device, non_blocking=True) for column in columns)
        has_padding = bool(columns[-2].max(initial=0) == ABSENT)
        self._waiting.append(_Segment(tensors, truncated, has_padding))

    def _device_streams(self) -> tuple[CopyStream, PinnedBuffers]:
        from runtime.rl.device.staging import CopyStream, PinnedBuffers

        if self._streams is None:
            self._streams = CopyStream(self._device), PinnedBuffers(self._device)
        return self._streams

    def take(self) -> RolloutBatch | None:
        """Remove and return the oldest ``batch_steps`` steps; None while there are fewer."""
        import torch

        if (segments := self._take_oldest()) is None:
            return None
        if self._streams is not None:
            self._streams[0].await_copies()
            for segment in segments:
                # Allocated on the copy stream and read by the next update: the memory must not be given to a later
                # segment before that update has finished, although nothing here refers to it any more.
                for tensor in segment.columns:
                    tensor.record_stream(torch.cuda.current_stream(tensor.device))

        def joined(pieces: list[torch.Tensor], dim: int) -> torch.Tensor:
            return torch.cat(pieces, dim) if len(pieces) > 1 else pieces[0]

        parts: dict[str, Any] = {}
        for number, field in enumerate(self.layout.fields):
            pieces = [
                segment.columns[number].view(self._steps, self._num_envs, *field.shape_tail) for segment in segments
            ]
            parts[field.name] = joined(pieces, 1)
        if any(segment.has_padding for segment in segments):
            parts["absent"] = parts["ended"] == ABSENT
            parts["ended"] = parts["ended"].masked_fill(parts["absent"], TERMINATED)
        obs = parts["obs"]
        # The observation after the last step of each copy: the first rows of each tail.
        last = [segment.columns[-1][: self._num_envs] for segment in segments]
        next_obs = torch.cat([obs[1:].flatten(0, 1), *last]).view(obs.shape)
        self._put_final(next_obs, segments)
        return RolloutBatch(next_obs=next_obs, **parts)

    def _put_final(self, next_obs: torch.Tensor, segments: list[_Segment]) -> None:
        """Replace the first observations of the next episodes by the final observations of truncated ones."""
        import torch

        if not any(len(segment.truncated) for segment in segments):
            return
        copies, all_copies = self._num_envs, self._num_envs * len(segments)
        rows = [
            segment.truncated // copies * all_copies + number * copies + segment.truncated % copies
            for number, segment in enumerate(segments)
        ]
        final = torch.cat([segment.columns[-1][copies:] for segment in segments])
        buffers = self._streams[1] if self._streams is not None else None
        with buffers.taking() if buffers is not None else nullcontext():
            index = np.concatenate(rows)
            source = buffers.hold(index) if buffers is not None else torch.from_numpy(index)
            target = source.to(next_obs.device, non_blocking=True)
        next_obs.flatten(0, 1).index_copy_(0, target, final)

    def _join(self, waiting: list[_Segment]) -> dict[str, NDArray[Any]]:
        if self._streams is not None:
            self._streams[0].await_copies()
        fields = [(field.name, field) for field in self.layout.fields]
        arrays: dict[str, NDArray[Any]] = {}
        for number, (name, field) in enumerate([*fields, ("tail", fields[0][1])]):
            pieces = [segment.columns[number].cpu().numpy() for segment in waiting]
            arrays[name] = np.concatenate([np.zeros((0, *field.shape_tail), field.dtype), *pieces])
        return arrays

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Load a result of `state`, also of an earlier version. Raises ValueError if the schema differs."""
        if not state:
            return
        self._check(state)
        size, copies, start = self._segment_transitions, self._num_envs, 0
        for first in range(0, len(state["ended"]), size):
            *columns, ended = (state[name][first : first + size] for name in self.layout.names)
            truncated = np.flatnonzero(ended == TRUNCATED)
            if "next_obs" in state:  # before version 4 of the exchange: every next observation in full
                following = state["next_obs"][first : first + size]
                tail = np.concatenate([following[size - copies :], following[truncated]])
            else:
                tail = state["tail"][start : start + copies + len(truncated)]
                start += len(tail)
            self._append((*columns, ended, tail))


class DeviceRollouts:
    """Holds one rollout, which an update takes before the next one is collected."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._batch: RolloutBatch | None = None

    def __len__(self) -> int:
        return self._batch.reward.numel() if self._batch is not None else 0

    def offer(self, columns: Mapping[str, torch.Tensor]) -> None:
        """Keep a rollout's columns (T, N, …) by name, without a copy, for the next update."""
        self._batch = RolloutBatch(**columns)

    def take(self) -> RolloutBatch | None:
        """Remove and return the rollout; None without one."""
        batch, self._batch = self._batch, None
        return batch

    def put(self, columns: Columns) -> None:
        """Reject a worker's segment: no worker has credit to send one."""
        del columns
        raise ValueError("this learner collects on its device and accepts no segments")

    def state(self, most_bytes: int | None = None) -> dict[str, NDArray[Any]]:
        """Return nothing: between two updates the store is empty, and the collector's state contains the copies."""
        return self.cut(most_bytes).arrays()

    def cut(self, most_bytes: int | None = None) -> ConstantCut:
        """Return an empty state."""
        del most_bytes
        return ConstantCut(dict)

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Ignore the state: workers' segments in a checkpoint are older than the policy."""


def gradient_layout(floats: int) -> Layout:
    """Return the schema of a gradient of ``floats`` parameters."""
    return Layout((SegmentField("gradient", np.dtype(np.float32), (floats,)),))


class Gradients(SegmentQueue[Columns]):
    """FIFO of gradients; an update uses the mean of `count` of them."""

    noun = "gradients"

    def __init__(self, layout: Layout, count: int) -> None:
        super().__init__(layout, 1, count)

    def put(self, columns: Columns) -> None:
        """Copy in any number of gradients."""
        self._append(columns)

    def _append(self, columns: Columns) -> None:
        # Copied: the columns are views of the receive buffer, which the next message overwrites.
        for first in range(len(columns[0])):
            self._waiting.append(tuple(column[first : first + 1].copy() for column in columns))

    def _join(self, waiting: list[Columns]) -> dict[str, NDArray[Any]]:
        arrays = {}
        for number, field in enumerate(self.layout.fields):
            pieces = [columns[number] for columns in waiting]
            arrays[field.name] = np.concatenate([np.zeros((0, *field.shape_tail), field.dtype), *pieces])
        return arrays

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Load a result of `state`. Raises ValueError if the schema differs."""
        if state:
            self._check(state)
            self._append(tuple(state[name] for name in self.layout.names))

    def take(self) -> torch.Tensor | None:
        """Remove the oldest `count` gradients and return their mean, (parameters,); None while there are fewer."""
        import torch

        mean = self.take_array()
        return None if mean is None else torch.from_numpy(mean)

    def take_array(self) -> NDArray[np.float32] | None:
        """Like `take`, but returns a NumPy array, for a parameter server without torch."""
        if (oldest := self._take_oldest()) is None:
            return None
        gradients = [columns[0][0] for columns in oldest]
        mean: NDArray[np.float32] = np.mean(gradients, axis=0) if len(gradients) > 1 else gradients[0]
        return mean
