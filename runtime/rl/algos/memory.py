"""Recurrent memory of a policy: kind and size from a spec, its parameters, and one step in NumPy.

GRU after Cho et al. 2014 (arXiv:1406.1078) and LSTM after Hochreiter & Schmidhuber 1997 with the forget gate of
Gers et al. 2000, both in the form and with the order of gates of `torch.nn.GRUCell` and `torch.nn.LSTMCell`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from runtime.base import replay_memory
from runtime.base.training_rules import MemoryForm

Kind = Literal["gru", "lstm"]
_GATES: Final[Mapping[Kind, int]] = {"gru": 3, "lstm": 4}
"""GRU: reset, update, candidate. LSTM: input, forget, candidate, output."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Recurrent cell between the hidden layers of a policy and its last layer."""

    kind: Kind
    size: int = replay_memory.MEMORY_SIZE
    """Number of outputs, which the last layer reads."""

    @classmethod
    def of(cls, setting: str | Mapping[str, Any] | None) -> Memory | None:
        """Return the memory that the setting ``memory`` names; None without any. ValueError for a wrong one."""
        form = MemoryForm.of(setting)
        return None if form is None else cls(form.kind, form.size)

    @property
    def state_size(self) -> int:
        """Number of values carried from step to step: the outputs, followed by an LSTM's cells."""
        return replay_memory.state_size(self.kind, self.size)

    def parts(self, inputs: int) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the parameters for ``inputs``: weights of inputs and of outputs, then both
        biases.
        """
        width = _GATES[self.kind] * self.size
        return (inputs, width), (self.size, width), (width,), (width,)

    def column_width(self, steps: int) -> int:
        """Return the number of state values stored with each of the ``steps`` of a segment, see `spread_states`."""
        return replay_memory.state_width(self.state_size, steps)

    def step(
        self, parts: Sequence[NDArray[np.float32]], features: NDArray[np.float32], state: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the (B, state_size) states after ``state`` and ``features`` (B, inputs); the outputs come
        first.
        """
        size, (inner, across, inner_bias, across_bias) = self.size, parts
        hidden = state[:, :size]
        sent, back = features @ inner + inner_bias, hidden @ across + across_bias
        if self.kind == "lstm":
            gates = sent + back
            gate_in, gate_forget, gate_out = (_sigmoid(gates[:, g * size : (g + 1) * size]) for g in (0, 1, 3))
            cells = gate_forget * state[:, size:] + gate_in * np.tanh(gates[:, 2 * size : 3 * size])
            return np.concatenate([gate_out * np.tanh(cells), cells], axis=1)
        reset, update = (_sigmoid(sent[:, g] + back[:, g]) for g in (slice(size), slice(size, 2 * size)))
        candidate = np.tanh(sent[:, 2 * size :] + reset * back[:, 2 * size :])
        following: NDArray[np.float32] = candidate + update * (hidden - candidate)
        return following


def _sigmoid(values: NDArray[np.float32]) -> NDArray[np.float32]:
    # Computed with the hyperbolic tangent, which does not overflow.
    result: NDArray[np.float32] = np.float32(0.5) * (np.tanh(np.float32(0.5) * values) + np.float32(1.0))
    return result


def spread_states(states: NDArray[np.float32], column: NDArray[np.float32]) -> None:
    """Write states (N, size) into a segment's column (T * N, width), each spread over the steps of its copy.

    A segment has one state for each copy, but columns have one row for each step. Spread like this, a state takes
    its own size and not T times as much, and its parts stay with their copy when batches are joined and split.
    """
    copies, width = len(states), column.shape[1]
    steps = len(column) // copies
    padded = np.zeros((copies, steps * width), np.float32)
    padded[:, : states.shape[1]] = states
    column.reshape(steps, copies, width)[:] = padded.reshape(copies, steps, width).transpose(1, 0, 2)
