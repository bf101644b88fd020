"""Program: updates and rollouts on a device that computes nothing, which finds each tensor left on the host.

Torch's fake tensors have shapes, types and a device and no values: an operation on tensors of two devices fails as
it would on a card, and so does what needs a value. They cannot pass for CUDA's in a build for CPUs, whose autograd
knows no such device, so they are of torch's type for extensions; what that cannot do is replaced below. The type is
registered for a process as a whole, hence a program of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from runtime.rl.algos.optimisers import Adam
from runtime.rl.algos.plan import build
from runtime.rl.roles.device_collector import DeviceCollector
from tests.runtime.rl.algos.test_captured_updates import CASES
from tests.runtime.rl.roles.test_device_collector import plan_of, settings_of

DEVICE = "extension"
READ_BY_THE_HOST = ("ppo-target-kl", "ppo-gru")
"""Updates that wait between two graphs: for the divergence that ends epochs, for the rows behind truncations."""
ROLLOUTS: tuple[dict[str, Any], ...] = (
    {"algorithm": "ppo"},
    {
        "algorithm": "ppo",
        "environment_options": {"observation": "view"},
        "convolutions": [[4, 5, 3], [4, 3, 2]],
    },
    {"algorithm": "impala", "environment_options": {"start": "line", "laps": 1}},
    {"algorithm": "sac", "environment": "Pendulum-v1", "sac": {"n_step": 3}},
)


def step_adam(self: Adam, gradient: Tensor) -> None:
    """Adam without the fused kernel, which this device has not: of the same tensors."""
    self.steps.add_(1)
    self.mean.lerp_(gradient, 0.1)
    self.square.lerp_(gradient.square(), 0.001)
    self._flat.sub_(self._lr.operand * self.mean / (self.square.sqrt() + 1e-8))


@contextmanager
def fake_device() -> Iterator[None]:
    """Make tensors without values, also on `DEVICE`, whose generators and literals are the host's."""
    generator, tensor = torch.Generator, torch.tensor

    class HostGenerator:
        """Class, since torch's modules that load meanwhile name it in types."""

        def __new__(cls, device: Any = "cpu") -> Any:
            del device
            return generator()

    def literal(value: Any, *, device: Any = None, **arguments: Any) -> Tensor:
        made = tensor(value, **arguments)
        return made if device != DEVICE else torch.empty(made.shape, dtype=made.dtype, device=device)

    with (
        patch.object(torch, "Generator", HostGenerator),
        patch.object(torch, "tensor", literal),
        patch.object(torch.nn.init, "orthogonal_", lambda weight, *_, **__: weight),
        patch.object(Adam, "step", step_adam),
        FakeTensorMode(),
    ):
        yield


def check(name: str, tensors: dict[str, Tensor]) -> None:
    """Fail unless all are on the device; print a line."""
    assert {tensor.device.type for tensor in tensors.values()} == {DEVICE}, name
    print(name, flush=True)


def update(name: str, precision: str) -> None:
    """Learn from one batch."""
    case = CASES[name]
    batch = case.draw(0)
    with fake_device():
        method = case.make(device=DEVICE, capture=True, precision=precision)
        columns = [torch.empty(column.shape, dtype=column.dtype, device=DEVICE) for column in batch.tensors]
        stats = method.update(batch.replaced(columns))
        loss = getattr(stats, stats.__slots__[0])
        check(f"{name} {precision}", {**method.tensors(), "loss": loss})


def collect(changes: dict[str, Any]) -> None:
    """Take one rollout, and one at random where the method begins so."""
    settings = settings_of(**changes)
    plan = plan_of(settings)
    with fake_device():
        method = build(plan, 0, DEVICE)
        collector = DeviceCollector(settings, plan, 0, DEVICE, method.policy_weights)
        for at_random in [False] if plan.is_on_policy else [True, False]:
            check(f"{changes} {at_random}", collector.collect(at_random=at_random))


def refuses_host() -> None:
    """Fail unless a tensor of the host among those of the device is an error: else this program finds nothing."""
    with fake_device():
        try:
            torch.zeros(3) + torch.zeros(3, device=DEVICE)
        except RuntimeError as error:
            assert "same device" in str(error)  # noqa: PT017
        else:
            raise AssertionError("tensors of two devices were added")


def main() -> None:
    """Run all cases; the first that fails ends the program with a traceback."""
    _setup_privateuseone_for_python_backend(DEVICE)
    refuses_host()
    for name in CASES:
        if name not in READ_BY_THE_HOST:
            update(name, "float32")
            update(name, "bfloat16")
    for changes in ROLLOUTS:
        collect(changes)
    print("all on the device")


if __name__ == "__main__":
    main()
