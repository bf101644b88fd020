"""The replay buffer: what goes in comes out, in place, after wrapping and after a resume."""

import numpy as np
import pytest
import torch

from runtime.replay import TRANSITION_FIELDS, Replay, fields


def transitions(first: int, count: int, obs_dim: int = 3, act_dim: int = 2) -> tuple[np.ndarray, ...]:
    """Transitions that carry their serial number in every part."""
    serial = np.arange(first, first + count, dtype=np.float32)
    return (
        np.repeat(serial[:, None], obs_dim, axis=1),
        np.repeat(serial[:, None] * 10, act_dim, axis=1),
        serial * 100,
        np.repeat(serial[:, None] + 0.5, obs_dim, axis=1),
        serial % 2 == 0,
    )


def assert_whole(batch) -> np.ndarray:
    """Each row belongs to one transition; returns the serial numbers."""
    serial = batch.obs[:, 0].numpy()
    assert (batch.obs.numpy() == serial[:, None]).all()
    assert (batch.action.numpy() == serial[:, None] * 10).all()
    assert (batch.reward.numpy() == serial * 100).all()
    assert (batch.next_obs.numpy() == serial[:, None] + 0.5).all()
    assert (batch.terminated.numpy() == (serial % 2 == 0)).all()
    return serial.copy()


def test_layout():
    layout = fields(3, 2)
    assert tuple(field.name for field in layout) == TRANSITION_FIELDS
    assert [field.item_bytes for field in layout] == [12, 8, 4, 12, 1]


def test_batches_hold_whole_transitions_as_float_tensors():
    replay = Replay(100, 3, 2, seed=0)
    replay.extend(*transitions(0, 40))
    batch = replay.sample(64)
    for part in (batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminated):
        assert part.dtype == torch.float32
        assert part.is_contiguous()
    assert set(assert_whole(batch)) <= set(range(40))


def test_every_transition_is_drawn_about_equally_often():
    replay = Replay(10, 3, 2, seed=1)
    replay.extend(*transitions(0, 10))
    counts = np.bincount(assert_whole(replay.sample(10_000)).astype(int), minlength=10)
    assert counts.min() > 850
    assert counts.max() < 1150


@pytest.mark.parametrize("pieces", [[7, 7, 7], [10, 10], [4, 9, 3, 10, 1], [25], [3, 40], [0, 12, 0]])
def test_a_full_ring_keeps_the_latest(pieces):
    replay = Replay(10, 3, 2, seed=0)
    for first, count in zip(np.cumsum([0, *pieces]), pieces, strict=False):
        replay.extend(*transitions(int(first), count))
    total = sum(pieces)
    assert replay.inserted == total
    assert len(replay) == 10
    assert set(assert_whole(replay.sample(2_000))) == set(range(total - 10, total))


def test_batches_of_one_size_share_memory_and_other_sizes_do_not():
    replay = Replay(10, 3, 2, seed=0)
    replay.extend(*transitions(0, 10))
    first = replay.sample(8)
    other = replay.sample(4)
    assert replay.sample(8).obs.data_ptr() == first.obs.data_ptr()
    assert other.obs.data_ptr() != first.obs.data_ptr()


@pytest.mark.parametrize("count", [6, 25])
def test_a_resumed_buffer_goes_on_as_the_first_would_have(count):
    replay, resumed = Replay(10, 3, 2, seed=3), Replay(10, 3, 2, seed=99)
    replay.extend(*transitions(0, count))
    replay.sample(16)
    resumed.load_state({name: value.copy() for name, value in replay.state().items()})
    for buffer in (replay, resumed):
        buffer.extend(*transitions(count, 3))
    assert (len(resumed), resumed.inserted) == (len(replay), replay.inserted)
    for _ in range(3):
        assert (assert_whole(replay.sample(16)) == assert_whole(resumed.sample(16))).all()


def test_wrong_shapes_are_refused_before_anything_is_stored():
    replay = Replay(10, 3, 2, seed=0)
    obs, action, reward, next_obs, terminated = transitions(0, 4)
    with pytest.raises(ValueError, match=r"next_obs has shape \(4, 2\); 4 transitions need \(4, 3\)"):
        replay.extend(obs, action, reward, next_obs[:, :2], terminated)
    assert len(replay) == 0
    with pytest.raises(ValueError, match="buffer is empty"):
        replay.sample(4)


def test_state_of_another_shape_is_refused():
    replay = Replay(10, 3, 2, seed=0)
    replay.extend(*transitions(0, 5))
    with pytest.raises(ValueError, match="holds 10 transitions and this one 20"):
        Replay(20, 3, 2, seed=0).load_state(replay.state())
    with pytest.raises(ValueError, match="has obs as float32"):
        Replay(10, 4, 2, seed=0).load_state(replay.state())


def test_capacity_must_be_positive():
    with pytest.raises(ValueError, match="at least 1"):
        Replay(0, 3, 2, seed=0)
