"""Updates that gather their own batches equal updates on drawn batches, launched singly or several at a time.

On a CPU the functions run eagerly through the same buffers; tests/gpu runs these cases as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from runtime.base.methods import DQNConfig, TD3Config
from runtime.rl.algos.off_policy import graph_updates
from runtime.rl.algos.off_policy.critics import ReplayMethod
from runtime.rl.algos.off_policy.dqn import DQN
from runtime.rl.algos.off_policy.graph_updates import GraphUpdates
from runtime.rl.algos.off_policy.sac import SAC, DiscreteSAC
from runtime.rl.algos.off_policy.td3 import TD3
from runtime.rl.buffers.device_replay import DevicePriorities, DeviceRows
from runtime.rl.buffers.host_rows import HostRows
from runtime.rl.buffers.priorities import Priority
from runtime.rl.buffers.replay import Replay, transition_layout
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.runtime.rl.algos.test_captured_updates import (
    CHOICES,
    DETERMINISTIC,
    GREEDY,
    PICTURE,
    SAC_CONFIG,
    VECTOR,
    assert_alike,
)

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = 16
UPDATES = 8
STEADY = replace(SAC_CONFIG, anneal_updates=None)
Make = Callable[..., ReplayMethod]
METHODS: dict[str, tuple[Make, ObsSpace, ActionSpace]] = {
    "sac": (partial(SAC, VECTOR, STEADY, 3), ObsSpace(5), ActionSpace(2)),
    "sac-followed-rarely": (
        partial(SAC, VECTOR, replace(STEADY, target_updates=3), 3),
        ObsSpace(5),
        ActionSpace(2),
    ),
    "sac-annealed": (partial(SAC, VECTOR, SAC_CONFIG, 3), ObsSpace(5), ActionSpace(2)),
    "sac-picture": (
        partial(SAC, PICTURE, replace(STEADY, hidden=(16,)), 3),
        PICTURE.obs_space,
        ActionSpace(2),
    ),
    "sac-choices": (partial(DiscreteSAC, CHOICES, STEADY, 3), ObsSpace(5), ActionSpace(1, (3,))),
    "dqn": (
        partial(DQN, GREEDY, DQNConfig(hidden=(32, 24), target_updates=3), 3),
        ObsSpace(5),
        ActionSpace(1, (3,)),
    ),
    "td3": (
        partial(TD3, DETERMINISTIC, TD3Config(hidden=(32, 24)), 3),
        ObsSpace(5),
        ActionSpace(2),
    ),
    "dqn-annealed": (
        partial(DQN, GREEDY, DQNConfig(hidden=(32, 24), target_updates=3, anneal_updates=12), 3),
        ObsSpace(5),
        ActionSpace(1, (3,)),
    ),
    "td3-annealed": (
        partial(TD3, DETERMINISTIC, TD3Config(hidden=(32, 24), anneal_updates=12), 3),
        ObsSpace(5),
        ActionSpace(2),
    ),
}


def filled(
    obs: ObsSpace, action: ActionSpace, rows: Any, *, count: int = 96, n_step: int = 1, **options: Any
) -> Replay:
    """Return a replay of random transitions; with 96 rows the ring has wrapped after 160 insertions."""
    replay = Replay(96, transition_layout(obs, action, n_step), 7, rows=rows, segment=(4, 8), **options)
    rng = np.random.default_rng(1)
    for _ in range(count // 32 + 2):
        ended = rng.choice([0, 1, 2], 32, p=[0.9, 0.05, 0.05]).astype(np.uint8)
        tail = 4 + np.count_nonzero(ended == 2)
        seen = [observations(obs, number, rng) for number in (32, tail)]
        acted = (
            rng.integers(0, 3, (32, 1)).astype(action.dtype)
            if action.choices
            else rng.uniform(-1, 1, (32, action.size)).astype(np.float32)
        )
        reward = rng.random(32, dtype=np.float32)
        steps = (np.ones(32, dtype=np.uint8),) if n_step > 1 else ()
        replay.put((seen[0], acted, reward, ended, *steps, seen[1]))
    return replay


def observations(obs: ObsSpace, count: int, rng: np.random.Generator) -> np.ndarray:
    vector = rng.standard_normal((count, obs.vector), dtype=np.float32)
    if not obs.images:
        return vector
    return obs.pack(vector, [rng.integers(0, 256, (count, *image), dtype=np.uint8) for image in obs.images])


def check_same_updates(name: str, device: str, count: int, *, tolerance: float) -> None:
    make, *spaces = METHODS[name]
    plain, launched = make(device=device, capture=False), make(device=device)
    host, ring = filled(*spaces, HostRows), filled(*spaces, partial(DeviceRows, device))
    updates = GraphUpdates(launched, ring, SIZE, lambda draw: draw(), enabled=device != "cpu")
    for end in (UPDATES, 2 * UPDATES):
        while plain.updates < end:
            expected = plain.update(host.sample(SIZE).to(device)).floats()
        while launched.updates < end:
            latest = updates.run(updates.count_of(min(count, end - launched.updates)))
        assert latest.floats() == pytest.approx(expected, rel=1e-3, abs=1e-4)
        assert_alike(plain.state(), launched.state(), tolerance)
        # The graphs continue from a checkpoint, with its tensors and random numbers.
        updates.run(1)
        launched.load_state(plain.state())
        ring.rng.bit_generator.state = host.rng.bit_generator.state


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("name", METHODS)
def test_updates_that_gather_their_batches_are_those_on_drawn_batches(name: str, count: int) -> None:
    check_same_updates(name, "cpu", count, tolerance=1e-6)


def test_an_update_behind_which_the_host_acts_is_the_last_of_a_launch() -> None:
    """DQN copies its network to the target after every third."""
    make, *spaces = METHODS["dqn"]
    method = make(device="cpu")
    updates = GraphUpdates(
        method, filled(*spaces, partial(DeviceRows, "cpu")), SIZE, lambda draw: draw(), enabled=False
    )
    assert updates.count_of(8) == 3
    assert updates.count_of(2) == 2
    updates.run(2)
    assert updates.count_of(8) == 1
    updates.run(1)
    assert torch.equal(method.tensors()["target_q"], method.tensors()["q"])
    assert updates.count_of(8) == 3


def test_updates_on_large_pictures_are_launched_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    make, *spaces = METHODS["sac-picture"]
    ring = filled(*spaces, partial(DeviceRows, "cpu"))
    assert GraphUpdates(make(), ring, SIZE, lambda draw: draw(), enabled=False).count_of(8) == 8
    monkeypatch.setattr(graph_updates, "LARGE_BATCH_BYTES", 2 * SIZE * ring.layout.tail_bytes - 1)
    assert GraphUpdates(make(), ring, SIZE, lambda draw: draw(), enabled=False).count_of(8) == 1


PRIORITY = Priority(0.6, 0.4, correction_steps=500)
PRIORITISED: dict[str, tuple[Make, ObsSpace, ActionSpace, int]] = {
    "sac": (*METHODS["sac"], 1),
    "sac-picture": (*METHODS["sac-picture"], 1),
    "sac-choices": (*METHODS["sac-choices"], 3),
    "dqn": (*METHODS["dqn"], 3),
    "td3": (*METHODS["td3"], 1),
}


def by_priority(spaces: tuple[Any, ...], device: str) -> Replay:
    obs, action, n_step = spaces
    options = {"priority": PRIORITY, "draws_on_device": True, "n_step": n_step}
    return filled(obs, action, partial(DeviceRows, device), **options)


def check_updates_by_priority(name: str, device: str, count: int, *, tolerance: float) -> None:
    """Check that updates with their own draws equal updates on the batches from the same priorities, one by one.

    Both draw from equal generators; segments arrive in between; the second half is resumed.
    """
    make, *spaces = PRIORITISED[name]
    plain, launched = make(device=device, capture=False), make(device=device)
    single, ring = by_priority(spaces, device), by_priority(spaces, device)
    updates = GraphUpdates(launched, ring, SIZE, lambda run: run(), enabled=device != "cpu")
    for turn in range(2):
        while launched.updates < (turn + 1) * UPDATES:
            some = updates.count_of(min(count, (turn + 1) * UPDATES - launched.updates))
            for _ in range(some):
                update_by_priority(plain, single)
            updates.run(some)
            for replay in (single, ring):
                replay.put(segment_of(spaces, plain.updates))
        assert plain.updates == launched.updates
        assert_alike(plain.state(), launched.state(), tolerance)
        state, expected = ring.state(), single.state()
        for key in ("priority", "largest_priority"):
            assert state[key] == pytest.approx(expected[key], rel=1e-2 if tolerance > 1e-5 else 1e-4), key
        assert (state["draw_generator"] == expected["draw_generator"]).all()
        # The graphs continue in place from the state of a checkpoint.
        updates.run(updates.count_of(count))
        launched.load_state(plain.state())
        ring = by_priority(spaces, device)
        ring.load_state(expected)
        updates = GraphUpdates(launched, ring, SIZE, lambda run: run(), enabled=device != "cpu")
    assert len(set(np.round(state["priority"], 6).tolist())) > 10


def update_by_priority(method: ReplayMethod, replay: Replay) -> None:
    """One update by hand: draw, gather, learn, set priorities."""
    assert isinstance(replay.priorities, DevicePriorities)
    assert isinstance(replay.rows, DeviceRows)
    with replay.rows.ordered():
        rows, weight = replay.priorities.draw(SIZE)
        batch = replace(replay.batch_of(replay.rows.gathered(replay.rows.reader(), rows)), weight=weight)
        method.update(batch)
        replay.priorities.update(rows[:SIZE], method.td_error)


def segment_of(spaces: tuple[Any, ...], seed: int) -> tuple[np.ndarray, ...]:
    """Eight steps of one copy; the last episode is truncated."""
    obs, action, n_step = spaces
    rng = np.random.default_rng(seed)
    acted = (
        rng.integers(0, 3, (8, 1)).astype(action.dtype)
        if action.choices
        else rng.uniform(-1, 1, (8, action.size)).astype(np.float32)
    )
    ended = np.array([0] * 7 + [2], dtype=np.uint8)
    steps = (np.ones(8, dtype=np.uint8),) if n_step > 1 else ()
    return (
        observations(obs, 8, rng),
        acted,
        rng.random(8, dtype=np.float32),
        ended,
        *steps,
        observations(obs, 2, rng),
    )


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("name", PRIORITISED)
def test_updates_that_draw_by_priority_are_those_on_the_batches_of_these_priorities(name: str, count: int) -> None:
    check_updates_by_priority(name, "cpu", count, tolerance=1e-6)


def test_updates_of_an_empty_replay_are_a_sentence() -> None:
    make, obs, action, _ = PRIORITISED["sac"]
    rows = partial(DeviceRows, "cpu")
    replay = Replay(96, transition_layout(obs, action), 7, rows=rows, priority=PRIORITY, draws_on_device=True)
    with pytest.raises(ValueError, match="the replay buffer is empty"):
        GraphUpdates(make(), replay, SIZE, lambda run: run(), enabled=False).run(1)


def test_a_ring_that_has_grown_is_read_where_it_is() -> None:
    """Segments with many truncations make the ring of tails grow, in other memory."""
    make, *spaces = METHODS["sac"]
    rings = [filled(*spaces, rows, count=32) for rows in (HostRows, partial(DeviceRows, "cpu"))]
    plain, launched = make(device="cpu"), make(device="cpu")
    updates = GraphUpdates(launched, rings[1], SIZE, lambda draw: draw(), enabled=False)
    rng = np.random.default_rng(5)
    for _ in range(3):
        plain.update(rings[0].sample(SIZE))
        updates.run(1)
        segment = (
            observations(spaces[0], 32, rng),
            rng.uniform(-1, 1, (32, 2)).astype(np.float32),
            rng.random(32, dtype=np.float32),
            np.full(32, 2, dtype=np.uint8),
            observations(spaces[0], 36, rng),
        )
        for ring in rings:
            ring.put(segment)
    assert_alike(plain.state(), launched.state(), 1e-6)
    assert torch.isfinite(launched.policy_weights()).all()
