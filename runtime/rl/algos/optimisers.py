"""Optimisers on one flat tensor: torch's fused kernels through its functional interface.

Microseconds per step, measured on one core with 5 thousand, 70 thousand and 1 million floats: five tensor calls of
our own 17, 67, 956; ``torch.optim.Adam(fused=True)`` 26, 47, 410; the functional form below 12, 35, 382. The
functional form also keeps its state where a checkpoint can name it, and imports no compiler, which
``torch.optim.Optimizer.step`` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.optim.sgd import sgd

_LEAST_SHARE: Final = 1e-3
"""Lower bound of an annealed step size, as a share of its first value: at 0 a run that continues would learn
nothing.
"""


_BLOCK: Final = 2_048
"""Parameters per block of torch's fused kernel (`MultiTensorApply.cuh`: 512 threads, 4 each)."""
_TENSORS: Final = 36
"""Number of tensors that one launch of the fused kernel takes with four lists (`depth_to_max_tensors`)."""
_LAUNCHES: Final = 4
_MANY: Final = 64 * 65_536
"""Number of parameters from which the kernel's own chunks of 65,536 fill a GPU."""


class LearningRate:
    """Step size in the form that the fused kernels take: on a GPU a tensor, which a CUDA graph reads at each
    replay.

    On a CPU it stays a Python number: the kernel would read a tensor through ``item``, which costs a microsecond.
    """

    def __init__(self, value: float, device: torch.device) -> None:
        self._value = self.initial = value
        self.operand = torch.tensor(value, device=device) if device.type == "cuda" else value
        """The ``lr`` argument of torch's functional optimisers."""

    def set(self, value: float) -> None:
        """Change the step size in place."""
        if value == self._value:
            return
        self._value = value
        if isinstance(self.operand, Tensor):
            self.operand.fill_(value)
        else:
            self.operand = value


class Adam:
    """Adam (Kingma & Ba 2015, algorithm 1)."""

    def __init__(
        self, flat: Tensor, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        """``flat`` (size,): the parameters, which `step` changes in place."""
        self._eps = eps
        self._lr = LearningRate(lr, flat.device)
        self._betas = betas
        self.mean = torch.zeros_like(flat)
        self.square = torch.zeros_like(flat)
        # The fused kernel reads the count on the parameters' device, as float32. It stops growing at 2**24; by then
        # both bias corrections have long been 1.
        self.steps = torch.zeros((), device=flat.device)
        self._size = _part_size(flat)
        self._parts = [torch.split(tensor, self._size) for tensor in (flat, self.mean, self.square)]

    def scale_learning_rate(self, share: float) -> None:
        """Use this share of the first step size from now on, also in CUDA graphs that were captured before."""
        self._lr.set(self._lr.initial * share)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state by its names in a checkpoint."""
        return {"mean": self.mean, "square": self.square, "steps": self.steps}

    def step(self, gradient: Tensor) -> None:
        """Move the parameters against ``gradient`` (size,)."""
        self.steps.add_(1.0)
        flat, mean, square = self._parts
        beta1, beta2 = self._betas
        # The function below `torch.optim.adam.adam`: that one would increment the shared step count once per part.
        torch._fused_adam_(
            flat,
            torch.split(gradient, self._size),
            mean,
            square,
            [],
            [self.steps] * len(flat),
            lr=self._lr.operand,
            beta1=beta1,
            beta2=beta2,
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
        )


def _part_size(flat: Tensor) -> int:
    """Return the size of the parts into which parameters are split for a step.

    On a GPU the fused kernel gives each chunk of 65,536 parameters of a tensor to one block, so one or two of 132
    multiprocessors would process a small network: on an H200 14 microseconds a step for 70,000 parameters, and 52
    for 1.6 million. Split into many small tensors, the same parameters use the whole device.
    """
    count = flat.numel()
    if not flat.is_cuda or count >= _MANY:
        return max(1, count)
    return max(_BLOCK, -(-count // (_TENSORS * _LAUNCHES)))


def anneal(optimisers: Iterable[Adam], updates: int, anneal_updates: int | None) -> None:
    """Lower step sizes linearly over ``anneal_updates`` updates; None keeps them."""
    share = 1.0 if anneal_updates is None else max(1.0 - updates / anneal_updates, _LEAST_SHARE)
    for optimiser in optimisers:
        optimiser.scale_learning_rate(share)


class Momentum:
    """Gradient descent with momentum (Polyak 1964), and with L2 regularisation (``weight_decay``)."""

    def __init__(self, flat: Tensor, lr: float, momentum: float, weight_decay: float = 0.0) -> None:
        """``flat`` (size,): the parameters, which `step` changes in place."""
        self._flat = flat
        self.lr = lr
        self._step = partial(sgd, fused=True, momentum=momentum, weight_decay=weight_decay)
        self.mean = torch.zeros_like(flat)

    def step(self, gradient: Tensor) -> None:
        """Move the parameters against ``gradient`` (size,)."""
        self._step([self._flat], [gradient], [self.mean], lr=self.lr, dampening=0.0, nesterov=False, maximize=False)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state by its names in a checkpoint."""
        return {"mean": self.mean}


def clip_grad_norm(gradient: Tensor, max_norm: float) -> Tensor:
    """Return ``gradient`` scaled to a norm of at most ``max_norm`` (Pascanu et al. 2013, algorithm 1).

    It differs from `torch.nn.utils.clip_grad_norm_` by the 1e-6 that this adds to the norm.
    """
    # One kernel instead of two: for a norm below the bound, the factor is the bound divided by itself, 1.
    factor: Tensor = max_norm / gradient.norm().clamp(min=max_norm)
    return gradient * factor
