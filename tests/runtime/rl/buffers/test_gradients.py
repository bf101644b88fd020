"""Distributed update: gradients as segments, the parameter server, and the effects of staleness."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runtime.base.training import from_mapping
from runtime.rl.algos.actor import ActorShape, NumpyActor
from runtime.rl.algos.plan import build, make_plan
from runtime.rl.buffers.rollout_buffer import Gradients, Rollouts, gradient_layout, rollout_layout
from runtime.rl.envs.registry import make_vector_env
from runtime.rl.roles.rollout import Rollout
from runtime.rl.roles.worker_gradients import RolloutGradients, cross_entropy_gradient
from runtime.rl.spaces import ActionSpace, ObsSpace


def actor_at_random(shape: ActorShape, seed: int) -> NumpyActor:
    actor = NumpyActor(shape)
    actor.load(np.random.default_rng(seed).standard_normal(shape.size).astype(np.float32) * 0.3)
    return actor


def test_the_gradient_of_the_cross_entropy_is_torchs() -> None:
    shape = ActorShape.of(ObsSpace(6), ActionSpace(1, (4,)), (9, 7), head="categorical")
    actor = actor_at_random(shape, 0)
    rng = np.random.default_rng(1)
    obs, right = rng.standard_normal((20, 6), dtype=np.float32), rng.integers(0, 4, 20)
    gradient, hits, loss = cross_entropy_gradient(actor, obs, right)

    flat = torch.from_numpy(actor.weights.copy()).requires_grad_()
    hidden, at = torch.from_numpy(obs), 0
    for number, (inputs, outputs) in enumerate(shape.layers):
        weight = flat[at : at + inputs * outputs].view(inputs, outputs)
        bias = flat[at + inputs * outputs : at + (inputs + 1) * outputs]
        hidden = hidden @ weight + bias
        hidden = hidden.relu() if number < len(shape.layers) - 1 else hidden
        at += (inputs + 1) * outputs
    expected = torch.nn.functional.cross_entropy(hidden, torch.from_numpy(right))
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert gradient == pytest.approx(flat.grad.numpy(), abs=1e-6)
    assert hits == int((hidden.argmax(dim=1).numpy() == right).sum())


def test_gradients_wait_in_order_until_there_are_enough() -> None:
    store = Gradients(gradient_layout(2), 2)
    store.put((np.array([[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]], dtype=np.float32),))
    resumed = Gradients(gradient_layout(2), 2)
    resumed.load_state(store.state())
    for each in (store, resumed):
        assert each.take().tolist() == [2.0, 3.0]
        assert each.take() is None
        assert len(each) == 1


def test_a_gradient_on_rollouts_is_the_learners_own() -> None:
    given = {
        "environment": "CartPole-v1",
        "algorithm": "impala",
        "num_envs": 4,
        "segment_steps": 8,
        "impala": {"batch_steps": 32, "sends_gradients": True, "hidden": [8]},
    }
    env = make_vector_env("CartPole-v1", 4, options={})
    remote = make_plan(from_mapping(given), env.obs_space, env.action_space)
    own = make_plan(
        from_mapping({**given, "impala": {**given["impala"], "sends_gradients": False}}),
        env.obs_space,
        env.action_space,
    )
    assert (remote.segment_transitions, remote.item_steps) == (1, 32)
    server, learner, helper = build(remote, 5, "cpu"), build(own, 5, "cpu"), build(own, 77, "cpu")
    actor = NumpyActor(remote.shape)
    actor.load(server.actor_arena())
    assert (actor.weights[: own.shape.size] == learner.actor_arena()).all()

    rng = np.random.default_rng(0)
    layout = rollout_layout(env.obs_space, env.action_space)
    work = RolloutGradients(env, layout, 8, 3, helper)
    found = None
    while found is None:
        found = work.step(lambda obs: actor.draw_with_log_prob(actor.outputs(obs), rng), actor, 1)
    again = np.random.default_rng(0)
    rollout, rollouts = Rollout(env, layout, 8, 3), Rollouts(layout, 4, 32, 32)
    segment = None
    while segment is None:
        segment = rollout.step(lambda obs: actor.draw_with_log_prob(actor.outputs(obs), again), 1)
    rollouts.put(layout.columns(segment.memory.view, 32, segment.segment.tail))
    expected = learner.gradient(rollouts.take())[0].numpy()
    assert np.frombuffer(found.memory.view, dtype=np.float32) == pytest.approx(expected, abs=1e-6)
    assert found.segment.transitions == 1


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"algorithm": "impala", "impala": {"sends_gradients": True, "epochs": 2, "clip": 0.2}}, "applied once"),
    ],
)
def test_what_cannot_be_descended_on_is_refused(given: dict[str, object], sentence: str) -> None:
    settings = from_mapping(given)
    env = make_vector_env(settings.environment, 1, options={})
    with pytest.raises(ValueError, match=sentence):
        make_plan(settings, env.obs_space, env.action_space)
