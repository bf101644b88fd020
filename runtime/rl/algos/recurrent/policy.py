"""Networks with memory in torch, unrolled over whole segments, and the value that reads a policy's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.memory import Memory
from runtime.rl.algos.networks import Actor, Arena, Network, Policy, encode, fill_orthogonal, hidden_layers
from runtime.rl.buffers.successors import GOES_ON

_FORGET: Final = 1
"""Place of the forget gate among those of an LSTM."""


class Unrolled:
    """Part of a network that is unrolled over steps: encoder, hidden layers and recurrent cell."""

    shape: ActorShape
    arena: Arena
    kernels: list[Tensor]
    moments: list[Tensor]

    def _begin_memory(
        self, trunk: Sequence[tuple[Tensor, Tensor]], first_of_cell: int, generator: torch.Generator
    ) -> None:
        """Take weight and bias of each hidden layer, and the cell that begins at a parameter; draw its weights."""
        assert self.shape.memory is not None  # noqa: S101  (the plan takes these classes for networks with memory)
        self.memory: Memory = self.shape.memory
        self._trunk = trunk
        cell = slice(first_of_cell, first_of_cell + len(self.shape.cell_parts))
        self._cell = self.arena.parameters[cell]
        size, weights = self.memory.size, self.arena.weights[cell]
        for weight in weights[:2]:
            for gate in torch.split(weight, size, dim=1):
                fill_orthogonal(gate, 1.0, generator)
        if self.memory.kind == "lstm":
            # It remembers until it has learned what to forget (Jozefowicz et al. 2015, section 2.2).
            weights[2].detach()[_FORGET * size : (_FORGET + 1) * size].fill_(1.0)

    def unroll(self, obs: Tensor, ended: Tensor, state: Tensor) -> Tensor:
        """(T, N, state_size) states behind each step, of observations (T, N, obs_dim).

        Args:
            ended: (T, N) 0 where the episode goes on; behind all other steps the state begins at zero.
            state: (N, state_size) before the first step.
        """
        sent = self._sent(obs)
        runs_on = (ended == GOES_ON).to(state.dtype).unsqueeze(2)
        states: list[Tensor] = []
        for row, keep in zip(sent.unbind(), runs_on.unbind(), strict=True):
            states.append(self._step(row, state))
            # The product also ends the gradient there: nothing of an episode depends on the one before it.
            state = states[-1] * keep
        return torch.stack(states)

    def follow(self, obs: Tensor, states: Tensor) -> Tensor:
        """(B, state_size) one step on from ``states`` (B, state_size), with observations (B, obs_dim)."""
        return self._step(self._sent(obs), states)

    def _sent(self, obs: Tensor) -> Tensor:
        """(…, gates) part of the gates that does not depend on the state, of all steps in one product."""
        shape, (inner, _, bias, _) = self.shape, self._cell
        features = encode(shape, self.kernels, obs.flatten(0, -2), self.moments)
        hidden = hidden_layers(shape, self._trunk, features.to(inner.dtype))
        return torch.addmm(bias, hidden, inner).float().view(*obs.shape[:-1], -1)

    def _step(self, sent: Tensor, state: Tensor) -> Tensor:
        """(N, state_size) behind ``state``, as `Memory.step` has it; ``sent`` (N, gates)."""
        size, (_, across, _, bias) = self.memory.size, self._cell
        hidden = state[:, :size]
        back = torch.addmm(bias, hidden.to(across.dtype), across).float()
        if self.memory.kind == "lstm":
            gates = sent + back
            gate_in, gate_forget, candidate, gate_out = gates.chunk(4, dim=1)
            cells = gate_forget.sigmoid() * state[:, size:] + gate_in.sigmoid() * candidate.tanh()
            return torch.cat([gate_out.sigmoid() * cells.tanh(), cells], dim=1)
        reset, update = (sent[:, : 2 * size] + back[:, : 2 * size]).sigmoid().chunk(2, dim=1)
        candidate = torch.addcmul(sent[:, 2 * size :], reset, back[:, 2 * size :]).tanh()
        return torch.lerp(candidate, hidden, update)


class RecurrentNetwork(Unrolled, Network):
    """Encoder, hidden layers, recurrent cell and last layer; laid out as ``NumpyActor`` reads it."""

    def head(self, states: Tensor) -> Tensor:
        """(B, outputs) of the last layer for states (B, state_size)."""
        weight, bias = self.layers[-1]
        return torch.addmm(bias, states[:, : self.memory.size].to(weight.dtype), weight).float()

    def _begin(self, generator: torch.Generator) -> None:
        count = len(self.shape.convolution_parts) + 2 * len(self.shape.layers)
        self._begin_memory(self.layers[:-1], count, generator)


class RecurrentPolicy(RecurrentNetwork, Policy):
    """Policy of an on-policy method with memory."""

    def __init__(
        self, shape: ActorShape, generator: torch.Generator, device: str, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(shape, generator, device, dtype)
        self._begin(generator)


class RecurrentActor(RecurrentNetwork, Actor):
    """Policy of soft actor-critic with memory: a squashed Gaussian, or logits."""

    def __init__(
        self, shape: ActorShape, generator: torch.Generator, device: str, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(shape, generator, device, dtype=dtype)
        # The critics' loss alone teaches the kernels: what a policy sees through them is a fact to it.
        self.kernels = [kernel.detach() for kernel in self.kernels]
        self._begin(generator)


def value_head(memory: Memory, generator: torch.Generator, device: str) -> Network:
    """Return the layer that makes a value (B, 1) of a memory's outputs (B, size)."""
    shape = ActorShape(memory.size, 1, (), head="categorical", choices=(1,))
    return Network(shape, generator, device, last_gain=1.0)


def starting_states(column: Tensor, size: int) -> Tensor:
    """(N, size) states at the beginning of segments, of a column (T, N, width) that `spread_states` has written."""
    return column.transpose(0, 1).flatten(1)[:, :size]


def joint_gradient(loss: Tensor, arenas: Sequence[Arena]) -> Tensor:
    """(sum of sizes,) gradient with respect to the parameters of several arenas, in one pass backward."""
    parameters = [parameter for arena in arenas for parameter in arena.parameters]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    parts, start = [], 0
    for arena in arenas:
        parts.append(arena.flattened(gradients[start : start + len(arena.parameters)]))
        start += len(arena.parameters)
    return torch.cat(parts)
