"""Experience of one moment, copied while the store continues: exactly that, whatever arrives during the copy."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.rl.buffers import replay_state
from runtime.rl.buffers.priorities import Priority
from runtime.rl.buffers.replay import Replay, transition_layout
from runtime.rl.buffers.rollout_buffer import Gradients, gradient_layout
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.fakes.segments import numbered

LAYOUT = transition_layout(ObsSpace(3), ActionSpace(2))


def filled(capacity: int, count: int, *, is_prioritised: bool) -> Replay:
    replay = Replay(capacity, LAYOUT, seed=1, priority=Priority(0.6, 0.4) if is_prioritised else None)
    for first in range(count):
        replay.put(numbered(first, 1))
    return replay


@given(
    capacity=st.integers(1, 40),
    before=st.integers(0, 90),
    most_rows=st.none() | st.integers(0, 50),
    puts=st.lists(st.integers(1, 60), max_size=6),
    turns=st.lists(st.booleans(), max_size=12),
    is_prioritised=st.booleans(),
)
def test_a_cut_is_the_state_of_its_moment_whatever_is_put_while_it_is_copied(
    capacity: int, before: int, most_rows: int | None, puts: list[int], turns: list[bool], is_prioritised: bool
) -> None:
    replay = filled(capacity, before, is_prioritised=is_prioritised)
    most_bytes = None if most_rows is None else most_rows * LAYOUT.item_bytes
    expected = replay.state(most_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_state, "CHUNK_BYTES", 3 * LAYOUT.item_bytes)
        cut = replay.cut(most_bytes)
        waiting = list(puts)
        for is_put in turns:
            if is_put and waiting:
                replay.put(numbered(replay.inserted, waiting.pop()))
            else:
                cut.copy_next()
        for count in waiting:
            replay.put(numbered(replay.inserted, count))
        while cut.copy_next():
            pass
    arrays = cut.arrays()
    assert arrays.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(arrays[name], value), name


def test_a_resumed_buffer_samples_as_the_cut_one_would_have() -> None:
    replay = filled(16, 23, is_prioritised=True)
    cut = replay.cut()
    twin = Replay(16, LAYOUT, seed=9, priority=Priority(0.6, 0.4))
    expected = [replay.sample(8).reward.clone() for _ in range(3)]
    replay.put(numbered(100, 10))
    while cut.copy_next():
        pass
    twin.load_state(cut.arrays())
    for sample in expected:
        assert (twin.sample(8).reward == sample).all()


def test_segments_that_are_used_meanwhile_are_in_the_cut() -> None:
    store = Gradients(gradient_layout(4), 1)
    store.put((np.arange(8, dtype=np.float32).reshape(2, 4),))
    cut = store.cut()
    assert store.take_array() is not None
    assert not cut.copy_next()
    assert np.array_equal(cut.arrays()["gradient"], np.arange(8, dtype=np.float32).reshape(2, 4))


def test_a_large_cut_lets_others_at_the_store_between_its_chunks() -> None:
    layout = transition_layout(ObsSpace(4096), ActionSpace(1))
    replay, lock = Replay(1_000, layout, seed=1), threading.Condition()
    replay.put(numbered(1, 1_000, 4096, 1))
    cut, turns, is_over = replay.cut(), 0, threading.Event()

    def use_store() -> None:
        nonlocal turns
        while not is_over.is_set():
            with lock:
                turns += 1
            time.sleep(0)

    user = threading.Thread(target=use_store)
    user.start()
    more = True
    while more:
        before = turns
        with lock:
            more = cut.copy_next()
        while turns == before:  # the other thread gets its turn after each chunk, not only after the last
            time.sleep(0)
    is_over.set()
    user.join()
    assert cut.arrays()["obs"].all()
