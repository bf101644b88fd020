"""Updates through static buffers equal eager ones: seeded, resumed in place, with changing step sizes.

On a CPU the captured path runs eagerly over the same buffers; tests/gpu runs these cases as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime.base.methods import BCConfig, DQNConfig, ImpalaConfig, PPOConfig, SACConfig, TD3Config
from runtime.rl.algos import plan, ppo
from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.algorithm import Algorithm
from runtime.rl.algos.cloning import BehaviourCloning
from runtime.rl.algos.impala import Impala
from runtime.rl.algos.off_policy.dqn import DQN
from runtime.rl.algos.off_policy.sac import SAC, DiscreteSAC
from runtime.rl.algos.off_policy.td3 import TD3
from runtime.rl.algos.ppo import PPO, split_rows
from runtime.rl.algos.recurrent import RecurrentDiscreteSAC, RecurrentImpala, RecurrentPPO, RecurrentSAC
from runtime.rl.buffers.replay import Batch
from runtime.rl.buffers.rollout_buffer import RolloutBatch
from runtime.rl.class_names import load_class
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.runtime.rl.algos.test_memory import rollouts, shape_of
from tests.runtime.rl.algos.test_onpolicy import DISCRETE, GAUSSIAN, SEVERAL, acted
from tests.runtime.rl.algos.test_recurrent_sac import sequences
from tests.runtime.rl.algos.test_recurrent_sac import shape_of as sac_shape_of
from tests.runtime.rl.algos.test_sac import make_batch

pytestmark = pytest.mark.usefixtures("one_thread")

VECTOR = ActorShape(5, 2, (32, 24))
PICTURE = ActorShape.of(
    ObsSpace(2, ((20, 20, 3),)), ActionSpace(2), (16,), head="squashed", convolutions=((4, 8, 4),)
)
CHOICES = ActorShape(5, 1, (32, 24), head="categorical", choices=(3,))
GREEDY, DETERMINISTIC = replace(CHOICES, head="greedy"), replace(VECTOR, head="deterministic")
GRU, LSTM = shape_of("gru"), shape_of("lstm", is_normalised=True)
REMEMBERING = sac_shape_of("lstm")
NORMALISED = replace(GAUSSIAN, is_normalised=True)
BATCHES = 5
Method = Algorithm


@dataclass(frozen=True)
class Case:
    """A method, and the batch of each update."""

    make: Callable[..., Any]
    draw: Callable[[int], Batch | RolloutBatch]

    def batches(self) -> list[Batch | RolloutBatch]:
        return [self.draw(seed) for seed in range(BATCHES)]


def weighted(seed: int) -> Batch:
    """Transitions over several steps, drawn by priority."""
    generator = torch.Generator().manual_seed(seed + 100)
    steps = torch.randint(1, 4, (16,), generator=generator).float()
    return replace(make_batch(seed), steps=steps, weight=torch.rand(16, generator=generator))


def chosen(seed: int, draw: Callable[[int], Batch] = make_batch) -> Batch:
    action = torch.randint(0, 3, (16, 1), generator=torch.Generator().manual_seed(seed + 300)).float()
    return replace(draw(seed), action=action)


def seen_by_a_camera(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed + 200)
    first, second = (torch.randint(0, 256, (16, PICTURE.obs_dim), generator=generator) for _ in range(2))
    rows = [part.to(torch.uint8) for part in (first, second)]
    for part in rows:
        part[:, :8] = torch.randn(16, 2, generator=generator).view(torch.uint8)
    return replace(make_batch(seed), obs=rows[0], next_obs=rows[1])


def on_policy(shape: ActorShape) -> Callable[[int], RolloutBatch]:
    return lambda seed: acted(PPO(shape, PPOConfig(hidden=shape.hidden), 8), 8, 5, seed)


def remembered(shape: ActorShape) -> Callable[[int], RolloutBatch]:
    return lambda seed: rollouts(RecurrentPPO(shape, PPOConfig(hidden=(7,)), 8), seed)


def with_returns(seed: int) -> RolloutBatch:
    batch = on_policy(NORMALISED)(seed)
    return replace(batch, discounted=batch.reward.cumsum(dim=0))


SAC_CONFIG = SACConfig(hidden=(32, 24), batch_size=16, anneal_updates=6)
PPO_CONFIG = PPOConfig(hidden=(16,), minibatch_size=8, epochs=3, anneal_updates=6)
CASES = {
    "sac": Case(partial(SAC, VECTOR, SAC_CONFIG, 3), make_batch),
    "sac-weighted": Case(partial(SAC, VECTOR, replace(SAC_CONFIG, prioritised=True, n_step=3), 3), weighted),
    "sac-picture": Case(partial(SAC, PICTURE, replace(SAC_CONFIG, hidden=(16,)), 3), seen_by_a_camera),
    "sac-shifted": Case(
        partial(SAC, PICTURE, replace(SAC_CONFIG, hidden=(16,), random_shift=2), 3), seen_by_a_camera
    ),
    "ppo": Case(partial(PPO, DISCRETE, PPO_CONFIG, 3), on_policy(DISCRETE)),
    "ppo-remainder": Case(partial(PPO, GAUSSIAN, replace(PPO_CONFIG, minibatch_size=13), 3), on_policy(GAUSSIAN)),
    "ppo-target-kl": Case(partial(PPO, SEVERAL, replace(PPO_CONFIG, target_kl=1e-4), 3), on_policy(SEVERAL)),
    "sac-normalised": Case(partial(SAC, replace(VECTOR, is_normalised=True), SAC_CONFIG, 3), make_batch),
    "ppo-normalised": Case(partial(PPO, NORMALISED, replace(PPO_CONFIG, normalise_returns=True), 3), with_returns),
    "appo-normalised": Case(
        partial(Impala, NORMALISED, ImpalaConfig(hidden=(16,), clip=0.2, epochs=3, normalise_returns=True), 3),
        with_returns,
    ),
    "impala": Case(partial(Impala, DISCRETE, ImpalaConfig(hidden=(16,), anneal_updates=6), 3), on_policy(DISCRETE)),
    "appo": Case(partial(Impala, GAUSSIAN, ImpalaConfig(hidden=(16,), clip=0.2, epochs=3), 3), on_policy(GAUSSIAN)),
    "sac-choices": Case(partial(DiscreteSAC, CHOICES, SAC_CONFIG, 3), chosen),
    "dqn": Case(
        partial(
            DQN,
            GREEDY,
            DQNConfig(hidden=(32, 24), prioritised=True, n_step=3, target_updates=2, anneal_updates=6),
            3,
        ),
        partial(chosen, draw=weighted),
    ),
    "td3": Case(
        partial(TD3, replace(DETERMINISTIC, is_normalised=True), TD3Config(hidden=(32, 24), anneal_updates=6), 3),
        make_batch,
    ),
    "sac-lstm": Case(
        partial(RecurrentSAC, REMEMBERING, SACConfig(hidden=(7,), burn_in=2, n_step=3, anneal_updates=6), 3),
        lambda seed: sequences(REMEMBERING, seed, n_step=3),
    ),
    "sac-choices-gru": Case(
        partial(RecurrentDiscreteSAC, GRU, SACConfig(hidden=(7,), anneal_updates=6), 3), partial(sequences, GRU)
    ),
    "ppo-gru": Case(
        partial(RecurrentPPO, GRU, PPOConfig(hidden=(7,), minibatch_size=12, epochs=2, anneal_updates=6), 3),
        remembered(GRU),
    ),
    "appo-lstm": Case(
        partial(RecurrentImpala, LSTM, ImpalaConfig(hidden=(7,), clip=0.2, epochs=2, anneal_updates=6), 3),
        remembered(LSTM),
    ),
    "bc": Case(
        partial(BehaviourCloning, replace(VECTOR, head="gaussian"), BCConfig(hidden=(32, 24), anneal_updates=6), 3),
        make_batch,
    ),
}


def learn(method: Method, batches: list[Any], device: str = "cpu") -> list[dict[str, float]]:
    return [method.update(batch.to(device)).floats() for batch in batches]


def assert_alike(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    """Fail unless both states are equal; random numbers exactly, floats to ``tolerance``."""
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.allclose(second[name], value, rtol=tolerance, atol=tolerance), name


def test_every_method_with_graphs_is_among_the_cases_with_step_sizes_that_change() -> None:
    """The other one, `gradient_server`, applies gradients of workers by single launches."""
    names = [*plan.METHOD_CLASSES.values(), *plan.RECURRENT_CLASSES.values(), plan.DISCRETE_SAC]
    known = {load_class(name) for name in (*names, plan.RECURRENT_DISCRETE_SAC)}
    makers = [case.make for case in CASES.values()]
    assert {make.func for make in makers if make.args[1].anneal_updates is not None} == known


@pytest.mark.parametrize("name", CASES)
def test_captured_updates_are_the_eager_ones(name: str) -> None:
    case = CASES[name]
    eager, captured = case.make(capture=False), case.make(capture=True)
    batches = case.batches()
    expected, actual = learn(eager, batches), learn(captured, batches)
    assert [pytest.approx(stats, abs=1e-5, rel=1e-4) for stats in expected] == actual
    assert_alike(eager.state(), captured.state())


@pytest.mark.parametrize("name", CASES)
def test_a_captured_method_is_resumed_in_place(name: str) -> None:
    """Graphs read tensors by address: a state is copied into them, also after a graph has run on them."""
    case = CASES[name]
    batches = case.batches()
    eager, captured = case.make(capture=False), case.make(capture=True)
    learn(eager, batches[:2])
    saved = eager.state()
    learn(captured, batches)  # its graphs, moments, step sizes and random numbers differ by now
    addresses = {key: tensor.data_ptr() for key, tensor in captured.tensors().items()}
    assert captured.load_state(saved) == []
    learn(eager, batches[2:])
    learn(captured, batches[2:])
    assert_alike(eager.state(), captured.state())
    assert {key: tensor.data_ptr() for key, tensor in captured.tensors().items()} == addresses


@pytest.mark.parametrize("name", ["sac", "sac-picture", "ppo", "appo"])
def test_bfloat16_is_what_autocast_computes(name: str) -> None:
    """One cast of the arena replaces autocast's cast of each weight at each use."""
    case = CASES[name]
    batches = case.batches()[:1]
    rounded, reference = case.make(precision="bfloat16"), case.make()
    actual = learn(rounded, batches)[0]
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        expected = learn(reference, batches)[0]
    assert actual == pytest.approx(expected, rel=0.02, abs=0.01)
    assert {tensor.dtype for tensor in rounded.tensors().values()} == {torch.float32}
    moved = {key: tensor - case.make().tensors()[key] for key, tensor in reference.tensors().items()}
    for key in (key for key in moved if key.endswith(".mean")):
        apart = rounded.tensors()[key] - reference.tensors()[key]
        assert apart.norm() <= 0.05 * moved[key].norm() + 1e-6, key


def test_statistics_outlive_the_next_update() -> None:
    case = CASES["sac"]
    method = case.make(capture=True)
    first, second = case.batches()[:2]
    stats = method.update(first)
    before = stats.floats()
    method.update(second)
    assert stats.floats() == before


def test_errors_for_priorities_come_with_weights_alone() -> None:
    for capture in (False, True):
        sac = CASES["sac-weighted"].make(capture=capture)
        sac.update(weighted(0))
        assert sac.td_error.shape == (16,)
        assert (sac.td_error > 0).all()
        sac.update(make_batch(0))
        assert sac.td_error.shape == (0,)


@pytest.mark.parametrize("rows", [1, 2, 7, 16, 17, 1_025, 1_500])
@pytest.mark.parametrize("size", [2, 16, 256])
def test_minibatches_use_each_row_once_and_are_of_one_size(rows: int, size: int) -> None:
    parts = split_rows(torch.arange(rows), size)
    assert torch.cat(parts).tolist() == list(range(rows))
    lengths = {len(part) for part in parts}
    assert max(lengths) - min(lengths) <= 1
    assert lengths == {size} or rows % size
    assert min(lengths) > 1 or rows == 1


@pytest.mark.parametrize("name", ["ppo", "ppo-remainder", "ppo-target-kl"])
def test_a_pass_over_many_minibatches_is_several_graphs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo, "MINIBATCHES_PER_GRAPH", 2)
    case = CASES[name]
    eager, captured = case.make(capture=False), case.make(capture=True)
    expected, actual = learn(eager, case.batches()), learn(captured, case.batches())
    assert [pytest.approx(stats, rel=1e-4, abs=1e-5) for stats in expected] == actual
    assert_alike(eager.state(), captured.state())


@pytest.mark.parametrize("capture", [False, True])
def test_a_batch_with_a_row_too_many_stays_finite(capture: bool) -> None:
    shape = ActorShape(3, 1, (16,), head="categorical", choices=(4,), activation="tanh")
    method = PPO(shape, PPOConfig(hidden=(16,), minibatch_size=16, epochs=2), 0, capture=capture)
    for steps in (33, 1):
        stats = method.update(acted(method, steps, 1, steps)).floats()
        assert all(torch.isfinite(torch.tensor(value)) for value in stats.values()), stats
    assert torch.isfinite(method.policy_weights()).all()


def test_an_update_ends_after_the_epoch_that_moved_the_policy_too_far() -> None:
    """Earlier epochs do not matter: the first one always moves little."""
    batch = on_policy(DISCRETE)(0)
    config = replace(PPO_CONFIG, epochs=8, anneal_updates=None, lr=0.05)
    by_epochs = [PPO(DISCRETE, replace(config, epochs=count), 3) for count in range(1, 9)]
    sums = [count * method.update(batch).floats()["kl"] for count, method in enumerate(by_epochs, 1)]
    kls = [after - before for before, after in zip([0.0, *sums], sums, strict=False)]
    target = 0.5 * (kls[1] + kls[2])
    last = next(number for number, kl in enumerate(kls) if kl > target)
    stopped = PPO(DISCRETE, replace(config, target_kl=target), 3)
    stopped.update(batch)
    assert last < 7, kls
    assert torch.equal(stopped.policy_weights(), by_epochs[last].policy_weights())
