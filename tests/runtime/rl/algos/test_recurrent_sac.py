"""Soft actor-critic with memory: its losses step by step, the replay of sequences, stored states, and resuming."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from runtime.base.methods import SACConfig
from runtime.base.replay_memory import memory_of_settings
from runtime.base.training import Settings, from_mapping
from runtime.exchange.segments import SegmentBundle
from runtime.rl.algos.actor import ActorShape, CopyStates, NumpyActor
from runtime.rl.algos.memory import Memory
from runtime.rl.algos.plan import Plan, build, make_plan, make_store
from runtime.rl.algos.recurrent import RecurrentDiscreteSAC, RecurrentSAC
from runtime.rl.buffers.replay import Batch
from runtime.rl.buffers.ring_index import ABSENT
from runtime.rl.buffers.sequence_replay import SequenceReplay
from runtime.rl.roles.experience import memory_of
from runtime.rl.roles.rollout import Rollout
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.runtime.rl.algos.test_memory import CHOICE, KINDS, PICTURES, VECTOR, Ending, observations

pytestmark = pytest.mark.usefixtures("one_thread")
NUMBERS = ActionSpace(2)
COPIES, STEPS = 2, 4


def shape_of(kind: str, obs: ObsSpace = VECTOR, action: ActionSpace = NUMBERS) -> ActorShape:
    return ActorShape.of(
        obs,
        action,
        (7,),
        head="categorical" if action.choices else "squashed",
        convolutions=((4, 3, 2),),
        is_normalised=True,
        memory=Memory.of({"kind": kind, "size": 5}),
    )


def sequences(shape: ActorShape, seed: int = 0, count: int = 3, steps: int = 6, *, n_step: int = 1) -> Batch:
    """Sequences of random steps, with random ends."""
    assert shape.memory is not None
    rng, rows = np.random.default_rng(seed), count * steps
    action = rng.uniform(-1, 1, (rows, shape.act_dim))
    if shape.choices:
        action = rng.integers(0, shape.choices[0], (rows, 1))
    ended = rng.choice(np.array([0, 0, 0, 1, 2]), (count, steps))
    # As workers sum: up to this many steps, but not beyond an end or the last step.
    summed = np.ones((count, steps), np.int64)
    for sequence, step in np.ndindex(count, steps):
        while summed[sequence, step] < n_step and step + summed[sequence, step] < steps:
            if ended[sequence, step + summed[sequence, step] - 1]:
                break
            summed[sequence, step] += 1
    last = np.arange(steps) + summed - 1
    terminated = np.take_along_axis(ended, last, axis=1) == 1

    def tensor(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.float32)).flatten(0, 1)

    return Batch(
        obs=torch.from_numpy(observations(shape.obs_space, rows, seed)),
        action=torch.from_numpy(action.astype(np.float32)),
        reward=torch.from_numpy(rng.standard_normal(rows).astype(np.float32)),
        next_obs=torch.from_numpy(observations(shape.obs_space, rows, seed + 1)),
        terminated=tensor(terminated),
        steps=tensor(summed) if n_step > 1 else None,
        ended=tensor(ended),
        state=torch.from_numpy(0.5 * rng.standard_normal((count, shape.memory.state_size)).astype(np.float32)),
    )


def one_by_one(network: Any, batch: Batch, first: torch.Tensor, burn_in: int) -> list[list[torch.Tensor]]:
    """States after each step of each sequence: from one step to the next, with resets, and warm-up ones as
    constants.
    """
    obs, ended = batch.obs.view(len(first), -1, batch.obs.shape[1]), batch.ended.view(len(first), -1)
    result: list[list[torch.Tensor]] = []
    for sequence, state in enumerate(first):
        states: list[torch.Tensor] = []
        for step in range(obs.shape[1]):
            if step and ended[sequence, step - 1]:
                before = torch.zeros_like(state)
            else:
                before = states[-1] if step else state
            behind = network.follow(obs[sequence, step][None], before[None])[0]
            states.append(behind.detach() if step < burn_in else behind)
        result.append(states)
    return result


def rows_of(states: list[list[torch.Tensor]], burn_in: int) -> torch.Tensor:
    return torch.stack([state for steps in states for state in steps[burn_in:]])[:, :5]


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("burn_in", [0, 2])
@pytest.mark.parametrize("obs", [VECTOR, PICTURES], ids=["vector", "pictures"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_losses_are_those_of_steps_taken_one_by_one(
    kind: str, obs: ObsSpace, burn_in: int, n_step: int
) -> None:
    config = SACConfig(hidden=(7,), gamma=0.9, burn_in=burn_in, n_step=n_step)
    method, batch = RecurrentSAC(shape_of(kind, obs), config, seed=1), sequences(shape_of(kind, obs), n_step=n_step)
    with torch.no_grad():
        for network in method.networks():  # initial zeros would hide an error
            size = network.arena.flat.numel() - 2 * method.shape.obs_space.vector
            network.arena.flat[:size].add_(0.2 * torch.randn(size, generator=torch.Generator().manual_seed(size)))
        kernels = sum(kernel.numel() for kernel in method.critic.kernels)
        method.actor.arena.flat[:kernels].copy_(method.critic.arena.flat[:kernels])
    before = copy.deepcopy(method)
    stats = method.update(batch).floats()

    count, steps = len(batch.state), len(batch.obs) // len(batch.state)
    zeros = torch.zeros_like(batch.state)
    policy = one_by_one(before.actor, batch, batch.state, burn_in)
    critic, target = (one_by_one(net, batch, zeros, burn_in) for net in (before.critic, before.target))
    behind: dict[str, list[torch.Tensor]] = {"policy": [], "target": []}
    learned = [(sequence, step) for sequence in range(count) for step in range(burn_in, steps)]
    for sequence, step in learned:
        row = sequence * steps + step
        last = step + (int(batch.steps[row]) if batch.steps is not None else 1) - 1
        for name, network, states in (("policy", before.actor, policy), ("target", before.target, target)):
            behind[name].append(network.follow(batch.next_obs[row][None], states[sequence][last][None])[0, :5])
    index = torch.tensor([sequence * steps + step for sequence, step in learned])
    noise = [torch.randn(len(index), 2, generator=before._noise) for _ in range(2)]
    alpha = before._log_alpha.exp()
    with torch.no_grad():
        action, log_prob = before.actor.sample(torch.stack(behind["policy"]), noise[0])
        value = before.target(torch.stack(behind["target"]), action).min(dim=0).values - alpha * log_prob
        gone = batch.steps[index] if batch.steps is not None else 1
        y = batch.reward[index] + (1 - batch.terminated[index]) * 0.9**gone * value
    q = before.critic(rows_of(critic, burn_in), batch.action[index])
    critic_loss = (q - y).square().mean()
    assert stats["critic_loss"] == pytest.approx(critic_loss.item(), rel=1e-4)
    state = method.state()
    gradient = before.critic.arena.gradient(critic_loss)
    assert state["critic.mean"].numpy() == pytest.approx(0.1 * gradient.numpy(), abs=1e-5)

    stepped = copy.deepcopy(before.critic)
    moments = 2 * method.shape.obs_space.vector
    stepped.arena.flat[:-moments].copy_(method.critic.arena.flat[:-moments])
    with torch.no_grad():
        seen = rows_of(one_by_one(stepped, batch, zeros, burn_in), burn_in)
        before.actor.arena.flat[:kernels].copy_(stepped.arena.flat[:kernels])
    states = rows_of(one_by_one(before.actor, batch, batch.state, burn_in), burn_in)
    action, log_prob = before.actor.sample(states, noise[1])
    actor_loss = (alpha.detach() * log_prob - stepped(seen, action).min(dim=0).values).mean()
    assert stats["actor_loss"] == pytest.approx(actor_loss.item(), rel=1e-4, abs=1e-5)
    gradient = before.actor.arena.gradient(actor_loss)
    assert state["actor.mean"].numpy() == pytest.approx(0.1 * gradient.numpy(), abs=1e-5)
    assert not gradient[:kernels].any(), "the critics alone teach the kernels"


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("burn_in", [0, 2])
@pytest.mark.parametrize("make", [RecurrentSAC, RecurrentDiscreteSAC])
def test_nothing_is_learned_from_padding(make: Any, burn_in: int, n_step: int) -> None:
    shape = shape_of("gru", action=CHOICE if make is RecurrentDiscreteSAC else NUMBERS)
    config = SACConfig(hidden=(7,), gamma=0.9, burn_in=burn_in, n_step=n_step)
    arenas = []
    for value in (0, 1):
        method, batch = make(shape, config, seed=1), sequences(shape, count=2, steps=8, n_step=n_step)
        absent = torch.zeros(16, dtype=torch.bool)
        absent[3:6] = absent[8:12] = absent[14] = True  # within a sequence, at its beginning, before its end
        batch.ended[absent], batch.terminated[absent] = ABSENT, 1
        before = absent.roll(-1)
        before[7] = before[15] = False
        batch.ended[before & ~absent], batch.terminated[before & ~absent] = 1, 1
        if batch.steps is not None:
            for row in batch.ended.nonzero().flatten().tolist():
                least = max(row // 8 * 8, row - 2)
                for earlier in range(least, row + 1):
                    batch.steps[earlier] = min(int(batch.steps[earlier]), row - earlier + 1)
        for column in (batch.obs, batch.action, batch.reward, batch.next_obs):
            column[absent] = value
        method.update(replace(batch, absent=absent))
        arenas.append(torch.cat([network.arena.flat for network in method.networks()]))
    assert arenas[0].isfinite().all()
    assert torch.equal(*arenas)


def test_padding_of_a_replay_is_marked_also_after_it_is_resumed() -> None:
    settings = settings_of()
    plan = make_plan(settings, VECTOR, NUMBERS)
    store, loaded = make_store(plan, settings, 0), make_store(plan, settings, 0)
    assert isinstance(store, SequenceReplay)
    assert isinstance(loaded, SequenceReplay)
    *segments, last = Recorded(plan).segments(3)
    for columns in segments:
        store.put(columns)
    assert store.sample(8 * STEPS).absent is None
    ended = last[3].copy()
    ended[np.flatnonzero(ended == 0)[-2:]] = ABSENT
    store.put((*last[:3], ended, *last[4:]))
    loaded.load_state(store.state())
    for each in (store, loaded):
        batch = each.sample(64 * STEPS)
        assert batch.absent is not None
        assert torch.equal(batch.absent, batch.ended == ABSENT)
        assert 0 < batch.absent.sum() < len(batch.absent)
        assert batch.terminated[batch.absent].eq(1).all()


@pytest.mark.parametrize("make", [RecurrentSAC, RecurrentDiscreteSAC])
@pytest.mark.parametrize("kind", KINDS)
def test_resumed_updates_are_bit_for_bit_those_of_an_unbroken_run(kind: str, make: Any) -> None:
    shape = shape_of(kind, action=CHOICE if make is RecurrentDiscreteSAC else NUMBERS)
    config = SACConfig(hidden=(7,), burn_in=1)
    method, resumed = (make(shape, config, seed=seed) for seed in (1, 77))
    assert all(np.isfinite(value) for value in method.update(sequences(shape)).floats().values())
    resumed.load_state(method.state())
    batch = sequences(shape, 1)
    assert method.update(batch).floats() == resumed.update(batch).floats()
    assert all(torch.equal(tensor, resumed.state()[part]) for part, tensor in method.state().items())
    with pytest.raises(ValueError, match="needs"):
        make(replace(shape, is_normalised=False), config, seed=0).load_state(method.state())


def settings_of(**changes: Any) -> Settings:
    values = {
        "algorithm": "sac",
        "memory": {"kind": "lstm", "size": 5},
        "hidden": [7],
        "num_envs": COPIES,
        "segment_steps": STEPS,
        "replay_capacity": 5 * COPIES * STEPS + 3,  # not whole segments
        "sac": {"batch_size": 3 * STEPS},
    }
    return from_mapping({**values, **changes})


class Recorded:
    """A worker's rollout by a fixed policy, and its state before each observation."""

    def __init__(self, plan: Plan, lost: int = -1) -> None:
        self.plan, self.actor = plan, NumpyActor(plan.shape)
        self.actor.load(build(plan, 3, "cpu").actor_arena())
        self._states = CopyStates(self.actor, COPIES)
        self._rng = np.random.default_rng(0)
        self._rollout = Rollout(Ending(lost), plan.layout, STEPS, 0, n_step=plan.n_step, states=self._states)
        self.before: dict[bytes, np.ndarray] = {}

    def _act(self, obs: np.ndarray) -> tuple[np.ndarray, None]:
        self.before.update({row.tobytes(): state for row, state in zip(obs, self._states.state, strict=True)})
        return self.actor.draw(self._states.outputs(obs), self._rng), None

    def segments(self, count: int) -> Iterator[tuple[np.ndarray, ...]]:
        while count:
            if (finished := self._rollout.step(self._act, 1)) is not None:
                count -= 1
                yield self.plan.layout.columns(finished.memory.view, COPIES * STEPS, finished.segment.tail)


@pytest.mark.parametrize("device", [None, "cpu"], ids=["host", "device"])
@pytest.mark.parametrize("lost", [-1, 7])
@pytest.mark.parametrize("n_step", [1, 2])
def test_stored_states_are_those_that_the_observations_lead_to(n_step: int, lost: int, device: str | None) -> None:
    """From a worker through segments, a full ring and a checkpoint to the batch, row by row."""
    settings = settings_of(sac={"n_step": n_step, "batch_size": 64 * STEPS})
    plan = make_plan(settings, VECTOR, CHOICE)
    assert plan.method.endswith("RecurrentDiscreteSAC")
    worker, store = Recorded(plan, lost), make_store(plan, settings, 0, device=device)
    assert isinstance(store, SequenceReplay)
    for columns in worker.segments(13):
        store.put(columns)
    loaded = make_store(plan, settings, 1)
    assert isinstance(loaded, SequenceReplay)
    loaded.load_state(store.state())
    batch = store.sample(64 * STEPS)
    assert all(torch.equal(*pair) for pair in zip(batch.tensors, loaded.sample(64 * STEPS).tensors, strict=True))
    obs, ended = batch.obs.view(64, STEPS, 3).numpy(), batch.ended.view(64, STEPS).numpy()
    assert len({rows[0].tobytes() for rows in obs}) == 5 * COPIES, "each sequence that is whole"
    assert set(ended.flatten()) == {0.0, 2.0}
    followed = batch.next_obs.view(64, STEPS, 3).numpy()
    for rows, ends, state, behind in zip(obs, ended, batch.state.numpy(), followed, strict=True):
        carried = CopyStates(worker.actor, 1)
        carried.state = state[None, :10]
        for step, row in enumerate(rows):
            assert carried.state[0] == pytest.approx(worker.before[row.tobytes()], abs=1e-6)
            carried.outputs(row[None])
            carried.advance(ends[step : step + 1] > 0)
            if n_step == 1 and not ends[step] and step + 1 < STEPS:
                assert (behind[step] == rows[step + 1]).all()
    assert sum(state.any() for state in batch.state) > 32, "states go from segment to segment"


def test_a_batch_is_learned_from_and_shared_by_whole_sequences() -> None:
    settings = settings_of(sac={"batch_size": 4 * STEPS, "burn_in": 1})
    plan = make_plan(settings, VECTOR, NUMBERS)
    store = make_store(plan, settings, 0)
    assert isinstance(store, SequenceReplay)
    for columns in Recorded(make_plan(settings, VECTOR, NUMBERS)).segments(3):
        store.put(columns)
    batch = store.sample(4 * STEPS)
    first, second = batch.shares(2)
    assert [len(first.obs), len(first.state)] == [2 * STEPS, 2]
    assert torch.equal(torch.cat([first.state, second.state]), batch.state)
    assert torch.equal(second.ended, batch.ended[2 * STEPS :])
    build(plan, 0, "cpu").update(second)


def test_a_bounded_checkpoint_has_whole_segments_and_others_are_refused() -> None:
    settings = settings_of()
    plan = make_plan(settings, VECTOR, NUMBERS)
    store = make_store(plan, settings, 0)
    assert isinstance(store, SequenceReplay)
    segments = list(Recorded(plan).segments(6))
    for columns in segments:
        store.put(columns)
    state = store.state(most_bytes=len(store.state()["obs"]) * 40)
    assert 0 < len(state["reward"]) < len(store)
    assert len(state["reward"]) % (COPIES * STEPS) == 0
    loaded = make_store(plan, settings, 0)
    assert isinstance(loaded, SequenceReplay)
    loaded.load_state(state)
    loaded.put(segments[0])
    known = {row.tobytes() for columns in segments for row in columns[0]}
    assert all(row.numpy().tobytes() in known for row in loaded.sample(64).obs)
    other = settings_of(num_envs=1, segment_steps=2 * STEPS)
    elsewhere = make_store(make_plan(other, VECTOR, NUMBERS), other, 0)
    assert isinstance(elsewhere, SequenceReplay)
    with pytest.raises(
        ValueError, match="segments of 2 x 4 and this one of 1 x 8; with memory resume with the same"
    ):
        elsewhere.load_state(state)
    with pytest.raises(ValueError, match="segments of no fixed size and this one of 2 x 4"):
        loaded.load_state({name: part for name, part in state.items() if name != "sequence"})


def test_segments_of_another_size_are_refused() -> None:
    settings = settings_of()
    plan = make_plan(settings, VECTOR, NUMBERS)
    store = make_store(plan, settings, 0)
    assert isinstance(store, SequenceReplay)
    (whole,) = Recorded(plan).segments(1)
    obs, action, reward, _, state = (column[: COPIES * 2] for column in whole[:-1])
    with pytest.raises(ValueError, match="no segment of 4 steps of 2 copies"):
        store.put((obs, action, reward, np.zeros(COPIES * 2, np.uint8), state, whole[-1][:COPIES]))
    arena = np.concatenate([np.ascontiguousarray(column).view(np.uint8).reshape(-1) for column in whole])
    counts, tails = (COPIES * STEPS,), (len(whole[-1]),)
    assert store.faulty_segments(SegmentBundle(plan.layout, arena.data, counts, tails)) == frozenset()
    one = make_store(plan, replace(settings, num_envs=1, segment_steps=8), 0)
    assert isinstance(one, SequenceReplay)
    assert one.faulty_segments(SegmentBundle(plan.layout, arena.data, counts, tails)) == {0}


def test_the_account_of_the_replay_is_its_size() -> None:
    settings = settings_of(replay_capacity=4_000)
    plan = make_plan(settings, VECTOR, NUMBERS)
    store = make_store(plan, settings, 0)
    assert isinstance(store, SequenceReplay)
    row = sum(field.item_bytes for field in store.fields)
    index = 8 + 1  # the row of the next observation, and the count of summed steps that a replay may have
    needed = store.capacity * (row + index) + store.index.tail * store.layout.tail_bytes
    memory = memory_of(plan, settings)
    assert memory.replay_bytes == needed
    before_launch = {
        "memory": {"kind": "lstm", "size": 5},
        "hidden": [7],
        "num_envs": COPIES,
        "segment_steps": STEPS,
        "replay_capacity": 4_000,
        "sac": {"batch_size": 3 * STEPS},
    }
    assert memory_of_settings(before_launch, 12, 8) == memory


def cue_segments(actor: NumpyActor, plan: Plan, rng: np.random.Generator) -> tuple[tuple[np.ndarray, ...], float]:
    """One segment of 32 copies: the action at the last of four steps should match the first observation."""
    states, cue = CopyStates(actor, 32), rng.integers(0, 2, 32)
    obs = np.zeros((4, 32, 2), np.float32)
    obs[0, :, 0] = 2 * cue - 1
    obs[3, :, 1] = 1
    action = []
    for row in obs:
        action.append(actor.draw(states.outputs(row), rng))
        states.advance(np.zeros(32, bool))
    last = action[3][:, 0]
    right = last == cue if plan.shape.choices else 0.5 * (1 + last * obs[0, :, 0])
    reward, ended = np.zeros((4, 32), np.float32), np.zeros((4, 32), np.uint8)
    reward[3], ended[3] = right, 1
    zeros = np.zeros((128, plan.shape.memory.column_width(4)), np.float32)
    columns = (obs.reshape(128, 2), np.concatenate(action), reward.reshape(-1), ended.reshape(-1), zeros)
    return (*columns, np.zeros((32, 2), np.float32)), float(np.mean(right))


@pytest.mark.parametrize("action", [ActionSpace(1), ActionSpace(1, (2,))], ids=["numbers", "choices"])
def test_it_learns_to_remember_what_the_first_observation_showed(action: ActionSpace) -> None:
    """Without memory half of it is right."""
    method = {"batch_size": 128, "gamma": 0.9, "tau": 0.05, "actor_lr": 5e-3, "critic_lr": 5e-3, "init_alpha": 0.02}
    settings = settings_of(
        memory={"kind": "gru", "size": 16},
        hidden=[16],
        num_envs=32,
        replay_capacity=5_120,
        sac={**method, "alpha_lr": 0, "burn_in": 0},
    )
    plan = make_plan(settings, ObsSpace(2), action)
    learning, store = build(plan, 0, "cpu"), make_store(plan, settings, 0)
    assert isinstance(store, SequenceReplay)
    actor, rng, latest = NumpyActor(plan.shape), np.random.default_rng(0), 0.5
    for number in range(500):
        if number % 4 == 0:
            actor.load(learning.actor_arena())
            columns, right = cue_segments(actor, plan, rng)
            latest = 0.9 * latest + 0.1 * right
            store.put(columns)
        if latest > 0.8:
            break
        learning.update(store.sample(128))
    assert latest > 0.8
