"""PPO and IMPALA with memory: one memory read by policy and value, trained by both losses.

Without memory, policy and value are separate networks. With memory the value reads the policy's memory, as in
IMPALA's paper and in CleanRL's ppo_atari_lstm.py: workers carry one state, and both losses train it. The state at
the start of each segment is the worker's (the stored state of Kapturowski et al. 2019, R2D2, section 3). There is
no burn-in, because segments are used soon after they were collected.

Minibatches of PPO are whole segments of some copies. As *The 37 Implementation Details of PPO* (Huang et al. 2022)
describes for LSTM, masks reset the states at the ends of episodes, and the sequences of a minibatch stay in order.
IMPALA applies V-trace to whole segments (section 3.1).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.actor_critic import ActorCritic, normalised, with_entropy, without_padding
from runtime.rl.algos.impala import Impala, v_trace
from runtime.rl.algos.networks import Network, Policy, joint_gradient
from runtime.rl.algos.ppo import PPO, generalised_advantage, value_error
from runtime.rl.algos.recurrent.policy import RecurrentPolicy, starting_states, value_head
from runtime.rl.buffers.ring_index import TRUNCATED
from runtime.rl.buffers.rollout_buffer import RolloutBatch


class RecurrentActorCritic(ActorCritic):
    """Policy with memory, and a value head: one layer on the same memory."""

    policy: RecurrentPolicy

    def _networks(
        self, shape: ActorShape, generator: torch.Generator, device: str, dtype: torch.dtype
    ) -> tuple[Policy, Network]:
        policy = RecurrentPolicy(shape, generator, device, dtype)
        return policy, value_head(policy.memory, generator, device)

    def _starting_states(self, batch: RolloutBatch) -> Tensor:
        """(N, state_size) states of the workers at the start of each segment."""
        assert batch.state is not None  # noqa: S101  (the layout of such a run has the column)
        return starting_states(batch.state, self.policy.memory.state_size)

    def values(self, states: Tensor) -> Tensor:
        """(B,) values of states (B, state_size) after an observation."""
        return self.value.head(states[:, : self.policy.memory.size]).squeeze(1)

    @torch.no_grad()
    def next_values(
        self, values: Tensor, states: Tensor, next_obs: Tensor, ended: Tensor, *, is_captured: bool
    ) -> Tensor:
        """(T, N) values of what followed each step, before any reset; arbitrary after a termination.

        Args:
            values: (T, N) of each step. states: (T, N, state_size) after each step.
            is_captured: see `runtime.rl.algos.actor_critic.following_values`.
        """
        following = torch.cat([values[1:], values[-1:]])
        is_computed_again = ended == TRUNCATED
        is_computed_again[-1].fill_(True)
        if is_captured:
            again = self.policy.follow(next_obs.flatten(0, 1), states.flatten(0, 1))
            return torch.where(is_computed_again, self.values(again).view_as(values), following)
        # The memory advances over the observation after the step, which is not part of any segment.
        again = self.policy.follow(next_obs[is_computed_again], states[is_computed_again])
        following[is_computed_again] = self.values(again)
        return following


class RecurrentPPO(RecurrentActorCritic, PPO):
    """Proximal policy optimisation of a policy with memory."""

    def minibatch_columns(self, batch: RolloutBatch) -> tuple[tuple[Tensor, ...], int]:
        """Return segment columns (N, T, …) with the states at their starts, and the number of segments per
        minibatch.
        """
        state = self._starting_states(batch)
        observed = (batch.obs, batch.next_obs, self.normalised_reward(batch), batch.ended, state)
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
        value = self.values(states.flatten(0, 1)).view_as(reward)
        # Not captured, even on a GPU: one pass over the batch, compared with `epochs` captured ones.
        next_value = self.next_values(value, states, next_obs, ended, is_captured=False)
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
        value = self.values(states)
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


class RecurrentImpala(RecurrentActorCritic, Impala):
    """IMPALA with memory, or APPO if ``clip`` is set."""

    def gradient(self, batch: RolloutBatch, *, is_captured: bool = False) -> tuple[Tensor, Tensor]:
        """Return the gradient of the losses (policy size + value size,), and the statistics."""
        config = self.config
        self._refresh()
        states = self.policy.unroll(batch.obs, batch.ended, self._starting_states(batch))
        rows = states.flatten(0, 1)
        values = self.values(rows)
        value = values.detach().view_as(batch.reward)
        next_value = self.next_values(value, states, batch.next_obs, batch.ended, is_captured=is_captured)
        log_prob, entropy = self.policy.judge(self.policy.head(rows), batch.action.flatten(0, 1))
        ratio = (log_prob.detach() - batch.log_prob.flatten()).exp()
        reward, ratios = config.reward_scale * batch.reward, ratio.view_as(batch.reward)
        bounds = {"gamma": config.gamma, "rho_bar": config.rho_bar, "c_bar": config.c_bar}
        vs, advantage = v_trace(reward, value, next_value, batch.ended, ratios, **bounds)
        vs, advantage = vs.flatten(), advantage.flatten()
        log_prob, entropy, ratio, advantage, values, vs = without_padding(
            batch.absent, log_prob, entropy, ratio, advantage, values, vs
        )
        mean_entropy = entropy.mean()
        objective, policy_loss = self._policy_objective(log_prob, ratio, advantage)
        square = mse_loss(values, vs)

        loss = 0.5 * config.value_cost * square - with_entropy(objective, mean_entropy, config.entropy_cost)
        gradient = joint_gradient(loss, (self.policy.arena, self.value.arena))
        stats = (policy_loss, 0.5 * square.detach(), mean_entropy, ratio.mean())
        return gradient, torch.stack([part.detach() for part in stats])
