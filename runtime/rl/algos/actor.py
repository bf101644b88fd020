"""Policy network as a worker runs it: the forward pass in NumPy, from one flat array of weights.

A worker or an evaluator needs a few matrix products per step and nothing else from a learning library; importing
torch would cost each process seconds and 200 MB. The layout of the arena is the wire format of a policy, see
``ActorShape.parts``. ``runtime.rl.algos.networks`` builds the same arena in torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.base.methods import Head
from runtime.rl.algos.memory import Memory
from runtime.rl.class_names import OwnNetwork
from runtime.rl.spaces import ActionSpace, Image, ObsSpace

LOG_STD_MIN: Final = -5.0
LOG_STD_MAX: Final = 2.0
"""Range of the log standard deviation of a squashed Gaussian; a tanh maps the network's output onto it."""
HALF_LOG_2_PI: Final = 0.5 * math.log(2 * math.pi)
NORMALISED_BOUND: Final = 10.0
"""Largest absolute value of a normalised observation, as in OpenAI baselines' VecNormalize."""

EXPLORATION: Final[frozenset[Head]] = frozenset({"greedy", "deterministic"})
"""Heads with one number after the layers: the share of random actions, or the standard deviation of the noise."""
Convolution = tuple[int, int, int]
"""Output channels, kernel size, stride."""
DrawnActions = tuple[NDArray[Any], NDArray[np.float32]]
"""Actions (B, act_dim), and the logarithm of the probability (density) of each, (B,)."""


class FirstLayers(Protocol):
    """Layers of a pretrained image encoder with which a network starts."""

    latents: int
    """Number of outputs for each image."""
    padding: int

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """Output channels, kernel size and stride of each convolution."""

    def parts(self, images: Sequence[Image]) -> tuple[NDArray[np.float32], ...]:
        """Return the weights, in the layout of `ActorShape.convolution_parts`."""


@dataclass(frozen=True, slots=True)
class ActorShape:
    """Sizes of a policy network; both ends of the exchange compare them before any weights are sent."""

    obs_dim: int
    """Elements of an observation's row, see ``runtime.rl.spaces.ObsSpace``."""
    act_dim: int
    """Elements of an action."""
    hidden: tuple[int, ...]
    """Widths of the hidden layers, each followed by the activation."""
    head: Head = "squashed"
    choices: tuple[int, ...] = ()
    images: tuple[Image, ...] = ()
    convolutions: tuple[Convolution, ...] = ()
    """Convolutions of each image, each followed by a ReLU."""
    activation: Literal["relu", "tanh"] = "relu"
    others: int = 0
    """Number of additional weights that acting does not need: a value network's, if workers compute gradients."""
    is_normalised: bool = False
    """True if the vector of an observation is shifted and scaled by moments, which are part of the weights."""
    memory: Memory | None = None
    """Recurrent cell between the hidden layers and the last one."""
    padding: int = 0
    """Zero padding of each convolution."""
    latents: int = 0
    """Outputs of a dense layer without activation after each image's convolutions; 0 without such a layer."""
    network: OwnNetwork | None = None
    """Module between the observation and the hidden layers, instead of convolutions."""

    @classmethod
    def of(
        cls,
        obs: ObsSpace,
        action: ActionSpace,
        hidden: tuple[int, ...],
        *,
        head: Head,
        convolutions: tuple[Convolution, ...] = (),
        activation: Literal["relu", "tanh"] = "relu",
        is_normalised: bool = False,
        memory: Memory | None = None,
    ) -> ActorShape:
        """Return the shape for an environment's spaces.

        Raises ValueError if an image is too small for its kernels, or if there is nothing to normalise.
        """
        if is_normalised and not obs.vector:
            raise ValueError(
                "normalise_observations: this environment has only image observations, whose range is known"
            )
        convolutions = convolutions if obs.images else ()
        for image in obs.images:
            _image_sizes(image, convolutions)
        images, choices = obs.images, action.choices
        shape = cls(obs.width, action.size, hidden, head, choices, images, convolutions, activation)
        return replace(shape, is_normalised=is_normalised, memory=memory)

    @property
    def obs_space(self) -> ObsSpace:
        """Space of the rows that are the network's input."""
        pixels = sum(map(math.prod, self.images))
        return ObsSpace((self.obs_dim - pixels) // 4 if self.images else self.obs_dim, self.images)

    @property
    def outputs(self) -> int:
        """Number of outputs of the last layer."""
        if self.head in ("categorical", "greedy"):
            return sum(self.choices)
        return 2 * self.act_dim if self.head == "squashed" else self.act_dim

    @property
    def draw_size(self) -> int:
        """Number of parameters after the layers that control sampling: deviations, or an amount of exploration."""
        return self.act_dim if self.head == "gaussian" else int(self.head in EXPLORATION)

    @property
    def answer_floats(self) -> int:
        """Number of values from which an action is drawn: the outputs, followed by `draw_size` numbers."""
        return self.outputs + self.draw_size

    @property
    def features(self) -> int:
        """Number of features after the convolutions: of all images, then the vector; or of the user's own
        network.
        """
        if self.network is not None:
            return self.network.size
        sizes = [self.latents or self._convolved(image) for image in self.images]
        return sum(sizes) + self.obs_space.vector

    def _convolved(self, image: Image) -> int:
        """Return the number of outputs of an image's convolutions."""
        return math.prod(_image_sizes(image, self.convolutions, self.padding)[-1])

    @property
    def parts_of_image(self) -> int:
        """Number of parameter arrays that every image is processed with."""
        return 2 * len(self.convolutions) + (2 if self.latents else 0)

    @property
    def convolution_parts(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the parameters that process each image: (side, side, in, out) and (out,) of each kernel.

        They are followed by (in, latents) and (latents,) of the dense layer if there is one. For the user's own
        network, the shapes of all its parameters.
        """
        if self.network is not None:
            return self.network.parts
        parts: list[tuple[int, ...]] = []
        for image in self.images:
            channels = image[2]
            for out, side, _ in self.convolutions:
                parts += [(side, side, channels, out), (out,)]
                channels = out
            if self.latents:
                parts += [(self._convolved(image), self.latents), (self.latents,)]
        return tuple(parts)

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of each dense layer in order; with a memory, the last layer reads its output."""
        if self.memory is None:
            return tuple(pairwise((self.features, *self.hidden, self.outputs)))
        return *pairwise((self.features, *self.hidden)), (self.memory.size, self.outputs)

    @property
    def cell_parts(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the parameters of the recurrent cell; empty without a memory."""
        return self.memory.parts(self.hidden[-1]) if self.memory is not None else ()

    @property
    def trunk_parts(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the hidden layers and of the recurrent cell after them; empty without a memory."""
        if self.memory is None:
            return ()
        return (*_dense_parts(self.layers[:-1]), *self.cell_parts)

    @property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of all parameters in the order of the arena, each row by row.

        The convolutions, then weight (in, out) and bias of each dense layer, then the recurrent cell, then the
        `draw_size` numbers (for a plain Gaussian the log standard deviations), then shift and scale of the vector
        if it is normalised.
        """
        own = ((self.draw_size,),) if self.draw_size else ()
        return (*self.convolution_parts, *_dense_parts(self.layers), *self.cell_parts, *own, *self.moment_parts)

    @property
    def moment_parts(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of shift and scale, the last parts of an arena; empty if nothing is normalised."""
        vector = self.obs_space.vector
        return ((vector,), (vector,)) if self.is_normalised else ()

    @property
    def policy_size(self) -> int:
        """Number of float32 values that acting needs."""
        return sum(map(math.prod, self.parts))

    @property
    def size(self) -> int:
        """Number of float32 values in the arena."""
        return self.policy_size + self.others


def _dense_parts(layers: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Shapes of weight and bias of each dense layer."""
    return tuple(part for inputs, outputs in layers for part in ((inputs, outputs), (outputs,)))


def value_shape(policy: ActorShape) -> ActorShape:
    """Return the shape of a network of the same sizes with one output, the value."""
    return replace(policy, head="categorical", act_dim=1, choices=(1,), others=0)


def _image_sizes(image: Image, convolutions: tuple[Convolution, ...], padding: int = 0) -> list[Image]:
    """Return the sizes of an image before and after each convolution."""
    sizes = [image]
    for out, side, stride in convolutions:
        height, width = sizes[-1][0] + 2 * padding, sizes[-1][1] + 2 * padding
        if min(height, width) < side:
            raise ValueError(
                f"an image of {image[0]} x {image[1]} is too small for the convolutions "
                f"{[list(layer) for layer in convolutions]}; take smaller kernels or fewer of them"
            )
        sizes.append(((height - side) // stride + 1, (width - side) // stride + 1, out))
    return sizes


class NumpyActor:
    """A policy, forward only."""

    def __init__(self, shape: ActorShape) -> None:
        self.shape = shape
        self._obs_space = shape.obs_space
        self.use_weights(np.zeros(shape.size, dtype=np.float32))

    def use_weights(self, weights: NDArray[np.float32]) -> None:
        """Use ``weights`` (shape.size,) without a copy: later writes to the array change this policy."""
        self.weights = weights
        shape = self.shape
        views: list[NDArray[np.float32]] = []
        at = 0
        for part in shape.parts:
            size = math.prod(part)
            views.append(weights[at : at + size].reshape(part))
            at += size
        count = len(shape.convolution_parts)
        end = count + 2 * len(shape.layers)
        self._own_weights, dense = views[:count], views[count:end]
        kernels = self._own_weights if shape.network is None else []
        self._cell = views[end : end + len(shape.cell_parts)]
        self._kernels = list(zip(kernels[::2], kernels[1::2], strict=True))
        self.layers = list(zip(dense[::2], dense[1::2], strict=True))
        """Weight and bias of each dense layer."""
        moments = len(shape.moment_parts)
        self._drawing = views[-1 - moments]
        """The `draw_size` numbers; unused if there are none."""
        self.moments = views[len(views) - moments :]
        """Shift and scale of the observation vector; empty if nothing is normalised."""

    def load(self, arena: NDArray[np.float32]) -> None:
        """Copy new weights in. Raises ValueError for a wrong length or non-finite values, and keeps the old
        weights.
        """
        if arena.shape != (self.shape.size,):
            needed = f"{self.shape} needs ({self.shape.size},)"
            raise ValueError(f"these weights are an array of {arena.shape}; {needed}")
        if not np.isfinite(arena).all():
            raise ValueError("these weights hold values that are not finite; the policy was not loaded")
        self.weights[:] = arena

    def act(self, obs: NDArray[Any], rng: np.random.Generator | None) -> NDArray[Any]:
        """Actions (B, act_dim) for ``obs`` (B, obs_dim); without ``rng`` the most likely ones.

        Values of a squashed Gaussian are in [-1, 1]; values of a plain Gaussian may be outside, and the environment
        clips them.
        """
        return self.draw(self.outputs(obs), rng)

    def draw(self, out: NDArray[np.float32], rng: np.random.Generator | None) -> NDArray[Any]:
        """Draw actions like ``act``, from ``outputs`` that were computed here or by the learner."""
        if self.shape.head == "categorical":
            return self._choose(out, rng)[0]
        if self.shape.head == "greedy":
            return choose_greedily(out[:, :-1], out[:, -1], rng)
        if self.shape.head == "deterministic":
            return with_noise(np.tanh(out[:, :-1]), out[:, -1:], rng)
        mean, log_std = self._gaussian(out)
        drawn: NDArray[Any] = mean
        if rng is not None:
            drawn = mean + np.exp(log_std) * rng.standard_normal(mean.shape, dtype=np.float32)
        return np.tanh(drawn) if self.shape.head == "squashed" else drawn

    def draw_with_log_prob(self, out: NDArray[np.float32], rng: np.random.Generator) -> DrawnActions:
        """Draw actions like ``draw``, with the logarithm of the probability (density) of each, (B,)."""
        if self.shape.head == "categorical":
            return self._choose(out, rng)
        if self.shape.head != "gaussian":
            raise ValueError(f"a {self.shape.head} policy gives no probabilities; off-policy methods need none")
        mean, log_std = self._gaussian(out)
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        log_prob: NDArray[Any] = -(0.5 * np.square(noise) + log_std + HALF_LOG_2_PI).sum(axis=1)
        return mean + np.exp(log_std) * noise, log_prob

    def outputs(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Return (B, ``shape.answer_floats``): all values needed to draw an action for each observation.

        Raises ValueError for a policy with memory, which needs a state: see `recurrent_outputs`.
        """
        if self._cell:
            raise ValueError("this policy has a memory; its actions depend on the state of each copy")
        return self._answers(self._hidden(obs))

    def recurrent_outputs(
        self, obs: NDArray[Any], state: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return outputs like ``outputs``, and the states (B, state_size) that follow ``state``."""
        memory = self.shape.memory
        if memory is None:
            raise ValueError("this policy has no memory; its outputs need no state")
        following = memory.step(self._cell, self._hidden(obs), state)
        return self._answers(following[:, : memory.size]), following

    def _hidden(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Return the (B, width) outputs of the last hidden layer."""
        hidden = self.features(obs)
        relu = self.shape.activation == "relu"
        for weight, bias in self.layers[:-1]:
            hidden = hidden @ weight
            hidden += bias
            if relu:
                # In place: this runs at every step of every worker, and needs no second array.
                np.maximum(hidden, 0.0, out=hidden)
            else:
                np.tanh(hidden, out=hidden)
        return hidden

    def _answers(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the (B, ``shape.answer_floats``) outputs of the last layer."""
        weight, bias = self.layers[-1]
        out: NDArray[np.float32] = hidden @ weight + bias
        if self.shape.draw_size:
            return np.concatenate([out, np.broadcast_to(self._drawing, (len(out), self.shape.draw_size))], axis=1)
        return out

    def features(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Return (B, features): outputs of the convolutions, then the vector; or of the user's own network."""
        if self.shape.network is not None:
            from runtime.rl.algos.own_network import numpy_features

            vector, images = self._obs_space.split(obs)
            network, space = self.shape.network, self._obs_space
            return numpy_features(network, space, self._own_weights, self._normalised(vector), images)
        if not self.shape.images:
            return self._normalised(obs)
        vector, images = self._obs_space.split(obs)
        features: list[NDArray[np.float32]] = []
        for number, image in enumerate(images):
            hidden: NDArray[np.float32] = image.astype(np.float32) * np.float32(1 / 255)
            depth = self.shape.parts_of_image // 2
            layers = self._kernels[number * depth : (number + 1) * depth]
            for (weight, bias), (_, side, stride) in zip(layers, self.shape.convolutions, strict=False):
                hidden = convolve(hidden, weight, bias, side, stride, self.shape.padding)
            flat = hidden.reshape(len(obs), -1)
            features.append(flat @ layers[-1][0] + layers[-1][1] if self.shape.latents else flat)
        return np.concatenate([*features, self._normalised(vector)], axis=1)

    def _normalised(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """Shift and scale (B, vector) numbers by the moments that came with the weights."""
        if not self.moments:
            return vector
        shift, scale = self.moments
        scaled = (vector - shift) * scale
        return np.clip(scaled, -NORMALISED_BOUND, NORMALISED_BOUND, out=scaled)

    def _gaussian(self, out: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Return mean and log standard deviation before any squashing."""
        if self.shape.head == "gaussian":
            return out[:, : self.shape.act_dim], out[:, self.shape.act_dim :]
        log_std: NDArray[Any] = np.tanh(out[:, self.shape.act_dim :])
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std + 1.0)
        return out[:, : self.shape.act_dim], log_std

    def _choose(
        self, logits: NDArray[np.float32], rng: np.random.Generator | None
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Draw one choice for each group of logits; return them with their joint log probability."""
        count = len(logits)
        action = np.empty((count, len(self.shape.choices)), dtype=np.int32)
        log_prob: NDArray[Any] = np.zeros(count, dtype=np.float32)
        rows = np.arange(count)
        offset = 0
        for column, choices in enumerate(self.shape.choices):
            part = logits[:, offset : offset + choices]
            offset += choices
            # Gumbel-max trick: the argmax of logits plus Gumbel noise is a sample of their distribution.
            chosen = (part if rng is None else part + rng.gumbel(size=part.shape)).argmax(axis=1)
            shifted = part - part.max(axis=1, keepdims=True)
            log_prob += shifted[rows, chosen] - np.log(np.exp(shifted).sum(axis=1))
            action[:, column] = chosen
        return action, log_prob


def convolve(
    images: NDArray[np.float32],
    weight: NDArray[np.float32],
    bias: NDArray[np.float32],
    side: int,
    stride: int,
    padding: int = 0,
) -> NDArray[np.float32]:
    """ReLU of a convolution of (B, height, width, channels): one matrix product over all windows."""
    if padding:
        images = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    # A view without a copy; the reshape below makes the only copy that the product needs (im2col).
    windows = np.lib.stride_tricks.sliding_window_view(images, (side, side), axis=(1, 2))[:, ::stride, ::stride]
    count, height, width, channels = windows.shape[:4]
    rows = windows.transpose(0, 1, 2, 4, 5, 3).reshape(count * height * width, side * side * channels)
    out: NDArray[np.float32] = rows @ weight.reshape(-1, weight.shape[-1])
    out += bias
    np.maximum(out, 0.0, out=out)
    return out.reshape(count, height, width, -1)


def choose_greedily(
    values: NDArray[np.float32], share: NDArray[np.float32], rng: np.random.Generator | None
) -> NDArray[np.int32]:
    """Return (B, 1) choices with the largest of ``values`` (B, choices), random for a ``share`` (B,) of them."""
    best: NDArray[np.intp] = values.argmax(axis=1)
    if rng is not None:
        is_random = rng.random(len(values)) < share
        best = np.where(is_random, rng.integers(0, values.shape[1], len(values)), best)
    choices: NDArray[np.int32] = best[:, None].astype(np.int32)
    return choices


def with_noise(
    action: NDArray[np.float32], deviation: NDArray[np.float32], rng: np.random.Generator | None
) -> NDArray[np.float32]:
    """Return (B, act_dim) actions plus normal noise of ``deviation`` (B, 1), within [-1, 1]."""
    if rng is None:
        return action
    noise = deviation * rng.standard_normal(action.shape, dtype=np.float32)
    return np.clip(action + noise, -1.0, 1.0)


def linear_schedule(begin: float, end: float, updates: int, period: int) -> float:
    """Return the value after ``updates`` on a line from ``begin`` to ``end``, which is reached after ``period``."""
    return begin + min(1.0, updates / period) * (end - begin)


class CopyStates:
    """Policy with the memory state of each copy; without memory just the policy.

    `outputs` computes the next states and `advance` stores them once the environment was stepped: a step that did
    not happen leaves the states unchanged.
    """

    def __init__(self, actor: NumpyActor, copies: int) -> None:
        self._actor = actor
        size = actor.shape.memory.state_size if actor.shape.memory is not None else 0
        self._is_recurrent = size > 0
        self.state = np.zeros((copies, size), np.float32)
        """(copies, state_size) before the next step; zeros at the start of an episode."""
        self._following = self.state

    def outputs(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """(copies, `ActorShape.answer_floats`) for the current observations (copies, obs_dim)."""
        if not self._is_recurrent:
            return self._actor.outputs(obs)
        out, self._following = self._actor.recurrent_outputs(obs, self.state)
        return out

    def act(self, obs: NDArray[Any], rng: np.random.Generator | None) -> NDArray[Any]:
        """Actions as `NumpyActor.act` draws them."""
        return self._actor.draw(self.outputs(obs), rng)

    def advance(self, ended: NDArray[np.bool_]) -> None:
        """Store the states of the latest `outputs`, with zeros where an episode ended. ``ended`` is (copies,)."""
        if self._is_recurrent:
            self.state = self._following * ~ended[:, None]

    def reset(self) -> None:
        """Start an episode in every copy."""
        self.state = np.zeros_like(self.state)
