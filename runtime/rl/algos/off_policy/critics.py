"""Twin Q functions: of a given action, or of each available choice."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.networks import Arena, Network, encode, fill_kernels, fill_uniform


class TwinNetwork:
    """Two networks of equal shape after one encoder, evaluated together by batched products.

    The encoder's kernels are at the front of the arena, as in an actor's, so that one copy shares them. With a
    memory both networks read its output, and one trunk of hidden layers and cell comes before it.
    """

    def __init__(
        self,
        shape: ActorShape,
        inputs: int,
        outputs: int,
        generator: torch.Generator,
        device: str,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """``inputs`` is the number of inputs besides the features, ``outputs`` the number of outputs of each
        network.
        """
        self.shape = shape
        reads = shape.features if shape.memory is None else shape.memory.size
        widths = (reads + inputs, *shape.hidden, outputs)
        parts = [part for i, o in pairwise(widths) for part in ((2, i, o), (2, 1, o))]
        front, moments = [*shape.convolution_parts, *shape.trunk_parts], shape.moment_parts
        self.arena = Arena([*front, *parts, *moments], device, dtype, exact=len(moments))
        self.moments = self.arena.begin_moments(shape)
        kernels, count, end = len(shape.convolution_parts), len(front), len(front) + len(parts)
        self.kernels, dense = self.arena.parameters[:kernels], self.arena.parameters[count:end]
        self.layers = list(zip(dense[::2], dense[1::2], strict=True))
        """Weight and bias of each dense layer, of both networks."""
        fill_kernels(shape, self.arena.weights[:kernels], generator)
        for weight in self.arena.weights[count:end:2]:
            fill_uniform(weight, weight.shape[1], generator)

    def features(self, rows: Tensor) -> Tensor:
        """Return (B, features) of observations (B, obs_dim)."""
        return encode(self.shape, self.kernels, rows, self.moments)

    def values(self, rows: Tensor) -> Tensor:
        """Return (2, B, outputs) of both networks for rows (B, features + inputs)."""
        # One batched product for both: half the kernel launches of two networks.
        weight, bias = self.layers[-1]
        hidden = rows.to(weight.dtype).expand(2, -1, -1)
        for inner, offset in self.layers[:-1]:
            hidden = torch.baddbmm(offset, hidden, inner).relu_()
        return torch.baddbmm(bias, hidden, weight).float()


class TwinCritic(TwinNetwork):
    """Q functions of a state and an action."""

    def __init__(
        self, shape: ActorShape, generator: torch.Generator, device: str, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(shape, shape.act_dim, 1, generator, device, dtype)

    def __call__(self, features: Tensor, action: Tensor) -> Tensor:
        """Return (2, B) values of ``action`` (B, act_dim) given ``features`` (B, features), or a memory's
        output.
        """
        dtype = self.arena.parameters[0].dtype
        return self.values(torch.cat([features.to(dtype), action.to(dtype)], dim=1)).squeeze(2)


def share_kernels(critic: TwinNetwork, actor: Network) -> None:
    """Copy the critics' convolutions to the actor: only the critics' loss trains them (Kostrikov et al. 2020)."""
    size = sum(kernel.numel() for kernel in critic.kernels)
    if size:
        actor.arena.flat[:size].copy_(critic.arena.flat[:size])


class ChoiceCritic(TwinNetwork):
    """Q functions of a state that return the value of every choice."""

    def __init__(
        self, shape: ActorShape, generator: torch.Generator, device: str, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(shape, 0, sum(shape.choices), generator, device, dtype)

    def __call__(self, features: Tensor) -> Tensor:
        """Return (2, B, choices) values of all choices given ``features`` (B, features)."""
        return self.values(features)
