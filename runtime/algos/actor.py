"""The actor as a worker runs it: the forward pass in NumPy, from one flat array of weights.

A worker or an evaluator needs a few small matrix products a step and nothing else of a learning library; importing
one would cost each process seconds and 200 MB. The layout of the arena is the wire format of a policy: for each
layer its weight, (in, out) row by row, then its bias; last the layer of 2 * act_dim outputs, means before
log standard deviations. ``runtime.algos.networks`` builds the same arena in torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

LOG_STD_MIN: Final = -5.0
LOG_STD_MAX: Final = 2.0
"""Range of the log standard deviation; a tanh maps the network's output onto it."""


@dataclass(frozen=True, slots=True)
class ActorShape:
    """Sizes of a policy network; both ends of the exchange compare it before any weights are sent."""

    obs_dim: int
    act_dim: int
    hidden: tuple[int, ...]
    """Widths of the hidden layers, each followed by a ReLU."""

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of each layer in order."""
        widths = (self.obs_dim, *self.hidden, 2 * self.act_dim)
        return tuple(pairwise(widths))

    @property
    def size(self) -> int:
        """Number of float32 in the arena."""
        return sum(inputs * outputs + outputs for inputs, outputs in self.layers)


class NumpyActor:
    """A squashed Gaussian policy (Haarnoja et al. 2018b, appendix C), forward only."""

    def __init__(self, shape: ActorShape) -> None:
        self.shape = shape
        self._arena = np.zeros(shape.size, dtype=np.float32)
        self._layers: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []
        at = 0
        for inputs, outputs in shape.layers:
            weight = self._arena[at : at + inputs * outputs].reshape(inputs, outputs)
            at += inputs * outputs
            self._layers.append((weight, self._arena[at : at + outputs]))
            at += outputs

    def load(self, arena: NDArray[np.float32]) -> None:
        """Copy new weights in. ValueError, with the old ones kept, for another length or values not finite."""
        if arena.shape != (self.shape.size,):
            raise ValueError(
                f"these weights are an array of {arena.shape}; {self.shape} needs ({self.shape.size},)"
            )
        if not np.isfinite(arena).all():
            raise ValueError("these weights hold values that are not finite; the policy was not loaded")
        self._arena[:] = arena

    def act(self, obs: NDArray[np.float32], rng: np.random.Generator | None) -> NDArray[np.float32]:
        """Actions (B, act_dim) in [-1, 1] for ``obs`` (B, obs_dim); without ``rng`` the mean, squashed."""
        hidden = obs
        for weight, bias in self._layers[:-1]:
            hidden = hidden @ weight
            hidden += bias
            np.maximum(hidden, 0.0, out=hidden)
        weight, bias = self._layers[-1]
        out = hidden @ weight + bias
        mean = out[:, : self.shape.act_dim]
        if rng is not None:
            scale = np.tanh(out[:, self.shape.act_dim :])
            log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (scale + 1.0)
            mean = mean + np.exp(log_std) * rng.standard_normal(mean.shape, dtype=np.float32)
        return np.asarray(np.tanh(mean))
