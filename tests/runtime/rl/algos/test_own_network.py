"""User-defined networks: the page's example in every method, in workers like in the learner, and sentences."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from runtime.base.errors import SetupError
from runtime.base.training import Settings, from_mapping
from runtime.rl.algos.actor import NumpyActor
from runtime.rl.algos.algorithm import Algorithm
from runtime.rl.algos.networks import Network
from runtime.rl.algos.own_network import first_weights
from runtime.rl.algos.plan import Plan, build
from runtime.rl.buffers.replay import Batch
from runtime.rl.buffers.rollout_buffer import RolloutBatch
from runtime.rl.device.accelerator import chosen_precision
from runtime.rl.roles.launch_context import environment_plan, make_environment
from runtime.rl.roles.remote_inference import NetworkSetup, make_network
from runtime.rl.roles.settings_check import check_settings
from tests.runtime.conftest import RunUnderTest

pytestmark = pytest.mark.usefixtures("one_thread")
PAGE = Path(__file__).parents[4] / "docs" / "own-methods.md"
OTHERS = """
import torch

class NoSize(torch.nn.Module):
    def __init__(self, vector, images):
        super().__init__()

class Counts(NoSize):
    size = 3
    def __init__(self, vector, images):
        super().__init__(vector, images)
        self.layer = torch.nn.BatchNorm1d(vector)

class Narrow(NoSize):
    size = 3
    def forward(self, vector, pictures):
        return vector[:, :2]

class Raises(NoSize):
    size = 3
    def forward(self, vector, pictures):
        raise KeyError("no such layer")

class Plain:
    size = 3
"""
METHODS: dict[str, dict[str, Any]] = {
    "sac": {"sac": {"random_shift": 2}},
    "td3": {"td3": {"policy_delay": 1}},
    "ppo": {"segment_steps": 4, "ppo": {"batch_steps": 8, "minibatch_size": 8, "epochs": 1}},
    "impala": {"segment_steps": 4, "impala": {"batch_steps": 8}},
    "ppo, bfloat16": {
        "algorithm": "ppo",
        "precision": "bfloat16",
        "segment_steps": 4,
        "ppo": {"batch_steps": 8, "minibatch_size": 8, "epochs": 1},
    },
}


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "glance.py").write_text(next(block for block in blocks if "class Glance" in block))
    (tmp_path / "no_networks.py").write_text(OTHERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def view(method: str = "sac", **others: Any) -> Settings:
    own = {"name": "glance:Glance", "width": 12}
    base = {"environment": "racing", "environment_options": {"observation": "view"}, "num_envs": 2, "hidden": [8]}
    return from_mapping({**base, "network": own, "algorithm": method, **METHODS.get(method, {}), **others})


def precision_of(training: Settings) -> str:
    return chosen_precision(training.precision, "cpu", has_images=True)


def made(training: Settings) -> tuple[Plan, Algorithm, np.ndarray]:
    """Plan and method of settings, and observations of two copies at five steps."""
    env = make_environment(training, 2, {})
    plan, rng = environment_plan(training, env), np.random.default_rng(0)
    rows = [env.reset(0), *(env.step(env.action_space.at_random(2, rng)).obs for _ in range(4))]
    return plan, build(plan, 1, "cpu", precision=precision_of(training)), np.stack(rows)


def batch_of(plan: Plan, rows: np.ndarray) -> Batch | RolloutBatch:
    obs, next_obs = torch.from_numpy(rows[:-1].copy()), torch.from_numpy(rows[1:].copy())
    generator = torch.Generator().manual_seed(0)
    action, reward = (torch.rand(size, generator=generator) for size in ((4, 2, 2), (4, 2)))
    ended = torch.zeros(4, 2)
    if not plan.is_on_policy:
        return Batch(*(column.flatten(0, 1) for column in (obs, action, reward, next_obs, ended)))
    return RolloutBatch(obs, action, torch.full((4, 2), -2.0), reward, next_obs, ended.to(torch.uint8))


@pytest.mark.parametrize("method", METHODS)
def test_the_network_of_the_page_learns_and_resumes(method: str) -> None:
    plan, learning, rows = made(view(method))
    size = sum(np.prod(part, dtype=int) for part in plan.shape.convolution_parts)
    assert plan.shape.features == 12
    first = learning.actor_arena()[:size]
    assert first.std() > 0.01, "its own first weights"
    for _ in range(3):
        learning.update(batch_of(plan, rows))
    moved = learning.actor_arena()[:size]
    assert (moved != first).mean() > 0.9
    resumed = build(plan, 99, "cpu", precision="bfloat16" if "bfloat16" in method else "float32")
    resumed.load_state(learning.state())
    for going_on in (learning, resumed):
        going_on.update(batch_of(plan, rows))
    np.testing.assert_array_equal(resumed.actor_arena(), learning.actor_arena())


def test_workers_see_by_it_what_the_learner_sees() -> None:
    plan, learning, rows = made(view("ppo"))
    actor = NumpyActor(plan.shape)
    actor.load(learning.actor_arena())
    network = Network(plan.shape, torch.Generator(), "cpu")
    network.arena.flat.copy_(torch.from_numpy(learning.actor_arena()))
    with torch.no_grad():
        expected = network(torch.from_numpy(rows[0].copy())).numpy()
    np.testing.assert_allclose(actor.outputs(rows[0])[:, :2], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("environment", ["racing", "CartPole-v1"])
def test_remote_inference_answers_by_it_what_workers_would_see(environment: str) -> None:
    training = view("ppo", remote_inference=True)
    if environment != "racing":  # only numbers: NumPy would be enough without this network
        training = replace(training, environment=environment, environment_options={})
    plan, learning, rows = made(training)
    actor = NumpyActor(plan.shape)
    actor.load(learning.actor_arena())
    setup = NetworkSetup(plan.shape, "cpu", precision_of(training), captures=True, threads=1, max_rows=2)
    network = make_network(msgspec.json.decode(msgspec.json.encode(setup), type=NetworkSetup))
    network.weights[:] = learning.actor_arena()
    network.refresh()
    network.buffers[0][:2] = rows[0]
    network.begin(0, 2)
    np.testing.assert_allclose(network.finish(0), actor.outputs(rows[0]), rtol=1e-4, atol=1e-5)


def test_a_seed_gives_the_first_weights_and_leaves_torchs_own_generator_alone() -> None:
    plan, _, _ = made(view())
    network, space = plan.shape.network, plan.shape.obs_space
    assert network is not None
    torch.manual_seed(3)
    same, again, other = (first_weights(network, space, seed) for seed in (5, 5, 6))
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))
    assert all(map(torch.equal, same, again))
    assert not all(map(torch.equal, same, other))


@pytest.mark.parametrize("algorithm", ["ppo", "sac", "dqn"])
def test_numbers_without_pictures_go_through_it_too(algorithm: str) -> None:
    training = from_mapping(
        {
            "environment": "CartPole-v1",
            "algorithm": algorithm,
            "network": "glance:Glance",
            "normalise_observations": True,
        }
    )
    check_settings(training)
    plan, _, rows = made(training)
    actor = NumpyActor(plan.shape)
    assert actor.act(rows[0], None).shape == (2, 1)


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        ("glance", "must be package.module:Class"),
        ("no_such_module:Net", "no_such_module cannot be imported"),
        ("no_networks:Plain", "does not derive from torch.nn.Module"),
        ("no_networks:NoSize", "has no size"),
        ("no_networks:Counts", "layer.running_mean.* take layers without running statistics"),
        ("no_networks:Narrow", r"makes \(2, 2\) of 2 observations, not \(2, 3\)"),
        ("no_networks:Raises", "fails for observations of zeros .*no such layer"),
        ({"name": "glance:Glance", "depth": 2}, "cannot be made with .*depth"),
    ],
)
def test_what_is_no_network_is_a_sentence(network: Any, sentence: str) -> None:
    with pytest.raises(SetupError, match=sentence):
        check_settings(from_mapping({"network": network}))


def test_settings_that_do_not_go_with_it_are_refused() -> None:
    with pytest.raises(SetupError, match="cannot be combined with gradients of workers"):
        check_settings(replace(view("impala"), impala={"batch_steps": 8, "sends_gradients": True}))


@pytest.mark.slow
def test_a_run_with_it_learns_in_processes(run: RunUnderTest, own: Path, wait_until: Callable[..., Any]) -> None:
    # The evaluator runs it in its own process, the worker through the learner's.
    run.settings |= {"network": {"name": "glance:Glance", "width": 8}, "remote_inference": True}
    program = "--program", str(own / "glance.py")
    learner, worker, evaluator = (run.start(role, 0, *program) for role in ("learner", "worker", "evaluator"))
    wait_until(lambda: learner.last("learner").get("updates", 0) > 10, "updates", log=learner)
    wait_until(lambda: evaluator.records("evaluator"), "an evaluation", log=evaluator)
    for process in (worker, evaluator, learner):
        assert process.end(signal.SIGTERM) == 0, process.text()
