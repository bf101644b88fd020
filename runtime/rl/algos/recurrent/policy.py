"""Networks with memory in torch, unrolled over whole segments, and the value that reads a policy's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.memory import Memory
from runtime.rl.algos.networks import (
    Actor,
    Arena,
    Network,
    Policy,
    encode,
    fill_orthogonal,
    hidden_layers,
    one_value,
)
from runtime.rl.buffers.ring_index import GOES_ON

_FORGET: Final = 1
"""Index of the forget gate among the gates of an LSTM."""


class Unrolled:
    """Part of a network that is unrolled over steps: encoder, hidden layers and recurrent cell."""

    shape: ActorShape
    arena: Arena
    kernels: list[Tensor]
    moments: list[Tensor]

    def _begin_memory(
        self, trunk: Sequence[tuple[Tensor, Tensor]], first_of_cell: int, generator: torch.Generator
    ) -> None:
        """Take weight and bias of each hidden layer and the cell, starting at a parameter; draw the cell's
        weights.
        """
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
            # Start by remembering everything (Jozefowicz et al. 2015, section 2.2).
            weights[2].detach()[_FORGET * size : (_FORGET + 1) * size].fill_(1.0)

    def unroll(self, obs: Tensor, ended: Tensor, state: Tensor) -> Tensor:
        """(T, N, state_size) states after each step, for observations (T, N, obs_dim).

        Args:
            ended: (T, N) 0 if the episode continues; after any other value the state restarts at zero.
            state: (N, state_size) before the first step.
        """
        sent = self._sent(obs)
        runs_on = (ended == GOES_ON).to(state.dtype).unsqueeze(2)
        states: list[Tensor] = []
        for row, keep in zip(sent.unbind(), runs_on.unbind(), strict=True):
            states.append(self._step(row, state))
            # The product also stops the gradient: no step of an episode depends on the episode before it.
            state = states[-1] * keep
        return torch.stack(states)

    def follow(self, obs: Tensor, states: Tensor) -> Tensor:
        """(B, state_size) states one step after ``states`` (B, state_size), with observations (B, obs_dim)."""
        return self._step(self._sent(obs), states)

    def _sent(self, obs: Tensor) -> Tensor:
        """(…, gates) the part of the gates that does not depend on the state, for all steps in one product."""
        shape, (inner, _, bias, _) = self.shape, self._cell
        features = encode(shape, self.kernels, obs.flatten(0, -2), self.moments)
        hidden = hidden_layers(shape, self._trunk, features.to(inner.dtype))
        return torch.addmm(bias, hidden, inner).float().view(*obs.shape[:-1], -1)

    def _step(self, sent: Tensor, state: Tensor) -> Tensor:
        """(N, state_size) states after ``state``, as in `Memory.step`; ``sent`` is (N, gates)."""
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
    """Encoder, hidden layers, recurrent cell and last layer, in ``NumpyActor``'s layout."""

    def head(self, states: Tensor) -> Tensor:
        """(B, outputs) of the last layer for states (B, state_size)."""
        return self.last(states[:, : self.memory.size])

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
        # Only the critics' loss trains the kernels; the policy's loss does not reach them.
        self.kernels = [kernel.detach() for kernel in self.kernels]
        self._begin(generator)


def value_head(memory: Memory, generator: torch.Generator, device: str) -> Network:
    """Return the layer that computes a value (B, 1) from a memory's outputs (B, size)."""
    return Network(one_value(memory.size), generator, device, last_gain=1.0)


def starting_states(column: Tensor, size: int) -> Tensor:
    """(N, size) states at the start of segments, from a column (T, N, width) that `spread_states` wrote."""
    return column.transpose(0, 1).flatten(1)[:, :size]
