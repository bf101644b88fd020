"""The replay buffer: inserted rows are read back in place, after wrapping and after a resume."""

import json
import threading
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.exchange.protocol.messages import SegmentRows, Trajectory
from runtime.exchange.segments import SegmentBundle
from runtime.rl.buffers.device_replay import DeviceRows
from runtime.rl.buffers.priorities import Priorities, Priority
from runtime.rl.buffers.replay import TRANSITION_FIELDS, Replay, transition_layout
from runtime.rl.buffers.ring_index import ABSENT, TERMINATED, TRUNCATED
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.fakes.segments import Told, held_by, numbered, segment_of, told_by


def make(capacity: int, seed: int, obs_dim: int = 3, **options: object) -> Replay:
    return Replay(capacity, transition_layout(ObsSpace(obs_dim), ActionSpace(2)), seed, **options)


def assert_whole(batch) -> np.ndarray:
    """Check that each row belongs to one transition; return the serial numbers."""
    serial = batch.obs[:, 0].numpy()
    assert (batch.obs.numpy() == serial[:, None]).all()
    assert (batch.action.numpy() == serial[:, None] * 10).all()
    assert (batch.reward.numpy() == serial * 100).all()
    goes_on = serial % 2 == 1
    assert (batch.next_obs.numpy()[goes_on] == serial[goes_on, None] + 0.5).all()
    assert (batch.terminated.numpy() == ~goes_on).all()
    return serial.copy()


def test_layout():
    layout = transition_layout(ObsSpace(3), ActionSpace(2))
    assert layout.names == TRANSITION_FIELDS
    assert [field.item_bytes for field in layout.fields] == [12, 8, 4, 1]
    assert layout.text == "obs:f4[3] action:f4[2] reward:f4 ended:u1 +obs:f4[3]"
    assert (layout.item_bytes, layout.tail_bytes) == (25, 12)
    assert transition_layout(ObsSpace(3), ActionSpace(2), n_step=3).names == (*TRANSITION_FIELDS, "steps")


def test_batches_hold_whole_transitions_as_float_tensors():
    replay = make(100, seed=0)
    replay.put(numbered(0, 40))
    batch = replay.sample(64)
    for part in (batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminated):
        assert part.dtype == torch.float32
        assert part.is_contiguous()
    assert set(assert_whole(batch)) <= set(range(40))


def test_every_transition_is_sampled_about_equally_often():
    replay = make(10, seed=1)
    replay.put(numbered(0, 10))
    counts = np.bincount(assert_whole(replay.sample(10_000)).astype(int), minlength=10)
    assert counts.min() > 850
    assert counts.max() < 1150


@pytest.mark.parametrize("pieces", [[7, 7, 7], [10, 10], [4, 9, 3, 10, 1], [25], [3, 40]])
def test_a_full_ring_keeps_the_latest(pieces):
    replay = make(10, seed=0)
    for first, count in zip(np.cumsum([0, *pieces]), pieces, strict=False):
        replay.put(numbered(int(first), count))
    total = sum(pieces)
    assert replay.inserted == total
    assert len(replay) == 10
    assert set(assert_whole(replay.sample(2_000))) == set(range(total - 10, total))


def bundle_of(segments: list[tuple[np.ndarray, ...]], layout=None, gap: int = 0) -> SegmentBundle:
    """Segments as received: one after the other, or in slots that are ``gap`` bytes longer than the longest."""
    layout = layout or transition_layout(ObsSpace(3), ActionSpace(2))
    pieces = [b"".join(np.ascontiguousarray(column).tobytes() for column in columns) for columns in segments]
    slot = max(map(len, pieces)) + gap if gap else 0
    rows = SegmentRows(tuple(Trajectory(len(c[0]), 0, 0, 0, 0.0, 0.0, len(c[-1])) for c in segments))
    arena = b"".join(piece.ljust(slot, b"\0") if gap else piece for piece in pieces)
    bundle = SegmentBundle.of(layout, memoryview(arena), rows.columns, slot)
    assert bundle is not None
    return bundle


@pytest.mark.parametrize("priority", [None, Priority(0.6, 0.4)])
@pytest.mark.parametrize("gap", [0, 7])
def test_segments_of_one_message_go_in_as_one_by_one(priority, gap):
    """Also around the ring's end, and the other state that a resumed run needs is equal."""
    one, many = (make(50, seed=0, priority=priority) for _ in range(2))
    for first in range(0, 132, 12):
        segments = [numbered(start, 4) for start in range(first, first + 12, 4)]
        for columns in segments:
            one.put(columns)
        bundle = bundle_of(segments, gap=gap)
        assert bundle.is_uniform
        assert many.faulty_segments(bundle) == frozenset()
        many.put_bundle(bundle)
    assert set(assert_whole(many.sample(1000))) == set(range(82, 132))
    one.sample(1000)
    for name, value in one.state().items():
        assert (many.state()[name] == value).all(), name


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("priority", [None, Priority(0.6, 0.4)])
@pytest.mark.parametrize("truncated", [False, True])
def test_padding_of_agents_that_left_is_never_drawn_also_after_wrapping_and_a_resume(n_step, priority, truncated):
    layout = transition_layout(ObsSpace(1), ActionSpace(1), n_step)

    def segment(first: int) -> tuple[np.ndarray, ...]:
        """Six steps of two copies, of which the second is absent for the last three."""
        obs = np.arange(first, first + 12, dtype=np.float32)[:, None]
        ended = np.zeros(12, np.uint8)
        ended[5], ended[[7, 9, 11]] = TERMINATED, ABSENT
        ended[10] = TRUNCATED if truncated else 0
        tail = np.full((3 if truncated else 2, 1), -1, np.float32)
        return (obs, obs, obs[:, 0], ended, *([np.ones(12, np.uint8)] if n_step > 1 else []), tail)

    def drawn(replay: Replay) -> set[float]:
        batch = replay.sample(4096)
        assert set(batch.terminated.tolist()) == {0.0, 1.0}
        return set(batch.obs[:, 0].tolist())

    replay = Replay(30, layout, seed=0, priority=priority)
    for number in range(4):
        replay.put(segment(12 * number))
    present = {float(12 * n + row) for n in range(4) for row in range(12) if row not in (7, 9, 11)}
    living = {serial for serial in present if serial >= 48 - len(replay)}
    assert drawn(replay) == living
    resumed = Replay(30, layout, seed=0, priority=priority)
    resumed.load_state(replay.state())
    assert drawn(resumed) == living
    newest = Replay(30, layout, seed=0, priority=priority)
    newest.load_state(replay.state(24 * (layout.item_bytes + 8)))
    assert len(newest) < 30
    assert drawn(newest) == {serial for serial in present if serial >= 48 - len(newest)}


def with_ended(columns: tuple[np.ndarray, ...], ended: list[int], steps: list[int] | None = None):
    middle = [np.array(ended, np.uint8), *([np.array(steps, np.uint8)] if steps else [])]
    return (*columns[:3], *middle, columns[-1])


@pytest.mark.parametrize(
    "ended",
    [
        pytest.param([1, 1, 1, 1], id="a final observation without a truncation"),
        pytest.param([2, 2, 2, 2], id="no last observation"),
        pytest.param([0, 0, 0, 0], id="three copies of four transitions"),
        pytest.param([1, 2, 4, 2], id="an end that there is not"),
    ],
)
def test_a_segment_whose_tail_is_not_what_its_ends_say_is_found_and_never_stored(ended):
    good = numbered(0, 4)
    replay, bad = make(10, seed=0), with_ended(good, ended)
    if ended == [1, 1, 1, 1]:
        bad = (*bad[:-1], bad[-1][:0])
    assert replay.faulty_segments(bundle_of([good, bad, good])) == {1}
    assert replay.faulty_segments(bundle_of([good, bad, numbered(0, 2)])) == {1}
    with pytest.raises(ValueError, match="do not fit their ends"):
        replay.put(bad)
    assert len(replay) == 0


@pytest.mark.parametrize("steps", [[0, 1, 1, 1], [1, 1, 1, 2], [200, 1, 1, 1]])
def test_sums_that_leave_their_segment_are_found(steps):
    layout = transition_layout(ObsSpace(3), ActionSpace(2), n_step=3)
    replay = Replay(10, layout, 0)
    good = with_ended(numbered(0, 4), [1, 2, 1, 2], [1, 1, 1, 1])
    bad = with_ended(numbered(0, 4), [1, 2, 1, 2], steps)
    assert replay.faulty_segments(bundle_of([good, bad], layout)) == {1}


ROWS = {"host": {}, "device": {"rows": partial(DeviceRows, "cpu")}}


@settings(max_examples=60)
@given(
    place=st.sampled_from(sorted(ROWS)),
    capacity=st.integers(1, 60),
    n_step=st.sampled_from([1, 3]),
    segments=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=12),
    most_bytes=st.integers(0, 3_000),
    seed=st.integers(0, 1_000),
)
def test_a_ring_holds_what_a_list_of_the_newest_would(place, capacity, n_step, segments, most_bytes, seed):
    """Through wraps, ends at every place, segments longer than the ring, growth, a checkpoint and a resume."""
    layout, rng = transition_layout(ObsSpace(3), ActionSpace(2), n_step), np.random.default_rng(seed)

    def empty() -> Replay:
        return Replay(capacity, layout, seed, segment=(64, 64), **ROWS[place])

    replay, told, first = empty(), list[Told](), 0
    draws = np.random.default_rng(seed)
    for steps, copies, together in segments:
        # Several of one size with equally many ends, as received in one message.
        one, of_one = segment_of(first, steps, copies, rng, n_step=n_step)
        group, first = [one], first + steps * copies
        told += of_one
        for _ in range(together - 1):
            shift = float(first - one[0][0, 0])
            moved = tuple(c + shift * s if s else c for c, s in zip(one, shifts(len(one)), strict=True))
            group.append(tuple(c.astype(o.dtype) for c, o in zip(moved, one, strict=True)))
            told += [
                t._replace(
                    obs=t.obs + shift,
                    reward=t.reward + 100 * shift,
                    next_obs=None if t.next_obs is None else t.next_obs + shift,
                )
                for t in of_one
            ]
            first += steps * copies
        replay.put_bundle(bundle_of(group, layout, gap=seed % 2))
        assert len(replay) == min(len(told), capacity)
        assert held_by(replay) == told[-capacity:]
        rows = draws.integers(len(replay), size=7)
        assert told_by(replay.sample(7)) == [told[-capacity:][row] for row in rows]
    resumed = empty()
    resumed.load_state(replay.state())
    for buffer in (replay, resumed):
        buffer.put(segment_of(first, 3, 2, np.random.default_rng(seed), n_step=n_step)[0])
    assert held_by(resumed) == held_by(replay)
    assert told_by(resumed.sample(9)) == told_by(replay.sample(9))
    newest = replay.state(most_bytes)
    count = len(newest["reward"])
    assert sum(array.nbytes for array in newest.values()) <= most_bytes or count == len(replay)
    short = Replay(capacity + 5, layout, 0, **ROWS[place])
    short.load_state({name: newest[name] for name in newest if name not in {"generator", "capacity", "inserted"}})
    assert held_by(short) == held_by(replay)[len(replay) - count :]


def shifts(columns: int) -> list[int]:
    """Increase of each column of a segment when its observations increase by 1."""
    return [1, 10, 100, *[0] * (columns - 4), 1]


@pytest.mark.parametrize("space", [ObsSpace(5), ObsSpace(2, ((6, 5, 3),))])
@pytest.mark.parametrize("priority", [None, Priority(0.6, 0.4)])
def test_a_seed_gives_the_same_batches_wherever_the_data_lives(space, priority):
    layout = transition_layout(space, ActionSpace(2))
    replays = [Replay(100, layout, 3, priority=priority, **options) for options in ROWS.values()]
    rng = np.random.default_rng(0)
    for _ in range(9):
        ended = rng.choice([0, 1, 2], 24, p=[0.8, 0.1, 0.1]).astype(np.uint8)
        tail = 4 + np.count_nonzero(ended == 2)
        columns = (
            rng.integers(0, 256, (24, space.width)).astype(space.dtype),
            rng.random((24, 2), dtype=np.float32),
            rng.random(24, dtype=np.float32),
            ended,
            rng.integers(0, 256, (tail, space.width)).astype(space.dtype),
        )
        for replay in replays:
            replay.put(columns)
        error = rng.random(16)
        batches = [replay.sample(16) for replay in replays]
        for replay in replays:
            replay.update_priorities(error)
        for name in ("obs", "action", "reward", "next_obs", "terminated", "weight"):
            host, device = (getattr(batch, name) for batch in batches)
            assert (host is None and device is None) or (host == device).all(), name
            assert host is None or host.dtype == device.dtype
    for name, value in replays[0].state().items():
        assert (replays[1].state()[name] == value).all(), name


@pytest.mark.parametrize("place", sorted(ROWS))
@pytest.mark.parametrize("n_step", [1, 3])
def test_steps_that_are_on_the_device_go_in_without_workers(place, n_step):
    (obs, action, reward, ended, *steps, tail), told = segment_of(0, 5, 3, np.random.default_rng(0), n_step=n_step)
    following = np.concatenate([obs[3:], tail[:3]])
    following[ended == 2] = tail[3:]
    layout = transition_layout(ObsSpace(3), ActionSpace(2), n_step)
    replay = Replay(12, layout, 0, **ROWS[place])
    replay.put_steps(
        *(torch.from_numpy(c).unflatten(0, (5, 3)) for c in (obs, action, reward, following, ended, *steps))
    )
    assert held_by(replay) == told[-12:]


def test_a_segment_waits_for_the_batch_that_it_would_overwrite():
    """The batch of a draw has the data of that moment, although segments arrive before it is read."""
    replay = make(40, seed=0)
    replay.put(numbered(0, 40))
    draw = replay.draw(64)
    replay.put(numbered(40, 30))  # the margin has room for it
    late = threading.Thread(target=replay.put, args=(numbered(70, 30),))
    late.start()
    late.join(0.05)
    assert late.is_alive()
    assert max(assert_whole(replay.gather(draw))) < 40
    late.join()
    assert set(assert_whole(replay.sample(1_000))) == set(range(60, 100))


def test_batches_of_one_size_share_memory_and_other_sizes_do_not():
    replay = make(10, seed=0)
    replay.put(numbered(0, 10))
    first = replay.sample(8)
    other = replay.sample(4)
    assert replay.sample(8).obs.data_ptr() == first.obs.data_ptr()
    assert other.obs.data_ptr() != first.obs.data_ptr()


@pytest.mark.parametrize("count", [6, 25])
def test_a_resumed_buffer_goes_on_as_the_first_would_have(count):
    replay, resumed = make(10, seed=3), make(10, seed=99)
    replay.put(numbered(0, count))
    replay.sample(16)
    resumed.load_state({name: value.copy() for name, value in replay.state().items()})
    for buffer in (replay, resumed):
        buffer.put(numbered(count, 3))
    assert (len(resumed), resumed.inserted) == (len(replay), replay.inserted)
    for _ in range(3):
        assert (assert_whole(replay.sample(16)) == assert_whole(resumed.sample(16))).all()


def test_wrong_shapes_are_refused_before_anything_is_stored():
    replay = make(10, seed=0)
    obs, action, reward, ended, tail = numbered(0, 4)
    with pytest.raises(ValueError, match=r"action has shape \(4, 1\); 4 transitions need \(4, 2\)"):
        replay.put((obs, action[:, :1], reward, ended, tail))
    assert len(replay) == 0
    with pytest.raises(ValueError, match="buffer is empty"):
        replay.sample(4)


def test_state_of_another_shape_is_refused():
    replay = make(10, seed=0)
    replay.put(numbered(0, 5))
    with pytest.raises(ValueError, match="holds 10 transitions and this one 20"):
        make(20, seed=0).load_state(replay.state())
    with pytest.raises(ValueError, match="has obs as float32"):
        make(10, seed=0, obs_dim=4).load_state(replay.state())


def test_capacity_must_be_positive():
    with pytest.raises(ValueError, match="at least 1"):
        make(0, seed=0)


def test_of_a_large_buffer_a_checkpoint_keeps_the_newest_and_another_goes_on_with_them():
    replay, resumed = make(10, seed=0), make(50, seed=0)
    replay.put(numbered(0, 14))
    # Four transitions with an index each; two of them have a separate next observation, and so has the last.
    state = replay.state(most_bytes=4 * (replay.layout.item_bytes + 8) + 3 * replay.layout.tail_bytes)
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
    action, reward = np.zeros((5, 1), np.float32), np.arange(5, dtype=np.float32)
    replay.put((rows, action, reward, np.zeros(5, np.uint8), rows[:1]))
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
    replay = make(4, seed=0, priority=Priority(1.0, 1.0))
    replay.put(numbered(0, 4))
    replay.sample(64)
    replay.update_priorities(np.where(replay.sampled == 2, 7.0, 1.0))
    counts = np.zeros(4)
    for _ in range(100):
        batch = replay.sample(100)
        serial = batch.obs[:, 0].numpy().astype(int)
        counts += np.bincount(serial, minlength=4)
        weight = batch.weight.numpy()
        assert weight[serial == 2] == pytest.approx(1 / 7, rel=1e-3)
        assert weight[serial != 2] == pytest.approx(1.0, rel=1e-3)
    assert counts / counts.sum() == pytest.approx([0.1, 0.1, 0.7, 0.1], abs=0.01)


def test_the_correction_rises_to_one_over_its_steps_also_over_a_resume():
    """Weights (N P) ** -beta by hand, with priorities 7 : 1 and beta from 0.4 to 1 over 12 transitions."""
    replay = make(4, seed=0, priority=Priority(1.0, 0.4, correction_steps=12))
    replay.put(numbered(0, 4))
    for inserted, beta in ((4, 0.6), (8, 0.8), (12, 1.0), (16, 1.0)):
        assert replay.inserted == inserted
        replay.sample(64)
        replay.update_priorities(np.where(replay.sampled == 2, 7.0, 1.0))
        batch = replay.sample(100)
        weight = batch.weight.numpy()[replay.sampled == 2]
        assert weight == pytest.approx(7.0**-beta, rel=1e-3)
        resumed = make(4, seed=5, priority=Priority(1.0, 0.4, correction_steps=12))
        resumed.load_state(replay.state())
        replay = resumed
        replay.put(numbered(inserted, 4))


def test_priorities_survive_a_resume_and_new_transitions_get_the_largest():
    replay = make(4, seed=0, priority=Priority(1.0, 1.0))
    replay.put(numbered(0, 3))
    replay.sample(64)
    replay.update_priorities(np.where(replay.sampled == 1, 9.0, 0.0))
    resumed = make(4, seed=5, priority=Priority(1.0, 1.0))
    resumed.load_state(replay.state())
    assert set(resumed.sample(500).obs[:, 0].numpy()) == {1.0}
    resumed.put(numbered(3, 1))
    drawn = resumed.sample(1000).obs[:, 0].numpy()
    assert 400 < (drawn == 3).sum() < 600


def test_a_resumed_buffer_draws_as_the_one_that_went_on_also_after_its_largest_priority_fell():
    went_on = make(8, seed=0, priority=Priority(0.6, 0.4))
    went_on.put(numbered(0, 5))
    for td_error in (9.0, 0.5):  # transitions with a large error are learned by now
        went_on.sample(64)
        went_on.update_priorities(np.full(64, td_error))
    resumed = make(8, seed=5, priority=Priority(0.6, 0.4))
    resumed.load_state(went_on.state())
    for start in range(5, 30, 3):
        drawn = []
        for replay in (went_on, resumed):
            replay.put(numbered(start, 3))
            batch = replay.sample(64)
            drawn.append((batch.obs.numpy().copy(), batch.weight.numpy().copy()))
            replay.update_priorities(np.linspace(0, 1, 64))
        assert (drawn[0][0] == drawn[1][0]).all()
        assert (drawn[0][1] == drawn[1][1]).all()


@pytest.mark.parametrize("count", [4, 10])
@pytest.mark.parametrize("is_complete", [True, False])
def test_a_checkpoint_that_has_both_observations_of_every_transition_still_loads(count, is_complete):
    """Checkpoints before version 4 of the exchange: rows in the order of the ring, which had wrapped at 13."""
    inserted = count if count < 10 else 13
    serial = (np.arange(count) + (10 if count == 10 else 0)).astype(np.float32)
    serial[3:] -= 10 if count == 10 else 0
    saved = {
        "obs": np.repeat(serial[:, None], 3, axis=1),
        "action": np.repeat(serial[:, None] * 10, 2, axis=1),
        "reward": serial * 100,
        "next_obs": np.repeat(serial[:, None] + 0.5, 3, axis=1),
        "terminated": (serial % 2 == 0).astype(np.uint8),
    }
    if is_complete:
        generator = json.dumps(np.random.default_rng(5).bit_generator.state).encode()
        saved |= {"inserted": np.array(inserted), "capacity": np.array(10)}
        saved["generator"] = np.frombuffer(generator, dtype=np.uint8)
        saved["priority"] = serial + 1.0
        saved["largest_priority"] = np.array(99.0)
    else:
        order = np.argsort(serial)
        saved = {name: value[order] for name, value in saved.items()}
    replay = make(10, seed=0, priority=Priority(0.6, 0.4))
    replay.load_state(saved)
    assert len(replay) == count
    assert [told.obs for told in held_by(replay)] == sorted(serial)
    assert set(assert_whole(replay.sample(2_000))) <= set(serial)
    if is_complete:
        assert replay.inserted == inserted
        assert (replay.state()["priority"] == np.sort(serial) + 1.0).all()
    replay.put(numbered(13, 5))
    assert [told.obs for told in held_by(replay)] == [*sorted(serial), *range(13, 18)][-10:]


def test_a_damaged_index_of_a_checkpoint_is_refused():
    replay = make(10, seed=0)
    replay.put(numbered(0, 5))
    state = replay.state()
    state["next"][2] = 100
    with pytest.raises(ValueError, match="names observations that it lacks"):
        make(10, seed=0).load_state(state)
