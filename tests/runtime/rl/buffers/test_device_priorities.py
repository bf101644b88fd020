"""Draws by priority next to the updates: the distribution, weights and priorities of Schaul et al. 2016.

On a CPU the same functions run eagerly; tests/gpu runs these checks on the card, as graphs.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from runtime.rl.buffers.device_replay import DevicePriorities, DeviceRows
from runtime.rl.buffers.priorities import Priority
from runtime.rl.buffers.replay import Replay, transition_layout
from runtime.rl.buffers.ring_index import ABSENT, TERMINATED
from runtime.rl.device.captured import Captured
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.fakes.segments import numbered

SIZE = 64


def make(capacity: int, priority: Priority, device: str = "cpu", *, seed: int = 0, n_step: int = 1) -> Replay:
    layout = transition_layout(ObsSpace(3), ActionSpace(2), n_step)
    rows = partial(DeviceRows, device)
    return Replay(capacity, layout, seed, priority=priority, rows=rows, segment=(1, 4), draws_on_device=True)


def of(replay: Replay) -> DevicePriorities:
    assert isinstance(replay.priorities, DevicePriorities)
    return replay.priorities


def saved(replay: Replay) -> np.ndarray:
    return replay.state()["priority"]


def drawn(replay: Replay, count: int = SIZE) -> tuple[Any, np.ndarray, np.ndarray]:
    """Draw a batch; return the batch, its rows and its weights."""
    assert isinstance(replay.rows, DeviceRows)
    with replay.rows.ordered():
        rows, weight = of(replay).draw(count)
        batch = replay.batch_of(replay.rows.gathered(replay.rows.reader(), rows))
    return batch, rows[:count].cpu().numpy(), weight.cpu().numpy()


def set_errors(replay: Replay, slots: Any, errors: Any) -> None:
    assert isinstance(replay.rows, DeviceRows)
    device = replay.rows.device
    with replay.rows.ordered():
        of(replay).update(
            torch.as_tensor(slots, device=device), torch.as_tensor(errors, dtype=torch.float32, device=device)
        )


def check_distribution(device: str) -> None:
    """Rows are drawn by error ** alpha over the sum of all, and have weights (N P) ** -beta over the largest
    weight.
    """
    alpha, beta, count = 0.7, 0.5, 1_000
    replay = make(count, Priority(alpha, beta), device)
    replay.put(numbered(0, count))
    errors = np.random.default_rng(0).random(count).astype(np.float32) ** 2
    set_errors(replay, np.arange(count), errors)
    priorities = (errors + 1e-6) ** alpha
    assert saved(replay) == pytest.approx(priorities, rel=1e-6)
    chance = priorities / priorities.sum()
    draws, counts = 400, np.zeros(count)
    assert isinstance(replay.rows, DeviceRows)
    with replay.rows.ordered():
        draw = Captured(
            lambda _: of(replay).draw(512), torch.zeros(1, device=device), generators=[of(replay).generator]
        )
        for _ in range(draws):
            rows, weight = (tensor.cpu().numpy() for tensor in draw(None))
            slots, following = rows[:512], rows[512:]
            counts += np.bincount(slots, minlength=count)
            weights = (count * chance[slots]) ** -beta
            assert np.allclose(weight, weights / weights.max(), rtol=1e-5, atol=0.0)
            assert (following == replay.index.following[slots]).all()
    # The variance of strata is at most that of independent draws; the bound is six deviations of these.
    total = 512 * draws
    assert (np.abs(counts - total * chance) <= 6 * np.sqrt(total * chance) + 6).all()


def test_rows_are_drawn_by_their_priority_and_weigh_by_its_inverse() -> None:
    check_distribution("cpu")


@pytest.mark.parametrize("capacity", [1, 5, 8, 1_000])
def test_each_stratum_of_the_total_gives_one_row(capacity: int) -> None:
    """With as many draws as rows of equal priority each row is drawn once, for any random numbers."""
    replay = make(capacity, Priority(1.0, 1.0))
    for first in range(0, capacity, min(4, capacity)):
        replay.put(numbered(first, min(4, capacity - first)))
    _, slots, weight = drawn(replay, capacity)
    assert slots.tolist() == list(range(capacity))
    assert (weight == 1.0).all()


def test_a_priority_is_that_of_the_last_error_of_its_row_and_new_rows_get_the_largest() -> None:
    replay = make(8, Priority(0.5, 1.0))
    replay.put(numbered(0, 5))
    set_errors(replay, [1, 1, 1, 3], [4.0, 100.0, 9.0, 16.0])
    assert saved(replay) == pytest.approx([1.0, 3.0, 1.0, 4.0, 1.0], rel=1e-5)
    replay.put(numbered(5, 3))
    assert saved(replay) == pytest.approx([1.0, 3.0, 1.0, 4.0, 1.0, 10.0, 10.0, 10.0], rel=1e-5)
    set_errors(replay, [3], [0.0])
    replay.put(numbered(8, 2))  # over the oldest two
    assert saved(replay) == pytest.approx([1.0, 1e-3, 1.0, 10.0, 10.0, 10.0, 10.0, 10.0], rel=1e-5)


@pytest.mark.parametrize("n_step", [1, 3])
def test_batches_are_whole_transitions_also_around_the_ring_and_after_it_has_grown(n_step: int) -> None:
    """Every drawable row equals the row in the host's replay of the same segments."""
    rng = np.random.default_rng(0)
    replay = make(96, Priority(0.6, 0.4), n_step=n_step)
    host = Replay(96, replay.layout, 0, priority=Priority(0.6, 0.4), segment=(1, 4))
    tails = {replay.index.tail}
    for truncated in (0.0, 0.0, 0.1, 0.5, 0.9):
        ended = rng.choice([0, 1, 2], 40, p=[0.9 - 0.9 * truncated, 0.1 - 0.1 * truncated, truncated]).astype(
            np.uint8
        )
        steps = (np.ones(40, np.uint8),) if n_step > 1 else ()
        obs, tail = (rng.random((n, 3), dtype=np.float32) for n in (40, 4 + np.count_nonzero(ended == 2)))
        columns = (
            obs,
            rng.random((40, 2), dtype=np.float32),
            rng.random(40, dtype=np.float32),
            ended,
            *steps,
            tail,
        )
        for ring in (replay, host):
            ring.put(columns)
        tails.add(replay.index.tail)
        batch, slots, _ = drawn(replay, 256)
        draw = host.draw(256)
        expected = host.gather(type(draw)(slots, host.index.following[slots], None, draw.obs))
        for name, column in expected.columns().items():
            assert torch.equal(batch.columns()[name], column), name
    assert len(tails) > 1


def test_padding_and_rows_without_a_transition_are_never_drawn() -> None:
    replay = make(30, Priority(0.6, 0.4))
    columns = list(numbered(0, 12))
    columns[3] = np.array([0, TERMINATED, ABSENT, 0, ABSENT, 0, 0, 0, 0, 0, 0, ABSENT], np.uint8)
    columns[-1] = columns[-1][:1]
    replay.put(tuple(columns))
    assert set(drawn(replay, 4_096)[1].tolist()) == {0, 1, 3, 5, 6, 7, 8, 9, 10}
    resumed = make(30, Priority(0.6, 0.4), seed=5)
    resumed.load_state(replay.state())
    assert set(drawn(resumed, 4_096)[1].tolist()) == {0, 1, 3, 5, 6, 7, 8, 9, 10}


def test_small_priorities_among_a_million_large_ones_are_drawn_as_often_as_they_should() -> None:
    """Sums of float32 would lose them: after a million there is no precision for a fiftieth."""
    count, small = 2**20, 2**14
    replay = make(count, Priority(1.0, 1.0))
    replay.put(numbered(0, count))
    set_errors(replay, np.arange(count), np.where(np.arange(count) < count - small, 1.0, 0.02))
    slots = np.concatenate([drawn(replay, 2**18)[1] for _ in range(2)])
    expected = len(slots) * 0.02 * small / (count - 0.98 * small)
    assert abs(np.count_nonzero(slots >= count - small) - expected) <= 6 * np.sqrt(expected) < expected


def test_the_correction_rises_with_the_transitions_and_over_a_resume() -> None:
    """Weights (N P) ** -beta by hand, with priorities 7 : 1 and beta from 0.4 to 1 over 12 transitions."""
    replay = make(4, Priority(1.0, 0.4, correction_steps=12))
    replay.put(numbered(0, 4))
    for inserted, beta in ((4, 0.6), (8, 0.8), (12, 1.0), (16, 1.0)):
        set_errors(replay, np.arange(4), [1.0, 1.0, 7.0, 1.0])
        _, slots, weight = drawn(replay)
        assert weight[slots == 2] == pytest.approx(7.0**-beta, rel=1e-4)
        assert (weight[slots != 2] == 1.0).all()
        resumed = make(4, Priority(1.0, 0.4, correction_steps=12), seed=5)
        resumed.load_state(replay.state())
        replay = resumed
        replay.put(numbered(inserted, 4))


def test_a_resumed_replay_draws_as_the_one_that_went_on() -> None:
    went_on = make(8, Priority(0.6, 0.4))
    went_on.put(numbered(0, 5))
    for error in (9.0, 0.5):  # transitions with a large error are learned by now
        set_errors(went_on, np.arange(5), np.full(5, error))
    drawn(went_on)
    resumed = make(8, Priority(0.6, 0.4), seed=5)
    resumed.load_state(went_on.state())
    for start in range(5, 30, 3):
        batches = []
        for replay in (went_on, resumed):
            replay.put(numbered(start, 3))
            batch, slots, weight = drawn(replay)
            batches.append((batch.obs.numpy().copy(), weight))
            set_errors(replay, slots, np.linspace(0, 1, SIZE))
        assert (batches[0][0] == batches[1][0]).all()
        assert (batches[0][1] == batches[1][1]).all()


def test_a_checkpoint_is_a_moment_although_updates_and_segments_go_on() -> None:
    replay = make(8, Priority(1.0, 1.0))
    replay.put(numbered(0, 5))
    set_errors(replay, np.arange(5), np.arange(5.0))
    cut = replay.cut()
    set_errors(replay, np.arange(5), np.full(5, 70.0))
    replay.put(numbered(5, 3))
    while cut.copy_next():
        pass
    assert cut.arrays()["priority"] == pytest.approx(np.arange(5.0), abs=1e-5)
    assert cut.arrays()["largest_priority"] == pytest.approx(4.0)


def test_checkpoints_go_from_the_host_to_the_device_and_back() -> None:
    """Checkpoints of a learner that drew on the host, as earlier versions did, seed the generator reproducibly."""
    priority = Priority(0.6, 0.4)
    host = Replay(8, transition_layout(ObsSpace(3), ActionSpace(2)), 3, priority=priority)
    host.put(numbered(0, 11))
    host.sample(16)
    host.update_priorities(np.linspace(0, 3, 16))
    state = host.state()
    assert "draw_generator" not in state
    replays = [make(8, priority, seed=seed) for seed in (1, 2)]
    for replay in replays:
        replay.load_state(state)
        assert (saved(replay) == state["priority"]).all()
        assert replay.state()["largest_priority"] == state["largest_priority"]
    rows = [drawn(replay)[1] for replay in replays]
    assert (rows[0] == rows[1]).all()
    assert not (rows[0] == drawn(replays[0])[1]).all()
    del state["largest_priority"], state["priority"]  # in the oldest versions
    replays[0].load_state(state)
    assert (saved(replays[0]) == 1.0).all()

    back = Replay(8, host.layout, 9, priority=priority)
    back.load_state(replays[1].state())
    assert (back.state()["priority"] == saved(replays[1])).all()
    generator = json.loads(back.state()["generator"].tobytes())
    assert generator == replays[1].rng.bit_generator.state


def test_a_damaged_state_of_the_generator_is_a_sentence() -> None:
    replay = make(8, Priority(0.6, 0.4))
    replay.put(numbered(0, 5))
    state = replay.state() | {"draw_generator": np.zeros(7, np.uint8)}
    with pytest.raises(ValueError, match="the saved draw_generator is not the state of a random number generator"):
        make(8, Priority(0.6, 0.4)).load_state(state)
