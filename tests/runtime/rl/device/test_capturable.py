"""Functions captured as CUDA graphs follow the rules, checked without a card: every tensor operation of a call is
watched.

CUDA refuses a capture that waits for the device (`item`, boolean indices) or copies from the host's pageable memory
(`torch.tensor`). It does not refuse a call that would behave differently the next time, e.g. because it has
replaced its state by a new tensor. So each function is called like in a capture, and fails at the first violation.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.device_actor import DeviceActor
from runtime.rl.device import captured
from runtime.rl.device.captured import Captured
from tests.runtime.rl.algos.test_captured_updates import CASES, PICTURE
from tests.runtime.rl.roles.test_device_collector import collector_of, settings_of

# In one process: a dispatch mode imports torch._dynamo at its first use, which takes five CPU seconds.
pytestmark = [pytest.mark.usefixtures("one_thread", "dynamo"), pytest.mark.xdist_group("dynamo")]

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero", "unique_dim")
"""Operations whose result the host needs before it can continue."""
FROM_HOST = ("lift_fresh", "lift_fresh_copy", "_pin_memory")
"""Operations that turn a number, list or array of the host into a tensor."""


@pytest.fixture(scope="module")
def dynamo() -> None:
    importlib.import_module("torch._dynamo")


class RefusedError(AssertionError):
    """Operation that is not allowed in a capture."""


class CaptureRules(TorchDispatchMode):
    """Mode that refuses everything that a capturing stream refuses, and counts the operations."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in WAITING:
            raise RefusedError(f"{name} waits for the device")
        if name in FROM_HOST:
            raise RefusedError(f"{name} copies from the host")
        if name.startswith(("index", "_index_put")) and any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
            for indices in args
            if isinstance(indices, list | tuple)
            for index in indices
        ):
            raise RefusedError(f"{name} by booleans waits for their number")
        self.operations += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def without_arrays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Refuse NumPy's memory, which becomes a tensor without an operation."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise RefusedError("from_numpy is memory of the host")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "from_numpy", refuse)
        patch.setattr(torch, "as_tensor", refuse)
        yield


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of operations of each call of a captured function; all follow the rules."""
    counts: list[int] = []
    make = Captured.__init__

    def watched(self: Captured, function: Callable[..., Any], *examples: Any, **arguments: Any) -> None:
        def call(*tensors: Any) -> Any:
            with CaptureRules() as rules, without_arrays(monkeypatch):
                outputs = function(*tensors)
            counts.append(rules.operations)
            return outputs

        make(self, call, *examples, **arguments)

    monkeypatch.setattr(captured.Captured, "__init__", watched)
    return counts


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_updates_can_be_captured(name: str, precision: str, operations: list[int]) -> None:
    case = CASES[name]
    method = case.make(capture=True, precision=precision)
    for batch in case.batches()[:2]:
        method.update(batch)
    assert len(operations) >= 2
    assert min(operations) > 5


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "ppo"},
        {
            "algorithm": "ppo",
            "environment_options": {"observation": "view"},
            "convolutions": [[4, 5, 3], [4, 3, 2]],
        },
        {"algorithm": "impala", "environment_options": {"start": "line", "laps": 1}},
        {"algorithm": "ppo", "environment": "CartPole-v1"},
        {"algorithm": "sac", "environment": "Pendulum-v1"},
        {"algorithm": "sac", "sac": {"n_step": 3}},
    ],
)
def test_rollouts_can_be_captured_and_call_the_same_operations_each_time(
    changes: dict[str, Any], operations: list[int]
) -> None:
    collector, _, plan = collector_of(settings_of(**changes))
    before = {name: tensor.data_ptr() for name, tensor in collector.live_state().items() if "generator" not in name}
    for at_random in [False] if plan.is_on_policy else [True, False]:
        operations.clear()
        for _ in range(3):
            collector.collect(at_random=at_random)
        assert len(operations) == 3
        assert len(set(operations)) == 1
    after = collector.live_state()
    assert before == {name: after[name].data_ptr() for name in before}, "state is changed in place"


@pytest.mark.parametrize("shape", [ActorShape(7, 2, (16,), head="gaussian", activation="tanh"), PICTURE])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_answers_can_be_captured(shape: ActorShape, precision: str, operations: list[int]) -> None:
    network = DeviceActor(shape, "cpu", [4, 8], precision=precision, is_rounded=True)
    for count in (3, 8, 1):
        network.begin(0, count)
        network.finish(0)
    assert len(operations) == 3


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda value: value * value.sum().item(), "waits"),
        (lambda value: value * float(value.sum()), "waits"),
        (lambda value: value[value > 0], "booleans"),
        (lambda value: value.masked_select(value > 0), "waits"),
        (lambda value: value + torch.tensor([1.0, 2.0, 3.0]), "from the host"),
        (lambda value: value + torch.as_tensor([1.0, 2.0, 3.0]), "host"),
    ],
)
def test_what_breaks_the_rules_is_refused(
    function: Callable[[Tensor], Tensor], reason: str, operations: list[int]
) -> None:
    with pytest.raises(RefusedError, match=reason):
        Captured(function, torch.ones(3), enabled=False)(torch.ones(3))
    assert operations == []
