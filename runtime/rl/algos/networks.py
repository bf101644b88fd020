"""Networks in torch, each with its parameters in one flat tensor, the arena.

With an arena a whole network is one object to all other code: the optimiser steps one tensor with one fused call,
the target follows with one ``lerp_``, a policy is published by one copy and a checkpoint stores one array. On small
networks, where each torch call costs more than its arithmetic, an update takes half the time that it would with a
list of parameters. It also makes a lower precision cheap: one cast rounds all weights of a network, where autocast
inserts one for each weight at each use.

Running mean and variance of observations and returns, in tensors, for networks that need numbers near 1.

Engstrom et al. 2020 (*Implementation Matters in Deep Policy Gradients*, arXiv:2005.12729) and Andrychowicz et al.
2021 (*What Matters in On-Policy Reinforcement Learning?*, arXiv:2006.05990) find that PPO on continuous control
depends on it. OpenAI baselines' VecNormalize keeps the moments in one loop of environments. Here the learner
computes them from the batches of all workers, and they are the last parts of each policy's weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import torch
from torch import Tensor

from runtime.rl.algos.actor import (
    HALF_LOG_2_PI,
    LOG_STD_MAX,
    LOG_STD_MIN,
    NORMALISED_BOUND,
    ActorShape,
    value_shape,
)
from runtime.rl.algos.own_network import first_weights, own_features

_LOG_CONSTANT: Final = 0.5 * math.log(2 * math.pi) + 2 * math.log(2.0)
"""Constant part of the log probability of each dimension of an action."""
_MANY: Final = 2**14
"""Number of values from which `tanh_` uses the logistic function instead."""


class Arena:
    """Parameters that are views of one flat float32 tensor, or of a copy of it in a lower precision.

    With the copy, products are computed in its type and the gradients come back as float32, for weights and moments
    that stay float32 (Micikevicius et al. 2018, arXiv:1710.03740, section 3.1).
    """

    def __init__(
        self, shapes: Sequence[tuple[int, ...]], device: str, dtype: torch.dtype = torch.float32, exact: int = 0
    ) -> None:
        """The last ``exact`` parameters, which are in no product, stay float32 whatever ``dtype`` is."""
        sizes = [math.prod(shape) for shape in shapes]
        self.flat = torch.zeros(sum(sizes), device=device)
        """(size,) all parameters, in the order of ``shapes``."""
        # Views, so that an optimiser step on `flat` changes the layers, and autograd still sees one leaf for each.
        self.weights = _views(self.flat, shapes)
        """Parameters as views of `flat`."""
        self._num_rounded = 0 if dtype is torch.float32 else len(shapes) - exact
        size = sum(sizes[: self._num_rounded])
        self._master = self.flat[:size]
        self._rounded = torch.zeros(size, device=device, dtype=dtype)
        self.parameters = [*_views(self._rounded, shapes[: self._num_rounded]), *self.weights[self._num_rounded :]]
        """Parameters used in computations: leaves of autograd."""
        for parameter in self.parameters:
            parameter.requires_grad_()

    def begin_moments(self, shape: ActorShape) -> list[Tensor]:
        """Return shift and scale at the end of the arena, initially the identity; [] without moments."""
        moments = self.parameters[len(self.parameters) - len(shape.moment_parts) :]
        if moments:
            moments[1].detach().fill_(1.0)
        return moments

    def refresh(self) -> None:
        """Round the weights to the type of products, after `flat` has changed; no effect in float32."""
        if self._num_rounded:
            self._rounded.copy_(self._master)

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the (size,) gradient of ``loss`` with respect to these parameters; zero where it does not depend
        on one.
        """
        # Without `grad_outputs`: torch imports a computer algebra system to compare their shapes. A network that
        # only partly affects the loss (unused kernels) must still give a gradient of full size.
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
        return self.flattened(gradients)

    def flattened(self, gradients: Sequence[Tensor]) -> Tensor:
        """Flatten gradients in the shapes of ``parameters`` to (size,) float32."""
        parts = [gradient.reshape(-1) for gradient in gradients]
        if not (count := self._num_rounded):
            return torch.cat(parts)
        rounded = torch.cat(parts[:count]).float()
        return torch.cat([rounded, *parts[count:]]) if count < len(parts) else rounded


def _views(flat: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Return consecutive parts of ``flat`` in these shapes."""
    parts = torch.split(flat, [math.prod(shape) for shape in shapes])
    return [values.view(shape) for shape, values in zip(shapes, parts, strict=True)]


def joint_gradient(loss: Tensor, arenas: Sequence[Arena]) -> Tensor:
    """(sum of sizes,) gradient with respect to the parameters of several arenas, in one backward pass."""
    parameters = [parameter for arena in arenas for parameter in arena.parameters]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    parts, start = [], 0
    for arena in arenas:
        parts.append(arena.flattened(gradients[start : start + len(arena.parameters)]))
        start += len(arena.parameters)
    return torch.cat(parts)


def fill_uniform(weight: Tensor, fan_in: int, generator: torch.Generator) -> None:
    """Draw weights from U(-b, b), b = 1/sqrt(fan_in), like ``torch.nn.Linear``."""
    bound = 1.0 / math.sqrt(fan_in)
    with torch.no_grad():
        weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))


def fill_biases(layers: Sequence[Tensor], generator: torch.Generator) -> None:
    """Draw the biases of layers, given weight (..., in, out) and bias of each in turn, like ``torch.nn.Linear``.

    Without them a network of rectifiers is initially linear along each ray from 0.
    """
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        fill_uniform(bias, weight.shape[-2], generator)


def fill_orthogonal(weight: Tensor, gain: float, generator: torch.Generator) -> None:
    """Draw an orthogonal matrix (Saxe et al. 2014), the usual initialisation of on-policy methods."""
    with torch.no_grad():
        flat = torch.empty(weight.reshape(-1, weight.shape[-1]).shape)
        torch.nn.init.orthogonal_(flat, gain, generator=generator)
        weight.copy_(flat.view(weight.shape))


def fill_kernels(
    shape: ActorShape, kernels: Sequence[Tensor], generator: torch.Generator, *, is_orthogonal: bool = False
) -> None:
    """Draw the weights of the layers before the dense ones; the user's own network initialises itself."""
    if shape.network is not None:
        seed = int(torch.randint(2**31, (1,), generator=generator))
        for kernel, first in zip(kernels, first_weights(shape.network, shape.obs_space, seed), strict=True):
            kernel.detach().copy_(first)
        return
    for kernel in kernels[::2]:
        if is_orthogonal:
            fill_orthogonal(kernel, math.sqrt(2.0), generator)
        else:
            fill_uniform(kernel, math.prod(kernel.shape[:-1]), generator)


def vector_of(shape: ActorShape, rows: Tensor) -> Tensor:
    """Return the (B, vector) float32 numbers of observations (B, obs_dim)."""
    # A row with images consists of bytes: the vector's float32 first, then the pixels of each image.
    return rows[:, : 4 * shape.obs_space.vector].contiguous().view(torch.float32) if shape.images else rows


def encode(shape: ActorShape, kernels: Sequence[Tensor], rows: Tensor, moments: Sequence[Tensor] = ()) -> Tensor:
    """Return (B, features) of observations (B, obs_dim): convolution outputs of each image, then the vector.

    ``moments`` are shift and scale of the vector, or none.
    """
    offset, pictures = 4 * shape.obs_space.vector, []
    for image in shape.images:
        size = math.prod(image)
        pictures.append(rows[:, offset : offset + size].view(len(rows), *image))
        offset += size
    return encode_parts(shape, kernels, vector_of(shape, rows), pictures, moments)


def encode_parts(
    shape: ActorShape,
    kernels: Sequence[Tensor],
    vector: Tensor,
    pictures: Sequence[Tensor],
    moments: Sequence[Tensor] = (),
) -> Tensor:
    """Return (B, features) of split observations: numbers (B, vector) and images of bytes (B, *image)."""
    if moments:
        # Detached: the moments are measured, not learned, and with a gradient the optimiser would change them.
        shift, scale = (moment.detach() for moment in moments)
        vector = ((vector - shift) * scale).clamp_(-NORMALISED_BOUND, NORMALISED_BOUND)
    if shape.network is not None:
        return own_features(shape.network, shape.obs_space, kernels, vector, pictures)
    if not shape.images:
        return vector
    depth = shape.parts_of_image
    features = [
        _encode_image(shape, kernels[number * depth :][:depth], picture.permute(0, 3, 1, 2))
        for number, picture in enumerate(pictures)
    ]
    return torch.cat([*features, vector.to(kernels[0].dtype)], dim=1)


def _encode_image(shape: ActorShape, kernels: Sequence[Tensor], pixels: Tensor) -> Tensor:
    """Return (B, out) of images (B, channels, height, width) of bytes, with kernels (height, width, in, out)."""
    # The first kernel is divided by 255, not the image, which is thousands of times as large.
    weights = [kernels[0] / 255.0, *kernels[2::2]]
    hidden = pixels
    for weight, bias, (_, side, stride) in zip(weights, kernels[1::2], shape.convolutions, strict=False):
        if hidden.is_cuda and stride > 1 and side % stride == 0 and not shape.padding:
            hidden = _convolved(*_folded(hidden, weight, stride), bias, 1, 0)
        else:
            hidden = _convolved(hidden, weight, bias, stride, shape.padding)
    flat = hidden.permute(0, 2, 3, 1).flatten(1)
    return torch.addmm(kernels[-1], flat, kernels[-2]) if shape.latents else flat


def _convolved(image: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    """Return the rectified convolution of an image (B, in, H, W) of bytes or numbers by a weight (k, k, in,
    out).
    """
    if image.dtype != weight.dtype:
        # With its format: rows of a padded replay are not dense, and torch would store such pixels by channels.
        image = image.to(weight.dtype, memory_format=torch.channels_last)
    return torch.nn.functional.conv2d(image, weight.permute(3, 2, 0, 1), bias, stride, padding).relu_()


def _folded(image: Tensor, weight: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Return image and weight of an equivalent convolution with stride 1: squares of pixels become channels.

    (B, C, H, W) becomes (B, C s s, H / s, W / s) and (k, k, C, out) becomes (k / s, k / s, C s s, out). The first
    layer of an image has few channels and a long stride, for which cuDNN has no good kernel: three layers forward
    and backward took 5.9 ms on an H200 for 128 images of 512x384x3 in TF32, and 3.6 ms folded; 3.8 and 2.5 in
    bfloat16. On a CPU it is slower.
    """
    side, _, channels, out = weight.shape
    count, _, height, width = image.shape
    few = side // stride
    rows, columns = (height - side) // stride + few, (width - side) // stride + few
    pixels = image.permute(0, 2, 3, 1)[:, : rows * stride, : columns * stride]
    squares = pixels.reshape(count, rows, stride, columns, stride, channels).permute(0, 1, 3, 2, 4, 5)
    folded = squares.reshape(count, rows, columns, stride * stride * channels).permute(0, 3, 1, 2)
    parts = weight.reshape(few, stride, few, stride, channels, out).permute(0, 2, 1, 3, 4, 5)
    return folded, parts.reshape(few, few, stride * stride * channels, out)


class Network:
    """Convolutions and dense layers, in the arena layout of ``ActorShape.parts``."""

    def __init__(
        self,
        shape: ActorShape,
        generator: torch.Generator,
        device: str,
        *,
        last_gain: float | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Weights are orthogonal, with ``last_gain`` for the last layer; without it, as in `torch.nn.Linear`.

        Products are computed in ``dtype``, with weights from the last `Arena.refresh`.
        """
        self.shape = shape
        count, size = len(shape.convolution_parts), len(shape.convolution_parts) + 2 * len(shape.layers)
        # The spread of a Gaussian and the moments, at the end, are in no matrix product.
        exact = len(shape.parts) - size - len(shape.cell_parts)
        self.arena = Arena(shape.parts, device, dtype, exact=exact)
        self.kernels, dense = self.arena.parameters[:count], self.arena.parameters[count:size]
        self.layers = list(zip(dense[::2], dense[1::2], strict=True))
        """Weight and bias of each dense layer."""
        self.moments = self.arena.begin_moments(shape)
        fill_kernels(shape, self.arena.weights[:count], generator, is_orthogonal=last_gain is not None)
        weights = self.arena.weights[count:size:2]
        for weight in weights:
            if last_gain is None:
                fill_uniform(weight, math.prod(weight.shape[:-1]), generator)
            else:
                gain = last_gain if weight is weights[-1] else math.sqrt(2.0)
                fill_orthogonal(weight, gain, generator)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return (B, outputs) for observations (B, obs_dim)."""
        return self.head(encode(self.shape, self.kernels, rows, self.moments))

    @property
    def drawing(self) -> Tensor:
        """(draw_size,) sampling parameters: for a plain Gaussian its log standard deviation."""
        return self.arena.parameters[-1 - len(self.moments)]

    def head(self, features: Tensor) -> Tensor:
        """Return (B, outputs) for features (B, features) from ``encode``."""
        return dense_layers(self.shape, self.layers, features)

    def hidden(self, rows: Tensor) -> Tensor:
        """Return (B, width) of the last hidden layer for observations (B, obs_dim)."""
        features = encode(self.shape, self.kernels, rows, self.moments)
        return hidden_layers(self.shape, self.layers[:-1], features.to(self.layers[-1][0].dtype))

    def last(self, hidden: Tensor) -> Tensor:
        """Return (B, outputs) of the last layer for ``hidden`` (B, width) from `hidden`."""
        weight, bias = self.layers[-1]
        return torch.addmm(bias, hidden.to(weight.dtype), weight).float()


def dense_layers(shape: ActorShape, layers: Sequence[tuple[Tensor, Tensor]], features: Tensor) -> Tensor:
    """Return (B, outputs) of the dense layers, weight and bias of each, for features (B, features)."""
    weight, bias = layers[-1]
    return torch.addmm(bias, hidden_layers(shape, layers[:-1], features.to(weight.dtype)), weight).float()


def hidden_layers(shape: ActorShape, layers: Sequence[tuple[Tensor, Tensor]], features: Tensor) -> Tensor:
    """Return (B, width) of the hidden layers, in the type of their weights, for features (B, features) of that
    type.
    """
    for weight, bias in layers:
        features = torch.addmm(bias, features, weight)
        features = features.relu_() if shape.activation == "relu" else tanh_(features)
    return features


def tanh_(values: Tensor) -> Tensor:
    """Compute the hyperbolic tangent in place; accurate to 3e-7, like float32.

    Uses 1 - 2 sigmoid(-2 x) for many values on a CPU: torch's tanh takes 140 microseconds for 65,536 numbers there,
    and its sigmoid 14. For a few numbers the single kernel of tanh costs less than these three.
    """
    # An exported graph is for batches of any size, so it must not depend on the size.
    is_exact = torch.compiler.is_exporting() or values.device.type != "cpu" or values.dtype is not torch.float32
    if is_exact or values.numel() < _MANY:
        return values.tanh_()
    return torch.rsub(values.mul_(-2.0).sigmoid_(), 1.0, alpha=2.0)


class Actor(Network):
    """Squashed Gaussian policy, in the arena layout that ``NumpyActor`` reads."""

    def distribution(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation, each (B, act_dim), of the Gaussian before squashing."""
        mean, scale = self.head(features).chunk(2, dim=1)
        return mean, squashed_log_std(scale)

    def sample(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return action (B, act_dim) in [-1, 1] and its log probability (B,), reparameterised by ``noise``.

        With u = mean + std * noise and a = tanh(u): log p(a) = log N(u) - sum log(1 - tanh(u)^2), the last term
        in the form 2 (log 2 - u - softplus(-2u)), which does not overflow (appendix C of the paper).
        """
        mean, log_std = self.distribution(features)
        u = torch.addcmul(mean, log_std.exp(), noise)
        # Each tensor operation is a launch, forward and backward, so the sum uses few of them; softplus with beta
        # -2 is softplus(-2u) / -2.
        growth = torch.add(u, torch.nn.functional.softplus(u, beta=-2.0), alpha=-2.0)
        surprise = torch.addcmul(torch.add(log_std, growth, alpha=-2.0), noise, noise, value=0.5)
        return u.tanh(), -self.shape.act_dim * _LOG_CONSTANT - surprise.sum(dim=1)


def squashed_log_std(scale: Tensor) -> Tensor:
    """Map a squashed Gaussian's second half of outputs to log standard deviations within their bounds."""
    return 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * scale.tanh() + 0.5 * (LOG_STD_MAX + LOG_STD_MIN)


class Policy(Network):
    """Policy of an on-policy method: logits of choices, or a Gaussian with a separate parameter for its spread."""

    def __init__(
        self, shape: ActorShape, generator: torch.Generator, device: str, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(shape, generator, device, last_gain=0.01, dtype=dtype)
        # State-independent spread, as in the PPO paper: a parameter, not an output.
        self._log_std = self.drawing
        """Log standard deviation of the Gaussian; initially 0."""

    def evaluate(self, rows: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log probability (B,) of ``action`` (B, act_dim) and entropy (B,) under the current policy."""
        return self.judge(self(rows), action)

    def judge(self, out: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Like ``evaluate``, for outputs (B, outputs) of the last layer."""
        if self.shape.head == "gaussian":
            z = (action - out) * (-self._log_std).exp()
            log_prob = -(0.5 * z.square() + self._log_std + HALF_LOG_2_PI).sum(dim=1)
            entropy = (self._log_std + 0.5 + HALF_LOG_2_PI).sum()
            return log_prob, entropy.expand(len(out))
        log_probs, entropies = [], []
        for column, logits in enumerate(torch.split(out, list(self.shape.choices), dim=1)):
            logs = logits.log_softmax(dim=1)
            log_probs.append(logs.gather(1, action[:, column : column + 1].long()).squeeze(1))
            entropies.append(-(logs.exp() * logs).sum(dim=1))
        return sum(log_probs[1:], log_probs[0]), sum(entropies[1:], entropies[0])


def value_network(
    policy: ActorShape, generator: torch.Generator, device: str, dtype: torch.dtype = torch.float32
) -> Network:
    """Return a network of the same sizes with one output, (B, 1)."""
    return Network(value_shape(policy), generator, device, last_gain=1.0, dtype=dtype)


def one_value(width: int) -> ActorShape:
    """Return the shape of one layer that computes a value (B, 1) from a layer's outputs (B, width)."""
    return ActorShape(width, 1, (), head="categorical", choices=(1,))


class SharedValue(Network):
    """Value that is one layer on the policy's last hidden layer; both losses train the layers below."""

    def __init__(self, policy: Policy, generator: torch.Generator, device: str) -> None:
        super().__init__(one_value(len(policy.layers[-1][0])), generator, device, last_gain=1.0)
        self._policy = policy

    def __call__(self, rows: Tensor) -> Tensor:
        """Return (B, 1) values of observations (B, obs_dim)."""
        return self.last(self._policy.hidden(rows))


_EPSILON: Final = 1e-8
"""Added to a variance before its root; a constant number then becomes 0."""
REWARD_BOUND: Final = 10.0
"""Largest absolute value of a normalised reward, as in VecNormalize."""

Mean = Callable[[Tensor], Tensor]
"""Mean of a tensor over all ranks that share a batch."""


class Normalised(Protocol):
    """Network that normalises the vector of observations."""

    @property
    def moments(self) -> Sequence[Tensor]:
        """Return shift and scale; nothing without normalisation."""


class RunningMoments:
    """Mean and variance of all rows so far: Chan et al. 1979 (*Updating Formulae*, STAN-CS-79-773), eq. (2.1)."""

    def __init__(self, size: int, device: str) -> None:
        # Mean and variance, not a sum of squares, for which float32 would soon lack precision.
        self.state = torch.zeros(1 + 2 * size, device=device)
        """(1 + 2 size,) count, means, variances; the same in checkpoints."""
        self._count = self.state[:1]
        self.mean, self.variance = self.state[1 : 1 + size], self.state[1 + size :]
        self.variance.fill_(1.0)

    @torch.no_grad()
    def update(self, rows: Tensor, mean: Mean, ranks: int = 1) -> None:
        """Merge ``rows`` (B, size), an equal share of those of all ``ranks``."""
        # First the mean over devices: the variances of the shares around it then have an exact mean too.
        batch_mean = mean(rows.mean(dim=0))
        batch_variance = mean((rows - batch_mean).square().mean(dim=0))
        count = ranks * len(rows)
        total = self._count + count
        share = count / total
        distance = batch_mean - self.mean
        self.mean.addcmul_(distance, share)
        spread = batch_variance - self.variance + distance.square() * (1.0 - share)
        self.variance.addcmul_(spread, share)
        self._count.copy_(total)

    @property
    def scale(self) -> Tensor:
        """Return (size,) inverse standard deviations."""
        return (self.variance + _EPSILON).rsqrt()

    def count(
        self, shape: ActorShape, obs: Tensor, networks: Sequence[Normalised], mean: Mean, ranks: int = 1
    ) -> None:
        """Merge observations (B, obs_dim), and write the moments to the networks that normalise by them."""
        self.update(vector_of(shape, obs), mean, ranks)
        self.write([network.moments for network in networks if network.moments])

    def write(self, places: Sequence[Sequence[Tensor]]) -> None:
        """Copy mean and scale to each (shift, scale) of networks."""
        scale = self.scale
        for shift, factor in places:
            shift.detach().copy_(self.mean)
            factor.detach().copy_(scale)
