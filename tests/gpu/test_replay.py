"""Replay and rollouts on a GPU: the same batches as from the host's ring, whatever is copied during an update."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from runtime.rl.buffers.batch_source import BatchSource
from runtime.rl.buffers.device_replay import DeviceRows
from runtime.rl.buffers.host_rows import HostRows
from runtime.rl.buffers.priorities import Priority
from runtime.rl.buffers.replay import Batch, Replay, transition_layout
from runtime.rl.buffers.rollout_buffer import Rollouts, rollout_layout
from runtime.rl.device.accelerator import device_free_bytes
from runtime.rl.device.staging import DeviceCopier
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.runtime.rl.buffers.test_device_priorities import check_distribution

pytestmark = pytest.mark.gpu
SPACES = [ObsSpace(33), ObsSpace(2, ((84, 84, 4),))]
NAMES = ("obs", "action", "reward", "next_obs", "terminated", "weight")


def segment(
    rng: np.random.Generator, space: ObsSpace, count: int = 64, copies: int = 4, truncated: float = 0.05
) -> tuple[np.ndarray, ...]:
    ended = rng.choice([0, 1, 2], count, p=[0.95 - truncated, 0.05, truncated]).astype(np.uint8)
    tail = copies + np.count_nonzero(ended == 2)
    return (
        rng.integers(0, 256, (count, space.width)).astype(space.dtype),
        rng.random((count, 2), dtype=np.float32),
        rng.random(count, dtype=np.float32),
        ended,
        rng.integers(0, 256, (tail, space.width)).astype(space.dtype),
    )


def occupy() -> None:
    """Keep the computing stream busy for about 50 ms, so that copies and gathers overlap with it."""
    torch.cuda._sleep(100_000_000)


def assert_same(host: Batch, device: Batch) -> None:
    for name in NAMES:
        expected, value = getattr(host, name), getattr(device, name)
        assert (expected is None) == (value is None), name
        assert expected is None or torch.equal(expected, value.cpu()), name


def kept(batch: Batch) -> Batch:
    return batch.replaced([tensor.clone() for tensor in batch.tensors])


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("priority", [None, Priority(0.6, 0.4)])
def test_a_ring_on_the_card_gives_the_batches_of_the_host(space: ObsSpace, priority: Priority | None):
    layout, rng = transition_layout(space, ActionSpace(2)), np.random.default_rng(0)
    rows = [HostRows, partial(DeviceRows, "cuda")]
    host, device = (Replay(300, layout, 3, priority=priority, rows=each, segment=(4, 64)) for each in rows)
    for _ in range(20):
        columns = segment(rng, space)
        host.put(columns)
        occupy()
        device.put(columns)
        error = rng.random(32)
        assert_same(host.sample(32), device.sample(32))
        for replay in (host, device):
            replay.update_priorities(error)
    for name, value in host.state().items():
        assert (device.state()[name] == value).all(), name
    resumed = Replay(300, layout, 9, priority=priority, rows=rows[1], segment=(4, 64))
    resumed.load_state(host.state())
    assert_same(host.sample(32), resumed.sample(32))


def test_rows_are_drawn_by_their_priority_and_weigh_by_its_inverse() -> None:
    check_distribution("cuda")


@pytest.mark.parametrize("space", SPACES)
def test_segments_never_overwrite_a_batch_that_is_gathered_on_a_busy_card(space: ObsSpace) -> None:
    layout, rng = transition_layout(space, ActionSpace(2)), np.random.default_rng(0)
    host = Replay(128, layout, 3, segment=(4, 64))
    device = Replay(128, layout, 3, rows=partial(DeviceRows, "cuda"), segment=(4, 64))
    for replay in (host, device):
        replay.put(segment(np.random.default_rng(7), space))
    for _ in range(10):
        occupy()
        batch = device.sample(64)  # it waits on the card, after the work above
        expected = host.sample(64)
        for _ in range(4):  # and these come on a separate stream: twice around the ring
            columns = segment(rng, space)
            host.put(columns)
            device.put(columns)
        assert_same(expected, batch)


@pytest.mark.parametrize("space", SPACES)
def test_batches_that_are_copied_beside_an_update_are_those_of_the_host(space: ObsSpace) -> None:
    layout, rng = transition_layout(space, ActionSpace(2)), np.random.default_rng(0)
    plain = Replay(300, layout, 3)
    pinned = Replay(300, layout, 3, rows=partial(HostRows, pinned=True))
    for _ in range(4):
        columns = segment(rng, space)
        plain.put(columns)
        pinned.put(columns)
    source = BatchSource(pinned, 32, lambda draw: draw(), DeviceCopier("cuda"), ahead=True)
    expected, taken = [], []
    for _ in range(20):
        batch = source.take()
        occupy()
        assert batch.obs.is_cuda
        # Read late and never waited for: the next copy must not overwrite it, nor the host the source of that copy.
        taken.append(kept(batch))
        source.prefetch()
        expected.append(kept(plain.sample(32)))
    for pair in zip(expected, taken, strict=True):
        assert_same(*pair)


def test_steps_that_are_on_the_card_stay_there() -> None:
    layout, rng = transition_layout(ObsSpace(3), ActionSpace(2)), np.random.default_rng(0)
    replays = [Replay(100, layout, 0, rows=rows) for rows in (HostRows, partial(DeviceRows, "cuda"))]
    for _ in range(5):
        steps = [rng.random((8, 4, 3)), rng.random((8, 4, 2)), rng.random((8, 4)), rng.random((8, 4, 3))]
        tensors = [torch.from_numpy(column.astype(np.float32)).cuda() for column in steps]
        ended = torch.from_numpy(rng.integers(0, 3, (8, 4)).astype(np.uint8)).cuda()
        for replay in replays:
            replay.put_steps(*tensors, ended)
        for tensor in tensors:
            tensor.zero_()  # the next rollout overwrites it
        assert_same(*(replay.sample(64) for replay in replays))


@pytest.mark.parametrize("space", SPACES)
def test_rollouts_are_made_on_the_card(space: ObsSpace) -> None:
    layout, rng = rollout_layout(space, ActionSpace(2)), np.random.default_rng(0)
    host, device = (Rollouts(layout, 4, 64, 192, where) for where in ("cpu", "cuda"))
    for _ in range(6):
        for _ in range(3):
            obs, action, reward, ended, tail = segment(rng, space)
            columns = (obs, action, rng.random(64, dtype=np.float32), reward, ended, tail)
            host.put(columns)
            device.put(columns)
        occupy()
        expected, batch = host.take(), device.take()
        assert expected is not None
        assert batch is not None
        assert batch.next_obs.is_cuda
        for name in ("obs", "action", "log_prob", "reward", "next_obs", "ended"):
            assert torch.equal(getattr(expected, name), getattr(batch, name).cpu()), name


def test_the_card_says_how_much_of_it_is_free() -> None:
    free = device_free_bytes("cuda")
    assert free is not None
    held = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    after = device_free_bytes("cuda")
    assert after is not None
    assert free - after >= held.nbytes // 2


def test_a_rollout_of_one_segment_is_not_overwritten_by_the_next_while_it_is_learned_from() -> None:
    layout, rng = rollout_layout(ObsSpace(2, ((84, 84, 4),)), ActionSpace(2)), np.random.default_rng(0)
    device = Rollouts(layout, 4, 64, 64, "cuda")
    for _ in range(20):
        columns = segment(rng, ObsSpace(2, ((84, 84, 4),)))
        obs, action, reward, ended, tail = columns
        device.put((obs, action, reward, reward, ended, tail))
        batch = device.take()
        assert batch is not None
        occupy()
        total = batch.obs.sum(dtype=torch.float64)  # read late, after the work above
        del batch
        for _ in range(3):
            device.put((obs * 0, action, reward, reward, ended, tail))
        while device.take() is not None:
            pass
        assert total.item() == obs.sum(dtype=np.float64)


@pytest.mark.parametrize("space", SPACES)
def test_a_ring_that_grows_keeps_what_was_drawn_before(space: ObsSpace) -> None:
    """Many truncations, so that the ring of their observations moves while a gather waits for other work."""
    layout, rng = transition_layout(space, ActionSpace(2)), np.random.default_rng(0)
    host, device = (Replay(300, layout, 3, rows=rows) for rows in (HostRows, partial(DeviceRows, "cuda")))
    sizes = set()
    for truncated in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9):
        draws = [(replay, replay.draw(64)) for replay in (host, device) if len(replay)]
        for _ in range(2):
            columns = segment(rng, space, truncated=truncated)
            for replay in (host, device):
                replay.put(columns)
        sizes.add(device.index.size)
        occupy()
        batches = [replay.gather(draw) for replay, draw in draws]
        del draws
        for _ in range(2):
            columns = segment(rng, space, truncated=truncated)
            for replay in (host, device):
                replay.put(columns)
        if batches:
            assert_same(*batches)
    assert len(sizes) > 2
