"""Spaces of Gymnasium as the rows of ``runtime.rl.spaces``: what reads an observation, and what makes an action."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from runtime.rl.spaces import ActionSpace, Image, ObsSpace

_MAX_CHANNELS: Final = 4
"""A picture whose first side is this short and whose last is not has its channels in front."""

Read = Callable[[Any], NDArray[Any]]


class RowReader:
    """Reader of the observations of a space as rows."""

    def __init__(self, space: spaces.Space[Any], name: str) -> None:
        """ValueError for a space that no network can take."""
        self._vectors, self._images = readers(space, name)
        sizes = [np.asarray(read(space.sample())).size for read in self._vectors]
        shapes = [read(space.sample()).shape for read in self._images]
        self.obs_space = ObsSpace(sum(sizes), tuple(map(image, shapes)))
        self._is_vector = isinstance(space, spaces.Box) and not shapes

    def read(self, observations: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
        """Return rows (B, width) of the observations of B copies."""
        count = len(observations)
        if self._is_vector and isinstance(observations, np.ndarray):  # no loop over copies
            return observations.astype(np.float32).reshape(count, -1)
        vector = np.empty((count, self.obs_space.vector), dtype=np.float32)
        column = 0
        for read in self._vectors:
            parts = np.stack([np.asarray(read(obs), dtype=np.float32).ravel() for obs in observations])
            vector[:, column : column + parts.shape[1]] = parts
            column += parts.shape[1]
        if not self._images:
            return vector
        return self.obs_space.pack(vector, [np.stack([read(obs) for obs in observations]) for read in self._images])


def readers(space: spaces.Space[Any], name: str) -> tuple[list[Read], list[Read]]:
    """Return what reads the vectors of an observation, and what reads its images."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces
        named = list(parts.items()) if isinstance(parts, Mapping) else list(enumerate(parts))
        vectors: list[Read] = []
        images: list[Read] = []
        for key, part in named:
            inner_vectors, inner_images = readers(part, name)
            vectors += [_at(key, read) for read in inner_vectors]
            images += [_at(key, read) for read in inner_images]
        return vectors, images
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 2:
        return [], [_picture(space.shape)]
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return [lambda obs: obs], []
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return [lambda obs: np.asarray(spaces.utils.flatten(space, obs))], []
    raise ValueError(f"{name}: observations of {space} are not supported; wrap it to give numbers or pictures")


def _at(key: Any, read: Read) -> Read:
    return lambda obs: read(obs[key])


def image(shape: tuple[int, ...]) -> Image:
    """Return the shape of a picture as one of ours."""
    height, width, channels = shape
    return height, width, channels


def _picture(shape: tuple[int, ...]) -> Read:
    """Return what brings a picture of ``shape``, or a stack of them, to height, width, channels."""
    if len(shape) == 2:
        return lambda obs: np.asarray(obs)[..., None]
    # Channel-first images (PyTorch style, and stacks of grey frames) are turned to height, width, channels.
    if len(shape) == 3 and shape[0] <= _MAX_CHANNELS < shape[-1]:  # also grey pictures behind each other
        return lambda obs: np.moveaxis(np.asarray(obs), 0, -1)
    if len(shape) == 3:
        return np.asarray
    height, width = shape[1:3]
    return lambda obs: np.moveaxis(np.asarray(obs), 0, -2).reshape(height, width, -1)


def actions(space: spaces.Space[Any], name: str) -> tuple[ActionSpace, Read]:
    """Return our form of an action space, and what turns our actions, one or rows, into the environment's."""
    if isinstance(space, spaces.Discrete):
        first = int(space.start)
        return ActionSpace(1, (int(space.n),)), lambda action: action[..., 0] + first
    if isinstance(space, spaces.MultiDiscrete):
        choices = tuple(map(int, space.nvec.ravel()))
        return ActionSpace(len(choices), choices), lambda action: action.reshape(
            *action.shape[:-1], *space.nvec.shape
        )
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return ActionSpace(size, (2,) * size), lambda action: action.reshape(
            *action.shape[:-1], *space.shape
        ).astype(np.int8)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = np.asarray(space.low, dtype=np.float64), np.asarray(space.high, dtype=np.float64)
        # A bounded axis is scaled from [-1, 1]; an unbounded one is passed on as it is.
        bounded = np.isfinite(low) & np.isfinite(high)
        middle = np.where(bounded, (np.where(bounded, low, 0.0) + np.where(bounded, high, 0.0)) / 2, 0.0)
        half = np.where(bounded, (np.where(bounded, high, 0.0) - np.where(bounded, low, 0.0)) / 2, 1.0)

        def act(action: NDArray[Any]) -> NDArray[Any]:
            rows = np.clip(action, -1.0, 1.0).reshape(*action.shape[:-1], *space.shape)
            scaled = middle + half * rows
            return np.asarray(scaled, dtype=space.dtype)

        return ActionSpace(int(np.prod(space.shape))), act
    raise ValueError(f"{name}: actions of {space} are not supported; wrap it to take numbers or choices")
