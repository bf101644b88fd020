"""Handwritten-like digits to tell apart: an environment whose right answers are known.

Small pictures of the ten digits, each drawn anew with its own slant, shift, thickness and noise, of the size of
scikit-learn's digits (8 x 8). A policy earns 1 for naming the digit, so an evaluator's mean return is the accuracy;
`examples` gives the answers too, for training by gradients (see `runtime.rl.roles.worker_gradients`). Pictures for
training and for evaluation come from generators of their own, so what is measured was never trained on.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.rl.envs.base import EpisodeSummary, StepResult
from runtime.rl.spaces import ActionSpace, ObsSpace

SIDE: Final = 8
_FONT: Final = (
    "0110 1001 1001 1001 1001 0110",
    "0010 0110 0010 0010 0010 0111",
    "0110 1001 0001 0010 0100 1111",
    "1110 0001 0110 0001 0001 1110",
    "0010 0110 1010 1111 0010 0010",
    "1111 1000 1110 0001 0001 1110",
    "0110 1000 1110 1001 1001 0110",
    "1111 0001 0010 0010 0100 0100",
    "0110 1001 0110 1001 1001 0110",
    "0110 1001 1001 0111 0001 0110",
)
NOISE: Final = 0.2


class DigitsVectorEnv:
    """``num_envs`` pictures at a time, each an episode of one step; see ``runtime.rl.envs.base.VectorEnv``."""

    obs_space = ObsSpace(SIDE * SIDE)
    action_space = ActionSpace(1, (10,))
    step_seconds = 0.0

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        dots = [[[int(dot) for dot in row] for row in digit.split()] for digit in _FONT]
        self._strokes = np.array(dots, dtype=np.float32)
        """(10, 6, 4) of zeros and ones."""
        self.reset(0)

    def reset(self, seed: int) -> NDArray[Any]:
        """Draw the first pictures."""
        self._rng = np.random.default_rng([seed, 1])
        return self._show()

    def step(self, action: NDArray[Any]) -> StepResult:
        """Earn 1 for each digit that was named, and draw others."""
        reward = (action[:, 0] == self._right).astype(np.float32)
        before, yes, no = self._obs, np.ones(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        episodes = tuple(EpisodeSummary(number, 1, float(gain)) for number, gain in enumerate(reward))
        return StepResult(self._show(), reward, yes, no, before, episodes)

    def examples(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        """Draw ``count`` pictures and their digits."""
        digits = rng.integers(0, 10, count)
        pictures = np.zeros((count, SIDE, SIDE), dtype=np.float32)
        glyphs = self._strokes[digits]
        left, top = rng.integers(0, 4, count), rng.integers(0, 3, count)
        slant = rng.integers(-1, 2, count)
        everyone = np.arange(count)
        for row in range(6):
            shift = np.clip(left + slant * (row - 3) // 3, 0, SIDE - 4)
            for column in range(4):
                pictures[everyone, top + row, shift + column] = glyphs[:, row, column]
        thickness = rng.uniform(0.0, 0.5, (count, 1, 1)).astype(np.float32)
        pictures[:, :, 1:] = np.maximum(pictures[:, :, 1:], thickness * pictures[:, :, :-1])
        strength = rng.uniform(0.6, 1.0, (count, 1, 1)).astype(np.float32)
        pictures = pictures * strength + NOISE * rng.standard_normal(pictures.shape, dtype=np.float32)
        return pictures.reshape(count, -1), digits

    def _show(self) -> NDArray[np.float32]:
        self._obs, self._right = self.examples(self.num_envs, self._rng)
        return self._obs
