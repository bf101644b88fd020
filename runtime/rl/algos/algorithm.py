"""Interface of a learning algorithm: batches in, statistics and weights out, and a state that resumes exactly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.optimisers import Adam


class Stats:
    """Statistics of one update: the base of frozen dataclasses with slots, whose fields are 0-d tensors."""

    __slots__: tuple[str, ...] = ()

    def floats(self) -> dict[str, float]:
        """By name, as numbers; on a GPU this waits for it, so reading them is the caller's choice."""
        return {name: float(getattr(self, name)) for name in self.__slots__}


class Algorithm(ABC):
    """Learning algorithm: its tensors, generators and count of updates."""

    def __init__(self, shape: ActorShape) -> None:
        self.shape = shape
        self.updates = 0
        self.mean: Callable[[Tensor], Tensor] = lambda value: value
        """Mean of a tensor over all devices that share a batch; set by ``runtime.rl.algos.data_parallel``."""

    @abstractmethod
    def update(self, batch: Any, /) -> Stats:
        """Learn from one batch (replay, rollouts or gradients, as the algorithm needs)."""

    @abstractmethod
    def policy_weights(self) -> Tensor:
        """Return the policy's parameters, (shape.size,)."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that an update changes, by the name it has in a checkpoint."""

    def generators(self) -> dict[str, torch.Generator]:
        """Return every generator that an update draws from, by the name it has in a checkpoint; none by default."""
        return {}

    def actor_arena(self) -> NDArray[np.float32]:
        """Copy the policy's weights out, in the layout of ``runtime.rl.algos.actor``."""
        arena: NDArray[np.float32] = self.policy_weights().detach().cpu().numpy().copy()
        return arena

    def live_state(self) -> dict[str, Tensor]:
        """Return all that the next update depends on, by flat names: the tensors that updates go on changing."""
        live = {name: tensor.detach() for name, tensor in self.tensors().items()}
        live |= {name: generator.get_state() for name, generator in self.generators().items()}
        live["updates"] = torch.tensor(self.updates)
        return live

    def state(self) -> dict[str, Tensor]:
        """Return `live_state` as it is now: copies on the CPU, contiguous."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.live_state().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Load what ``state`` returned; the updates that follow are bit for bit those of an uninterrupted run.

        ValueError, with nothing changed, if a tensor is missing or of another shape.
        """
        tensors, generators = self.tensors(), self.generators()
        for name in (*tensors, *generators, "updates"):
            if name not in state:
                raise ValueError(f"the saved state has no {name!r}; it is not one of this algorithm")
            if name in tensors and state[name].shape != tensors[name].shape:
                raise ValueError(
                    f"the saved {name} has shape {tuple(state[name].shape)} and this run needs "
                    f"{tuple(tensors[name].shape)}; resume with the same environment and hidden layers"
                )
        # Only after every check: a state that does not fit leaves the algorithm as it was.
        for name, tensor in tensors.items():
            tensor.detach().copy_(state[name])
        for name, generator in generators.items():
            generator.set_state(state[name])
        self.updates = int(state["updates"])


def optimiser_tensors(optimisers: Mapping[str, Adam]) -> dict[str, Tensor]:
    """Return the tensors of each optimiser by name."""
    states = {name: optimiser.tensors() for name, optimiser in optimisers.items()}
    return {f"{name}.{part}": tensor for name, state in states.items() for part, tensor in state.items()}
