"""A learner's own collection: rollouts, their use by PPO and IMPALA, replay, resumption, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from runtime.base.errors import SetupError
from runtime.base.training import Settings, SettingsError, from_mapping
from runtime.exchange.machines.member_state import Accounts
from runtime.rl.algos.actor import NumpyActor
from runtime.rl.algos.plan import Plan, build, make_plan, make_store
from runtime.rl.buffers.rollout_buffer import DeviceRollouts
from runtime.rl.envs.base import EpisodeSummary, StepResult
from runtime.rl.envs.registry import make_vector_env
from runtime.rl.roles.device_collector import (
    DeviceCollector,
    DeviceSource,
    EpisodeMeans,
    PolicySampler,
    sum_over_steps,
)
from runtime.rl.roles.rate_limiter import RateLimiter
from runtime.rl.roles.rollout import Rollout
from runtime.rl.spaces import ActionSpace, ObsSpace

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {"collect": "device", "num_envs": 16, "segment_steps": 8, "hidden": [16]}
METHODS = [
    {"algorithm": "ppo"},
    {"algorithm": "ppo", "environment": "CartPole-v1"},
    {"algorithm": "ppo", "environment_options": {"observation": "view"}, "convolutions": [[4, 5, 3], [4, 3, 2]]},
    {"algorithm": "impala"},
    {
        "algorithm": "ppo",
        "environment": "Pendulum-v1",
        "normalise_observations": True,
        "ppo": {"normalise_returns": True},
    },
]


def settings_of(**changes: Any) -> Settings:
    return from_mapping({**SMALL, **changes})


def plan_of(settings: Settings) -> Plan:
    env = make_vector_env(settings.environment, 1, options=settings.environment_options)
    return make_plan(settings, env.obs_space, env.action_space)


def collector_of(settings: Settings, seed: int = 0) -> tuple[DeviceCollector, Any, Plan]:
    plan = plan_of(settings)
    method = build(plan, seed, "cpu")
    return DeviceCollector(settings, plan, seed, "cpu", method.policy_weights), method, plan


def copied(columns: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: column.clone() for name, column in columns.items()}


@pytest.mark.parametrize("changes", METHODS)
def test_a_rollout_is_what_the_policy_did_step_by_step(changes):
    settings = settings_of(**changes)
    collector, method, plan = collector_of(settings)
    first, second = copied(collector.collect()), copied(collector.collect())
    fields = {field.name: torch.Size(field.shape_tail) for field in plan.layout.fields}
    shapes = {name: column.shape[2:] for name, column in first.items()}
    assert shapes == {**fields, "next_obs": fields["obs"]}
    goes_on = (first["ended"] == 0)[..., None]
    follows = torch.cat([first["obs"][1:], second["obs"][:1]])
    assert torch.equal(torch.where(goes_on, follows, first["next_obs"]), first["next_obs"])
    log_prob, _ = method.policy.evaluate(first["obs"].flatten(0, 1), first["action"].flatten(0, 1))
    torch.testing.assert_close(log_prob, first["log_prob"].flatten(), atol=1e-4, rtol=1e-4)
    assert collector.transitions == 128


@pytest.mark.parametrize("changes", METHODS)
def test_methods_learn_from_it_and_the_next_rollout_is_of_the_new_policy(changes):
    settings = settings_of(**changes)
    collector, method, plan = collector_of(settings)
    store = make_store(plan, settings, 0)
    assert isinstance(store, DeviceRollouts)
    before = method.policy_weights().clone()
    for _ in range(2):
        store.offer(collector.collect())
        assert len(store) == 128
        stats = method.update(store.take())
        assert len(store) == 0
        assert all(np.isfinite(list(stats.floats().values())))
    assert not torch.equal(before, method.policy_weights())
    columns = collector.collect()
    log_prob, _ = method.policy.evaluate(columns["obs"].flatten(0, 1), columns["action"].flatten(0, 1))
    torch.testing.assert_close(log_prob, columns["log_prob"].flatten(), atol=1e-4, rtol=1e-4)


def test_actions_are_drawn_as_workers_draw_them():
    """Means and spread of many draws for one observation, against the network in NumPy."""
    for environment, algorithm in (("racing", "ppo"), ("racing", "sac"), ("CartPole-v1", "ppo")):
        plan = plan_of(settings_of(environment=environment, algorithm=algorithm))
        method = build(plan, 3, "cpu")
        sampler = PolicySampler(plan.shape, "cpu", torch.Generator().manual_seed(1))
        sampler.load(method.policy_weights())
        actor, rng = NumpyActor(plan.shape), np.random.default_rng(0)
        actor.load(method.actor_arena())
        rows = np.tile(rng.normal(size=(1, plan.shape.obs_dim)).astype(np.float32), (20_000, 1))
        with torch.no_grad():
            ours, log_prob = sampler.draw(torch.from_numpy(rows))
        theirs = actor.act(rows, rng)
        assert ours.numpy().dtype == theirs.dtype
        assert ours.double().mean(dim=0).numpy() == pytest.approx(theirs.mean(axis=0), abs=0.03)
        assert ours.double().std(dim=0).numpy() == pytest.approx(theirs.std(axis=0), abs=0.03)
        if plan.is_on_policy:
            mean = actor.draw_with_log_prob(actor.outputs(rows), rng)[1].mean()
            assert float(log_prob.mean()) == pytest.approx(float(mean), abs=0.05)


def test_off_policy_rollouts_begin_at_random_and_have_a_transitions_columns():
    collector, _, plan = collector_of(settings_of(algorithm="sac", num_envs=64))
    columns = copied(collector.collect(at_random=True))
    assert set(columns) == {*plan.layout.names, "next_obs"} == {"obs", "action", "reward", "next_obs", "ended"}
    actions = columns["action"].numpy()
    assert np.histogram(actions, bins=4, range=(-1, 1))[0] == pytest.approx(np.full(4, actions.size / 4), rel=0.2)
    assert not torch.equal(columns["action"], collector.collect()["action"])


class Scripted:
    """Copies with prepared random rewards, observations and ends."""

    num_envs, step_seconds = 3, 0.0
    obs_space, action_space = ObsSpace(2), ActionSpace(1)

    def __init__(self, steps: int) -> None:
        rng = np.random.default_rng(4)
        self.obs = rng.normal(size=(steps + 1, 3, 2)).astype(np.float32)
        self.final = rng.normal(size=(steps, 3, 2)).astype(np.float32)
        self.reward = rng.normal(size=(steps, 3)).astype(np.float32)
        self.ended = rng.choice([0, 0, 0, 1, 2], size=(steps, 3)).astype(np.uint8)
        self.at = 0

    def reset(self, seed: int) -> np.ndarray:
        return self.obs[0]

    def step(self, action: np.ndarray) -> StepResult:
        t, self.at = self.at, self.at + 1
        episodes: tuple[EpisodeSummary, ...] = ()
        ends = self.ended[t] == 1, self.ended[t] == 2
        return StepResult(self.obs[t + 1], self.reward[t], *ends, self.final[t], episodes)


@pytest.mark.parametrize("n_step", [2, 3, 6])
def test_rewards_are_summed_over_steps_as_workers_do(n_step):
    env = Scripted(12)
    settings = from_mapping({"algorithm": "sac", "num_envs": 3, "segment_steps": 12, "sac": {"n_step": n_step}})
    plan = make_plan(settings, env.obs_space, env.action_space)
    rollout = Rollout(env, plan.layout, 12, 0, n_step=n_step, gamma=0.9)
    for _ in range(12):
        finished = rollout.step(lambda _: (np.zeros((3, 1), np.float32), None), 1)
    names = plan.layout.names
    theirs = dict(zip(names, plan.layout.columns(finished.memory.view, 36, finished.segment.tail), strict=False))
    columns = {
        "reward": torch.from_numpy(env.reward.copy()),
        "ended": torch.from_numpy(env.ended),
        "steps": torch.zeros(12, 3, dtype=torch.uint8),
    }
    sum_over_steps(columns, n_step, 0.9)
    for name, column in columns.items():
        np.testing.assert_allclose(column.flatten().numpy(), theirs[name], rtol=1e-5)


@pytest.mark.parametrize("changes", METHODS)
def test_a_resumed_collector_goes_on_with_the_same_steps(changes):
    settings = settings_of(**changes)
    first, method, plan = collector_of(settings)
    for _ in range(3):
        first.collect()
    saved = {name: tensor.clone() for name, tensor in first.live_state().items()}
    second = DeviceCollector(settings, plan, 99, "cpu", method.policy_weights)
    assert second.load_state(saved) == []
    ours, theirs = copied(first.collect()), second.collect()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert first.metric_fields() == second.metric_fields()


def test_copies_that_do_not_fit_begin_anew_and_it_is_said():
    collector, _, _ = collector_of(settings_of(algorithm="ppo"))
    other, _, _ = collector_of(settings_of(algorithm="ppo", num_envs=8))
    before = copied(dict(collector.live_state()))
    assert "has no 16 copies of this environment: they restart" in collector.load_state(other.live_state())[0]
    assert "they restart" in collector.load_state({})[0]
    broken = {**collector.live_state(), "generator": torch.zeros(3, dtype=torch.uint8)}
    assert "restart: the saved generator is not the state" in collector.load_state(broken)[0]
    assert all(torch.equal(before[name], tensor) for name, tensor in collector.live_state().items())


def test_episodes_are_summed_between_two_records():
    collector, _, _ = collector_of(settings_of(algorithm="ppo", environment_options={"max_seconds": 0.4}))
    assert collector.metric_fields()["mean_return"] is None
    collector.collect()
    fields = collector.metric_fields()
    assert fields["episodes"] >= 32
    assert 0 < fields["mean_length"] <= 4.0
    again = collector.metric_fields()
    assert again == {**fields, "episodes": 0, "laps": 0}, "without episodes the means are the last ones"
    assert EpisodeMeans().fields([2.0, 6.0, 20.0, 30.0, 1.0]) == {
        "mean_return": 3.0,
        "mean_length": 10.0,
        "mean_progress": 15.0,
        "episodes": 2,
        "laps": 1,
    }


class Exchange:
    """Accounts of a learner server, without sockets."""

    def __init__(self, limiter: RateLimiter) -> None:
        self.limiter, self.accounts, self.env_steps = limiter, Accounts(), 0

    def collected(self, transitions: int) -> None:
        self.accounts.settle_own(transitions)
        self.env_steps += transitions

    def await_data(self, updates: int, timeout_seconds: float) -> bool:
        assert timeout_seconds == 0.0
        return self.limiter.allows_update(self.env_steps, updates)

    def locked_sample(self, sample: Any) -> Any:
        return sample()


def source_of(settings: Settings) -> tuple[DeviceSource, Exchange, Any]:
    collector, _, plan = collector_of(settings)
    store, balance = make_store(plan, settings, 0), plan.balance
    exchange = Exchange(RateLimiter(balance.warmup_steps, balance.updates_per_step, balance.band_steps))
    return DeviceSource(collector, exchange, store), exchange, store  # type: ignore[arg-type]  # a stand-in


def test_every_update_of_an_on_policy_method_has_a_rollout_of_its_own():
    source, exchange, store = source_of(settings_of(algorithm="ppo"))
    for update in range(3):
        assert source.await_data(update, 0.0)
        assert source.await_data(update, 0.0), "once more before the update: the same rollout waits"
        assert store.take() is not None
        assert exchange.env_steps == 128 * (update + 1)
    totals = exchange.accounts.totals
    assert (totals.sent, totals.accepted, totals.transitions, totals.lost, totals.missing) == (3, 3, 384, 0, 0)
    assert source.await_data(0, 0.0), "a resumed run whose batches had another size"
    assert store.take() is not None


def test_replay_is_filled_to_the_balance_of_settings():
    source, exchange, store = source_of(
        settings_of(algorithm="sac", warmup_steps=1_000, updates_per_step=1 / 64, sac={"n_step": 3})
    )
    while not source.await_data(0, 0.01):
        pass
    assert exchange.env_steps == 1_152, "nine rollouts of 128: the first count that allows an update"
    assert len(store) == 1_152
    assert source.await_data(1, 60.0)
    assert exchange.env_steps == 1_152


def test_no_worker_gets_credit():
    assert RateLimiter(10, 0.5, 100).without_workers().ceiling(1_000) == 0
    assert RateLimiter(0, 0.5, 0).without_workers().allows_update(2, 0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"environment": "l2r", "algorithm": "ppo"}, "environment l2r has no device form"),
        ({"environment_options": {"track": "mars"}, "algorithm": "ppo"}, "track is 'mars'"),
    ],
)
def test_what_cannot_be_collected_is_refused_with_a_sentence(changes, sentence):
    settings = settings_of(**changes)
    plan = plan_of(settings_of(algorithm="ppo"))
    with pytest.raises(SetupError, match=sentence):
        DeviceCollector(settings, plan, 0, "cpu", lambda: torch.zeros(1))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"algorithm": "ppo", "lockstep": True}, "leave out sends_gradients, remote_inference and lockstep"),
        ({"algorithm": "impala", "impala": {"sends_gradients": True}}, "collects by itself and by turns"),
        ({"algorithm": "random"}, "with sac, ppo or impala"),
        ({"algorithm": "ppo", "ppo": {"batch_steps": 64}}, "batch_steps is 64; .* = 128; leave it out"),
    ],
)
def test_settings_that_do_not_go_with_it_are_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        plan_of(settings_of(**changes))


def test_defaults_are_large_rollouts_in_few_minibatches():
    settings = from_mapping({"collect": "device", "algorithm": "ppo"})
    config = plan_of(settings).config
    assert (settings.num_envs, config.batch_steps, config.minibatch_size) == (1_024, 16_384, 4_096)
    assert from_mapping({"collect": "workers"}).num_envs == 16
    with pytest.raises(SettingsError, match="collect is 'both'; it must be one of workers, device"):
        from_mapping({"collect": "both"})


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ppo_learns_to_balance_and_to_race_on_the_device():
    pole, cars = {"environment": "CartPole-v1", "num_envs": 32}, {"num_envs": 128}
    goals = [(pole, {"epochs": 8}, 30, "mean_return", 150), (cars, {"epochs": 6}, 40, "mean_progress", 100)]
    for copies, ppo, updates, figure, goal in goals:
        changes = {**copies, "segment_steps": 32}
        shared = {"lr": 1e-3, "gamma": 0.98, "minibatch_size": 512, "hidden": [64, 64], **ppo}
        collector, method, _ = collector_of(settings_of(algorithm="ppo", hidden=None, ppo=shared, **changes))
        store = DeviceRollouts(plan_of(settings_of(algorithm="ppo")).layout)
        for _ in range(updates):
            store.offer(collector.collect())
            method.update(store.take())
            fields = collector.metric_fields()
        assert fields[figure] > goal, (changes, fields)
