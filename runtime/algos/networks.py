"""The networks of SAC in torch, each with its parameters in one flat tensor.

An arena makes a whole network one object to everything that is not the network: the optimiser steps one tensor
with a handful of calls, the target follows with one ``lerp_``, a policy is published by one copy and a checkpoint
stores one array. On small networks, where each torch call costs more than its arithmetic, an update spends half
the time that it would with a list of parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from runtime.algos.actor import LOG_STD_MAX, LOG_STD_MIN, ActorShape

_LOG_CONSTANT: Final = 0.5 * math.log(2 * math.pi) + 2 * math.log(2.0)
"""What each dimension of an action takes from the log probability, whatever its value."""


class Arena:
    """Parameters that look into one flat tensor."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], device: str) -> None:
        sizes = [math.prod(shape) for shape in shapes]
        self.flat = torch.zeros(sum(sizes), device=device)
        """(size,) all parameters, in the order of ``shapes``."""
        self.parameters = [
            values.view(shape).requires_grad_()
            for shape, values in zip(shapes, torch.split(self.flat, sizes), strict=True)
        ]

    def gradient(self, loss: Tensor) -> Tensor:
        """(size,) slope of ``loss`` in these parameters and in no others."""
        return torch.cat([grad.reshape(-1) for grad in torch.autograd.grad(loss, self.parameters)])


class Adam:
    """Adam (Kingma & Ba 2015, algorithm 1) on one flat tensor.

    torch.optim.Adam spends more time on finding its tensors than on these five calls, and hides its state.
    """

    def __init__(self, flat: Tensor, lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self._flat = flat
        self._lr = lr
        self._betas = betas
        self.mean = torch.zeros_like(flat)
        self.square = torch.zeros_like(flat)
        self.steps = torch.zeros((), dtype=torch.int64)
        """On the CPU in any case: only Python reads it."""

    def step(self, gradient: Tensor) -> None:
        """Move the parameters against ``gradient`` (size,)."""
        beta1, beta2 = self._betas
        self.steps += 1
        steps = int(self.steps)
        self.mean.lerp_(gradient, 1 - beta1)
        self.square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        # The corrections for the zeros at the start, moved from the moments into the step size and epsilon.
        root = math.sqrt(1 - beta2**steps)
        self._flat.addcdiv_(
            self.mean, self.square.sqrt().add_(1e-8 * root), value=-self._lr * root / (1 - beta1**steps)
        )


def _fill_uniform(weight: Tensor, fan_in: int, generator: torch.Generator) -> None:
    """Draw weights as ``torch.nn.Linear`` does, from a generator of our own."""
    bound = 1.0 / math.sqrt(fan_in)
    with torch.no_grad():
        weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))


class Actor:
    """Squashed Gaussian policy; its arena is laid out as ``NumpyActor`` reads it."""

    def __init__(self, shape: ActorShape, generator: torch.Generator, device: str) -> None:
        self.shape = shape
        self.arena = Arena([part for i, o in shape.layers for part in ((i, o), (o,))], device)
        weights = self.arena.parameters[::2]
        self._layers = list(zip(weights, self.arena.parameters[1::2], strict=True))
        for weight in weights:
            _fill_uniform(weight, weight.shape[0], generator)

    def distribution(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation, each (B, act_dim), of the Gaussian before squashing."""
        hidden = obs
        for weight, bias in self._layers[:-1]:
            hidden = torch.addmm(bias, hidden, weight).relu_()
        weight, bias = self._layers[-1]
        mean, scale = torch.addmm(bias, hidden, weight).chunk(2, dim=1)
        return mean, LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (scale.tanh() + 1.0)

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Action (B, act_dim) in [-1, 1] and its log probability (B,), reparameterised by ``noise``.

        With u = mean + std * noise and a = tanh(u): log p(a) = log N(u) - sum log(1 - tanh(u)^2), the last term
        in the form 2 (log 2 - u - softplus(-2u)), which does not overflow (appendix C of the paper).
        """
        mean, log_std = self.distribution(obs)
        u = torch.addcmul(mean, log_std.exp(), noise)
        # What depends on the noise alone has no slope: kept apart, it costs nothing in the backward pass.
        constant = -0.5 * noise.square().sum(dim=1) - self.shape.act_dim * _LOG_CONSTANT
        log_prob = (2.0 * (u + torch.nn.functional.softplus(-2.0 * u)) - log_std).sum(dim=1) + constant
        return u.tanh(), log_prob


class TwinCritic:
    """Two Q functions of equal shape, evaluated together by batched products."""

    def __init__(
        self, obs_dim: int, act_dim: int, hidden: Sequence[int], generator: torch.Generator, device: str
    ) -> None:
        widths = (obs_dim + act_dim, *hidden, 1)
        shapes = list(pairwise(widths))
        self.arena = Arena([part for i, o in shapes for part in ((2, i, o), (2, 1, o))], device)
        weights = self.arena.parameters[::2]
        self._layers = list(zip(weights, self.arena.parameters[1::2], strict=True))
        for weight in weights:
            _fill_uniform(weight, weight.shape[1], generator)

    def __call__(self, obs: Tensor, action: Tensor) -> Tensor:
        """(2, B) values of ``action`` (B, act_dim) in ``obs`` (B, obs_dim)."""
        hidden = torch.cat([obs, action], dim=1).expand(2, -1, -1)
        for weight, bias in self._layers[:-1]:
            hidden = torch.baddbmm(bias, hidden, weight).relu_()
        weight, bias = self._layers[-1]
        return torch.baddbmm(bias, hidden, weight).squeeze(2)
