"""Policies with memory: cells against torch's own, unrolling against steps, stored states, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from runtime.base.errors import SetupError
from runtime.base.methods import ImpalaConfig, PPOConfig
from runtime.base.training import SettingsError, from_mapping, parse
from runtime.rl.algos.actor import ActorShape, CopyStates, NumpyActor
from runtime.rl.algos.memory import Memory, spread_states
from runtime.rl.algos.plan import make_plan
from runtime.rl.algos.recurrent import RecurrentImpala, RecurrentPolicy, RecurrentPPO, starting_states
from runtime.rl.buffers.rollout_buffer import RolloutBatch, Rollouts
from runtime.rl.envs.base import StepResult
from runtime.rl.roles.rollout import Rollout
from runtime.rl.roles.settings_check import check_settings
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.fakes.padding import padded

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = ("gru", "lstm")
VECTOR, PICTURES = ObsSpace(3), ObsSpace(2, ((8, 8, 1),))
CHOICE = ActionSpace(1, (3,))


def shape_of(kind: str, obs: ObsSpace = VECTOR, *, is_normalised: bool = False) -> ActorShape:
    return ActorShape.of(
        obs,
        CHOICE,
        (7,),
        head="categorical",
        convolutions=((4, 3, 2),),
        activation="tanh",
        is_normalised=is_normalised,
        memory=Memory.of({"kind": kind, "size": 5}),
    )


def policy_of(shape: ActorShape, seed: int = 0) -> RecurrentPolicy:
    policy = RecurrentPolicy(shape, torch.Generator().manual_seed(seed), "cpu")
    # Small outputs and biases of zero would hide an error.
    policy.arena.flat.add_(0.3 * torch.randn(policy.arena.flat.shape, generator=torch.Generator().manual_seed(1)))
    return policy


def observations(space: ObsSpace, count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    images = [rng.integers(0, 256, (count, *image), dtype=np.uint8) for image in space.images]
    return space.pack(rng.standard_normal((count, space.vector), dtype=np.float32), images)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_is_that_of_torch(kind: str) -> None:
    memory = Memory.of({"kind": kind, "size": 5})
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(part).astype(np.float32) for part in memory.parts(4)]
    features = rng.standard_normal((6, 4)).astype(np.float32)
    state = rng.standard_normal((6, memory.state_size)).astype(np.float32)
    cell = (torch.nn.GRUCell if kind == "gru" else torch.nn.LSTMCell)(4, 5)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    cell.load_state_dict({name: torch.from_numpy(part.T.copy()) for name, part in zip(names, parts, strict=True)})
    before = torch.from_numpy(state)
    given = torch.from_numpy(features)
    with torch.no_grad():
        after = cell(given, before) if kind == "gru" else torch.cat(cell(given, before.split(5, dim=1)), dim=1)
    assert memory.step(parts, features, state) == pytest.approx(after.numpy(), abs=1e-5)


@pytest.mark.parametrize("obs", [VECTOR, PICTURES], ids=["vector", "pictures"])
@pytest.mark.parametrize("kind", KINDS)
def test_unrolling_with_masks_is_a_worker_stepping_with_resets(kind: str, obs: ObsSpace) -> None:
    shape = shape_of(kind, obs, is_normalised=True)
    policy, actor = policy_of(shape), NumpyActor(shape)
    actor.load(policy.arena.flat.numpy())
    rows = observations(obs, 6 * 4)
    ended = np.random.default_rng(2).choice(np.array([0, 0, 1, 2], np.uint8), (6, 4))
    carried = CopyStates(actor, 4)
    carried.state = first = np.random.default_rng(3).standard_normal(carried.state.shape).astype(np.float32)
    outputs, states = [], []
    for row, ends in zip(rows.reshape(6, 4, -1), ended, strict=True):
        states.append(carried.state)
        outputs.append(carried.outputs(row))
        carried.advance(ends > 0)
    unrolled = policy.unroll(
        torch.from_numpy(rows).view(6, 4, -1), torch.from_numpy(ended), torch.from_numpy(first)
    )
    assert policy.head(unrolled.flatten(0, 1)).detach().numpy() == pytest.approx(np.concatenate(outputs), abs=1e-5)
    # A stored state equals the one from unrolling from the beginning with the same weights.
    middle = torch.from_numpy(states[3])
    again = policy.unroll(torch.from_numpy(rows[12:]).view(3, 4, -1), torch.from_numpy(ended[3:]), middle)
    assert torch.allclose(again, unrolled[3:], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_flow_across_steps_and_not_across_an_episodes_end(kind: str) -> None:
    policy = policy_of(shape_of(kind))
    obs = torch.randn(5, 2, 3, requires_grad=True)
    ended = torch.zeros(5, 2, dtype=torch.uint8)
    ended[1, 1] = 1
    state = torch.randn(2, policy.memory.state_size, requires_grad=True)
    loss = policy.head(policy.unroll(obs, ended, state)[4]).square().sum()
    by_obs, by_state = torch.autograd.grad(loss, (obs, state))
    assert (by_obs[:, 0] != 0).any(dim=1).all(), "within an episode from the first step to the last"
    assert (by_state[0] != 0).any()
    assert (by_obs[2:, 1] != 0).any(dim=1).all()
    assert (by_obs[:2, 1] == 0).all(), "nothing from before the end"
    assert (by_state[1] == 0).all()


@pytest.mark.parametrize(("copies", "steps", "size"), [(1, 1, 5), (3, 4, 5), (2, 16, 5), (2, 3, 12)])
def test_states_spread_over_a_segment_come_back_for_each_copy(copies: int, steps: int, size: int) -> None:
    states = np.random.default_rng(0).standard_normal((copies, size)).astype(np.float32)
    width = replace(Memory("gru"), size=size).column_width(steps)
    column = np.full((steps * copies, width), np.nan, np.float32)
    spread_states(states, column)
    assert np.isfinite(column).all()
    back = torch.from_numpy(column).view(steps, copies, width)
    assert (starting_states(back, size).numpy() == states).all()
    joined = torch.cat([back, back], dim=1)
    assert (starting_states(joined[:, copies:], size).numpy() == states).all()


class Ending:
    """Two copies; the second one's episodes end after every third step, and the simulator is lost at one step."""

    num_envs, step_seconds = 2, 0.1
    obs_space, action_space = VECTOR, CHOICE

    def __init__(self, lost: int = -1) -> None:
        self.steps, self.lost = 0, lost
        self.rng = np.random.default_rng(0)

    def reset(self, seed: int) -> np.ndarray:
        return self.rng.standard_normal((2, 3)).astype(np.float32)

    def step(self, action: np.ndarray) -> StepResult:
        self.steps += 1
        obs = self.rng.standard_normal((2, 3)).astype(np.float32)
        ended = np.array([False, self.steps % 3 == 0])
        no = np.zeros(2, bool)
        if self.steps == self.lost:
            return StepResult(obs, np.zeros(2, np.float32), no, no, obs, (), is_lost=True)
        return StepResult(obs, np.ones(2, np.float32), no, ended, obs + 1, ())


@pytest.mark.parametrize("lost", [-1, 4, 7])
@pytest.mark.parametrize("method", ["ppo", "impala"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_segment_has_the_states_that_its_policy_acted_by(kind: str, method: str, lost: int) -> None:
    """From a worker through segments and the store to the learner: the probabilities are unchanged."""
    training = from_mapping(
        {
            "algorithm": method,
            "memory": {"kind": kind, "size": 5},
            "hidden": [7],
            "num_envs": 2,
            "segment_steps": 4,
            method: {"batch_steps": 16, **({"minibatch_size": 8} if method == "ppo" else {})},
        }
    )
    plan = make_plan(training, VECTOR, CHOICE)
    rng, env = np.random.default_rng(0), Ending(lost)
    learning = (RecurrentPPO if method == "ppo" else RecurrentImpala)(plan.shape, plan.config, seed=0)
    actor = NumpyActor(plan.shape)
    actor.load(learning.actor_arena())
    states = CopyStates(actor, 2)
    rollout = Rollout(env, plan.layout, 4, 0, states=states)
    store = Rollouts(plan.layout, 2, 8, 16)
    batch = None
    while batch is None:
        finished = rollout.step(lambda obs: actor.draw_with_log_prob(states.outputs(obs), rng), 1)
        if finished is not None:
            store.put(plan.layout.columns(finished.memory.view, 8, finished.segment.tail))
            if len(store) == 16:
                loaded = Rollouts(plan.layout, 2, 8, 16)
                loaded.load_state(store.state())  # as in a checkpoint
                batch = loaded.take()
    assert starting_states(batch.state, plan.shape.memory.state_size)[2].any(), (
        "a state goes from segment to segment"
    )
    log_prob, _ = log_probs(learning, batch)
    assert log_prob.numpy() == pytest.approx(batch.log_prob.flatten().numpy(), abs=1e-5)
    first, second = batch.shares(2)
    for share, half in ((first, slice(0, 2)), (second, slice(2, 4))):
        assert log_probs(learning, share)[0].view(4, 2).numpy() == pytest.approx(
            batch.log_prob[:, half].numpy(), abs=1e-5
        )
    learning.update(batch)


def log_probs(method: RecurrentPPO | RecurrentImpala, batch: RolloutBatch) -> tuple[torch.Tensor, torch.Tensor]:
    policy = method.policy
    with torch.no_grad():
        states = policy.unroll(
            batch.obs, batch.ended, starting_states(batch.state, policy.memory.state_size)
        ).flatten(0, 1)
        return policy.judge(policy.head(states), batch.action.flatten(0, 1))


def rollouts(method: RecurrentPPO | RecurrentImpala, seed: int, steps: int = 6, copies: int = 4) -> RolloutBatch:
    """Rollouts of random observations, with actions of the method's own policy from random states."""
    rng = np.random.default_rng(seed)
    shape, obs = (steps, copies), observations(VECTOR, steps * copies, seed)
    memory = method.shape.memory
    column = np.zeros((steps * copies, memory.column_width(steps)), np.float32)
    spread_states(0.5 * rng.standard_normal((copies, memory.state_size)).astype(np.float32), column)
    batch = RolloutBatch(
        obs=torch.from_numpy(obs).view(*shape, -1),
        action=torch.from_numpy(rng.integers(0, 3, (*shape, 1), dtype=np.int32)),
        log_prob=torch.zeros(shape),
        reward=torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)),
        next_obs=torch.from_numpy(rng.standard_normal((*shape, 3), dtype=np.float32)),
        ended=torch.from_numpy(rng.choice(np.array([0, 0, 0, 1, 2], dtype=np.uint8), shape)),
        state=torch.from_numpy(column).view(*shape, -1),
    )
    return replace(batch, log_prob=log_probs(method, batch)[0].view(shape))


METHODS = {
    "ppo": (RecurrentPPO, PPOConfig(hidden=(7,), minibatch_size=12, epochs=2)),
    "impala": (RecurrentImpala, ImpalaConfig(hidden=(7,))),
    "appo": (RecurrentImpala, ImpalaConfig(hidden=(7,), clip=0.2, epochs=2)),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_resumed_updates_are_bit_for_bit_those_of_an_unbroken_run(kind: str, name: str) -> None:
    make, config = METHODS[name]
    method, resumed = (make(shape_of(kind, is_normalised=True), config, seed=seed) for seed in (1, 77))
    stats = method.update(rollouts(method, 0)).floats()
    assert all(np.isfinite(value) for value in stats.values())
    resumed.load_state(method.state())
    batch = rollouts(method, 1)
    assert method.update(batch).floats() == resumed.update(batch).floats()
    state = resumed.state()
    assert all(torch.equal(tensor, state[part]) for part, tensor in method.state().items())
    with pytest.raises(ValueError, match="needs"):
        make(shape_of(kind), config, seed=0).load_state(state)


@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_learned_from_padding_whatever_it_holds(name: str) -> None:
    make, config = METHODS[name]
    states = []
    for value in (0, 1):
        method = make(shape_of("gru", is_normalised=True), config, seed=1)
        method.update(padded(rollouts(method, 0), value))
        states.append(method.state())
    assert all(torch.equal(tensor, states[1][part]) for part, tensor in states[0].items())


@pytest.mark.parametrize("name", ["ppo", "impala"])
def test_what_follows_a_truncation_is_valued_with_the_memory_of_its_episode(name: str) -> None:
    make, config = METHODS[name]
    method = make(shape_of("lstm"), config, seed=1)
    batch = rollouts(method, 0)
    policy = method.policy
    with torch.no_grad():
        states = policy.unroll(batch.obs, batch.ended, starting_states(batch.state, 10))
        values = method.values(states.flatten(0, 1)).view(6, 4)
        following = [
            method.next_values(values, states, batch.next_obs, batch.ended, is_captured=captured)
            for captured in (False, True)
        ]
        for t, n in torch.nonzero(batch.ended == 2).tolist():
            after = policy.follow(batch.next_obs[t, n : n + 1], states[t, n : n + 1])
            assert following[0][t, n].item() == pytest.approx(method.values(after).item(), abs=1e-6)
    inner = batch.ended[:-1] == 0
    assert torch.equal(following[0][:-1][inner], values[1:][inner])
    assert torch.allclose(*following, atol=1e-6)


def test_the_first_step_of_ppo_moves_memory_policy_and_value_by_the_gradient_of_both_losses() -> None:
    config = PPOConfig(hidden=(7,), epochs=1, minibatch_size=24, max_grad_norm=1e9)
    method = RecurrentPPO(shape_of("gru"), config, seed=5)
    batch = rollouts(method, 0)
    (_, _, _, advantage, target, _, state), count = method.minibatch_columns(batch)
    assert count == 4, "whole segments"
    advantage, target = advantage.transpose(0, 1).flatten(), target.transpose(0, 1).flatten()
    states = method.policy.unroll(batch.obs, batch.ended, state).flatten(0, 1)
    logits = method.policy.head(states)
    chosen = torch.distributions.Categorical(logits=logits).log_prob(batch.action.flatten())
    scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    loss = -(chosen * scaled).mean() + 0.25 * (method.values(states) - target).square().mean()
    gradient = method.policy.arena.gradient(loss)
    stats = method.update(batch)
    assert method.state()["policy.mean"].numpy() == pytest.approx(0.1 * gradient.numpy(), abs=1e-5)
    assert stats.floats()["kl"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_it_learns_to_remember_what_the_first_observation_showed(name: str) -> None:
    """The right choice at the last of three steps was shown at the first: without memory a third is right."""
    lengths = {
        "ppo": (20, {"lr": 1e-2, "minibatch_size": 192}),
        "impala": (150, {"lr": 1e-2}),
        "appo": (60, {"lr": 1e-2}),
    }
    updates, changes = lengths[name]
    make, config = METHODS[name]
    method = make(shape_of("gru"), replace(config, **changes), seed=0)
    actor, rng = NumpyActor(method.shape), np.random.default_rng(0)
    zeros = torch.zeros(3, 128, method.shape.memory.column_width(3))
    for _ in range(updates):
        actor.load(method.actor_arena())
        states = CopyStates(actor, 128)
        cue = rng.integers(0, 3, 128)
        obs = np.zeros((3, 128, 3), np.float32)
        obs[0, np.arange(128), cue] = 1.0
        acted = []
        for row in obs:
            acted.append(actor.draw_with_log_prob(states.outputs(row), rng))
            states.advance(np.zeros(128, bool))
        right = acted[2][0][:, 0] == cue
        reward, ended = np.zeros((3, 128), np.float32), np.zeros((3, 128), np.uint8)
        reward[2], ended[2] = right, 1
        action, log_prob = (np.stack(parts) for parts in zip(*acted, strict=True))
        columns = (obs, action, log_prob.astype(np.float32), reward, obs, ended)
        method.update(RolloutBatch(*map(torch.from_numpy, columns), state=zeros))
    assert right.mean() > 0.6


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"memory": "rnn"}, "memory: kind is 'rnn'; it must be gru or lstm"),
        ({"memory": {"kind": "gru", "size": 0}}, "memory: size is 0; it must be a whole number, at least 1"),
        ({"memory": {"sort": "gru"}}, "memory has no setting 'sort'; known are kind, size"),
        ({"algorithm": "td3"}, "memory: td3 learns no policy with memory, ppo, impala, sac do"),
        ({"algorithm": "random"}, "memory: random learns no policy with memory"),
        ({"algorithm": "dqn", "environment": "Acrobot-v1"}, "memory: dqn learns no policy with memory"),
        ({"remote_inference": True}, "memory: remote_inference cannot be combined with it"),
        ({"collect": "device"}, "memory: collect: device cannot be combined with it"),
        (
            {"algorithm": "impala", "impala": {"sends_gradients": True}},
            "memory: sends_gradients cannot be combined with it",
        ),
        ({"ppo": {"minibatch_size": 8}}, "minibatch_size is 8; with memory a minibatch is of whole segments"),
        (
            {"algorithm": "sac", "sac": {"prioritised": True}},
            "memory: prioritised cannot be combined with it in sac",
        ),
        (
            {"algorithm": "sac", "sac": {"random_shift": 2}},
            "memory: random_shift cannot be combined with it in sac",
        ),
        (
            {"algorithm": "sac", "collect": "dataset", "dataset": "x"},
            "memory: collect: dataset cannot be combined with it in sac",
        ),
        ({"algorithm": "sac", "collect": "device"}, "memory: collect: device cannot be combined with it"),
        ({"algorithm": "sac", "remote_inference": True}, "memory: remote_inference cannot be combined with it"),
        ({"algorithm": "sac", "sac": {"burn_in": 16}}, "burn_in is 16; it is the first part of a segment"),
        (
            {"algorithm": "sac", "sac": {"batch_size": 8}},
            "batch_size is 8; with memory a batch is of whole segments",
        ),
        ({"algorithm": "sac", "replay_capacity": 255}, "replay_capacity is 255; with memory it must be at least"),
    ],
)
def test_what_does_not_go_with_memory_is_refused_before_a_launch(
    settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(SetupError) as raised:
        check_settings(
            parse(json.dumps({"environment": "CartPole-v1", "algorithm": "ppo", "memory": "gru", **settings}))
        )
    assert sentence in str(raised.value)


def test_a_memory_that_is_no_text_and_no_object_is_refused() -> None:
    with pytest.raises(SettingsError, match="memory is 3; it must be a text, an object or null"):
        from_mapping({"memory": 3})
    with pytest.raises(ValueError, match="has a memory; its actions depend on the state"):
        NumpyActor(shape_of("gru")).outputs(observations(VECTOR, 1))
