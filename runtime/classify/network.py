"""The network: three convolutions and a linear layer, small enough that a CPU trains it within a coffee."""

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
"""Channels and stride of each convolution, the last two followed by pooling."""


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


def to_images(pixels: NDArray[np.uint8], device: torch.device) -> Tensor:
    """Return pictures of bytes as the network takes them."""
    return torch.from_numpy(pixels).to(device, torch.float32).div_(255.0)


def state(network: Classifier, optimiser: torch.optim.SGD) -> dict[str, NDArray[Any]]:
    """Return copies of everything that a step changes."""
    arrays = {f"network.{name}": _array(each) for name, each in network.state_dict().items()}
    for name, parameter in network.named_parameters():
        momentum = optimiser.state[parameter].get("momentum_buffer")
        arrays[f"momentum.{name}"] = _array(momentum if momentum is not None else torch.zeros_like(parameter))
    return arrays


def load_network(network: Classifier, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Take the network over from what `state` gave. ValueError with a sentence if it is another network's."""
    wanted = network.state_dict()
    found = {name.removeprefix("network."): each for name, each in arrays.items() if name.startswith("network.")}
    if {name: tuple(each.shape) for name, each in wanted.items()} != {n: e.shape for n, e in found.items()}:
        raise ValueError("the snapshot is of another network (another number of classes?)")
    network.load_state_dict({name: torch.from_numpy(np.array(each)) for name, each in found.items()})


def load_momentum(network: Classifier, optimiser: torch.optim.SGD, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Take the optimiser over from what `state` gave; call `load_network` first, which sees that it fits."""
    for name, parameter in network.named_parameters():
        momentum = torch.from_numpy(np.array(arrays[f"momentum.{name}"])).to(parameter)
        optimiser.state[parameter]["momentum_buffer"] = momentum


def _array(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().numpy().copy()
    return array
