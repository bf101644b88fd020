"""Policy as a self-contained torch module: observations by part in, the most likely action out."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.networks import Network, dense_layers, encode_parts


class PortablePolicy(torch.nn.Module):
    """Policy with the given weights, stored as buffers of the module.

    Inputs are the vector (B, vector) if there is one, then each image (B, height, width, channels) of bytes.
    """

    def __init__(self, shape: ActorShape, weights: NDArray[np.float32]) -> None:
        super().__init__()
        network = Network(shape, torch.Generator().manual_seed(0), "cpu")
        network.arena.flat.copy_(torch.from_numpy(weights[: shape.policy_size]))
        self._shape = shape
        self._count = len(shape.parts)
        for number, part in enumerate(network.arena.weights):
            self.register_buffer(f"part_{number}", part.detach().clone())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions (B, act_dim), and all numbers they are drawn from, (B, `ActorShape.answer_floats`)."""
        shape = self._shape
        parts = [self.get_buffer(f"part_{number}") for number in range(self._count)]
        count, end = len(shape.convolution_parts), len(shape.convolution_parts) + 2 * len(shape.layers)
        moments = parts[self._count - len(shape.moment_parts) :]
        vector, pictures = self._split(inputs)
        features = encode_parts(shape, parts[:count], vector, pictures, moments)
        dense = parts[count:end]
        out = dense_layers(shape, list(zip(dense[::2], dense[1::2], strict=True)), features)
        answer = torch.cat([out, parts[end].expand(out.shape[0], -1)], dim=1) if shape.draw_size else out
        if shape.head == "gaussian":
            return out, answer
        if shape.head == "deterministic":
            return out.tanh(), answer
        if shape.head == "squashed":
            return out[:, : shape.act_dim].tanh(), out
        groups = torch.split(out, list(shape.choices), dim=1)
        return torch.stack([logits.argmax(dim=1) for logits in groups], dim=1), answer

    def _split(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        if self._shape.obs_space.vector:
            return inputs[0], inputs[1:]
        return inputs[0].new_zeros((inputs[0].shape[0], 0), dtype=torch.float32), inputs
