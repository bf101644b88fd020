"""Gymnasium environment whose images cost nothing, so that only the learner's work on them is measured."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

EPISODE_STEPS = 200
PICTURES = 32


class Pixels(gymnasium.Env[NDArray[np.uint8], NDArray[np.float32]]):
    """Images of noise; the reward is the first action."""

    def __init__(self, side: int = 84, channels: int = 4) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (side, side, channels), np.uint8)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        rng = np.random.default_rng(0)
        self._pictures = rng.integers(0, 256, (PICTURES, side, side, channels), dtype=np.uint8)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._pictures[0], {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self._steps += 1
        picture = self._pictures[self._steps % PICTURES]
        return picture, float(action[0]), False, self._steps >= EPISODE_STEPS, {}


gymnasium.register("Pixels-v0", Pixels)
