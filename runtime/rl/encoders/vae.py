"""Encoder of Learn-to-Race's variational autoencoder, forward only, in NumPy.

Convolutions of 4 x 4 with stride 2 and padding 1, each with a ReLU, then one dense layer to the mean of the
latents: the lab's encoder maps 144 x 144 x 3 pixels to 32 numbers. Weights are read by the keys of its state dict:
``encoder.0.weight``, ``encoder.2.weight`` and so on, and ``fc1`` for means; ``fc2`` (log variances), ``fc3`` and
``decoder`` are only for training. The lab draws latents at random around the means; the means represent the same
image without noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors
from numpy.typing import NDArray

from runtime.base.errors import first_line
from runtime.rl.algos.actor import Convolution, convolve
from runtime.rl.spaces import Image

Arrays = Mapping[str, NDArray[np.float32]]
STRIDE: Final = 2
SIDE: Final = 4
PADDING: Final = 1


class VAE:
    """Computes the mean latents of every image of an observation, one after another."""

    def __init__(self, images: Sequence[Image], weights: str) -> None:
        """Read the state dict at the path ``weights``. Raises ValueError if it does not fit images of these
        sizes.
        """
        arrays = read_state_dict(weights)
        self._kernels = _kernels(arrays, weights)
        self._dense, self._bias = _pair(arrays, "fc1", weights)
        channels = self._kernels[0][0].shape[2]
        for height, width, depth in images:
            if depth != channels:
                colour = "grey" if channels == 1 else f"of {channels} channels"
                raise ValueError(f"{weights} is for pictures that are {colour}, and these have {depth} channels")
            sides = [size // STRIDE ** len(self._kernels) for size in (height, width)]
            if sides[0] * sides[1] * self._kernels[-1][0].shape[3] != self._dense.shape[1]:
                raise ValueError(
                    f"{weights} is for pictures of another size than {height} x {width}; set the camera's resize "
                    "to that which it was trained on, of Learn-to-Race [144, 144]"
                )
        if len({image[:2] for image in images}) > 1:
            raise ValueError(
                f"pictures of {list(images)} differ in size, and {weights} is for one; set their resize"
            )
        self.padding = PADDING
        self.latents = len(self._bias)
        """Number of latents per image."""
        self.size = self.latents * len(images)

    def encode(self, pictures: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Return the means (B, size) of images (B, height, width, channels)."""
        return np.concatenate([self._means(picture) for picture in pictures], axis=1)

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """Channels, side and stride of each convolution, in the form of a network's shape."""
        return tuple((weight.shape[3], SIDE, STRIDE) for weight, _ in self._kernels)

    def parts(self, images: Sequence[Image]) -> tuple[NDArray[np.float32], ...]:
        """Return the weights for a network that starts with them, `ActorShape.convolution_parts`."""
        kernels = [part for pair in self._kernels for part in pair]
        channels = self._kernels[-1][0].shape[3]
        parts: list[NDArray[np.float32]] = []
        for height, width, _ in images:
            sides = [size // STRIDE ** len(self._kernels) for size in (height, width)]
            # torch flattens (channels, height, width); networks here flatten (height, width, channels).
            dense = self._dense.reshape(self.latents, channels, *sides).transpose(2, 3, 1, 0)
            parts += [*kernels, dense.reshape(-1, self.latents), self._bias]
        return tuple(parts)

    def _means(self, pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
        hidden: NDArray[np.float32] = pictures.astype(np.float32) * np.float32(1 / 255)
        for weight, bias in self._kernels:
            hidden = convolve(hidden, weight, bias, SIDE, STRIDE, PADDING)
        # torch flattens (channels, height, width).
        flat = hidden.transpose(0, 3, 1, 2).reshape(len(hidden), -1)
        means: NDArray[np.float32] = flat @ self._dense.T + self._bias
        return means


def read_state_dict(path: str) -> Arrays:
    """Return the arrays of a safetensors file or of a state dict saved by torch. Raises ValueError for others."""
    if not Path(path).is_file():
        raise ValueError(
            f"the file {path} does not exist; weights must be readable in each worker (image or mount)"
        )
    try:
        from safetensors.numpy import load_file

        arrays = load_file(path)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError):
        arrays = _read_torch(path)
    return {key: np.asarray(array, np.float32) for key, array in arrays.items()}


def _read_torch(path: str) -> dict[str, Any]:
    """Return the arrays of a torch file; no code in it is executed."""
    import torch

    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    # Its reader raises many kinds of errors for damaged files.
    except Exception as error:
        raise ValueError(f"{path} is neither safetensors nor a state dict of torch: {first_line(error)}") from error
    if not isinstance(saved, dict) or not all(isinstance(part, torch.Tensor) for part in saved.values()):
        raise ValueError(f"{path} holds no state dict: a dictionary of tensors by their names")
    return {str(key): tensor.float().numpy() for key, tensor in saved.items()}


def _kernels(arrays: Arrays, path: str) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Return each kernel (side, side, in, out) and its bias; they have even indices, with a ReLU after each."""
    kernels: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []
    while f"encoder.{2 * len(kernels)}.weight" in arrays or not kernels:
        weight, bias = _pair(arrays, f"encoder.{2 * len(kernels)}", path)
        if weight.ndim != 4 or weight.shape[2:] != (SIDE, SIDE):
            raise ValueError(
                f"{path}: encoder.{2 * len(kernels)} is {weight.shape}, not a kernel of {SIDE} x {SIDE}"
            )
        kernels.append((np.ascontiguousarray(weight.transpose(2, 3, 1, 0)), bias))
    return kernels


def _pair(arrays: Arrays, layer: str, path: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return weight and bias of a layer. Raises ValueError if they are missing or not finite."""
    for key in (f"{layer}.weight", f"{layer}.bias"):
        if key not in arrays:
            raise ValueError(f"{path} has no {key}; it has {', '.join(sorted(arrays)[:8])}")
        if not np.isfinite(arrays[key]).all():
            raise ValueError(f"{path}: {key} holds values that are not finite")
    return arrays[f"{layer}.weight"], arrays[f"{layer}.bias"]
