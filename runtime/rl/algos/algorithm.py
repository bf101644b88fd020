"""Interface of a learning algorithm: batches in, statistics and weights out, and a state that resumes exactly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.networks import Arena
from runtime.rl.algos.optimisers import Adam
from runtime.rl.device.accelerator import check_generator, load_generator, saved_generators
from runtime.rl.device.captured import CapturedByShape


class Stats:
    """Statistics of one update: the base of frozen dataclasses with slots, whose fields are 0-d tensors."""

    __slots__: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Tensor) -> Self:
        """Return the statistics in a vector as copies: a captured update overwrites the vector."""
        return cls(*values.clone().unbind())

    def floats(self) -> dict[str, float]:
        """Return the statistics by name as numbers; on a GPU this waits for it, so callers decide when to read
        them.
        """
        values: list[float] = torch.stack([getattr(self, name) for name in self.__slots__]).tolist()
        return dict(zip(self.__slots__, values, strict=True))


class HasKernels(Protocol):
    """Network whose arena starts with the parameters of its encoder."""

    arena: Arena


class Algorithm(ABC):
    """Learning algorithm: its tensors, generators and number of updates."""

    def __init__(self, shape: ActorShape, capture: bool | None = None) -> None:
        """``capture`` is ``enabled`` of `runtime.rl.device.captured.CapturedByShape`."""
        self.shape = shape
        self.capture = capture
        self.updates = 0
        self.mean: Callable[[Tensor], Tensor] = lambda value: value
        """Mean of a tensor over all ranks that share a batch; set by ``runtime.rl.roles.ranks``."""
        self.ranks = 1
        """Number of these ranks, each with an equal share of the rows."""
        self.td_error = torch.empty(0)
        """(B,) absolute errors of the latest batch, from which `prioritised` computes priorities. Set by methods
        that learn from a replay; empty if the batch was drawn uniformly. The next update may overwrite it.
        """

    @abstractmethod
    def update(self, batch: Any, /) -> Stats:
        """Learn from one batch (replay, rollouts or gradients, as the algorithm needs)."""

    def on_evaluation(self, figures: Mapping[str, Any]) -> None:  # noqa: B027  (nothing to do by default)
        """Take note of an evaluation, the fields of its record by name; called between two updates."""

    @abstractmethod
    def policy_weights(self) -> Tensor:
        """Return the policy's parameters, (shape.size,)."""

    def begin_with(self, weights: Tensor) -> None:
        """Start with another run's policy, weights (shape.size,); before the first update."""
        self.policy_weights().detach().copy_(weights)

    def networks(self) -> Sequence[HasKernels]:
        """Return the networks with the same input as the policy: each starts with the weights of a pretrained
        encoder.
        """
        return ()

    def begin_with_kernels(self, kernels: Sequence[NDArray[np.float32]]) -> None:
        """Start with the weights of an encoder, `ActorShape.convolution_parts`; before the first update."""
        for network in self.networks():
            for weight, kernel in zip(network.arena.weights, kernels, strict=False):
                weight.detach().copy_(torch.from_numpy(kernel))

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that an update changes, by its name in a checkpoint."""

    def generators(self) -> dict[str, torch.Generator]:
        """Return every generator that an update draws from, by its name in a checkpoint; none by default."""
        return {}

    def captured(self, function: Callable[..., Any]) -> CapturedByShape:
        """Return a part of an update, which changes `tensors` and draws from `generators`, as CUDA graphs."""
        return CapturedByShape(
            function,
            generators=lambda: tuple(self.generators().values()),
            state=lambda: tuple(self.tensors().values()),
            enabled=self.capture,
        )

    def actor_arena(self) -> NDArray[np.float32]:
        """Copy the policy's weights, in the layout of ``runtime.rl.algos.actor``."""
        arena: NDArray[np.float32] = self.policy_weights().detach().cpu().numpy().copy()
        return arena

    def live_state(self) -> dict[str, Tensor]:
        """Return the whole state that the next update depends on, by flat names, as the tensors that updates
        change.
        """
        live = {name: tensor.detach() for name, tensor in self.tensors().items()}
        return live | saved_generators(self.generators()) | {"updates": torch.tensor(self.updates)}

    def state(self) -> dict[str, Tensor]:
        """Return a copy of `live_state`: contiguous tensors on the CPU."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.live_state().items()}

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Raise ValueError with a sentence unless `load_state` would accept ``state``."""
        tensors, generators = self.tensors(), self.generators()
        for name in (*tensors, *generators, "updates"):
            if name not in state:
                raise ValueError(f"the saved state has no {name!r}; it is not one of this algorithm")
        for name, tensor in tensors.items():
            saved = state[name]
            if saved.shape != tensor.shape:
                raise ValueError(
                    f"the saved {name} has shape {tuple(saved.shape)} and this run needs {tuple(tensor.shape)}; "
                    "resume with the same environment and hidden layers"
                )
            # Not equality: step counts were integers in earlier versions.
            if not torch.can_cast(saved.dtype, tensor.dtype):
                raise ValueError(f"the saved {name} is {saved.dtype} and this run needs {tensor.dtype}")
        for name, generator in generators.items():
            check_generator(name, generator, state)
        if state["updates"].numel() != 1:
            raise ValueError(f"the saved count of updates is {tuple(state['updates'].shape)} numbers")

    def load_state(self, state: Mapping[str, Tensor]) -> list[str]:
        """Load what ``state`` returned, on this or another device.

        On the same type of device, the following updates are bit for bit those of an uninterrupted run. On another
        they draw other random numbers; then a sentence about that is returned.

        Raises ValueError, with nothing changed, if a tensor is missing, has another shape or type, or is not a
        generator state.
        """
        self.check_state(state)
        # In place: optimisers, views and captured graphs refer to these tensors by address.
        for name, tensor in self.tensors().items():
            tensor.detach().copy_(state[name])
        notes = [load_generator(name, generator, state) for name, generator in self.generators().items()]
        self.updates = int(state["updates"])
        return [note for note in notes if note is not None]


def optimiser_tensors(optimisers: Mapping[str, Adam]) -> dict[str, Tensor]:
    """Return the tensors of each optimiser by name."""
    states = {name: optimiser.tensors() for name, optimiser in optimisers.items()}
    return {f"{name}.{part}": tensor for name, state in states.items() for part, tensor in state.items()}
