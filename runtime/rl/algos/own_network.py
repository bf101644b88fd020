"""User-defined network, ``package.module:Class``: a torch module between an observation and the hidden layers.

Its parameters take the place of the convolutions' at the front of a network's arena, so they are learned,
published, stored and resumed in the same way. The module itself is a skeleton without weights: each call passes it
those of an arena (`torch.func.functional_call`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.base import bounded_json
from runtime.base.training_rules import network_name
from runtime.rl.class_names import OwnNetwork, load_class
from runtime.rl.spaces import ObsSpace

_PAGE = "docs/own-methods.md shows one"


def own_network(setting: str | Mapping[str, Any] | None, obs: ObsSpace) -> OwnNetwork | None:
    """Return the network that the setting names, for observations of ``obs``; None if the setting is None.

    Raises ValueError with a sentence if the class is not a network.
    """
    if setting is None:
        return None
    options = {"name": setting} if isinstance(setting, str) else dict(setting)
    name = network_name(options)
    options.pop("name")
    text = json.dumps(options, sort_keys=True)
    module = _make(name, text, obs, seed=0)
    size = getattr(module, "size", None)
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"network: {name} has no size, a whole number of what forward gives; {_PAGE}")
    parameters = dict(module.named_parameters())
    if others := sorted(set(module.state_dict()) - set(parameters)):
        raise ValueError(
            f"network: {name} keeps numbers that no loss teaches ({', '.join(others)}), which would not travel to "
            "workers; take layers without running statistics (LayerNorm for BatchNorm)"
        )
    network = OwnNetwork(name, text, size, tuple(tuple(part.shape) for part in parameters.values()))
    _try(network, obs, list(parameters.values()))
    return network


def _try(network: OwnNetwork, obs: ObsSpace, weights: Sequence[Tensor]) -> None:
    """Raise ValueError unless the network returns (2, size) for two observations."""
    pictures = [torch.zeros((2, *image), dtype=torch.uint8) for image in obs.images]
    try:
        with torch.no_grad():
            result: Any = own_features(network, obs, weights, torch.zeros((2, obs.vector)), pictures)
    # User code: the error sentence names the network.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"network: {network.name} fails for observations of zeros ({reason})") from error
    shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
    if shape != (2, network.size):
        raise ValueError(f"network: {network.name} makes {shape} of 2 observations, not {(2, network.size)}")


def _make(name: str, options: str, obs: ObsSpace, seed: int) -> torch.nn.Module:
    """Return the module with the first weights of a seed. Raises ValueError if the class is not a module or
    fails.
    """
    kind = load_class(name)
    if not issubclass(kind, torch.nn.Module):
        raise ValueError(f"network: {name} does not derive from torch.nn.Module; {_PAGE}")  # noqa: TRY004
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module: torch.nn.Module = kind(obs.vector, obs.images, **bounded_json.loads(options))
        # User code checks its own options; the error sentence names the network.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"network: {name} cannot be made with {options} ({reason})") from error
    # Without dropout: the learner must compute the same action probabilities as the workers.
    return module.eval()


def first_weights(network: OwnNetwork, obs: ObsSpace, seed: int) -> list[Tensor]:
    """Return the network's initial weights, in the order of its parts."""
    return [weight.detach() for weight in _make(network.name, network.options, obs, seed).parameters()]


_skeletons = threading.local()
"""Modules by network, observation and device. A call writes weights into its module, so each thread has its own."""


def _skeleton(network: OwnNetwork, obs: ObsSpace, device: torch.device) -> tuple[torch.nn.Module, tuple[str, ...]]:
    """Return the module and the names of its parameters; created at the first call."""
    made: dict[Any, tuple[torch.nn.Module, tuple[str, ...]]] = _skeletons.__dict__.setdefault("made", {})
    key = network, obs, device
    if key not in made:
        module = _make(network.name, network.options, obs, seed=0).to(device)
        made[key] = module, tuple(name for name, _ in module.named_parameters())
    return made[key]


def own_features(
    network: OwnNetwork, obs: ObsSpace, weights: Sequence[Tensor], vector: Tensor, pictures: Sequence[Tensor]
) -> Tensor:
    """(B, size) features of vectors (B, vector) and byte images (B, height, width, channels), with ``weights``."""
    module, names = _skeleton(network, obs, vector.device)
    dtype = weights[0].dtype if weights else torch.float32
    images = [picture.permute(0, 3, 1, 2).to(dtype) / 255.0 for picture in pictures]
    features: Tensor = torch.func.functional_call(
        module, dict(zip(names, weights, strict=True)), (vector.to(dtype), images)
    )
    return features


@torch.no_grad()
def numpy_features(
    network: OwnNetwork,
    obs: ObsSpace,
    weights: Sequence[NDArray[np.float32]],
    vector: NDArray[np.float32],
    pictures: Sequence[NDArray[np.uint8]],
) -> NDArray[np.float32]:
    """(B, size) features of observations in a worker's format."""
    # Copies: the weights may be read-only memory of the learner, which torch would treat as writable.
    tensors = [torch.from_numpy(weight.copy()) for weight in weights]
    images = [torch.from_numpy(np.ascontiguousarray(picture)) for picture in pictures]
    features: NDArray[np.float32] = own_features(
        network, obs, tensors, torch.from_numpy(np.array(vector, np.float32)), images
    ).numpy()
    return features
