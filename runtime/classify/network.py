"""The network and its optimiser: small enough that a CPU trains them within a coffee.

Weights, slopes and momentum are one flat tensor each, so that a step of many processes is one sum over the network.
torch's own wrapper for distributed data parallel, and its optimisers, import a compiler first: seconds of a
core for each process in each round, which is more than a round of an elastic job may cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

MOMENTUM: Final = 0.9
WEIGHT_DECAY: Final = 5e-4
_LAYERS: Final = ((16, 2), (32, 1), (64, 1))
"""Channels and stride of each convolution; those of stride 1 are followed by pooling."""


class Classifier(nn.Sequential):
    """Images (count, 3, 32, 32) from 0 to 1 in, logits (count, classes) out."""

    def __init__(self, classes: int) -> None:
        layers: list[nn.Module] = []
        channels = 3
        for width, stride in _LAYERS:
            # Group norm and not batch norm: it has no running means that would depend on how many share a batch.
            layers += [
                nn.Conv2d(channels, width, 3, stride, padding=1, bias=False),
                nn.GroupNorm(4, width),
                nn.ReLU(),
            ]
            if stride == 1:
                layers.append(nn.MaxPool2d(2))
            channels = width
        super().__init__(*layers, nn.Flatten(), nn.Linear(channels * 4 * 4, classes))


class Descent:
    """Gradient descent with momentum and weight decay on all weights of a network at once."""

    def __init__(self, network: nn.Module) -> None:
        parameters = list(network.parameters())
        device = parameters[0].device
        self.weights = torch.cat([each.detach().reshape(-1) for each in parameters])
        self.slopes = torch.zeros(self.weights.numel(), device=device)
        """Of the loss in each weight; `Tensor.backward` adds to them."""
        self.momentum = torch.zeros_like(self.weights)
        first = 0
        for each in parameters:
            part = slice(first, first + each.numel())
            each.data = self.weights[part].view_as(each)
            each.grad = self.slopes[part].view_as(each)
            first = part.stop

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Move the weights against their slopes, and forget those."""
        self.momentum.mul_(MOMENTUM).add_(self.slopes).add_(self.weights, alpha=WEIGHT_DECAY)
        self.weights.add_(self.momentum, alpha=-lr)
        self.slopes.zero_()


def to_images(pixels: NDArray[np.uint8], device: torch.device) -> Tensor:
    """Return pictures of bytes as the network takes them."""
    return torch.from_numpy(pixels).to(device, torch.float32).div_(255.0)


def state(network: Classifier, descent: Descent) -> dict[str, NDArray[Any]]:
    """Return copies of everything that a step changes."""
    arrays = {f"network.{name}": _array(each) for name, each in network.state_dict().items()}
    return {**arrays, "momentum": _array(descent.momentum)}


def load_network(network: Classifier, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Take the network over from what `state` gave. ValueError with a sentence if it is another network's."""
    wanted = {name: tuple(each.shape) for name, each in network.state_dict().items()}
    found = {name.removeprefix("network."): each for name, each in arrays.items() if name.startswith("network.")}
    if wanted != {name: each.shape for name, each in found.items()}:
        raise ValueError("it is of another network, or for another number of classes")
    network.load_state_dict({name: torch.from_numpy(np.array(each)) for name, each in found.items()})


def load_momentum(descent: Descent, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Take the momentum over from what `state` gave; `load_network` has seen that it fits."""
    descent.momentum.copy_(torch.from_numpy(np.array(arrays["momentum"])))


def _array(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().numpy().copy()
    return array
