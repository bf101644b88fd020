"""Image classifier and its optimiser, small enough to train on a CPU in minutes.

Weights, gradients and momentum are one flat tensor each, so that an all-reduce is one call. torch's
DistributedDataParallel and `torch.optim` classes first import a compiler: in each round that takes seconds of a
core per process, more than a round of an elastic job may cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from runtime.rl.algos.optimisers import Momentum

MOMENTUM: Final = 0.9
WEIGHT_DECAY: Final = 5e-4
_LAYERS: Final = ((16, 2), (32, 1), (64, 1))
"""Channels and stride of each convolution; convolutions with stride 1 are followed by pooling."""


class Classifier(nn.Sequential):
    """Maps images (count, 3, 32, 32) in [0, 1] to logits (count, classes)."""

    def __init__(self, classes: int) -> None:
        layers: list[nn.Module] = []
        channels = 3
        for width, stride in _LAYERS:
            # Group norm and not batch norm, whose running means would depend on how many processes share a batch.
            convolution = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
            layers += [convolution, nn.GroupNorm(4, width), nn.ReLU()]
            if stride == 1:
                layers.append(nn.MaxPool2d(2))
            channels = width
        super().__init__(*layers, nn.Flatten(), nn.Linear(channels * 4 * 4, classes))


class FlatSGD:
    """SGD with momentum and weight decay on all weights of a network as one tensor."""

    def __init__(self, network: nn.Module) -> None:
        parameters = list(network.parameters())
        device = parameters[0].device
        self.weights = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self.gradients = torch.zeros(self.weights.numel(), device=device)
        """(size,) sum of the gradients since the last step; `Tensor.backward` adds to it."""
        self._optimiser = Momentum(self.weights, 0.0, MOMENTUM, WEIGHT_DECAY)
        self.momentum = self._optimiser.mean
        first = 0
        # Parameters and their gradients become views of the flat tensors; autograd then accumulates in place.
        for parameter in parameters:
            part = slice(first, first + parameter.numel())
            parameter.data = self.weights[part].view_as(parameter)
            parameter.grad = self.gradients[part].view_as(parameter)
            first = part.stop

    def step(self, lr: float) -> None:
        """Take one step of size ``lr`` and set the gradients to 0."""
        self._optimiser.lr = lr
        self._optimiser.step(self.gradients)
        self.gradients.zero_()


def to_images(pixels: NDArray[np.uint8], device: torch.device) -> Tensor:
    """Return byte images (B, 3, 32, 32) as float32 in [0, 1] on ``device``."""
    return torch.from_numpy(pixels).to(device, torch.float32).div_(255.0)


def state(network: Classifier, optimiser: FlatSGD) -> dict[str, NDArray[Any]]:
    """Return copies of everything that a step changes."""
    arrays = {f"network.{name}": _array(tensor) for name, tensor in network.state_dict().items()}
    return {**arrays, "momentum": _array(optimiser.momentum)}


def load_network(network: Classifier, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Load the network's part of a result of `state`. Raises ValueError with a sentence if the network differs."""
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    own = {name: tensor for name, tensor in arrays.items() if name.startswith("network.")}
    tensors = {name.removeprefix("network."): tensor for name, tensor in own.items()}
    if shapes != {name: tensor.shape for name, tensor in tensors.items()}:
        raise ValueError("it is of another network, or for another number of classes")
    network.load_state_dict({name: torch.from_numpy(np.array(tensor)) for name, tensor in tensors.items()})


def load_momentum(optimiser: FlatSGD, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Load the momentum of a result of `state`, after `load_network` has checked that it fits."""
    optimiser.momentum.copy_(torch.from_numpy(np.array(arrays["momentum"])))


def _array(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().numpy().copy()
    return array
