"""Batches for the learner's loop: drawn under a lock, copied ahead, and equal to those without prefetch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager

import numpy as np
import pytest

from runtime.rl.buffers.batch_source import BatchSource
from runtime.rl.buffers.priorities import Priority
from runtime.rl.buffers.replay import Draw, Replay, transition_layout
from runtime.rl.device import staging
from runtime.rl.device.staging import DeviceCopier, PinnedBuffers
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.fakes.segments import numbered, told_by

LAYOUT = transition_layout(ObsSpace(3), ActionSpace(2))


class Lock:
    """Counts how often it was acquired."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, function: Callable[[], Draw]) -> Draw:
        self.times += 1
        return function()


def filled(**options: object) -> Replay:
    replay = Replay(50, LAYOUT, seed=4, **options)
    replay.put(numbered(0, 40))
    return replay


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("priority", [None, Priority(0.6, 0.4)])
def test_batches_that_are_copied_ahead_are_those_that_would_have_been_drawn(ahead, priority) -> None:
    plain, replay, lock = filled(priority=priority), filled(priority=priority), Lock()
    source = BatchSource(replay, 8, lock, DeviceCopier("cpu"), ahead=ahead)
    for _ in range(5):
        batch, expected = source.take(), plain.sample(8)
        source.prefetch()  # it must not touch the batch that is being learned from
        assert told_by(batch) == told_by(expected)
        assert (source.rows == plain.sampled).all()
        assert (batch.weight is None) == (priority is None)
    assert lock.times == (6 if ahead else 5)


def test_a_batch_that_was_drawn_ahead_is_of_its_moment() -> None:
    replay, lock = filled(), Lock()
    source = BatchSource(replay, 64, lock, DeviceCopier("cpu"), ahead=True)
    source.take()
    source.prefetch()
    replay.put(numbered(40, 50))
    assert max(told.obs for told in told_by(source.take())) < 40
    assert min(told.obs for told in told_by(source.take())) >= 40


def test_without_a_copier_nothing_is_drawn_ahead() -> None:
    lock = Lock()
    source = BatchSource(filled(), 8, lock, None, ahead=True)
    source.take()
    source.prefetch()
    assert lock.times == 1


def test_a_buffer_that_grows_while_it_is_filled_loses_nothing() -> None:
    buffers = PinnedBuffers("cpu", count=2)
    rng = np.random.default_rng(0)

    @contextmanager
    def taken():
        with buffers.taking():
            yield

    for size in (3, 1_000, 10):
        arrays = [rng.integers(0, 9, size, dtype=np.uint8), rng.random((size, 2)), np.arange(size)]
        with taken():
            tensors = [buffers.hold(array) for array in arrays]
            for tensor, array in zip(tensors, arrays, strict=True):
                assert (tensor.numpy() == array).all()
                assert tensor.numpy().dtype == array.dtype


def test_a_very_large_array_takes_no_memory_of_the_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed ring of many gibibytes arrives in one piece; pinned buffers of that size would be kept."""
    monkeypatch.setattr(staging, "MOST_PINNED_BYTES", 1_000)
    buffers = PinnedBuffers("cpu", count=1)
    large, small = np.arange(2_000.0).reshape(2, 1_000)[:, ::2], np.arange(100.0)
    large.flags.writeable = False
    with buffers.taking():
        for array in (large, small):
            assert (buffers.hold(array).numpy() == array).all()
    assert max(buffer.nbytes for buffer in buffers._buffers) == small.nbytes
