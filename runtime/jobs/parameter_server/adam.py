"""Adam (Kingma & Ba 2015, algorithm 1) on one flat array, for servers without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_BETAS: Final = (0.9, 0.999)
_EPSILON: Final = 1e-8


@dataclass(slots=True)
class Adam:
    """Weights and the two moments of their gradients, each (size,)."""

    weights: NDArray[np.float32]
    lr: float
    steps: int = 0
    mean: NDArray[np.float32] = field(init=False)
    square: NDArray[np.float32] = field(init=False)

    def __post_init__(self) -> None:
        """Start with zero moments."""
        self.mean = np.zeros_like(self.weights)
        self.square = np.zeros_like(self.weights)

    def step(self, gradient: NDArray[np.float32]) -> None:
        """Move the weights against ``gradient`` (size,)."""
        first, second = _BETAS
        self.steps += 1
        self.mean += (1 - first) * (gradient - self.mean)
        self.square += (1 - second) * (np.square(gradient) - self.square)
        # Algorithm 1 with both bias corrections written out; learners use torch's fused version.
        scale = np.sqrt(self.square / (1 - second**self.steps)) + _EPSILON
        self.weights -= (self.lr / (1 - first**self.steps)) * self.mean / scale

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return copies of everything that a step changes."""
        arrays = {"weights": self.weights, "mean": self.mean, "square": self.square}
        return {**{name: array.copy() for name, array in arrays.items()}, "steps": np.array(self.steps)}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Load a result of `arrays`. Raises ValueError if the size differs."""
        for name, mine in (("weights", self.weights), ("mean", self.mean), ("square", self.square)):
            if arrays[name].shape != mine.shape:
                raise ValueError(f"it holds {arrays[name].shape[0]} weights, and this shard has {mine.shape[0]}")
            mine[:] = arrays[name]
        self.steps = int(arrays["steps"])
