"""Networks in torch, each with its parameters in one flat tensor, the arena.

An arena makes a whole network one object to everything that is not the network: the optimiser steps one tensor
with one fused call, the target follows with one ``lerp_``, a policy is published by one copy and a checkpoint
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

from runtime.rl.algos.actor import HALF_LOG_2_PI, LOG_STD_MAX, LOG_STD_MIN, ActorShape, Convolution, value_shape

_LOG_CONSTANT: Final = 0.5 * math.log(2 * math.pi) + 2 * math.log(2.0)
"""Constant part of the log probability of each dimension of an action."""


class Arena:
    """Parameters that are views of one flat tensor."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], device: str) -> None:
        sizes = [math.prod(shape) for shape in shapes]
        self.flat = torch.zeros(sum(sizes), device=device)
        """(size,) all parameters, in the order of ``shapes``."""
        # Views, so that an optimiser step on `flat` moves the layers, and autograd still sees one leaf for each.
        parts = zip(shapes, torch.split(self.flat, sizes), strict=True)
        self.parameters = [values.view(shape).requires_grad_() for shape, values in parts]

    def gradient(self, loss: Tensor) -> Tensor:
        """(size,) gradient of ``loss`` with respect to these parameters; zero where it does not depend on one."""
        # A network that the loss reaches in part (unused kernels) must still give a gradient of full size.
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
        return torch.cat([gradient.reshape(-1) for gradient in gradients])


def _fill_uniform(weight: Tensor, fan_in: int, generator: torch.Generator) -> None:
    """Draw weights from U(-b, b), b = 1/sqrt(fan_in), as ``torch.nn.Linear`` does."""
    bound = 1.0 / math.sqrt(fan_in)
    with torch.no_grad():
        weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))


def _fill_orthogonal(weight: Tensor, gain: float, generator: torch.Generator) -> None:
    """Draw an orthogonal matrix (Saxe et al. 2014), the usual initialisation of on-policy methods."""
    with torch.no_grad():
        flat = torch.empty(weight.reshape(-1, weight.shape[-1]).shape)
        torch.nn.init.orthogonal_(flat, gain, generator=generator)
        weight.copy_(flat.view(weight.shape))


def encode(shape: ActorShape, kernels: Sequence[Tensor], rows: Tensor) -> Tensor:
    """(B, features) of observations (B, obs_dim): outputs of the convolutions of each image, then the vector."""
    if not shape.images:
        return rows
    # A row with images is bytes: the vector's float32 first, then the pixels of each image.
    offset = 4 * shape.obs_space.vector
    vector = rows[:, :offset].contiguous().view(torch.float32)
    features: list[Tensor] = []
    depth = 2 * len(shape.convolutions)
    for number, image in enumerate(shape.images):
        size = math.prod(image)
        pixels = rows[:, offset : offset + size].view(len(rows), *image).permute(0, 3, 1, 2)
        offset += size
        features.append(_convolve(pixels, kernels[number * depth : (number + 1) * depth], shape.convolutions))
    return torch.cat([*features, vector], dim=1)


def _convolve(pixels: Tensor, kernels: Sequence[Tensor], convolutions: Sequence[Convolution]) -> Tensor:
    """(B, out) of images (B, channels, height, width) of bytes, with kernels (height, width, in, out)."""
    hidden = pixels.to(torch.float32) / 255.0
    for weight, bias, (_, _, stride) in zip(kernels[::2], kernels[1::2], convolutions, strict=True):
        hidden = torch.nn.functional.conv2d(hidden, weight.permute(3, 2, 0, 1), bias, stride).relu_()
    return hidden.permute(0, 2, 3, 1).flatten(1).float()


class Network:
    """Convolutions and dense layers; the arena is laid out as ``ActorShape.parts`` says."""

    def __init__(
        self, shape: ActorShape, generator: torch.Generator, device: str, *, last_gain: float | None = None
    ) -> None:
        """Weights are orthogonal with ``last_gain`` for the last layer, or as in `torch.nn.Linear` without it."""
        self.shape = shape
        self.arena = Arena(shape.parts, device)
        count = len(shape.convolution_parts)
        self.kernels = self.arena.parameters[:count]
        dense = self.arena.parameters[count : count + 2 * len(shape.layers)]
        self._layers = list(zip(dense[::2], dense[1::2], strict=True))
        weights = [*self.kernels[::2], *dense[::2]]
        for weight in weights:
            if last_gain is None:
                _fill_uniform(weight, math.prod(weight.shape[:-1]), generator)
            else:
                gain = last_gain if weight is dense[-2] else math.sqrt(2.0)
                _fill_orthogonal(weight, gain, generator)

    def __call__(self, rows: Tensor) -> Tensor:
        """(B, outputs) for observations (B, obs_dim)."""
        return self.head(encode(self.shape, self.kernels, rows))

    def head(self, features: Tensor) -> Tensor:
        """(B, outputs) for features (B, features) from ``encode``."""
        hidden = features
        for weight, bias in self._layers[:-1]:
            hidden = torch.addmm(bias, hidden, weight)
            hidden = hidden.relu_() if self.shape.activation == "relu" else hidden.tanh_()
        weight, bias = self._layers[-1]
        return torch.addmm(bias, hidden, weight).float()  # under autocast the products are bfloat16


class Actor(Network):
    """Squashed Gaussian policy; its arena is laid out as ``NumpyActor`` reads it."""

    def distribution(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation, each (B, act_dim), of the Gaussian before squashing."""
        mean, scale = self.head(features).chunk(2, dim=1)
        return mean, LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (scale.tanh() + 1.0)

    def sample(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Action (B, act_dim) in [-1, 1] and its log probability (B,), reparameterised by ``noise``.

        With u = mean + std * noise and a = tanh(u): log p(a) = log N(u) - sum log(1 - tanh(u)^2), the last term
        in the form 2 (log 2 - u - softplus(-2u)), which does not overflow (appendix C of the paper).
        """
        mean, log_std = self.distribution(features)
        u = torch.addcmul(mean, log_std.exp(), noise)
        # Terms of the noise alone need no gradient: kept apart, they cost nothing in the backward pass.
        constant = -0.5 * noise.square().sum(dim=1) - self.shape.act_dim * _LOG_CONSTANT
        log_prob = (2.0 * (u + torch.nn.functional.softplus(-2.0 * u)) - log_std).sum(dim=1) + constant
        return u.tanh(), log_prob


class Policy(Network):
    """Policy of an on-policy method: logits of choices, or a Gaussian whose spread is a parameter of its own."""

    def __init__(self, shape: ActorShape, generator: torch.Generator, device: str) -> None:
        super().__init__(shape, generator, device, last_gain=0.01)
        # State-independent spread, as in the PPO paper: it is a parameter and not an output.
        self._log_std = self.arena.parameters[-1]
        """Log standard deviation of the Gaussian; begins at 0."""

    def evaluate(self, rows: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log probability (B,) of ``action`` (B, act_dim), and entropy (B,), under the present policy."""
        out = self(rows)
        if self.shape.head == "gaussian":
            z = (action - out) * (-self._log_std).exp()
            log_prob = -(0.5 * z.square() + self._log_std + HALF_LOG_2_PI).sum(dim=1)
            entropy = (self._log_std + 0.5 + HALF_LOG_2_PI).sum()
            return log_prob, entropy.expand(len(rows))
        log_probs, entropies = [], []
        for column, logits in enumerate(torch.split(out, list(self.shape.choices), dim=1)):
            logs = logits.log_softmax(dim=1)
            log_probs.append(logs.gather(1, action[:, column : column + 1].long()).squeeze(1))
            entropies.append(-(logs.exp() * logs).sum(dim=1))
        return sum(log_probs[1:], log_probs[0]), sum(entropies[1:], entropies[0])


def value_network(policy: ActorShape, generator: torch.Generator, device: str) -> Network:
    """Return a network of the same sizes with one output, (B, 1)."""
    return Network(value_shape(policy), generator, device, last_gain=1.0)


class TwinCritic:
    """Two Q functions of equal shape behind one encoder, evaluated together by batched products.

    The encoder's kernels are at the front of the arena, as in an actor's, so that one copy shares them.
    """

    def __init__(self, shape: ActorShape, generator: torch.Generator, device: str) -> None:
        self.shape = shape
        widths = (shape.features + shape.act_dim, *shape.hidden, 1)
        parts = [part for i, o in pairwise(widths) for part in ((2, i, o), (2, 1, o))]
        self.arena = Arena([*shape.convolution_parts, *parts], device)
        count = len(shape.convolution_parts)
        self.kernels, dense = self.arena.parameters[:count], self.arena.parameters[count:]
        self._layers = list(zip(dense[::2], dense[1::2], strict=True))
        for weight in self.kernels[::2]:
            _fill_uniform(weight, math.prod(weight.shape[:-1]), generator)
        for weight in dense[::2]:
            _fill_uniform(weight, weight.shape[1], generator)

    def features(self, rows: Tensor) -> Tensor:
        """(B, features) of observations (B, obs_dim)."""
        return encode(self.shape, self.kernels, rows)

    def __call__(self, features: Tensor, action: Tensor) -> Tensor:
        """(2, B) values of ``action`` (B, act_dim) given ``features`` (B, features)."""
        # One batched product for both critics: half the kernel launches of two networks.
        hidden = torch.cat([features, action], dim=1).expand(2, -1, -1)
        for weight, bias in self._layers[:-1]:
            hidden = torch.baddbmm(bias, hidden, weight).relu_()
        weight, bias = self._layers[-1]
        return torch.baddbmm(bias, hidden, weight).squeeze(2).float()
