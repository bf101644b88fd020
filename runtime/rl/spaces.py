"""Observation and action spaces flattened to rows: one array row per observation or action.

Gymnasium's spaces are nested; a replay buffer, a wire format and a network need arrays. An observation becomes one
row: its vectors concatenated, then its images. Rows without images are float32. Rows with images are bytes: the
vectors as float32 in memory order, the images as uint8. An image therefore costs only its own size, and everything
between environment and network handles one array.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Image = tuple[int, int, int]
"""Height, width, channels."""


@dataclass(frozen=True, slots=True)
class ObsSpace:
    """`vector` numbers, then `images` of bytes."""

    vector: int
    images: tuple[Image, ...] = ()

    @property
    def width(self) -> int:
        """Number of elements in a row."""
        return 4 * self.vector + sum(map(math.prod, self.images)) if self.images else self.vector

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a row's elements."""
        return np.dtype(np.uint8 if self.images else np.float32)

    def pack(self, vector: NDArray[np.float32], images: Sequence[NDArray[np.uint8]], xp: Any = np) -> NDArray[Any]:
        """Return rows (B, width) of `vector` (B, vector) and each of `images` (B, height, width, channels).

        `xp` is the array library, NumPy or torch.
        """
        if not self.images:
            return vector
        count = len(vector)
        rows: NDArray[Any] = xp.empty((count, self.width), dtype=xp.uint8, device=vector.device)
        at = 4 * self.vector
        # Through one dimension, which is contiguous in both libraries: only contiguous numbers can be viewed as
        # bytes.
        rows[:, :at] = xp.asarray(vector, dtype=xp.float32).reshape(-1).view(xp.uint8).reshape(count, at)
        for image in images:
            size = math.prod(image.shape[1:])
            rows[:, at : at + size] = image.reshape(count, size)
            at += size
        return rows

    def split(self, rows: NDArray[Any]) -> tuple[NDArray[np.float32], list[NDArray[np.uint8]]]:
        """Return the vectors (B, vector) and the images of `rows`; the inverse of `pack`."""
        if not self.images:
            return rows, []
        at = 4 * self.vector
        vector = np.ascontiguousarray(rows[:, :at]).view(np.float32)
        images = []
        for image in self.images:
            size = math.prod(image)
            images.append(rows[:, at : at + size].reshape(len(rows), *image))
            at += size
        return vector, images


@dataclass(frozen=True, slots=True)
class ActionSpace:
    """`size` numbers in [-1, 1]; or, with `choices`, `size` integers, each below its entry in `choices`."""

    size: int
    choices: tuple[int, ...] = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an action's elements."""
        return np.dtype(np.int32 if self.choices else np.float32)

    def at_random(self, count: int, rng: np.random.Generator) -> NDArray[Any]:
        """Draw `count` uniformly random actions, (count, size)."""
        if self.choices:
            return rng.integers(0, self.choices, (count, self.size), dtype=np.int32)
        return rng.uniform(-1.0, 1.0, (count, self.size)).astype(np.float32)
