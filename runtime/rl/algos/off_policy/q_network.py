"""Q function of choices. All its parts except one stream form the policy: workers take its largest output."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.networks import Arena, dense_layers, encode, fill_kernels, fill_uniform


class QNetwork:
    """Value of each choice, from one stack of layers after the encoder, or from two streams.

    The dueling form is Wang et al. 2016, equation (9): Q = V + A - mean A. The choice with the largest advantage
    also has the largest value, so the stream of V is not sent to workers.
    """

    def __init__(
        self,
        shape: ActorShape,
        generator: torch.Generator,
        device: str,
        *,
        is_dueling: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.shape = shape
        count, end = len(shape.convolution_parts), len(shape.convolution_parts) + 2 * len(shape.layers)
        widths = (shape.features, *shape.hidden, 1) if is_dueling else ()
        stream = [part for i, o in pairwise(widths) for part in ((i, o), (o,))]
        # Parameters that are in no product come last, since the arena is exact from there on.
        self.arena = Arena(
            [*shape.parts[:end], *stream, *shape.parts[end:]], device, dtype, exact=len(shape.parts) - end
        )
        parameters, behind = self.arena.parameters, end + len(stream)
        self.kernels = parameters[:count]
        self._advantage = _layers(parameters[count:end])
        self._value = _layers(parameters[end:behind])
        self.moments = self.arena.begin_moments(shape)
        self.exploration = self.arena.weights[behind]
        """(1,) share of random actions."""
        self._sizes = [sum(map(math.prod, shape.parts[:end])), sum(map(math.prod, shape.parts[end:]))]
        # Biases too: without them values of small observations are linear, and overshoot where an episode ends.
        first = 0
        if shape.network is not None:
            fill_kernels(shape, self.arena.weights[:count], generator)
            first = count
        for weight, bias in _layers(self.arena.weights[first:behind]):
            for part in (weight, bias):
                fill_uniform(part, math.prod(weight.shape[:-1]), generator)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return (B, choices) values for observations (B, obs_dim)."""
        features = encode(self.shape, self.kernels, rows, self.moments)
        advantage = dense_layers(self.shape, self._advantage, features)
        if not self._value:
            return advantage
        return dense_layers(self.shape, self._value, features) + advantage - advantage.mean(dim=1, keepdim=True)

    def policy_weights(self) -> Tensor:
        """Return the (shape.size,) weights that acting needs: all except the stream of V."""
        front, tail = self._sizes
        flat = self.arena.flat
        return flat if not self._value else torch.cat([flat[:front], flat[-tail:]])


def _layers(parts: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return weight and bias of each layer."""
    return list(zip(parts[::2], parts[1::2], strict=True))
