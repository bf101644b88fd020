"""Updates on a GPU: equal to the CPU's, captured equal to eager, checkpoints moved in both directions."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from runtime.base import contract
from runtime.rl.algos.algorithm import Algorithm
from runtime.rl.algos.impala import Impala
from runtime.rl.algos.off_policy.sac import SAC
from runtime.rl.algos.ppo import PPO
from runtime.rl.device.accelerator import set_float32_products
from runtime.rl.device.captured import Captured, _side_stream
from tests.runtime.conftest import RunUnderTest
from tests.runtime.rl.algos.test_captured_updates import CASES, PPO_CONFIG, Case, assert_alike, learn, on_policy
from tests.runtime.rl.algos.test_graph_updates import (
    METHODS,
    PRIORITISED,
    check_same_updates,
    check_updates_by_priority,
)
from tests.runtime.rl.algos.test_onpolicy import GAUSSIAN
from tests.runtime.rl.roles.test_run import moves_between_devices

pytestmark = pytest.mark.gpu

# All rows in one minibatch: the order in which a device shuffles them only affects rounding.
TO_COMPARE = {name: CASES[name] for name in ("sac", "sac-weighted", "sac-picture", "impala", "appo")} | {
    "ppo": Case(partial(PPO, GAUSSIAN, replace(PPO_CONFIG, minibatch_size=40), 3), on_policy(GAUSSIAN))
}


@pytest.fixture(autouse=True)
def exact_float32() -> None:
    set_float32_products("float32")


def on_gpu(case: Case, **arguments: Any) -> Any:
    return case.make(device="cuda", **arguments)


def draw_on_the_host(method: Algorithm) -> None:
    """Let SAC draw the same noise on every device."""
    if isinstance(method, SAC):
        generator = torch.Generator().manual_seed(5)
        draw: Callable[[torch.Tensor], torch.Tensor] = lambda obs: torch.randn(  # noqa: E731
            (len(obs), method.shape.act_dim), generator=generator
        ).to(obs.device)
        method._draw_noise = draw  # type: ignore[method-assign]


@pytest.mark.parametrize("name", TO_COMPARE)
def test_five_updates_are_those_of_the_cpu(name: str) -> None:
    case = TO_COMPARE[name]
    host, device = case.make(), on_gpu(case, capture=False)
    for method in (host, device):
        draw_on_the_host(method)
    expected, actual = learn(host, case.batches()), learn(device, case.batches(), "cuda")
    assert [pytest.approx(stats, rel=1e-3, abs=1e-4) for stats in expected] == actual
    floats = {key: tensor for key, tensor in host.state().items() if tensor.is_floating_point()}
    assert_alike(floats, {key: device.state()[key] for key in floats}, 2e-4)


@pytest.mark.parametrize("name", CASES)
def test_captured_updates_are_the_eager_ones(name: str) -> None:
    case = CASES[name]
    eager, captured = on_gpu(case, capture=False), on_gpu(case)
    expected, actual = learn(eager, case.batches(), "cuda"), learn(captured, case.batches(), "cuda")
    assert [pytest.approx(stats, rel=1e-4, abs=1e-5) for stats in expected] == actual
    assert_alike(eager.state(), captured.state())


@pytest.mark.parametrize("name", CASES)
def test_a_captured_method_is_resumed_in_place(name: str) -> None:
    """Also random numbers, and step sizes that fall with the count of updates."""
    case = CASES[name]
    batches = case.batches()
    eager, captured = on_gpu(case, capture=False), on_gpu(case)
    learn(eager, batches[:2], "cuda")
    saved = eager.state()
    learn(captured, batches, "cuda")
    assert captured.load_state(saved) == []
    learn(eager, batches[2:], "cuda")
    learn(captured, batches[2:], "cuda")
    assert_alike(eager.state(), captured.state())


@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "tf32") for name in ("sac", "sac-picture", "ppo", "appo")), *((name, "bfloat16") for name in CASES)],
)
def test_lower_precisions_are_captured_too(name: str, precision: str) -> None:
    case = CASES[name]
    set_float32_products(precision)
    eager, captured = (on_gpu(case, precision=precision, capture=capture) for capture in (False, None))
    learn(eager, case.batches(), "cuda")
    learn(captured, case.batches(), "cuda")
    assert_alike(eager.state(), captured.state(), 1e-3)


@pytest.mark.parametrize("name", ["sac", "ppo", "impala"])
def test_checkpoints_go_to_the_gpu_and_back(name: str) -> None:
    case = CASES[name]
    batches = case.batches()
    host, device, back = case.make(), on_gpu(case), case.make()
    learn(host, batches[:2])
    draws = bool(host.generators())
    notes = device.load_state(host.state())
    assert bool(notes) is draws
    assert all("was saved on cpu and draws other numbers on cuda" in note for note in notes)
    assert device.updates == 2
    floats = {key: tensor for key, tensor in host.state().items() if tensor.is_floating_point()}
    assert_alike(floats, {key: device.state()[key] for key in floats}, 0.0)
    learn(device, batches[2:4], "cuda")
    notes = back.load_state(device.state())
    assert all("was saved on cuda and draws other numbers on cpu" in note for note in notes)
    again = on_gpu(case)
    assert again.load_state(device.state()) == [], "from GPU to GPU nothing changes"
    learn(device, batches[4:], "cuda")
    learn(again, batches[4:], "cuda")
    assert_alike(device.state(), again.state())
    assert all(map(torch.isfinite, map(torch.tensor, learn(back, batches[4:])[0].values())))


def test_a_capture_leaves_state_and_random_numbers_as_they_are() -> None:
    generator, total = torch.Generator("cuda").manual_seed(3), torch.zeros(8, device="cuda")

    def walk(step: torch.Tensor) -> torch.Tensor:
        return total.add_(step * torch.randn(8, generator=generator, device="cuda")).clone()

    step = torch.ones(8, device="cuda")
    captured = Captured(walk, step, generators=[generator], state=[total])
    assert captured.is_graph
    assert not total.any()
    walks = [captured(step).clone() for _ in range(3)]
    total.zero_()
    generator.manual_seed(3)
    for expected in walks:
        assert torch.equal(walk(step), expected)


def test_a_function_is_captured_after_all_earlier_ones_are_gone() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        for size in (32, 64):
            captured = Captured(lambda value: value + 1.0, torch.zeros(size, device="cuda"))
            assert captured.is_graph
            assert captured(captured.inputs[0]).sum() == size
            del captured
            gc.collect()


def test_graphs_of_a_stream_are_captured_beside_it_with_its_priority() -> None:
    """A graph's kernels have the priority of the capture; graphs that share a stream share its workspaces."""
    urgent = torch.cuda.Stream(priority=-1)
    with torch.cuda.stream(urgent):
        captured = [Captured(lambda value: value @ value, torch.eye(64, device="cuda")) for _ in range(2)]
        results = [function(torch.full((64, 64), 2.0, device="cuda")).clone() for function in captured]
    urgent.synchronize()
    assert all(function.is_graph for function in captured)
    assert all((result == 256.0).all() for result in results)
    side = _side_stream(urgent)
    assert side is _side_stream(urgent)
    assert side.priority == urgent.priority < _side_stream(torch.cuda.current_stream()).priority
    assert side != urgent


@pytest.mark.process
def test_what_cannot_be_captured_is_a_sentence() -> None:
    """In a separate process, as in a learner: torch's allocator does not recover from a failed capture."""
    code = (
        "import torch; from runtime.rl.device.captured import Captured; "
        "Captured(lambda value: value * value.sum().item(), torch.ones(3, device='cuda'))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert "FailedError: torch could not capture a CUDA graph" in ended.stderr, ended.stderr
    assert "with cuda_graphs set to false it takes none" in last


def test_impala_and_its_workers_gradient_agree() -> None:
    """The gradient that a worker computes on its CPU equals that of a captured update."""
    case = CASES["impala"]
    host, device = case.make(), on_gpu(case)
    assert isinstance(host, Impala)
    batch = case.draw(0)
    expected, _ = host.gradient(batch)
    actual, _ = device.gradient(batch.to("cuda"), is_captured=True)
    assert torch.allclose(actual.cpu(), expected, atol=1e-5)


@pytest.mark.process
def test_a_run_goes_from_the_gpu_to_the_cpu_and_back(run: RunUnderTest) -> None:
    moves_between_devices(run, "cuda", "cpu", "cuda")


@pytest.mark.process
def test_a_run_that_draws_by_priority_goes_from_the_gpu_to_the_cpu_and_back(run: RunUnderTest) -> None:
    run.settings["sac"] = {**run.settings["sac"], "prioritised": True}
    moves_between_devices(run, "cuda", "cpu", "cuda")


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("name", METHODS)
def test_updates_that_gather_their_batches_are_those_on_drawn_batches(name: str, count: int) -> None:
    check_same_updates(name, "cuda", count, tolerance=2e-4)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("name", PRIORITISED)
def test_updates_that_draw_by_priority_are_those_on_the_batches_of_these_priorities(name: str, count: int) -> None:
    check_updates_by_priority(name, "cuda", count, tolerance=2e-4)


@pytest.mark.process
def test_updates_that_are_launched_together_end_at_the_bound_of_the_run(run: RunUnderTest) -> None:
    run.settings |= {"device": "cuda", "total_updates": 21, "updates_per_launch": 8}
    learner, worker = run.start("learner"), run.start("worker")
    assert learner.process.wait(60) == worker.process.wait(60) == contract.EXIT_DONE, learner.text()
    assert learner.last("learner")["updates"] == 21
    assert "the run is done: 21 updates" in learner.text()
