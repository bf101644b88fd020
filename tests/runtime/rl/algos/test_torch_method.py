"""Methods in plain torch: the example of docs/own-methods.md learns, publishes what it learned, and resumes."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from runtime.rl.algos import plan
from runtime.rl.algos.actor import ActorShape, NumpyActor
from tests.runtime.rl.algos.test_onpolicy import GAUSSIAN, acted

PAGE = Path(__file__).parents[4] / "docs" / "own-methods.md"
CHOOSING = ActorShape(3, 1, (8,), head="categorical", choices=(3,), activation="tanh")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def pasted(tmp_path_factory):
    """The class of the page, from a file of its own, as a run has it."""
    text = PAGE.read_text("utf-8")
    (block,) = [part for part in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class Pasted" in part]
    folder = tmp_path_factory.mktemp("program")
    (folder / "pasted.py").write_text(block)
    sys.path.insert(0, str(folder))
    yield "pasted:Pasted"
    sys.path.remove(str(folder))
    sys.modules.pop("pasted", None)


def made(pasted, shape, seed=0, **config):
    kind = plan.load_class(pasted)
    return kind(shape, replace(plan.method_config(pasted)(), **config), seed)


@pytest.mark.parametrize("shape", [GAUSSIAN, CHOOSING, replace(GAUSSIAN, is_normalised=True)])
def test_the_pasted_loss_trains_the_policy_that_workers_act_by(pasted, shape):
    method = made(pasted, shape)
    before = method.policy_weights().clone()
    figures = method.update(acted(method, 8, 4, 1)).floats()
    assert set(figures) == {"policy_loss", "value_loss", "entropy"}
    assert method.updates == 1
    assert not torch.equal(before, method.policy_weights())
    # A worker's forward pass by the published array is the module's.
    obs = torch.randn((5, shape.obs_dim), generator=torch.Generator().manual_seed(0))
    actor = NumpyActor(shape)
    actor.load(method.actor_arena())
    expected = method.agent.actor(obs).detach().numpy()
    assert actor.outputs(obs.numpy())[:, : shape.outputs] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("optimiser", ["Adam", "RMSprop", "momentum"])
def test_a_loaded_state_goes_on_bit_for_bit_whatever_the_optimiser(pasted, monkeypatch, optimiser):
    kinds = {
        "Adam": torch.optim.Adam,
        "RMSprop": torch.optim.RMSprop,
        "momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9),
    }
    monkeypatch.setattr(
        plan.load_class(pasted), "make_optimiser", lambda self: kinds[optimiser](self.agent.parameters(), lr=0.01)
    )
    first = made(pasted, GAUSSIAN)
    first.update(acted(first, 8, 4, 1))
    state = first.state()
    first.update(acted(first, 8, 4, 2))
    second = made(pasted, GAUSSIAN, seed=7)
    second.load_state(state)
    second.update(acted(second, 8, 4, 2))
    assert second.updates == 2
    for name, tensor in first.tensors().items():
        assert torch.equal(tensor, second.tensors()[name]), name


def test_gradients_are_averaged_over_devices_before_each_step(pasted):
    alone, shared = made(pasted, GAUSSIAN), made(pasted, GAUSSIAN)
    shared.mean = torch.zeros_like  # as if another device had the opposite gradient
    weights = shared.policy_weights().clone()
    alone.update(acted(alone, 8, 4, 1))
    shared.update(acted(shared, 8, 4, 1))
    assert torch.equal(shared.policy_weights(), weights)
    assert not torch.equal(alone.policy_weights(), weights)
