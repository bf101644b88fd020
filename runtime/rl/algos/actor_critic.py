"""Parts that PPO and IMPALA share: a policy, a value network, their optimisers, and values of a rollout."""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.algorithm import Algorithm, optimiser_tensors
from runtime.rl.algos.networks import Network, Policy, value_network
from runtime.rl.algos.optimisers import Adam
from runtime.rl.buffers.rollout_buffer import RolloutBatch


class ActorCritic(Algorithm):
    """Policy and value network without shared weights, each with an Adam of its own."""

    def __init__(self, shape: ActorShape, lr: float, seed: int, device: str) -> None:
        super().__init__(shape)
        initial = torch.Generator().manual_seed(seed)
        # Two networks without a shared trunk: the losses need no common scale then (Andrychowicz et al. 2021).
        self._policy = Policy(shape, initial, device)
        self._value = value_network(shape, initial, device)
        self._optimisers = {"policy": Adam(self._policy.arena.flat, lr), "value": Adam(self._value.arena.flat, lr)}

    def _set_learning_rate(self, lr: float, anneal_updates: int | None) -> None:
        """Lower the step size linearly from ``lr`` over ``anneal_updates`` updates; None keeps it."""
        # Never quite 0: a run that goes on beyond its last annealed update would otherwise learn nothing at all.
        factor = 1.0 if anneal_updates is None else max(1.0 - self.updates / anneal_updates, 1e-3)
        for optimiser in self._optimisers.values():
            optimiser.lr = lr * factor

    def policy_weights(self) -> Tensor:
        """Return the policy's parameters."""
        return self._policy.arena.flat

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that an update changes."""
        networks = {"policy": self._policy.arena.flat, "value": self._value.arena.flat}
        return {**networks, **optimiser_tensors(self._optimisers)}


@torch.no_grad()
def bootstrap_values(value: Network, batch: RolloutBatch) -> tuple[Tensor, Tensor]:
    """(T, N) values of each observation, and of the observation that followed it before any reset."""
    steps, copies = batch.reward.shape
    values = value(batch.obs.flatten(0, 1)).view(steps, copies)
    # Where an episode goes on, the next observation is the next row: its value is computed already. Only rows at an
    # end (the next row belongs to another episode) and the last row are evaluated again.
    next_values = torch.empty_like(values)
    next_values[:-1] = values[1:]
    is_computed_again = batch.ended != 0
    is_computed_again[-1] = True
    next_values[is_computed_again] = value(batch.next_obs[is_computed_again]).squeeze(1)
    return values, next_values
