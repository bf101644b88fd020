"""A learner's state through a real checkpoint file: identical, bounded, or refused with a sentence."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runtime.base.errors import NotFiniteError
from runtime.base.methods import SACConfig
from runtime.exchange.learner_server import ExchangeCut, ExchangeState
from runtime.exchange.machines.member_state import Accounts
from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.off_policy.sac import SAC
from runtime.rl.buffers.replay import Replay, transition_layout
from runtime.rl.checkpoints.checkpoint_files import Checkpoint, Checkpoints
from runtime.rl.checkpoints.counters import Counters
from runtime.rl.checkpoints.learner_state import CheckpointWriter, LearnerSnapshot, pack, unpack
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.fakes.segments import numbered

COUNTERS = Counters(epoch=3, env_steps=70, updates=9, lost_updates=1, policy_version=4)


def learner_parts(hidden: int = 16, capacity: int = 64) -> tuple[SAC, Replay]:
    shape, layout = ActorShape(3, 2, (hidden,)), transition_layout(ObsSpace(3), ActionSpace(2))
    return SAC(shape, SACConfig(hidden=(hidden,), batch_size=8), seed=1), Replay(capacity, layout, seed=2)


def trained(transitions: int) -> tuple[SAC, Replay]:
    sac, replay = learner_parts()
    rng = np.random.default_rng(0)
    for number in range(transitions):
        obs, tail = rng.standard_normal((2, 1, 3), dtype=np.float32)
        action, reward = rng.standard_normal((1, 2), dtype=np.float32), np.array([number], dtype=np.float32)
        replay.put((obs, action, reward, np.zeros(1, np.uint8), tail))
    for _ in range(3):
        sac.update(replay.sample(8))
    return sac, replay


def saved(folder: Path, sac: SAC, replay: Replay, replay_bytes: int) -> Checkpoint:
    accounts = Accounts()
    accounts.open("w-0", 1).last_seq = 5
    holdings = ExchangeState(70, replay.state(replay_bytes), accounts.state(), accounts.last_seqs())
    arrays, facts = pack(sac, COUNTERS, holdings, 70)
    Checkpoints(folder, keep=1).save(9, 70, arrays, facts)
    loaded, _ = Checkpoints(folder, keep=1).load()
    assert loaded is not None
    return loaded


@pytest.mark.parametrize("transitions", [40, 100])
def test_a_resumed_learner_continues_bit_for_bit(tmp_path: Path, transitions: int) -> None:
    sac, replay = trained(transitions)
    checkpoint = saved(tmp_path, sac, replay, replay_bytes=10**6)
    other, other_replay = learner_parts()
    counters, accounts, notes = unpack(checkpoint, other, other_replay)
    assert counters == COUNTERS
    assert notes == []
    assert accounts.last_seqs() == {"w-0@1": 5}
    for _ in range(3):
        first, second = sac.update(replay.sample(8)), other.update(other_replay.sample(8))
        assert torch.equal(first.critic_loss, second.critic_loss)
    np.testing.assert_array_equal(sac.actor_arena(), other.actor_arena())


@pytest.mark.parametrize("transitions", [40, 100])
def test_experience_beyond_the_bound_is_cut_at_its_old_end(tmp_path: Path, transitions: int) -> None:
    sac, replay = trained(transitions)
    # Single transitions, each with a separate next observation, with an index.
    row = replay.layout.item_bytes + replay.layout.tail_bytes + 8
    checkpoint = saved(tmp_path, sac, replay, replay_bytes=10 * row)
    other, other_replay = learner_parts()
    unpack(checkpoint, other, other_replay)
    assert list(other_replay.state()["reward"]) == list(range(transitions - 10, transitions))


def test_experience_may_be_left_out(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, *trained(40), replay_bytes=0)
    other, other_replay = learner_parts()
    unpack(checkpoint, other, other_replay)
    assert len(other_replay) == 0
    names = {"obs", "next", "action", "reward", "terminated"}
    assert {f"experience.{name}" for name in names} <= set(checkpoint.tensors)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, *trained(40), replay_bytes=10**6)
    with pytest.raises(ValueError, match="same environment and hidden layers"):
        unpack(checkpoint, *learner_parts(hidden=24))
    with pytest.raises(ValueError, match="same replay capacity"):
        unpack(checkpoint, *learner_parts(capacity=32))


class ExchangeUnderTest:
    """A replay in the form in which the exchange copies it."""

    def __init__(self, replay: Replay) -> None:
        self.lock = threading.Condition()
        self._replay = replay

    def cut(self) -> ExchangeCut:
        with self.lock:
            accounts = Accounts()
            accounts.open("w-0", 1).last_seq = 5
            state = ExchangeState(self._replay.inserted, {}, accounts.state(), accounts.last_seqs())
            return ExchangeCut(state, self._replay.cut(10**6), self.lock)


def test_a_snapshot_is_of_its_moment_though_training_and_collection_go_on(tmp_path: Path) -> None:
    sac, replay = trained(100)
    snapshot = LearnerSnapshot(sac, COUNTERS, ExchangeUnderTest(replay).cut(), 1)
    expected = {name: tensor.clone() for name, tensor in sac.state().items()}
    rewards = replay.state(10**6)["reward"]
    for _ in range(3):
        sac.update(replay.sample(8))
    replay.put(numbered(0, 50))
    said: list[str] = []
    saved_holdings: list[ExchangeState] = []
    writer = CheckpointWriter(Checkpoints(tmp_path, keep=1), said.append, saved_holdings.append, None)
    writer.save(snapshot)
    writer.wait()
    assert not writer.is_busy
    checkpoint, _ = Checkpoints(tmp_path, keep=1).load()
    assert checkpoint is not None
    assert checkpoint.facts["counters"]["env_steps"] == 100
    assert (checkpoint.tensors["experience.reward"] == rewards).all()
    for name, tensor in expected.items():
        assert (torch.from_numpy(np.array(checkpoint.tensors[f"method.{name}"])) == tensor).all(), name
    assert [holdings.last_seqs for holdings in saved_holdings] == [{"w-0@1": 5}]


def test_a_state_that_is_not_finite_is_never_saved_and_ends_the_learner(tmp_path: Path) -> None:
    sac, replay = trained(40)
    sac.policy_weights()[0] = torch.nan
    writer = CheckpointWriter(Checkpoints(tmp_path, keep=1), lambda _: None, lambda _: None, None)
    writer.save(LearnerSnapshot(sac, COUNTERS, ExchangeUnderTest(replay).cut(), 1))
    with pytest.raises(NotFiniteError, match="after update 9, nor are actor of"):
        writer.wait()
    writer.wait()  # reported once
    assert not Checkpoints(tmp_path, keep=1).names()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"method.critic.square": None}, "no 'critic.square'"),
        ({"method.noise_generator": np.zeros(17, dtype=np.uint8)}, "noise_generator is not the state"),
        ({"method.noise_generator": np.zeros(5056, dtype=np.float32)}, "noise_generator is not the state"),
        ({"method.log_alpha": np.zeros(1, dtype=np.complex64)}, "log_alpha is torch.complex64"),
        ({"method.updates": np.zeros(2, dtype=np.int64)}, "count of updates"),
        ({"experience.capacity": np.array(3)}, "same replay capacity"),
    ],
)
def test_a_state_is_loaded_as_one_or_not_at_all(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    checkpoint = saved(tmp_path, *trained(40), replay_bytes=10**6)
    tensors = {name: change.get(name, array) for name, array in checkpoint.tensors.items()}
    tensors = {name: array for name, array in tensors.items() if array is not None}
    other, other_replay = learner_parts()
    before = other.state()
    with pytest.raises(ValueError, match=complaint):
        unpack(replace(checkpoint, tensors=tensors), other, other_replay)
    after = other.state()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_facts_that_cannot_be_read_are_a_sentence(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, *trained(40), replay_bytes=0)
    with pytest.raises(ValueError, match="counters or accounts cannot be read"):
        unpack(replace(checkpoint, facts={}), *learner_parts())


@pytest.mark.parametrize("mark", [b"cuda", b"mps", None])
def test_a_checkpoint_of_another_device_goes_on_with_numbers_that_it_alone_decides(
    tmp_path: Path, mark: bytes | None
) -> None:
    """A GPU's generator has 16 bytes; earlier versions did not store that they came from a GPU."""
    checkpoint = saved(tmp_path, *trained(40), replay_bytes=10**6)
    tensors = dict(checkpoint.tensors) | {"method.noise_generator": np.arange(16, dtype=np.uint8)}
    tensors["method.noise_generator.device"] = np.frombuffer(mark or b"", dtype=np.uint8)
    if mark is None:
        del tensors["method.noise_generator.device"]
    moved = replace(checkpoint, tensors=tensors)
    states = []
    for _ in range(2):
        sac, replay = learner_parts()
        resumed = unpack(moved, sac, replay)
        origin = (mark or b"cuda").decode()
        assert resumed.notes == [f"noise_generator was saved on {origin} and draws other numbers on cpu"]
        sac.update(replay.sample(8))
        states.append(sac.state())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_checkpoint_of_an_earlier_version_has_no_device_and_integer_steps(tmp_path: Path) -> None:
    sac, replay = trained(40)
    checkpoint = saved(tmp_path, sac, replay, replay_bytes=10**6)
    tensors = {name: array for name, array in checkpoint.tensors.items() if not name.endswith(".device")}
    tensors |= {name: array.astype(np.int64) for name, array in tensors.items() if name.endswith(".steps")}
    other, other_replay = learner_parts()
    assert unpack(replace(checkpoint, tensors=tensors), other, other_replay).notes == []
    for _ in range(2):
        first, second = sac.update(replay.sample(8)), other.update(other_replay.sample(8))
        assert torch.equal(first.critic_loss, second.critic_loss)
