"""PPO with memory: minibatches are whole segments of some copies, unrolled from the workers' states.

As *The 37 Implementation Details of PPO* (Huang et al. 2022) describes for LSTM: masks reset the states at the ends
of episodes, and the sequences of a minibatch stay in order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.rl.algos.actor_critic import normalised, without_padding
from runtime.rl.algos.networks import joint_gradient
from runtime.rl.algos.ppo import PPO, generalised_advantage, value_error
from runtime.rl.algos.recurrent.actor_critic import RecurrentActorCritic
from runtime.rl.buffers.rollout_buffer import RolloutBatch


class RecurrentPPO(RecurrentActorCritic, PPO):
    """Proximal policy optimisation of a policy with memory."""

    def _minibatch_columns(self, batch: RolloutBatch) -> tuple[tuple[Tensor, ...], int]:
        """Return segment columns (N, T, …) with the states at their starts, and the number of segments per
        minibatch.
        """
        state = self._starting_states(batch)
        observed = (batch.obs, batch.next_obs, self._normalised_reward(batch), batch.ended, state)
        advantage, target = self._targets_with_memory(*observed)
        columns: tuple[Tensor, ...] = (batch.obs, batch.action, batch.log_prob, advantage, target, batch.ended)
        if batch.absent is not None:
            columns = (*columns, batch.absent)
        count = max(1, self.config.minibatch_size // len(batch.obs))
        return (*(column.transpose(0, 1) for column in columns), state), count

    @torch.no_grad()
    def _targets_with_memory(
        self, obs: Tensor, next_obs: Tensor, reward: Tensor, ended: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and value targets, each (T, N)."""
        self._refresh()
        states = self.policy.unroll(obs, ended, state)
        value = self._values(states.flatten(0, 1)).view_as(reward)
        # Not captured, even on a GPU: one pass over the batch, compared with `epochs` captured ones.
        next_value = self._next_values(value, states, next_obs, ended, is_captured=False)
        advantage = generalised_advantage(
            reward, value, next_value, ended, self.config.gamma, self.config.gae_lambda
        )
        return advantage, advantage + value

    def _step(self, *columns: Tensor) -> Tensor:
        """Take one gradient step on whole segments, columns (n, T, …) and states (n, state_size); return
        statistics.
        """
        config, (*by_copy, state) = self.config, columns
        # Rows are steps in time order for the unrolling, then (step, copy) pairs.
        obs, action, log_prob_old, advantage, target, ended, *absent = (
            column.transpose(0, 1) for column in by_copy
        )  # fmt: skip
        self._refresh()
        states = self.policy.unroll(obs, ended, state).flatten(0, 1)
        log_prob, entropy = self.policy.judge(self.policy.head(states), action.flatten(0, 1))
        log_prob_old, advantage, target = (part.flatten() for part in (log_prob_old, advantage, target))
        value = self._values(states)
        # Only the memory reads padding.
        log_prob, entropy, log_prob_old, advantage, target, value = without_padding(
            absent[0] if absent else None, log_prob, entropy, log_prob_old, advantage, target, value
        )
        objective, stats = self._objective(
            log_prob, entropy, log_prob_old, normalised(advantage, self.mean, self.ranks)
        )
        square = value_error(value, target - advantage, target, config.value_clip)

        arenas = self.policy.arena, self.value.arena
        gradient = self.mean(joint_gradient(0.5 * config.value_cost * square - objective, arenas))
        # One norm over both gradients, because the losses share the memory.
        self._descend(gradient, jointly=True)
        policy_loss, mean_entropy, kl, share = stats
        return torch.stack([policy_loss, 0.5 * square.detach(), mean_entropy, kl, share])
