"""Policy network in torch, forward only, on the learner's device: for remote inference of large policies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.networks import Network


class DeviceActor:
    """Forward pass with the outputs of `NumpyActor.outputs`, to rounding."""

    def __init__(self, shape: ActorShape, device: str) -> None:
        self.shape = shape
        self._device = device
        self._network = Network(shape, torch.Generator().manual_seed(0), device)

    def load(self, arena: NDArray[np.float32]) -> None:
        """Copy weights in; those that acting does not need (a value network's) are dropped."""
        with torch.no_grad():
            self._network.arena.flat.copy_(torch.from_numpy(arena[: self.shape.policy_size]))

    @torch.no_grad()
    def outputs(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """(B, `shape.answer_floats`) for observations (B, obs_dim)."""
        outputs = self._network(torch.tensor(obs).to(self._device))
        if self.shape.head == "gaussian":
            outputs = torch.cat([outputs, self._network.arena.parameters[-1].expand(len(outputs), -1)], dim=1)
        return outputs.cpu().numpy()
