"""Memory states of a policy, one per copy of an environment, for workers and evaluators."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.rl.algos.actor import NumpyActor


class CopyStates:
    """Policy with the memory state of each copy; without memory just the policy.

    `outputs` computes the next states and `advance` stores them once the environment was stepped: a step that did
    not happen leaves the states unchanged.
    """

    def __init__(self, actor: NumpyActor, copies: int) -> None:
        self._actor = actor
        size = actor.shape.memory.state_size if actor.shape.memory is not None else 0
        self._is_recurrent = size > 0
        self.state = np.zeros((copies, size), np.float32)
        """(copies, state_size) before the next step; zeros at the start of an episode."""
        self._following = self.state

    def outputs(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """(copies, `ActorShape.answer_floats`) for the current observations (copies, obs_dim)."""
        if not self._is_recurrent:
            return self._actor.outputs(obs)
        out, self._following = self._actor.recurrent_outputs(obs, self.state)
        return out

    def act(self, obs: NDArray[Any], rng: np.random.Generator | None) -> NDArray[Any]:
        """Actions as `NumpyActor.act` draws them."""
        return self._actor.draw(self.outputs(obs), rng)

    def advance(self, ended: NDArray[np.bool_]) -> None:
        """Store the states of the latest `outputs`, with zeros where an episode ended. ``ended`` is (copies,)."""
        if self._is_recurrent:
            self.state = self._following * ~ended[:, None]

    def reset(self) -> None:
        """Start an episode in every copy."""
        self.state = np.zeros_like(self.state)
