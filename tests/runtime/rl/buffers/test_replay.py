"""The replay buffer: what goes in comes out, in place, after wrapping and after a resume."""

import numpy as np
import pytest
import torch

from runtime.rl.buffers.replay import TRANSITION_FIELDS, Priorities, Replay, transition_layout
from runtime.rl.spaces import ActionSpace, ObsSpace


def make(capacity: int, seed: int, obs_dim: int = 3, **options: object) -> Replay:
    return Replay(capacity, transition_layout(ObsSpace(obs_dim), ActionSpace(2)), seed, **options)


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
    layout = transition_layout(ObsSpace(3), ActionSpace(2))
    assert layout.names == TRANSITION_FIELDS
    assert [field.item_bytes for field in layout.fields] == [12, 8, 4, 12, 1]
    assert layout.text == "obs:f4[3] action:f4[2] reward:f4 next_obs:f4[3] terminated:u1"
    assert transition_layout(ObsSpace(3), ActionSpace(2), n_step=3).names == (*TRANSITION_FIELDS, "steps")


def test_batches_hold_whole_transitions_as_float_tensors():
    replay = make(100, seed=0)
    replay.put(transitions(0, 40))
    batch = replay.sample(64)
    for part in (batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminated):
        assert part.dtype == torch.float32
        assert part.is_contiguous()
    assert set(assert_whole(batch)) <= set(range(40))


def test_every_transition_is_sampled_about_equally_often():
    replay = make(10, seed=1)
    replay.put(transitions(0, 10))
    counts = np.bincount(assert_whole(replay.sample(10_000)).astype(int), minlength=10)
    assert counts.min() > 850
    assert counts.max() < 1150


@pytest.mark.parametrize("pieces", [[7, 7, 7], [10, 10], [4, 9, 3, 10, 1], [25], [3, 40], [0, 12, 0]])
def test_a_full_ring_keeps_the_latest(pieces):
    replay = make(10, seed=0)
    for first, count in zip(np.cumsum([0, *pieces]), pieces, strict=False):
        replay.put(transitions(int(first), count))
    total = sum(pieces)
    assert replay.inserted == total
    assert len(replay) == 10
    assert set(assert_whole(replay.sample(2_000))) == set(range(total - 10, total))


@pytest.mark.parametrize("priority", [None, (0.6, 0.4)])
def test_segments_side_by_side_go_in_as_one_by_one(priority):
    """Also around the ring's end, and the rest of what a resumed run needs is the same."""
    one, many = (make(50, seed=0, priority=priority) for _ in range(2))
    for first in range(0, 132, 12):
        segments = [transitions(start, 4) for start in range(first, first + 12, 4)]
        for columns in segments:
            one.put(columns)
        arena = b"".join(np.ascontiguousarray(column).tobytes() for columns in segments for column in columns)
        many.put_arena(memoryview(arena), 3)
    assert set(assert_whole(many.sample(1000))) == set(range(82, 132))
    one.sample(1000)
    for name, value in one.state().items():
        assert (many.state()[name] == value).all(), name
    with pytest.raises(ValueError, match="are not 3 segments"):
        many.put_arena(memoryview(bytes(100)), 3)


def test_batches_of_one_size_share_memory_and_other_sizes_do_not():
    replay = make(10, seed=0)
    replay.put(transitions(0, 10))
    first = replay.sample(8)
    other = replay.sample(4)
    assert replay.sample(8).obs.data_ptr() == first.obs.data_ptr()
    assert other.obs.data_ptr() != first.obs.data_ptr()


@pytest.mark.parametrize("count", [6, 25])
def test_a_resumed_buffer_goes_on_as_the_first_would_have(count):
    replay, resumed = make(10, seed=3), make(10, seed=99)
    replay.put(transitions(0, count))
    replay.sample(16)
    resumed.load_state({name: value.copy() for name, value in replay.state().items()})
    for buffer in (replay, resumed):
        buffer.put(transitions(count, 3))
    assert (len(resumed), resumed.inserted) == (len(replay), replay.inserted)
    for _ in range(3):
        assert (assert_whole(replay.sample(16)) == assert_whole(resumed.sample(16))).all()


def test_wrong_shapes_are_refused_before_anything_is_stored():
    replay = make(10, seed=0)
    obs, action, reward, next_obs, terminated = transitions(0, 4)
    with pytest.raises(ValueError, match=r"next_obs has shape \(4, 2\); 4 transitions need \(4, 3\)"):
        replay.put((obs, action, reward, next_obs[:, :2], terminated))
    assert len(replay) == 0
    with pytest.raises(ValueError, match="buffer is empty"):
        replay.sample(4)


def test_state_of_another_shape_is_refused():
    replay = make(10, seed=0)
    replay.put(transitions(0, 5))
    with pytest.raises(ValueError, match="holds 10 transitions and this one 20"):
        make(20, seed=0).load_state(replay.state())
    with pytest.raises(ValueError, match="has obs as float32"):
        make(10, seed=0, obs_dim=4).load_state(replay.state())


def test_capacity_must_be_positive():
    with pytest.raises(ValueError, match="at least 1"):
        make(0, seed=0)


def test_of_a_large_buffer_a_checkpoint_keeps_the_newest_and_another_goes_on_with_them():
    replay, resumed = make(10, seed=0), make(50, seed=0)
    replay.put(transitions(0, 14))
    state = replay.state(most_bytes=4 * replay.layout.item_bytes + 1)
    assert state["reward"].tolist() == [1000.0, 1100.0, 1200.0, 1300.0]
    resumed.load_state(state)
    assert len(resumed) == 4
    assert set(assert_whole(resumed.sample(100))) == {10, 11, 12, 13}


def test_pictures_stay_bytes():
    space = ObsSpace(2, ((3, 4, 1),))
    replay = Replay(8, transition_layout(space, ActionSpace(1)), seed=0)
    rng = np.random.default_rng(0)
    vector = rng.standard_normal((5, 2), dtype=np.float32)
    image = rng.integers(0, 256, (5, 3, 4, 1), dtype=np.uint8)
    rows = space.pack(vector, [image])
    replay.put((rows, np.zeros((5, 1), np.float32), np.arange(5, dtype=np.float32), rows, np.zeros(5, np.uint8)))
    batch = replay.sample(16)
    assert batch.obs.dtype == torch.uint8
    drawn = batch.reward.numpy().astype(int)
    seen_vector, (seen_image,) = space.split(batch.obs.numpy())
    assert (seen_vector == vector[drawn]).all()
    assert (seen_image == image[drawn]).all()


@pytest.mark.parametrize("capacity", [1, 5, 8, 1000])
def test_slots_are_sampled_as_often_as_their_priority_says(capacity):
    priorities = Priorities(capacity)
    weights = np.random.default_rng(0).random(capacity) ** 3
    priorities.set(np.arange(capacity), weights)
    counts = np.zeros(capacity)
    rng = np.random.default_rng(1)
    for _ in range(200):
        slots, chance = priorities.draw(500, rng)
        np.add.at(counts, slots, 1)
        assert chance == pytest.approx((weights / weights.sum())[slots])
    assert counts / 100_000 == pytest.approx(weights / weights.sum(), abs=0.005)


def test_what_is_misjudged_is_sampled_more_often_and_counts_less_each_time():
    replay = make(4, seed=0, priority=(1.0, 1.0))
    replay.put(transitions(0, 4))
    replay.sample(64)
    replay.update_priorities(np.where(replay._sampled == 2, 7.0, 1.0))
    counts = np.zeros(4)
    for _ in range(100):
        batch = replay.sample(100)
        serial = batch.obs[:, 0].numpy().astype(int)
        counts += np.bincount(serial, minlength=4)
        weight = batch.weight.numpy()
        assert weight[serial == 2] == pytest.approx(1 / 7, rel=1e-3)
        assert weight[serial != 2] == pytest.approx(1.0, rel=1e-3)
    assert counts / counts.sum() == pytest.approx([0.1, 0.1, 0.7, 0.1], abs=0.01)


def test_priorities_survive_a_resume_and_new_transitions_get_the_largest():
    replay = make(4, seed=0, priority=(1.0, 1.0))
    replay.put(transitions(0, 3))
    replay.sample(64)
    replay.update_priorities(np.where(replay._sampled == 1, 9.0, 0.0))
    resumed = make(4, seed=5, priority=(1.0, 1.0))
    resumed.load_state(replay.state())
    assert set(resumed.sample(500).obs[:, 0].numpy()) == {1.0}
    resumed.put(transitions(3, 1))
    drawn = resumed.sample(1000).obs[:, 0].numpy()
    assert 400 < (drawn == 3).sum() < 600


def test_a_resumed_buffer_draws_as_the_one_that_went_on_also_after_its_largest_priority_fell():
    went_on = make(8, seed=0, priority=(0.6, 0.4))
    went_on.put(transitions(0, 5))
    for td_error in (9.0, 0.5):  # what was misjudged most is understood by now
        went_on.sample(64)
        went_on.update_priorities(np.full(64, td_error))
    resumed = make(8, seed=5, priority=(0.6, 0.4))
    resumed.load_state(went_on.state())
    for start in range(5, 30, 3):
        drawn = []
        for replay in (went_on, resumed):
            replay.put(transitions(start, 3))
            batch = replay.sample(64)
            drawn.append((batch.obs.numpy().copy(), batch.weight.numpy().copy()))
            replay.update_priorities(np.linspace(0, 1, 64))
        assert (drawn[0][0] == drawn[1][0]).all()
        assert (drawn[0][1] == drawn[1][1]).all()
